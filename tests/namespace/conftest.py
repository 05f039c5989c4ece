"""The namespace, mounted: real daemons and the real `zazen mount`, in a mount namespace of the
test's own.

The test's processes are also in a PID namespace of their own. When a test ends, fails or takes too
long, the kernel ends all of them, and its mounts go with them.
"""

import contextlib
import ctypes
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zazen.testing

CLONE_NEWNS = 0x20000
CLONE_NEWPID = 0x20000000
PR_SET_PDEATHSIG = 1
MS_REC_PRIVATE = 0x4000 | 1 << 18
# A test is ended after this time.
SECONDS_MAX = 240.0
# Its processes may take this long to be gone.
SECONDS_TO_END = 20.0


class Node:
    """One node of a namespace, and where it is mounted."""

    def __init__(self, folder: Path, more: Sequence[object] = ()) -> None:
        self.folder, self.mnt = folder, folder / "mnt"
        (folder / "backing").mkdir()
        (folder / "node").mkdir()
        self.mnt.mkdir()
        arguments = ["--namespace", folder / "data", "--namespace-format", "--namespace-root", "trust"]
        arguments += more
        self.daemon = zazen.testing.Daemon(folder / "node", folder / "backing", arguments=arguments)

    def zazen(self, *words: object, status: int = 0) -> str:
        """Runs `zazen`; what it wrote to both outputs."""
        command = [zazen.testing.program("zazen"), *map(str, words)]
        done = subprocess.run(
            command, env=zazen.testing.environment(), text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == status, done
        return done.stdout + done.stderr

    def mount(self, *words: object) -> Path:
        self.zazen("mount", self.mnt, "--socket", self.daemon.socket, *words)
        return self.mnt

    def unmount(self) -> None:
        self.zazen("unmount", self.mnt)


def _in_child(work: Callable[[], int]) -> int:
    """Runs `work` in a forked process that ends with the status that it returns, or with its
    parent.

    Returns the process's id.
    """
    process = os.fork()
    if process == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def _status_within(process: int, seconds: float) -> int | None:
    """The exit status of a child; None if it still runs after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.02)


def run_alone(test: Callable[[], None], seconds: float = SECONDS_MAX) -> None:
    """Runs `test` in a process with its own view of mounts and processes, which ends after
    `seconds`.

    Nothing that the test starts outlives it. Raises AssertionError if the test fails or takes too
    long.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        assert result == 0, f"{what}: {os.strerror(ctypes.get_errno())}"

    def tested() -> int:
        # Says where a test stands that is about to be ended.
        faulthandler.dump_traceback_later(max(seconds - 2, seconds / 2), file=sys.__stderr__)
        test()
        return 0

    def first_process() -> int:
        # Reaps what the test leaves behind. When it ends, the kernel kills all others here.
        check(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")
        process = _in_child(tested)
        while True:
            ended, status = os.wait()
            if ended == process:
                return abs(os.waitstatus_to_exitcode(status))

    def watched() -> int:
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
        check(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None), "make mounts private")
        process = _in_child(first_process)
        status = _status_within(process, seconds)
        if status is None:
            print(f"not done within {seconds} s: its processes are ended", file=sys.stderr, flush=True)
            os.kill(process, signal.SIGKILL)
            if _status_within(process, SECONDS_TO_END) is None:
                print(f"its processes stay, process {process} first", file=sys.stderr, flush=True)
            return 1
        return abs(status)

    process = _in_child(watched)
    with contextlib.ExitStack() as stack:
        stack.callback(os.kill, process, signal.SIGKILL)
        status = _status_within(process, seconds + SECONDS_TO_END + 10)
        if status is not None:
            stack.pop_all()
    assert status == 0, "see what the test's process wrote"


def inside(test: Callable[[Node], None], folder: Path, more: Sequence[object] = ()) -> None:
    """Runs `test` alone, with a node of its own, whose daemon has `more` flags."""

    def with_node() -> None:
        node = Node(folder, more)
        with node.daemon:
            test(node)

    run_alone(with_node)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own are closed to them. Skips where no test can
    mount."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    folder = Path(tempfile.mkdtemp(prefix="zazen-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run_inside(folder: Path) -> Callable[..., None]:
    return lambda test, *more: inside(test, folder, more)


@pytest.fixture
def alone() -> Callable[..., None]:
    return run_alone
