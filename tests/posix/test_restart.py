"""A daemon that is started again: what is new works at once, what was open fails with EIO."""

import subprocess
import time

import pytest
from harness import PREFIX, Daemon, python

PROGRAM = """
import errno, os, sys
os.chdir(sys.argv[1])
os.mkdir("sub"); os.chdir("sub")
open("before", "w").write("before")
held = [os.open("before", os.O_RDWR) for _ in range(3)]
os.read(held[0], 2)
def attempt(what, *words):
    try:
        return what(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
print("ready", flush=True)
sys.stdin.readline()
for attempt_number in range(int(sys.argv[2])):
    attempt(os.stat, "before")
print(attempt(os.stat, "before").st_size)
new = attempt(os.open, "after", os.O_CREAT | os.O_RDWR)
print(os.write(new, b"after"), os.pread(new, 5, 0), sorted(os.listdir(".")), os.path.basename(os.getcwd()))
print([attempt(os.read, fd, 1) for fd in held], attempt(os.write, held[0], b"x"), attempt(os.fstat, held[1]))
more = [os.open(name, os.O_RDONLY) for name in ("before", "after") * 3]
print([os.read(fd, 6) for fd in more], [attempt(os.read, fd, 1) for fd in held])
print([attempt(os.close, fd) for fd in held], [attempt(os.close, fd) for fd in more])
sys.stdout.flush()  # or the child writes these lines a second time
pid = os.fork()
if pid == 0:
    print("child", os.pread(new, 5, 0), open("before").read(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(attempt(os.read, held[0], 1), len(open("before").read()))
"""

EXPECTED = [
    "6",
    "5 b'after' ['after', 'before'] sub",
    "['EIO', 'EIO', 'EIO'] EIO EIO",
    "[b'before', b'after', b'before', b'after', b'before', b'after'] ['EIO', 'EIO', 'EIO']",
    "['EIO', 'EIO', 'EIO'] [None, None, None, None, None, None]",
    "child b'after' before",
    "EBADF 6",
]


def restarted(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


@pytest.mark.parametrize("calls", [0, 60], ids=["socket", "memory"])
@pytest.mark.parametrize("isolated", [False, True], ids=["in-process", "isolated"])
def test_a_program_goes_on_after_a_restart(programs, isolated, calls):
    with Daemon(programs, isolated=isolated) as daemon:
        command = daemon.command()
        program = PROGRAM.replace(
            'print("ready"', f'[os.stat("before") for _ in range({calls})]; print("ready"'
        )
        words = [*command, python(), "-c", program, PREFIX, "0"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout.readline() == "ready\n"
            restarted(daemon)
            time.sleep(1.1)
            said, _ = run.communicate("go\n", timeout=60)
        assert said.splitlines() == EXPECTED
        assert (daemon.far / "sub" / "before").read_text() == "before"


def test_a_program_of_another_node_goes_on(programs):
    """The go-between finds the loss with the first call."""
    with Daemon(programs, isolated=True, listen=True) as daemon:
        words = [*daemon.command(), python(), "-c", PROGRAM, PREFIX, "1"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout.readline() == "ready\n"
            restarted(daemon)
            said, _ = run.communicate("go\n", timeout=60)
        assert said.splitlines() == EXPECTED
