#!/usr/bin/env python3
"""How long water stays near a protein: its survival probability, from frames read through Zazen.

P(tau) is the share of the waters within CUTOFF of the protein at some time that stay there without a break
for tau frames, averaged over all starting times. The frames are one-frame DCD files. Each rank extracts the
waters' ids from the frames that are local to it, in whatever order they come; rank 0 gathers the ids and
does the time series. The result equals that of `waterdynamics.SurvivalProbability` on the same frames
(--serial-check).

    mpiexec -n 4 python water_residence.py /lustre/sim1 --topology /lustre/sim1/topology.pdb
    python water_residence.py /lustre/sim1 --topology /lustre/sim1/topology.pdb      # one process, no MPI
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
import time
import warnings

import MDAnalysis
import numpy as np
import zazen
from MDAnalysis.lib.correlations import autocorrelation
from MDAnalysis.lib.mdamath import triclinic_box

WATER = "(resname HOH WAT SOL TIP3 TIP4 SPC) and (name O OW OH2)"


class FrameError(ValueError):
    """The bytes are not a one-frame DCD file of the expected number of atoms."""


def records(data: memoryview, order: str):
    """The records of a Fortran unformatted file: each between two copies of its length."""
    marker = struct.Struct(order + "i")
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise FrameError(f"{len(data) - at} bytes left over at byte {at}")
        (length,) = marker.unpack_from(data, at)
        end = at + 4 + length
        if length < 0 or end + 4 > len(data) or marker.unpack_from(data, end)[0] != length:
            raise FrameError(f"record at byte {at} is damaged or cut off")
        yield data[at + 4 : end]
        at = end + 4


def read_dcd_frame(data: memoryview) -> tuple[np.ndarray, np.ndarray | None]:
    """Positions (atoms, 3; Angstrom) and box (A, B, C, alpha, beta, gamma; None if there is none) of a DCD
    file with one frame and 32-bit record markers, of either byte order; the box means what MDAnalysis takes
    it for."""
    order = "<" if bytes(data[:4]) == b"\x54\0\0\0" else ">"
    parts = list(records(data, order))
    if len(parts) < 3 or len(parts[0]) != 84 or bytes(parts[0][:4]) != b"CORD" or len(parts[2]) != 4:
        raise FrameError("this is no DCD file with 32-bit record markers")
    control = np.frombuffer(parts[0][4:], dtype=order + "i4")
    (atoms,) = struct.unpack(order + "i", parts[2])
    charmm, has_box, has_fourth, fixed = control[19] != 0, control[10] != 0, control[11] != 0, control[8]
    if fixed or (charmm and has_fourth):
        raise FrameError("fixed atoms or a fourth dimension are not supported")
    box = None
    rest = parts[3:]
    if charmm and has_box:
        if not rest or len(rest[0]) != 48:
            raise FrameError("the unit cell is missing")
        box = box_of(np.frombuffer(rest.pop(0), dtype=order + "f8"))
    if len(rest) != 3 or any(len(axis) != 4 * atoms for axis in rest):
        raise FrameError(f"{len(rest)} coordinate records, not the 3 of one frame of {atoms} atoms")
    positions = np.empty((atoms, 3), dtype=np.float32)
    for column, axis in enumerate(rest):
        positions[:, column] = np.frombuffer(axis, dtype=order + "f4")
    return positions, box


def box_of(cell: np.ndarray) -> np.ndarray | None:
    """The unit cell record as lengths and angles: it holds angles or their cosines, or (new CHARMM) box
    vectors."""
    a, gamma, b, beta, alpha, c = cell
    angles = np.array([alpha, beta, gamma])
    if np.all(np.abs(angles) <= 1.0):
        # By arcsin, as MDAnalysis does it: right angles come out exactly.
        angles = 90.0 - np.arcsin(angles) * 90.0 / (np.pi / 2)
    elif np.any(np.array([a, b, c, *angles]) < 0.0) or np.any(angles > 180.0):
        return triclinic_box(cell[[0, 1, 3]], cell[[1, 2, 4]], cell[[3, 4, 5]])
    box = np.array([a, b, c, *angles], dtype=np.float32)
    return box if np.any(box[:3]) else None


class Extraction:
    """Which waters are near the protein in a frame."""

    def __init__(self, topology: str, select: str) -> None:
        self.universe = MDAnalysis.Universe(topology)
        self.select = select
        self.universe.select_atoms(select)

    def ids(self, frame: zazen.Frame) -> np.ndarray:
        positions, box = read_dcd_frame(frame.data)
        if len(positions) != len(self.universe.atoms):
            raise FrameError(f"{len(positions)} atoms, but the topology has {len(self.universe.atoms)}")
        self.universe.atoms.positions = positions
        self.universe.dimensions = box
        return self.universe.select_atoms(self.select).ids.astype("<i8")


def communicator(wanted: bool):
    """MPI's world if this process was launched as one of several ranks and mpi4py is there; else None."""
    if not wanted:
        return None
    try:
        from mpi4py import MPI
    except ImportError:
        return None
    return MPI.COMM_WORLD


