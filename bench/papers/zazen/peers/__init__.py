"""Other systems that the reading figures compare with: real servers on the same nodes, links and
disks.

A peer starts its servers and clients through the cluster, so that each lives in its node's network
namespace and I/O control group, and it ends with the bench even if that is killed: nothing of it
outlives its `stop`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import packages
from cluster import ROOT, BenchError, Cluster, call

# What is fetched once and kept between runs.
KEPT = ROOT / "target" / "bench-peers"
# Lines of a log that are shown when its process fails.
LOG_LINES = 6
# How long an unmounting may take that does not hang.
UNMOUNT_S = 15


@dataclass
class Reading:
    """How `read_frames.py` reads a peer's dataset: by which client, and every file as that client
    names it.

    Rank r reads the files r, r + ranks, …; {node} in a name is the name of the node that reads.
    """

    through: str
    files: list[str]


class Peer(ABC):
    """A file system on a cluster; `start`, `store` and `reading` are called in this order."""

    # As it is called in tables.
    name: ClassVar[str]
    # Debian packages that it needs.
    packages: ClassVar[Sequence[str]]
    # The settings that make it fast, and who documents them.
    settings: ClassVar[Sequence[str]]

    def __init__(self, *, quick: bool = False) -> None:
        """`quick`: what only takes time may be left out."""
        self._quick = quick
        self._children: list[subprocess.Popen] = []
        self._mounts: list[Path] = []
        # By node; empty if its clients need no mount.
        self.mounted: dict[str, Path] = {}

    def missing(self) -> str | None:
        """The command that installs it; None if it is installed."""
        lacking = packages.lacking(self.packages)
        return f"`{packages.command(lacking)}`" if lacking else None

    def install(self) -> None:
        """Install what it needs."""
        packages.install(self.packages)

    @abstractmethod
    def start(self, cluster: Cluster, folder: Path) -> None:
        """Start servers and clients, with `folder` for themselves, and wait until they serve."""

    @abstractmethod
    def store(self, dataset: Path) -> None:
        """Take a copy of the folder `dataset`; frame i is written from node i modulo the nodes."""

    @abstractmethod
    def reading(self, dataset: Path) -> Reading:
        """How to read what `store` took."""

    def readings(self, dataset: Path) -> dict[str, Reading]:
        """Other ways to read it, by the names of their rows."""
        return {}

    def stop(self) -> None:
        """End all of it. It may be called more than once."""
        for mount in reversed(self._mounts):
            # A client that hangs is ended below.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["umount", mount], capture_output=True, timeout=UNMOUNT_S)
        for child in reversed(self._children):
            # Nothing that it holds is needed any more; the mounts are gone already.
            kill(child)
        # A client that did not end in time leaves a dead mount, which must be gone when folders are
        # removed.
        for mount in reversed(self._mounts):
            if is_mounted(mount):
                subprocess.run(["umount", "-l", mount], capture_output=True)
        self._children.clear()
        self._mounts.clear()

    def cpu_seconds(self) -> float:
        """Processor seconds of its running servers and mounts so far."""
        return sum(_cpu_seconds_of_tree(child.pid) for child in self._children)

    def _serve(
        self, cluster: Cluster, host: str, command: Sequence[object], log: Path, *, private_run: bool = False
    ) -> subprocess.Popen:
        """Start a server on `host` in a process namespace of its own: all that it starts ends with
        it.

        With `private_run` it has /run to itself.
        """
        shell = 'mount -t tmpfs tmpfs /run && exec "$@"' if private_run else 'exec "$@"'
        child = cluster.popen(
            host,
            # The kernel ends it with this process, however that ends.
            "setpriv", "--pdeathsig", "KILL",
            "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
            # Java and others look their own name up; a node has no name service.
            "--uts", "sh", "-c", f"hostname localhost; {shell}", "sh",
            *command, log=log,
        )  # fmt: skip
        self._children.append(child)
        return child

    def _mount(self, cluster: Cluster, host: str, command: Sequence[object], at: Path, log: Path) -> None:
        """Start the client `command`, which stays in the foreground, and wait until `at` is
        mounted."""
        at.mkdir(parents=True, exist_ok=True)
        self._mounts.append(at)
        child = cluster.popen(host, "setpriv", "--pdeathsig", "TERM", *command, log=log)
        self._children.append(child)
        self._wait(f"mount on {host}", lambda: is_mounted(at), child, log)

    def _inside(self, server: subprocess.Popen, command: Sequence[object]) -> str:
        """Run a tool of the peer beside a server that `_serve` started: same network, /run and
        files."""
        init = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0]
        head = ["nsenter", "--target", init, "--mount", "--net", "--pid", "--uts", "--"]
        return call([*head, *command], timeout=120)

    def _wait(
        self,
        what: str,
        ready: Callable[[], bool],
        child: subprocess.Popen | None = None,
        log: Path | None = None,
        *,
        seconds: float = 120,
    ) -> None:
        """Until `ready`; an end of `child` or too long a time is an error that shows the log's last
        lines."""
        until = time.monotonic() + seconds
        while not ready():
            ended = child is not None and child.poll() is not None
            if ended or time.monotonic() > until:
                how = "ended at once" if ended else f"is not ready after {seconds:.0f} s"
                raise BenchError(f"{self.name}: {what} {how}{tail(log)}")
            time.sleep(0.1)


def copy_from_nodes(names: dict[Path, str], folder: str, mount_of: dict[str, Path]) -> None:
    """Copy files under the given names into `folder`: file i through the mount of node i modulo the
    nodes."""
    where, files = list(mount_of.values()), list(names)

    def copy_share(at: int) -> None:
        for file in files[at :: len(where)]:
            shutil.copyfile(file, where[at] / folder / names[file])

    with ThreadPoolExecutor(len(where)) as pool:
        list(pool.map(copy_share, range(len(where))))


def kill(child: subprocess.Popen) -> None:
    """End a process that `Cluster.popen` started, and its session, at once."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def tail(log: Path | None) -> str:
    """The last lines of a log, to end a message with."""
    if log is None or not log.is_file():
        return ""
    lines = log.read_text(errors="replace").strip().split("\n")[-LOG_LINES:]
    return f"; {log.name} ends with:\n  " + "\n  ".join(lines)


