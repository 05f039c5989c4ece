"""The file systems that are compared on the same nodes: Zazen's namespace, its peers, and a plain
directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from evaluation import Context
from process import ROOT, BenchError, say

# The cluster and the peers are those of the Zazen paper's evaluation.
sys.path.insert(0, str(ROOT / "bench" / "papers" / "zazen"))

from cluster import Cluster
from peers import Peer
from peers.glusterfs import Glusterfs
from peers.moosefs import Moosefs

OURS, PLAIN = "Zazen", "plain directory"
# Wide enough not to be what is measured.
LINK = "10gbit"
NOT_HERE = [
    "OrangeFS, BeeGFS: no Debian package, and kernel modules or sources that no registry has",
    "NFS: this kernel has no NFS client",
    "HDFS and JuiceFS: not mounted here; HDFS has no POSIX mount without its FUSE module",
]


@dataclass
class System:
    """A file system, where each node has it mounted, and the processor seconds of its servers and
    mounts so far."""

    name: str
    places: list[Path]
    cpu_seconds: Callable[[], float]


def _ticks(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def start(context: Context, nodes: int, stack: ExitStack) -> tuple[list[System], list[str]]:
    """Starts all, for as long as `stack` lasts: ours first, the plain directory last; and what
    could not be started, with the reason."""
    folder = context.scratch / "cluster"
    mounts = folder / "mounts"
    mounts.mkdir(parents=True)
    cluster = stack.enter_context(
        Cluster(
            folder,
            nodes,
            link=LINK,
            server_link=LINK,
            disk_bytes_per_s=None,
            more=["--namespace", "--mounts", mounts],
        )
    )
    state = cluster.state()
    pids = [node["process"]["pid"] for node in state["nodes"]]
    pids += [process["pid"] for process in state["namespace"]["processes"]]
    up = [System(OURS, [mounts / str(number) for number in range(nodes)], lambda: _ticks(pids))]
    skipped = list(NOT_HERE)
    for kind in (Glusterfs, Moosefs):
        peer: Peer = kind(quick=context.quick)
        try:
            if context.install:
                peer.install()
            if missing := peer.missing():
                raise BenchError(f"needs {missing}")
            say(f"starting {peer.name}")
            stack.callback(peer.stop)
            place = folder / peer.name
            place.mkdir()
            peer.start(cluster, place)
        except BenchError as error:
            peer.stop()
            skipped.append(f"{kind.name}: {error}")
            continue
        up.append(System(peer.name, list(peer.mounted.values()), peer.cpu_seconds))
    plain = folder / "plain"
    plain.mkdir()
    up.append(System(PLAIN, [plain] * nodes, lambda: 0.0))
    return up, skipped