def extract(args: argparse.Namespace, select: str, comm) -> tuple[list[tuple[int, np.ndarray]], dict]:
    """This rank's frames as (number, ids), and its counters."""
    extraction = Extraction(args.topology, select)
    found = []
    if comm is not None:
        comm.Barrier()
    began = time.perf_counter()
    with zazen.open(args.dataset, direct=args.direct, pattern=args.pattern) as dataset:
        frames = dataset.frames(args.begin, args.end, args.stride, comm=comm)
        for frame in frames:
            try:
                found.append((frame.number, extraction.ids(frame)))
            except FrameError as error:
                raise SystemExit(f"frame {frame.number} ({frame.path}): {error}") from error
            if args.progress and (comm is None or comm.rank == 0) and len(found) % 50 == 0:
                print(f"  rank 0: {len(found)} of its {len(frames)} frames", file=sys.stderr, flush=True)
    stats, assignment = frames.stats, frames.assignment
    counters = {
        "frames": stats.frames,
        "bytes": stats.bytes,
        "local": stats.native + stats.alien,
        "backing_reads": stats.backing_reads,
        "mended": stats.mended,
        "native": assignment.natives,
        "alien": assignment.aliens,
        "residue": assignment.residue,
        "assignment_bytes": assignment.bytes_sent,
    }
    return found, counters | {"began": began}


def survival(found: list[tuple[int, np.ndarray]], tau_max: int) -> tuple[list[int], list[float], str]:
    """tau, P(tau) and a hash of the whole result, for all frames' ids in any order."""
    found.sort(key=lambda item: item[0])
    numbers = [number for number, _ in found]
    if len(set(numbers)) != len(numbers):
        raise SystemExit("a frame was read twice: this is a bug in the assignment")
    if tau_max > len(found):
        raise SystemExit(f"--tau-max {tau_max} needs at least as many frames, there are {len(found)}")
    taus, probabilities, _ = autocorrelation([set(ids.tolist()) for _, ids in found], tau_max)
    digest = hashlib.sha256()
    for number, ids in found:
        digest.update(struct.pack("<QQ", number, len(ids)) + np.sort(ids).tobytes())
    digest.update(np.array(probabilities, dtype="<f8").tobytes())
    return taus, [float(value) for value in probabilities], digest.hexdigest()


def serial_check(
    args: argparse.Namespace, select: str, numbers: list[int], probabilities: list[float]
) -> None:
    """Compares with waterdynamics, which reads the frame files itself, on one process."""
    from waterdynamics import SurvivalProbability

    with zazen.open(args.dataset, direct=True, pattern=args.pattern) as dataset:
        paths = [dataset.read(number).path for number in numbers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = MDAnalysis.Universe(args.topology, paths, format="DCD")
        serial = SurvivalProbability(universe, select).run(tau_max=args.tau_max)
    if not np.array_equal(serial.sp_timeseries, probabilities, equal_nan=True):
        raise SystemExit(
            f"serial check FAILED: waterdynamics finds {serial.sp_timeseries}, not {probabilities}"
        )
    print("serial check: equal to waterdynamics.SurvivalProbability")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="directory of the frames, one-frame DCD files")
    parser.add_argument("--topology", required=True, help="topology of the frames, such as topology.pdb")
    parser.add_argument("--cutoff", type=float, default=3.5, help="Angstrom from the protein (default 3.5)")
    parser.add_argument(
        "--tau-max", type=int, default=20, help="frames that survival is followed for (default 20)"
    )
    parser.add_argument(
        "--water", default=WATER, help="selection of the waters' atoms (default: their oxygens)"
    )
    parser.add_argument("--protein", default="protein", help="selection of the protein (default: protein)")
    parser.add_argument("--begin", type=int, help="first frame number (default: the dataset's)")
    parser.add_argument("--end", type=int, help="last frame number, inclusive (default: the dataset's)")
    parser.add_argument("--stride", type=int, default=1, help="distance of frame numbers (default 1)")
    parser.add_argument("--pattern", help='file names, such as "frame-{n:07}.dcd" (default: detected)')
    parser.add_argument(
        "--direct", action="store_true", help="read from the file server, past the node's cache"
    )
    parser.add_argument("--no-mpi", action="store_true", help="one process, even if mpi4py is there")
    parser.add_argument("--json", metavar="OUT", help="write result and counters to this file")
    parser.add_argument("--progress", action="store_true", help="tell how far rank 0 is")
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
    gathered = [found] if comm is None else comm.gather(found)
    summed = [counters] if comm is None else comm.gather(counters)
    if comm is not None and comm.rank != 0:
        return
    totals = {name: sum(rank[name] for rank in summed) for name in counters}
    everything = [item for rank in gathered for item in rank]
    taus, probabilities, digest = survival(everything, args.tau_max)
    seconds = time.perf_counter() - began
    report = {
        "ranks": len(summed),
        "selection": select,
        "seconds": seconds,
        "megabytes_per_second": totals["bytes"] / seconds / 1e6,
        "local_share": totals.pop("local") / totals["frames"] if totals["frames"] else 1.0,
        **totals,
        "tau": taus,
        "survival": probabilities,
        "result_sha256": digest,
    }
    print_report(report)
    if args.serial_check:
        serial_check(args, select, [number for number, _ in everything], probabilities)
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
        f"{100 * report['local_share']:.1f} % local, {report['native']} natives, {report['alien']} aliens, "
        f"{report['residue']} residue, {report['backing_reads']} read from the backing store"
    )
    print(f"result {report['result_sha256']}")


if __name__ == "__main__":
    main()
