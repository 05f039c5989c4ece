#!/usr/bin/env python3
"""How long water stays near a protein: its survival probability, from frames read through Zazen.

P(tau) is the share of the waters within CUTOFF of the protein at some time that stay there without
a break for tau frames, averaged over all starting times. The analysis is an ordinary AnalysisBase
of MDAnalysis. Under MPI each rank extracts the waters' ids from the frames that its node holds, and
the back end joins them in the order of the trajectory. The result equals that of
`waterdynamics.SurvivalProbability` on the same frames (--serial-check).

    mpiexec -n 4 python water_residence.py /lustre/sim1/md.dcd --topology /lustre/sim1/topology.pdb

    # one process, no MPI:
    python water_residence.py /lustre/sim1/md.dcd --topology /lustre/sim1/topology.pdb

The trajectory is a trajectory file, or a directory of numbered files with one frame each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import time
import warnings
from pathlib import Path

import MDAnalysis
import numpy as np
import zazen
import zazen.mdanalysis
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import ResultsGroup
from MDAnalysis.lib.correlations import autocorrelation

WATER = "(resname HOH WAT SOL TIP3 TIP4 SPC) and (name O OW OH2)"


class NearbyWaters(AnalysisBase):
    """Which waters are near the protein in each frame: `results.found` has (frame, ids, where the
    frame came from, its bytes)."""

    _analysis_algorithm_is_parallelizable = True

    def __init__(self, universe: MDAnalysis.Universe, select: str) -> None:
        super().__init__(universe.trajectory)
        self._waters = universe.select_atoms(select, updating=True)

    def _prepare(self) -> None:
        self.results.found = []

    def _single_frame(self) -> None:
        ids = self._waters.ids.astype("<i8")
        source, length = self._ts.data["zazen"], self._ts.data["zazen_bytes"]
        self.results.found.append((self._ts.frame, ids, source, length))

    def _get_aggregator(self) -> ResultsGroup:
        return ResultsGroup({"found": ResultsGroup.flatten_sequence})


def communicator(wanted: bool):
    """MPI's world if this process was launched as one of several ranks and mpi4py is there; else
    None."""
    if not wanted:
        return None
    try:
        from mpi4py import MPI
    except ImportError:
        return None
    return MPI.COMM_WORLD


def extract(args: argparse.Namespace, select: str, comm) -> tuple[list[tuple[int, np.ndarray]], dict]:
    """All frames as (frame, ids), and the counters of all ranks; on every rank."""
    options = {"direct": args.direct, "pattern": args.pattern}
    universe = MDAnalysis.Universe(args.topology, f"zazen:{args.dataset}", open_options=options)
    analysis = NearbyWaters(universe, select)
    if comm is not None:
        comm.Barrier()
    began = time.perf_counter()
    backend = None if comm is None else zazen.mdanalysis.MPI(comm)
    analysis.run(args.begin, args.end, args.stride, backend=backend)
    sources = [source for _, _, source, _ in analysis.results.found]
    counters = {
        "frames": len(sources),
        "bytes": sum(length for _, _, _, length in analysis.results.found),
        "local": sources.count("native") + sources.count("alien"),
        "backing_reads": sources.count("backing") + sources.count("direct"),
    }
    assignment = universe.trajectory.assignment
    if assignment is not None:
        counters |= {
            "native": assignment.total_natives,
            "alien": assignment.total_aliens,
            "residue": assignment.total_residue,
            "assignment_bytes": sum(comm.allgather(assignment.bytes_sent)),
        }
    return [(frame, ids) for frame, ids, _, _ in analysis.results.found], counters | {"began": began}


def survival(found: list[tuple[int, np.ndarray]], tau_max: int) -> tuple[list[int], list[float], str]:
    """tau, P(tau) and a hash of the whole result, for all frames' ids in order."""
    if tau_max > len(found):
        raise SystemExit(f"--tau-max {tau_max} needs at least as many frames, there are {len(found)}")
    taus, probabilities, _ = autocorrelation([set(ids.tolist()) for _, ids in found], tau_max)
    digest = hashlib.sha256()
    for number, ids in found:
        digest.update(struct.pack("<QQ", number, len(ids)) + np.sort(ids).tobytes())
    digest.update(np.array(probabilities, dtype="<f8").tobytes())
    return taus, [float(value) for value in probabilities], digest.hexdigest()