def address(cluster: Cluster, host: str) -> str:
    """The IP address of n0, n1, … or fs in the cluster's own network."""
    state = cluster.state()
    hosts = [*state["nodes"], state["server"]]
    return next(one["addr"] for one in hosts if one["name"] == host).rsplit(":", 1)[0]


def listens(process: subprocess.Popen, port: int) -> bool:
    """Whether something listens on TCP port `port` in the network namespace of `process`."""
    listening = "0A"
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{process.pid}/net/{table}").read_text().split("\n")[1:-1]
        except OSError:
            return False
        for row in rows:
            fields = row.split()
            if fields[3] == listening and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at `path`; a dead mount counts."""
    return str(path.absolute()) in mounts()


def mounts() -> list[str]:
    """All mount points, in the order of mounting."""
    lines = Path("/proc/self/mounts").read_text().split("\n")[:-1]
    return [line.split(" ")[1].replace("\\040", " ") for line in lines]


def unmount_below(folder: Path) -> None:
    """Unmount whatever is mounted in `folder`: a bench that was killed may have left it."""
    for mount in reversed(mounts()):
        if folder.absolute() in Path(mount).parents:
            subprocess.run(["umount", "-l", mount], capture_output=True)


def _cpu_seconds_of_tree(pid: int) -> float:
    """Processor seconds of a process and of its children, those that have ended included."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split(" ")
        # utime, stime, and the same of children that were waited for
        own = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return own + sum(_cpu_seconds_of_tree(int(child)) for child in children)
