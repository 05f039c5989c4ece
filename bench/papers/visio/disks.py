"""Limits of what each node may read from this machine's disk: a control group for each node."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

#: How long the processes of a group may take to be gone.
PATIENCE_S = 30
V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")


class Disks:
    """A disk for each of some nodes: a part of the one beneath ``folder``. Needs root and an I/O
    controller; without one, ``OSError``."""

    def __init__(self, folder: Path, name: str, nodes: list[int]) -> None:
        self.is_unified = (V2 / "cgroup.controllers").exists()
        self.root = (V2 if self.is_unified else V1) / name
        self.device = _device(folder)
        self.groups = {node: self.root / f"n{node}" for node in nodes}
        self.root.mkdir()
        if self.is_unified:
            (V2 / "cgroup.subtree_control").write_text("+io")
            (self.root / "cgroup.subtree_control").write_text("+io")
        for group in self.groups.values():
            group.mkdir()

    def put(self, node: int, pid: int) -> None:
        """Puts a process on a node's disk; what it starts later is on it, too."""
        (self.groups[node] / "cgroup.procs").write_text(str(pid))

    def limit(self, bytes_per_s: int) -> None:
        """Limits what each node reads. What lies in the page cache costs nothing."""
        for group in self.groups.values():
            if self.is_unified:
                (group / "io.max").write_text(f"{self.device} rbps={bytes_per_s}")
            else:
                (group / "blkio.throttle.read_bps_device").write_text(f"{self.device} {bytes_per_s}")

    def remove(self) -> None:
        """Removes the groups. Their processes were ended; the kernel may still clean up."""
        for group in [*self.groups.values(), self.root]:
            until = time.monotonic() + PATIENCE_S
            while group.exists():
                try:
                    group.rmdir()
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > until:
                        raise
                    time.sleep(0.05)


def _device(folder: Path) -> str:
    """`major:minor` of the whole disk beneath a folder: limits are of no partition."""
    device = folder.stat().st_dev
    named = Path("/sys/dev/block") / f"{os.major(device)}:{os.minor(device)}"
    if not named.exists():
        raise OSError(f"{folder} lies on no disk of its own (an overlay? tmpfs?): take a folder of a disk")
    block = named.resolve()
    whole = block.parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()
