"""Opens that come along with earlier ones, from another node: what programs see of files that are
not what they open next, that nothing stays open at the far side, and that a guess leaves no
trace."""

import contextlib
import errno
import fcntl
import os
import random
import resource
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from harness import PREFIX, Daemon, calls, python
from test_node import children, open_files

HERE = Path(__file__).parent
FILES = 60
#: The first of a call, and those that come along with it.
CAME_MAX = 32


@pytest.fixture(scope="module")
def node(programs):
    with Daemon(programs, isolated=True, listen=True, name="zzo-") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def program(node):
    # Where another user can start it.
    program = node.folder / "opens"
    subprocess.run(["cc", "-O1", "-Wall", "-o", program, HERE / "opens.c"], check=True)
    return program


def make(folder: Path) -> list[str]:
    """Plain files; their names in alphabetical order."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = [f"f{number:02}" for number in range(FILES)]
    for number, name in enumerate(names):
        (folder / name).write_text(f"line {number}\n" * (number % 7 + 1) * 20)
    return names


def make_odd(folder: Path) -> list[str]:
    """Among plain files all that is something else."""
    make(folder)
    (folder / "f12").unlink()
    os.mkfifo(folder / "f12")
    (folder / "f20").unlink()
    (folder / "f20").mkdir()
    (folder / "f21").unlink()
    (folder / "f21").symlink_to("f22")
    (folder / "f23").unlink()
    (folder / "f23").symlink_to("nowhere")
    (folder / "f30").write_bytes(random.Random(1).randbytes(300_000))
    (folder / "f31").write_bytes(b"x" * (32 << 10))
    (folder / "f32").write_bytes(b"y" * ((32 << 10) - 1))
    (folder / "f33").write_bytes(b"")
    (folder / "f34").write_bytes(b"")
    os.truncate(folder / "f34", 5000)
    (folder / "f40").chmod(0)
    (folder / "f41").write_bytes(bytes(range(256)) * 100)
    for number in range(42, 50):
        # More than one answer has room for.
        (folder / f"f{number}").write_bytes(b"z" * (20_000 + number))
    os.link(folder / "f50", folder / "f51x")
    return sorted(os.listdir(folder))


def held(node: Daemon, folder: Path) -> list[str]:
    """Files below a folder that the plug-in's processes have open."""
    return sorted(name for name in open_files(children(node.pid)) if name.startswith(f"{folder}/"))


def wait_until(condition, what) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


