"""`zazen bench assign` on the cluster in a box: what Figures 4 and 5 share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cluster import Cluster, binary
from result import Value

LINK = "1gbit"
LIMITS = [
    "All nodes share the cores of one machine: local work that 8 nodes would do at the same time is done by "
    "turns, and so is the kernel's TCP; the paper's nodes had 8 cores each.",
    "Ranks poll while they wait for a message. With more ranks than cores each step of a round waits for a "
    "turn on a core, and the processor is busy throughout: its use does not tell how much time is its own.",
    "MPICH instead of Open MPI 1.3.2, which chose its all-reduce by itself, as MPICH does here.",
    "Ranks talk over TCP only (`zazen testbed run` sees to it): MPICH would otherwise pass the shaped links "
    "by through shared memory.",
]


@dataclass
class Run:
    """The output of one `zazen bench assign`."""

    report: dict

    def total(self, protocol: str) -> Value:
        """Seconds between two barriers."""
        side = self._side(protocol)
        spread = side["total_s"]
        return Value(spread["median"], spread["min"], spread["max"], self.report["setting"]["repeats"])

    def local_s(self, protocol: str) -> float:
        """Local work of the rank that has most, median of the repeats."""
        return self._side(protocol)["local_s"]["median"]

    def local_cpu_s(self, protocol: str) -> float:
        """The processor time of that work: what it would take on a core of its own."""
        return self._side(protocol)["local_cpu_s"]["median"]

    def sent(self, protocol: str) -> int:
        """Bytes per rank."""
        return self._side(protocol)["bytes_sent_max"]

    def peak(self, protocol: str) -> int:
        """Bytes of memory that the protocol took beyond the holdings, all ranks together."""
        return self._side(protocol)["peak_growth_bytes_sum"]

    def model_s(self) -> float:
        """The paper's model of the all-reduces, with this run's parameters, plus local work as
        measured."""
        return sum(row["model_s"] for row in self.report["model"]["rounds"]) + self.local_s("bitmaps")

    def ratio(self) -> float:
        """bitmaps / owner."""
        return self.report["bitmaps_over_owner"]

    def rates_text(self) -> str:
        """alpha, beta and gamma as measured."""
        rates = self.report["model"]["rates"]
        return (
            f"α {rates['alpha_s'] * 1e6:.0f} µs, β {rates['beta_s'] * 1e9:.2f} ns/B, "
            f"γ {rates['gamma_or_s'] * 1e9:.2f} and {rates['gamma_two_bit_s'] * 1e9:.2f} ns/B"
        )

    def _side(self, protocol: str) -> dict:
        return next(side for side in self.report["protocols"] if side["protocol"] == protocol)


def assign(cluster: Cluster, frames: int, repeats: int, *words: object, ranks: int = 0) -> Run:
    """One rank per node, or `ranks` over all nodes."""
    out = cluster.mpi(ranks or cluster.size, *command(frames, repeats, *words))
    return Run(json.loads(out))


def command(frames: int, repeats: int, *words: object) -> list[object]:
    """The command line of one run."""
    return [binary("zazen"), "bench", "assign", "--json", "--frames", frames, "--repeats", repeats, *words]


def shaped(scratch: Path, nodes: int) -> Cluster:
    """Nodes with 1 Gbit/s links; their daemons idle."""
    return Cluster(
        scratch / f"nodes-{nodes}", nodes, link=LINK, server_link=LINK, disk_bytes_per_s=None, budget="64M"
    )
