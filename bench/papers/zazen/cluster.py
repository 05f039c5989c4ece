"""The cluster on one machine on which the figures run: `zazen testbed` with shaped links and
throttled disks.

Every process of a node, a peer's servers included, runs through `Cluster.popen` or `Cluster.run`:
in the node's network namespace and I/O control group, so all systems have the same limits.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

from process import ROOT, BenchError, binary, call, environment, say, stop
from spindle import Spindle

__all__ = ["DISK_BYTES_PER_S", "HERE", "LINK", "LINK_BYTES_PER_S", "ROOT", "BenchError", "Cluster"]
__all__ += ["binary", "call", "environment", "say", "stop"]

HERE = Path(__file__).resolve().parent
# Links and disks are small enough that two cores can fill them, because the figures measure links
# and disks.
LINK = "160mbit"
LINK_BYTES_PER_S = 20_000_000
DISK_BYTES_PER_S = 40_000_000


class Cluster:
    """A testbed of `nodes` nodes n0 … and a file server fs; a context manager that takes it down
    again."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        link: str = LINK,
        server_link: str = LINK,
        disk_bytes_per_s: int | None = DISK_BYTES_PER_S,
        disk_iops: int | None = None,
        server_disk_bytes_per_s: int | None = None,
        readers: int | None = None,
        trust_copies: bool = False,
        spindle: dict | None = None,
        backing: Path | None = None,
        budget: str = "8G",
        more: Iterable[object] = (),
    ) -> None:
        """`more`: further words for `zazen testbed up`."""
        self.folder, self.size = folder, nodes
        self.dir = folder / "testbed"
        self.children: list[subprocess.Popen] = []
        self._up = [
            "up",
            str(nodes),
            "--budget",
            budget,
            "--net",
            "--link",
            link,
            "--server-link",
            server_link,
        ]
        if disk_bytes_per_s:
            self._up += ["--disk-bps", str(disk_bytes_per_s)]
        if disk_iops:
            self._up += ["--disk-iops", str(disk_iops)]
        if server_disk_bytes_per_s:
            self._up += ["--server-disk-bps", str(server_disk_bytes_per_s)]
        if readers:
            self._up += ["--readers", str(readers)]
        if trust_copies:
            self._up += ["--trust-copies"]
        if backing:
            self._up += ["--backing", str(backing)]
        self._up += [str(word) for word in more]
        self.backing = backing
        # Each node's folder on a disk with a head of its own (`Spindle`'s arguments).
        self.spindles = [
            Spindle(folder / f"spindle-{node}", self.dir / node, **spindle)
            for node in (self.nodes if spindle else [])
        ]
        self._mounted = ExitStack()

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Remove what an earlier, killed run left.
        if self.dir.exists():
            self.testbed("down")
        for spindle in self.spindles:
            spindle.clear()
        shutil.rmtree(self.dir, ignore_errors=True)
        try:
            for spindle in self.spindles:
                self._mounted.enter_context(spindle)
            self.testbed(*self._up)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for child in reversed(self.children):
            stop(child)
        self.children.clear()
        try:
            if self.dir.exists():
                self.testbed("down")
        finally:
            self._mounted.close()
            shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def nodes(self) -> list[str]:
        """n0, n1, …"""
        return [f"n{at}" for at in range(self.size)]

    @property
    def server_root(self) -> Path:
        """The directory that the file server serves: the datasets' home."""
        return self.backing or self.dir / "server"

    def node_dir(self, node: str) -> Path:
        """A folder of the node on the disk that is throttled for it."""
        return self.dir / node

    def state(self) -> dict:
        """`testbed.json`: addresses, namespaces, sockets, process ids."""
        return json.loads((self.dir / "testbed.json").read_text())

    def testbed(self, *words: object) -> str:
        """`zazen testbed WORDS…` on this testbed; returns stdout."""
        return call([binary("zazen"), "testbed", "--dir", self.dir, *words])

    def on(self, host: str, command: Iterable[object], *, bare: bool = False) -> list[str]:
        """The command line that runs `command` on `host` under its limits."""
        flags = ["--bare"] if bare else []
        head = [binary("zazen"), "testbed", "--dir", self.dir, "exec", *flags, "--on", host, "--"]
        return [str(word) for word in [*head, *command]]

    def run(self, host: str, *command: object, timeout: float = 600) -> str:
        """Run on `host` to the end; returns stdout."""
        return call(self.on(host, command), timeout=timeout)

    def popen(self, host: str, *command: object, log: Path) -> subprocess.Popen:
        """Start on `host`; ended with the cluster, in the reverse order of starting."""
        with log.open("ab") as sink:
            child = subprocess.Popen(
                self.on(host, command), stdout=sink, stderr=sink, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,
            )  # fmt: skip
        self.children.append(child)
        return child

    def mpi(self, ranks: int, *command: object, timeout: float = 900) -> str:
        """Run under mpiexec, rank r on node r modulo the number of nodes; returns stdout."""
        return self.testbed_run(["-n", str(ranks)], command, timeout)

    def python(self, ranks: int, script: str, *arguments: object, timeout: float = 900) -> dict:
        """Run `script` of this folder under mpiexec; it prints one JSON object on rank 0."""
        out = self.mpi(ranks, sys.executable, HERE / script, *arguments, timeout=timeout)
        return json.loads(out)

    def testbed_run(self, where: list[str], command: Iterable[object], timeout: float) -> str:
        """`zazen testbed run WHERE -- COMMAND`; returns stdout."""
        head = [binary("zazen"), "testbed", "--dir", self.dir, "run", *where, "--"]
        return call([*head, *command], timeout=timeout)

    def cells(self, cells: list[dict], *, live: bool = False, timeout: float = 900) -> list[dict]:
        """Measure the cells in one MPI job (cells.py); what each gave."""
        file = self.folder / "cells.json"
        file.write_text(json.dumps(cells))
        ranks = max(cell["ranks"] for cell in cells)
        where = ["-n", str(ranks), *(["--live"] if live else [])]
        return json.loads(self.testbed_run(where, [sys.executable, HERE / "cells.py", file], timeout))

    def push(self, dataset: Path) -> None:
        """Put all frames of the dataset, which lies on the file server, into the nodes' caches."""
        end = dataset / "end-of-frames"
        end.touch()
        words = ["push", "--watch", dataset, "--until", end.name, "--nodes", self.dir / "nodes.txt", "--json"]
        told = json.loads(self.run("sim", binary("zazen"), *words))
        end.unlink()
        if told["pushed"] != sum(1 for _ in dataset.iterdir()):
            raise BenchError(f"push of {dataset}: not all frames arrived: {told}")

    def kill(self, node: str) -> None:
        """Kill the node's daemon at once."""
        self.testbed("kill", node)

    def revive(self, node: str) -> None:
        """Start it again."""
        self.testbed("revive", node)
