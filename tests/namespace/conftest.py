"""The namespace, mounted: real daemons and the real `zazen mount`, in a mount namespace of the test's own."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zazen.testing

CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 1 << 18
SECONDS_MAX = 120


class Node:
    """One node of a namespace, and where it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mnt = folder, folder / "mnt"
        (folder / "backing").mkdir()
        (folder / "node").mkdir()
        self.mnt.mkdir()
        arguments = ["--namespace", folder / "data", "--namespace-format"]
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


def inside(test: Callable[[Node], None], folder: Path) -> None:
    """Runs `test` with a node of its own, in a process with its own view of mounts."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
            assert libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
            node = Node(folder)
            with node.daemon:
                test(node)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "see what the test's process wrote"


@pytest.fixture
def run_inside(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Callable[[Node], None]], None]]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="zazen-"))
    folder.chmod(0o755)
    yield lambda test: inside(test, folder)
    shutil.rmtree(folder, ignore_errors=True)