@pytest.mark.parametrize("user", [None, 65534], ids=["root", "nobody"])
@pytest.mark.parametrize("how", ["listed", "looked", "named"])
def test_files_of_every_kind_are_what_they_are(node, program, how, user):
    """What a program sees directly and forwarded, and that guesses came along."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root becomes another user")
    said = []
    before = calls(node)
    command = node.command()
    more = {}
    if user is not None:
        key = Path(shutil.copy(node.key, node.folder / "key-of-another"))
        os.chown(key, user, user)
        command[command.index("--key") + 1] = str(key)
        more = {"user": user, "group": user, "extra_groups": []}
    for folder in (node.direct / "odd", node.far / "odd"):
        names = make_odd(folder)
        place, start = (folder, []) if folder.parent == node.direct else (f"{PREFIX}/odd", command)
        words = [*start, program, how, place, FILES // 2, "go-on", *(names if how == "named" else [])]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **more)
        assert done.returncode == 0, done.stderr
        said.append(sorted(done.stdout.splitlines()))
    assert said[0] == said[1]
    assert len(said[0]) == len(names) + 2
    # Nobody lists a folder of root's without a trace.
    if (how, user) != ("named", 65534):
        assert calls(node)["px_open_several"] > before["px_open_several"]
    # The far side learns of a program's end a moment later.
    wait_until(lambda: not held(node, node.far / "odd"), lambda: held(node, node.far / "odd"))


class Run:
    """The program, stopped at "ready"; a context manager."""

    def __init__(self, node, program, end, first=12, how="listed") -> None:
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        words = [*node.command(), "sh", "-c", 'echo $$; exec "$@"', "-", program, how]
        words += [f"{PREFIX}/many", str(first), end]
        self.run = subprocess.Popen(list(map(str, words)), text=True, **pipes)
        self.pid = int(self.run.stdout.readline())
        self.lines = []
        while (line := self.run.stdout.readline()) != "ready\n":
            assert line, self.run.stderr.read()
            self.lines.append(line)

    def tell(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        if self.run.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.run.kill()
        if self.run.stdin.closed:
            self.run.wait()
        else:
            self.run.communicate()


def with_guesses(node, program, end) -> Run:
    """A program that has files open at the far side which it has not opened. What came along may
    be too old for its next open, on a busy machine: then it is closed, and less comes with the
    next one."""
    for _ in range(20):
        run = Run(node, program, end)
        # What it closed alone is closed by now, or within a fifth of a second.
        time.sleep(0.5)
        if held(node, node.far / "many"):
            return run
        run.__exit__()
    raise AssertionError("nothing came along")


@pytest.mark.parametrize("end", ["hear", "call", "change", "exec", "fork", "exit", "kill"])
def test_nothing_stays_open_at_the_far_side(node, program, end):
    names = make(node.far / "many")
    with with_guesses(node, program, end) as run:
        opened = [line.split()[0] for line in run.lines]
        open_there = {Path(name).name for name in held(node, node.far / "many")}
        # What it closed meanwhile is among them, and what came before that is not.
        assert open_there <= set(names) and not open_there & set(opened[:-CAME_MAX])
        assert len(open_there) <= CAME_MAX and open_there - set(opened)
        if end == "kill":
            os.kill(run.pid, signal.SIGKILL)
        else:
            run.tell()
        if end == "exit":
            run.run.stdin.close()
        elif end == "hear":
            run.run.stdin.write("x")
            run.run.stdin.flush()
            assert run.run.stdout.readlines()[-1] == "done\n"
        elif end in ("call", "change", "fork"):
            assert run.run.stdout.readline() == "ended\n"
        wait_until(lambda: not held(node, node.far / "many"), lambda: held(node, node.far / "many"))


@pytest.mark.parametrize("end", ["exit", "leave"])
def test_a_guess_opens_no_fifo_and_leaves_no_trace(node, program, end):
    folder = node.far / "many"
    names = make(folder)
    for name in names:
        os.utime(folder / name, (1000, 2000))

    def times(run):
        return [(folder / line.split()[0]).stat().st_atime != 1000 for line in run.lines]

    with with_guesses(node, program, end) as run:
        opened = {line.split()[0] for line in run.lines}
        assert {Path(name).name for name in held(node, folder)} - opened
        # What the program read tells so, where the file system has it so.
        (node.direct / "read").write_text("x" * 100)
        os.utime(node.direct / "read", (1000, 2000))
        (node.direct / "read").read_text()
        moves = (node.direct / "read").stat().st_atime != 1000
        run.tell()
        run.run.stdin.close()
        run.run.wait()
        wait_until(lambda: times(run) == [moves] * len(run.lines), lambda: times(run))
        assert all((folder / name).stat().st_atime == 1000 for name in set(names) - opened)
    shutil.rmtree(folder)
    folder.mkdir()
    for name in names:
        os.mkfifo(folder / name)
    for name in names[:4]:
        (folder / name).unlink()
        (folder / name).write_text("x")
    with Run(node, program, "exit", first=4, how="listed"):
        for name in names[4:]:
            with pytest.raises(OSError) as refused:
                os.open(folder / name, os.O_WRONLY | os.O_NONBLOCK)
            assert refused.value.errno == errno.ENXIO, "nobody reads it"


LOCKS = """
    import fcntl, os, sys
    os.chdir(sys.argv[1])
    names = sorted(os.listdir("."))

    def read(name):
        fd = os.open(name, os.O_RDONLY)
        os.read(fd, 100)
        os.close(fd)

    order = os.listdir(".")
    for name in order[:12]:
        read(name)
    # One that may be open at the far side by now.
    held = os.open(order[14], os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # And one that was closed, and may be closed at the far side later.
    again = os.open(order[11], os.O_RDONLY)
    fcntl.lockf(again, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for name in order[15:40]:
        read(name)
    print(order[14], order[11], flush=True)
    sys.stdin.read(1)
"""


def test_a_guess_takes_no_lock_along(node):
    """A close takes the locks of its process along, so what was opened as a guess must be closed
    before there is one, or not at all."""
    make(node.far / "many")
    words = [*node.command(), python(), "-S", "-c", textwrap.dedent(LOCKS), f"{PREFIX}/many"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        names = run.stdout.readline().split()
        for name in names:
            with (node.far / "many" / name).open("r+") as file, pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run.communicate("x")
    assert run.returncode == 0 and len(names) == 2


KEEPS = """
    import os, sys
    os.chdir(sys.argv[1])
    kept = [os.open(name, os.O_RDONLY) for name in os.listdir(".")]
    print(len(kept), sum(os.pread(fd, 10, 0).startswith(b"line") for fd in kept))
"""


def test_guesses_take_nothing_that_a_program_may_need(programs):
    """A plug-in's process that may have few descriptors: a program has as many as without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        node = stack.enter_context(Daemon(programs, isolated=True, listen=True, name="zzo-"))
        make(node.far / "many")
        done = node.run(python(), "-S", "-c", textwrap.dedent(KEEPS), f"{PREFIX}/many")
        assert done.stdout == f"{FILES} {FILES}\n", done.stderr
        assert calls(node)["px_open_several"] > 0


def test_a_program_that_was_told_sees_what_others_did(node, program):
    folder = node.far / "many"
    names = make(folder)
    with Run(node, program, "hear") as run:
        for name in names:
            (folder / name).with_name("new").write_text("changed")
            (folder / "new").rename(folder / name)
        run.tell()
        run.run.stdin.write("x")
        run.run.stdin.flush()
        rest = run.run.stdout.readlines()
    assert rest[-1] == "done\n" and len(rest) == FILES - len(run.lines) + 1
    for line in rest[:-1]:
        assert line.split()[5] == str(len("changed")), line
