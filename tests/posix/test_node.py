"""Programs whose files are another node's: who stands between them and the far side."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from harness import PREFIX, Daemon, python
from launching import wait_for

PROGRAM = f"""
import os, sys
held = os.open("{PREFIX}/file", os.O_RDWR | os.O_CREAT)
os.write(held, b"before")
print("ready", flush=True)
sys.stdin.readline()
os.pwrite(held, b"BE", 0)
print(os.pread(held, 6, 0), os.stat("{PREFIX}/file").st_size, sorted(os.listdir("{PREFIX}")), flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    print("child", os.pread(held, 6, 0), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def children(pid: int) -> list[int]:
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        # A thread may end meanwhile.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/children") as of_thread,
        ):
            found += [int(child) for child in of_thread.read().split()]
    return found


def open_files(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


@contextlib.contextmanager
def stopped(*pids: int):
    """Processes that do nothing meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            # It may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_connected_program_talks_to_the_plug_in_itself(programs):
    """Neither `zazen run` nor the daemon stands between a connected program and the plug-in's
    process: the program goes on while both are stopped."""
    with Daemon(programs, isolated=True, listen=True) as daemon:
        words = [*daemon.command(), python(), "-c", PROGRAM]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **pipes) as run:
            assert run.stdout.readline() == "ready\n"
            with stopped(run.pid, daemon.pid):
                run.stdin.write("go\n")
                run.stdin.flush()
                said = select.select([run.stdout], [], [], 30)[0]
                assert said and run.stdout.readline() == "b'BEfore' 6 ['file']\n"
                assert (daemon.far / "file").read_bytes() == b"BEfore"
            said, _ = run.communicate("go\n", timeout=60)
        assert (said, run.returncode) == ("child b'BEfore'\n", 0)


def test_a_program_learns_that_its_plug_in_has_ended(programs):
    """The daemon has the connection open, too: it must not keep the program waiting."""
    with Daemon(programs, isolated=True, listen=True) as daemon:
        program = f"""
import errno, os, sys
held = os.open("{PREFIX}/file", os.O_RDWR | os.O_CREAT)
print("ready", os.write(held, b"before"), flush=True)
sys.stdin.readline()
try:
    print(os.write(held, b"lost"))
except OSError as error:
    print(errno.errorcode[error.errno])
print(os.stat("{PREFIX}/file").st_size, flush=True)
"""
        words = [*daemon.command(), python(), "-c", program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **pipes) as run:
            assert run.stdout.readline() == "ready 6\n"
            for worker in children(daemon.pid):
                os.kill(worker, signal.SIGKILL)
            said, _ = run.communicate("go\n", timeout=60)
        assert said == "EIO\n6\n"


def starve(pid: int, core: int, name: str = "") -> int:
    """Lets the threads of that process whose names begin so run on that core only, and only when
    nobody else wants it. Returns their number."""
    starved = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().startswith(name):
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
                os.sched_setaffinity(int(task.name), {core})
                starved += 1
    return starved


@pytest.mark.parametrize("listen", [True, False], ids=["node", "socket"])
@pytest.mark.parametrize("slow", ["watcher", "process", "both"])
def test_a_program_is_served_by_the_next_process_of_a_plug_in(programs, slow, listen):
    """Clients can know of a process's end before the daemon does: the daemon's thread that watches
    the process, or the process that is to end, gets no processor here. A program that asks
    meanwhile must not be sent to the process that has ended."""
    program = f"""
import os, sys
os.stat("{PREFIX}")
print("ready", flush=True)
sys.stdin.readline()
try:
    os.listdir("{PREFIX}")
except OSError:
    pass
print(os.stat("{PREFIX}").st_mode > 0, flush=True)
"""
    with Daemon(programs, isolated=True, listen=listen) as daemon, contextlib.ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))
        busy = stack.enter_context(subprocess.Popen([python(), "-c", "while True: pass"]))
        stack.callback(busy.kill)
        os.sched_setaffinity(busy.pid, cores[:1])
        if slow != "process":
            # A thread that has just begun has no name yet.
            wait_for(lambda: starve(daemon.pid, cores[0], "plugin-"), "the watching thread")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        run = stack.enter_context(subprocess.Popen([*daemon.command(), python(), "-c", program], **pipes))
        assert run.stdout.readline() == "ready\n"
        workers = children(daemon.pid)
        if slow != "watcher":
            assert all(starve(worker, cores[0]) for worker in workers)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        said, _ = run.communicate("go\n", timeout=90)
        assert said == "True\n"


def test_a_daemon_starts_while_a_process_of_the_one_before_is_still_there(programs):
    """Where a daemon is killed, its plug-ins' processes end by themselves, on a busy machine later
    than the daemon is started again. This program listens here as such a process does."""
    with Daemon(programs, isolated=True) as daemon:
        daemon.kill()
        left = Path(f"{daemon.socket}.plugin-0-1")
        wait_for(lambda: not listens(left), "the end of the plug-in's process")
        left.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(left))
            listening.listen()
            ends = threading.Timer(1, listening.close)
            ends.start()
            daemon.start()
            ends.join()
        (daemon.far / "file").write_bytes(b"there")
        assert daemon.run("cat", f"{PREFIX}/file").stdout == "there"


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def test_a_program_that_may_have_no_more_descriptors_is_served(programs):
    """It cannot take the go-between's connection: its calls go through the go-between then."""
    program = f"""
import os, resource
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
os.stat("{PREFIX}")
print("served")
"""
    with Daemon(programs, isolated=True, listen=True) as daemon:
        done = daemon.run(python(), "-c", program)
        assert done.stdout == "served\n", done.stderr


READER = f"""
import os, sys
open("{PREFIX}/file", "w").write("bytes")
def round():
    held = os.open("{PREFIX}/file", os.O_RDONLY)
    folder = os.open("{PREFIX}", os.O_RDONLY)
    os.read(held, 5)
    return held, folder
round_1 = round()
print("ready", flush=True)
sys.stdin.readline()
for fd in round_1:
    os.close(fd)
print("closed", flush=True)
sys.stdin.readline()
for number in range(500):
    held = [fd for _ in range(1 + number % 20) for fd in round()]
    for fd in held:
        os.close(fd)
pid = os.fork()
if pid == 0:
    print(os.listdir("{PREFIX}"), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
sys.stdin.readline()
"""


def test_the_close_of_what_was_only_read_is_not_waited_for(programs):
    """The far side closes it all the same, in the order of the program's calls."""
    with Daemon(programs, isolated=True, listen=True) as daemon:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([*daemon.command(), python(), "-c", READER], **pipes) as run:

            def goes_on(expected: str) -> None:
                run.stdin.write("go\n")
                run.stdin.flush()
                said = select.select([run.stdout], [], [], 60)[0]
                assert said and run.stdout.readline() == expected

            assert run.stdout.readline() == "ready\n"
            workers = children(daemon.pid)
            with stopped(*workers):
                goes_on("closed\n")
            goes_on("['file']\n")
            if os.geteuid() == 0:  # nobody else may look
                assert str(daemon.far / "file") not in open_files(workers)
            run.communicate("go\n", timeout=60)


LOCKER = f"""
import fcntl, os
ours, theirs = os.pipe(), os.pipe()
open("{PREFIX}/file", "w").close()
pid = os.fork()
for number in range(300):
    if pid:
        held = os.open("{PREFIX}/file", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.close(held)
        os.write(ours[1], b"x")
        os.read(theirs[0], 1)
    else:
        os.read(ours[0], 1)
        held = os.open("{PREFIX}/file", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(held)
        os.write(theirs[1], b"x")
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print("never too early")
"""


def test_a_close_that_releases_a_lock_is_waited_for(programs):
    with Daemon(programs, isolated=True, listen=True) as daemon:
        done = daemon.run(python(), "-c", LOCKER)
        assert done.stdout == "never too early\n", done.stderr
