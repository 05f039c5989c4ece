"""Network file systems to compare forwarding with: a server in namespaces of its own, and its
client's mount in this process's view. Needs root. Each is a folder inside the `with` block."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mounts
import packages
import servers_alone
from host import Programs
from process import BenchError, call, environment, stop
from servers_alone import GLUSTER_PORT, NFS_PORT

NFS_PACKAGES = (*servers_alone.NFS_PACKAGES, "libnfs-dev", "libfuse3-dev", "fuse3")
#: The servers' own address; GlusterFS takes no loopback address for a brick.
ADDRESS = "10.78.0.1"
SECONDS_MAX = 60
BRICKS = 2
GLUSTER_OPTIONS = servers_alone.GLUSTER_OPTIONS | {
    "performance.write-behind": "off",
    "performance.open-behind": "off",
    "performance.read-ahead": "off",
}


def lacking(wanted: Sequence[str], install: bool) -> str | None:
    """Makes a server's packages available, or says what is missing."""
    if why := mounts.why_no_fuse():
        return why
    if not (shutil.which("unshare") and shutil.which("ip")):
        return "servers need namespaces: util-linux and iproute2"
    return packages.why_not(wanted, install)


class Server:
    """A network and a table of processes of their own, in which a server runs. All that it starts
    ends with it."""

    def __init__(self, log: Path, words: Sequence[object]) -> None:
        self.log = log
        self._children: list[subprocess.Popen[bytes]] = []
        self._own = self._begin(
            "setpriv", "--pdeathsig", "KILL",
            "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
            "--uts", "sh", "-c",
            "hostname localhost && ip link set lo up "
            f"&& ip addr add {ADDRESS}/24 dev lo && mount -t tmpfs tmpfs /run && exec \"$@\"",
            "sh", *words,
        )  # fmt: skip

    def _begin(self, *words: object) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [str(word) for word in words], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,
            )  # fmt: skip
        self._children.append(child)
        return child

    def _enter(self, *spaces: str) -> list[object]:
        """Enters the server's own namespaces, those of the first process in them."""
        children = Path(f"/proc/{self._own.pid}/task/{self._own.pid}/children").read_text().split()
        return ["nsenter", "--target", children[0], *spaces, "--"]

    def inside(self, *words: object) -> str:
        """Runs a tool of the server's beside it."""
        return call([*self._enter("--mount", "--net", "--pid", "--uts"), *words], timeout=SECONDS_MAX)

    def until(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not done():
            ended = next((child for child in self._children if child.poll() is not None), None)
            if ended is not None or time.monotonic() > until:
                told = self.log.read_text(errors="replace")[-500:].strip()
                raise BenchError(f"{what} does not start: {told}")
            time.sleep(0.1)

    def listens(self, port: int) -> bool:
        try:
            self.inside("bash", "-c", f"exec 3<>/dev/tcp/{ADDRESS}/{port}")
        except (BenchError, OSError, IndexError):
            return False
        return True

    def mount(self, mountpoint: Path, *words: object) -> None:
        """Starts a client in the server's network, which mounts in this process's view."""
        self._begin(*self._enter("--net"), *words)
        self.until(lambda: mounts.is_mount(mountpoint), f"the mount of {words[0]}")

    def end(self) -> None:
        for child in reversed(self._children):
            stop(child)


@contextlib.contextmanager
def nfs(programs: Programs, folder: Path, mountpoint: Path, scratch: Path) -> Iterator[Path]:
    """`folder` by NFS v3: nfs-ganesha serves it, nfsfs.c mounts it, and neither caches."""
    scratch.mkdir()
    mountpoint.mkdir()
    client = programs.tool("nfsfs", "-lfuse3", "-lnfs")
    log = scratch / "log"
    server = Server(log, servers_alone.ganesha(scratch, folder, log, writable=True))
    try:
        server.until(lambda: server.listens(NFS_PORT), "nfs-ganesha")
        server.mount(mountpoint, client, f"nfs://{ADDRESS}/export", mountpoint)
        yield mountpoint
    finally:
        mounts.unmount(mountpoint)
        server.end()


@contextlib.contextmanager
def glusterfs(bricks: Path, mountpoint: Path, scratch: Path) -> Iterator[Path]:
    """A GlusterFS volume over bricks in the folder `bricks`, mounted by its own client."""
    mountpoint.mkdir()
    server = Server(scratch / "log", servers_alone.glusterd(scratch))
    try:
        server.until(lambda: server.listens(GLUSTER_PORT), "glusterd")
        places = [bricks / f"brick{number}" for number in range(BRICKS)]
        for place in places:
            place.mkdir(parents=True)
        gluster = ["gluster", "--mode=script"]
        each = [f"{ADDRESS}:{place}" for place in places]
        server.inside(*gluster, "volume", "create", "bench", "transport", "tcp", *each, "force")
        for option, value in GLUSTER_OPTIONS.items():
            server.inside(*gluster, "volume", "set", "bench", option, value)
        server.inside(*gluster, "volume", "start", "bench")
        server.mount(
            mountpoint, "glusterfs", "--no-daemon", f"--log-file={scratch / 'client.log'}",
            f"--volfile-server={ADDRESS}", "--volfile-id=bench", "--direct-io-mode=enable", mountpoint,
        )  # fmt: skip
        yield mountpoint
    finally:
        mounts.unmount(mountpoint)
        server.end()
