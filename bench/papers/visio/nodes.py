"""The nodes of a figure: a real HDFS on shaped links, servers beside it, and jobs on its nodes."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disks import Disks
from evaluation import Context
from process import ROOT, BenchError
from result import Figure
from zazen.viz.generate import write

sys.path.insert(0, str(ROOT / "integrations/viz/tests"))
sys.path.insert(0, str(ROOT / "tests"))
from hdfs_cluster import Hdfs, lacking
from launching import mpi_environment, mpiexec

RATE_MBIT = 200
#: Of each node's disk. A disk that is as fast as this machine's would leave the processors to
#: decide, which all nodes share.
DISK_MB = 20
NODES, COPIES = 4, 2
#: Servers of the parallel file system's stand-in, which are no data nodes.
SERVERS = 2
#: How long a job may take: one rank reads all at the rate of one disk, and several times.
JOB_S = 1200
#: What was measured on, in one line.
LINKS = (
    f"{NODES} data nodes and a name node in network namespaces, links of {RATE_MBIT} Mbit/s, disks of "
    f"{DISK_MB} MB/s, r={COPIES}, no pages cached before a pass"
)
RANK = Path(__file__).with_name("visio_rank.py")
SERVER = Path(__file__).with_name("server.py")
#: Steps, blocks and points along each edge of a block.
Shape = tuple[int, tuple[int, int, int], int]
LIMITS = [
    "All nodes share this machine's processors, so what needs processors, as parsing does, does not grow "
    f"with the nodes. Each data node reads at most {DISK_MB} MB/s from the disk; name node and servers "
    "are not limited.",
]


class Nodes(Hdfs):
    """HDFS's nodes, and ``SERVERS`` more that only send files. Servers are the last nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODES, others=SERVERS)
        self.local: dict[str, Path] = {}
        self.urls: dict[str, str] = {}
        self._servers: list[subprocess.Popen[str]] = []
        self._disks: Disks | None = None

    def load(self, name: str, shape: Shape) -> None:
        """Makes a data set, and puts it into HDFS."""
        steps, blocks, points = shape
        self.local[name] = write(self.folder / f"data {name}", steps=steps, blocks=blocks, points=points)
        self.urls[name] = f"hdfs://node0:9870/{name.replace(' ', '_')}/ts.vtm.series"
        self.zazen("viz", "load", self.local[name], self.urls[name].rpartition("/")[0], "--copies", COPIES)

    def limit_disks(self) -> None:
        """From now on data nodes and ranks read from their node's disk, at its rate."""
        self._disks = Disks(self.folder, self.mark, list(range(1, NODES + 1)))
        self._disks.limit(DISK_MB * 1_000_000)
        for node, process in self.processes.items():
            if node in self._disks.groups:
                self._disks.put(node, process.pid)
        self.groups = self._disks.root

    def serve(self) -> None:
        """Starts the servers."""
        for node in range(NODES + 1, NODES + SERVERS + 1):
            command = ["ip", "netns", "exec", self.name(node), sys.executable, SERVER, self.address(node)]
            server = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
            self._servers.append(server)
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise BenchError("a server did not start")

    def down(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait(60)
        super().down()
        if self._disks is not None:
            self._disks.remove()

    def servers(self, count: int) -> list[str]:
        """The addresses of some servers."""
        return [self.address(NODES + 1 + at) for at in range(count)]

    def job(self, ranks: int, cases: list[dict], **more: object):
        """Starts a job; see visio_rank.py."""
        folders = [str(self.folder / f"data{node}") for node in range(1, NODES + 1)]
        folders += [str(index.parent) for index in self.local.values()]
        words = json.dumps({"cases": cases, "repeats": 1, "render": 0, "cold": folders, **more})
        return self.ranks(mpiexec(), mpi_environment(), ranks, RANK, words)

    def case(self, data: str, system: str) -> dict:
        """What ranks do with a data set: one of SYSTEMS."""
        url, local = self.urls[data], str(self.local[data])
        kind, strategy = SYSTEMS[system][1:]
        case = {
            "name": f"{data} | {system}",
            "kind": kind,
            "index": url,
            "local": local,
            "strategy": strategy,
        }
        if ahead_of(system) != 1:
            case |= {"ahead": [ahead_of(system)]}
        if kind == "server":
            case |= {"servers": self.servers(1 if system == "file server" else SERVERS)}
        return case


#: Zazen's reader, which reads further ahead than it does by itself.
AHEAD = "HDFS, Zazen, 3 steps ahead"


def ahead_of(system: str) -> int:
    """How many steps a system reads ahead."""
    return 3 if system == AHEAD else 1


#: How each is drawn, what the ranks do, and by which strategy.
SYSTEMS = {
    "file server": ("peer", "server", "stock"),
    "parallel FS": ("peer", "server", "stock"),
    "HDFS, VTK's split": ("peer", "http", "stock"),
    "HDFS, blind": ("peer", "http", "blind"),
    "HDFS, VisIO's": ("paper", "hdfs", "scarcest"),
    "HDFS, Zazen": ("ours", "hdfs", "optimal"),
    AHEAD: ("ours", "hdfs", "optimal"),
    "bare program": ("ceiling", "bare", "stock"),
    "own disk": ("ceiling", "disk", "optimal"),
}


def samples(process) -> dict[str, list[dict]]:
    """What a job measured, by case."""
    try:
        output, errors = process.communicate(timeout=JOB_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchError(f"a job took longer than {JOB_S} s") from None
    line = next((line for line in output.splitlines() if line.startswith("SAMPLES ")), None)
    if process.returncode != 0 or line is None:
        raise BenchError(f"a job failed: {(output + errors)[-2000:]}")
    return json.loads(line.removeprefix("SAMPLES "))


def rate(sample: dict) -> float:
    """MB/s of all ranks together."""
    return sample["bytes"] / sample["seconds"] / 1e6


def allowed_seconds(ours: dict, disk: list[dict]) -> float:
    """What links and disks allow for a pass: the slowest rank's remote bytes over its link, or the
    same pass from each node's own disk, whichever takes longer. Where some disks hold more than
    their share of the bytes, these take longer by so much."""
    own_disk = statistics.median(sample["seconds"] for sample in disk)
    return max(own_disk * ours["disk_share"], ours["remote_most"] * 8 / (RATE_MBIT * 1e6))


@contextmanager
def nodes(context: Context, figure: Figure, sets: dict[str, Shape]) -> Iterator[Nodes | None]:
    """The nodes with these data sets and shaped links; None, and a note, where that can't be."""
    if (why := lacking()) is not None:
        figure.skipped.append(why)
        yield None
        return
    folder = context.scratch / "hdfs"
    folder.mkdir(parents=True)
    running = Nodes(folder)
    try:
        running.up()
        for name, shape in sets.items():
            running.load(name, shape)
        # Only pages that are on the disk can be dropped.
        os.sync()
        running.serve()
        running.limit_disks()
        running.shape(f"{RATE_MBIT}mbit")
        yield running
    finally:
        running.down()
        shutil.rmtree(folder, ignore_errors=True)