def serial_check(args: argparse.Namespace, select: str, probabilities: list[float]) -> None:
    """Compares with waterdynamics, which reads the files itself, on one process."""
    from waterdynamics import SurvivalProbability

    trajectory = Path(args.dataset)
    if trajectory.is_dir():
        trajectory = sorted(trajectory.glob("*.dcd"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = MDAnalysis.Universe(args.topology, trajectory, format="DCD")
        serial = SurvivalProbability(universe, select).run(
            tau_max=args.tau_max, start=args.begin, stop=args.end, step=args.stride
        )
    if not np.array_equal(serial.sp_timeseries, probabilities, equal_nan=True):
        raise SystemExit(
            f"serial check FAILED: waterdynamics finds {serial.sp_timeseries}, not {probabilities}"
        )
    print("serial check: equal to waterdynamics.SurvivalProbability")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="trajectory file, or directory of one-frame files")
    parser.add_argument("--topology", required=True, help="topology of the frames, such as topology.pdb")
    parser.add_argument("--cutoff", type=float, default=3.5, help="Angstrom from the protein (default 3.5)")
    parser.add_argument(
        "--tau-max", type=int, default=20, help="frames that survival is followed for (default 20)"
    )
    parser.add_argument(
        "--water", default=WATER, help="selection of the waters' atoms (default: their oxygens)"
    )
    parser.add_argument("--protein", default="protein", help="selection of the protein (default: protein)")
    parser.add_argument("--begin", type=int, help="first frame, from 0 on (default: all)")
    parser.add_argument("--end", type=int, help="frame behind the last (default: all)")
    parser.add_argument("--stride", type=int, default=1, help="every so many frames (default 1)")
    parser.add_argument("--pattern", help='file names, such as "frame-{n:07}.dcd" (default: detected)')
    parser.add_argument(
        "--direct", action="store_true", help="read from the file server, past the node's cache"
    )
    parser.add_argument("--no-mpi", action="store_true", help="one process, even if mpi4py is there")
    parser.add_argument("--json", metavar="OUT", help="write result and counters to this file")
    parser.add_argument(
        "--serial-check", action="store_true", help="compare with waterdynamics in one process"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    comm = communicator(not args.no_mpi)
    select = f"({args.water}) and around {args.cutoff} ({args.protein})"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="MDAnalysis")
        found, counters = extract(args, select, comm)
    began = counters.pop("began")
    if comm is not None and comm.rank != 0:
        return
    taus, probabilities, digest = survival(found, args.tau_max)
    seconds = time.perf_counter() - began
    report = {
        "ranks": 1 if comm is None else comm.size,
        "selection": select,
        "seconds": seconds,
        "megabytes_per_second": counters["bytes"] / seconds / 1e6,
        "local_share": counters.pop("local") / counters["frames"] if found else 1.0,
        **counters,
        "tau": taus,
        "survival": probabilities,
        "result_sha256": digest,
    }
    print_report(report)
    if args.serial_check:
        serial_check(args, select, probabilities)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
            out.write("\n")


def print_report(report: dict) -> None:
    print(f"survival probability of {report['selection']}")
    print("  tau   P(tau)")
    for tau, probability in zip(report["tau"], report["survival"], strict=True):
        print(f"  {tau:3d}   {probability:.4f}")
    print(
        f"{report['frames']} frames, {report['bytes'] / 1e6:.1f} MB by {report['ranks']} ranks "
        f"in {report['seconds']:.2f} s ({report['megabytes_per_second']:.1f} MB/s); "
        f"{100 * report['local_share']:.1f} % local, {report['backing_reads']} read from the backing store"
    )
    print(f"result {report['result_sha256']}")


if __name__ == "__main__":
    main()
