"""The MPI back end: each rank computes on the frames that its node holds, and all ranks get the
results.

MDAnalysis gives a back end the whole run as pairs (position in the run, frame). This one asks Zazen
which rank reads which frame, and cuts a rank's share into stretches that follow each other in the
run. Each stretch is computed by a copy of the analysis, as MDAnalysis's own parallel back ends do
it, and the results are joined in the order of the run. So everything that is collected frame by
frame is what one process gets, bit for bit, and sums differ by rounding only.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zazen
from MDAnalysis.analysis.backends import BackendBase
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import Results, ResultsGroup
from MDAnalysis.analysis.rms import RMSF
from zazen.mdanalysis._reader import ZazenReader

#: How much of the atoms' positions a rank collects before the ranks exchange them.
_ROUND_BYTES = 64 << 20
#: Between two looks at whether the other ranks have come, in seconds: the first and the longest.
_LOOKS = (50e-6, 1e-3)


class MPI(BackendBase):
    """Runs an analysis on all ranks of ``comm``, an mpi4py communicator; None: MPI.COMM_WORLD.

    Every rank makes the same Universe and the same call ``run(backend=MPI())``, with equal
    arguments; the call is collective. All ranks get the whole result. If a rank fails, all ranks
    raise: that rank its own error, the others an MpiError that names it.

    Means of results (``ResultsGroup.ndarray_mean`` and ``float_mean``) are weighted by frames. An
    aggregator of the user's own gets one value for each stretch of frames; stretches are not
    equally long.

    It runs the analyses that MDAnalysis can parallelize, and RMSF. Trajectories of other readers
    are dealt out in equal parts. Raises ValueError for other analyses, and for transformations that
    need all frames in turn.
    """

    def __init__(self, comm: Any = None) -> None:
        # Its work is not cut into parts by MDAnalysis.
        super().__init__(n_workers=1)
        if comm is None:
            from mpi4py import MPI as mpi

            comm = mpi.COMM_WORLD
        self._comm = comm

    # MDAnalysis asks users for unsupported_backend=True where a back end may give other results
    # than a serial run. This one gives the same, and checks for itself what it can run, so it
    # passes for the serial one.
    def __eq__(self, other: object) -> bool:
        return self is other or other == "serial"

    def __hash__(self) -> int:
        return hash("serial")

    def apply(self, func: Callable[..., Any], computations: list[np.ndarray]) -> list[Any]:
        """Computes on all ranks. Called by ``run``; returns one analysis with the results of all
        frames."""
        analysis: AnalysisBase = func.func.__self__
        arguments = dict(func.keywords)
        frames = np.concatenate(computations).astype(np.int64)
        together = _Together(self._comm)
        if self._comm.rank != 0:
            arguments["verbose"] = False
        with together.step("the ranks do not run the same analysis"):
            _check(analysis)
        together.equal(f"{type(analysis).__qualname__} {_digest(frames)} {len(analysis._trajectory)}")
        if len(frames) == 0:
            return [analysis._compute(frames, **arguments)]
        if _is_rmsf(analysis):
            most = _frames_in_round(analysis.atomgroup.n_atoms)
            shares = _shares(analysis._trajectory, frames[:, 1], self._comm, most)
            return [_replay_rmsf(analysis, frames, shares, together)]
        shares = _shares(analysis._trajectory, frames[:, 1], self._comm)
        return [_compute_apart(analysis, frames, shares, arguments, together)]


def _check(analysis: AnalysisBase) -> None:
    """Raises ValueError for what can't be computed apart."""
    name = type(analysis).__qualname__
    if not analysis.parallelizable and not _is_rmsf(analysis):
        raise ValueError(
            f"{name} needs all frames one after the other, so MPI() can't run it: run it without backend=, "
            "or if its results can be joined, set _analysis_algorithm_is_parallelizable = True and give "
            "_get_aggregator()"
        )
    for transformation in analysis._trajectory.transformations:
        if not getattr(transformation, "parallelizable", False):
            raise ValueError(
                f"the transformation {type(transformation).__qualname__} needs all frames one after the "
                "other, so MPI() can't run an analysis of this trajectory: run it without backend="
            )


def _digest(frames: np.ndarray) -> str:
    return f"{len(frames)} frames {hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()}"


class _Together:
    """What all ranks do in step: a rank that fails makes all ranks raise, so that none waits for
    it."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    def step(self, what: str = "the analysis failed") -> _Step:
        return _Step(self, what)

    def meet(self) -> None:
        """Returns when all ranks have come. A rank that waits sleeps: MPI's own waiting takes a
        core, which ranks that still compute may need."""
        request, pause = self.comm.Ibarrier(), _LOOKS[0]
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, _LOOKS[1])

    def equal(self, mine: str) -> None:
        """Raises InvalidArgumentError on all ranks unless ``mine`` is the same on all."""
        texts = self.comm.allgather(mine)
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise zazen.InvalidArgumentError(
                    f"the ranks do not run the same analysis: rank 0 runs {texts[0]}, rank {rank} {text}"
                )

    def settle(self, error: Exception | None, what: str) -> None:
        """Raises if any rank has an error. Collective."""
        mine = None if error is None else f"{type(error).__name__}: {error}"
        self.meet()
        failures = [(rank, text) for rank, text in enumerate(self.comm.allgather(mine)) if text is not None]
        if error is not None:
            raise error
        if failures:
            rank, text = failures[0]
            raise zazen.MpiError(
                f"{what} on {len(failures)} of {self.comm.size} ranks, first on rank {rank}: {text}"
            )


class _Step:
    """A block that every rank enters; its exceptions are settled at its end."""

    def __init__(self, together: _Together, what: str) -> None:
        self._together, self._what = together, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        # An interrupt or an exit ends the job, not the step.
        if error is None or isinstance(error, Exception):
            self._together.settle(error, self._what)


def _shares(trajectory: Any, frames: np.ndarray, comm: Any, most: int | None = None) -> np.ndarray:
    """For each position of the run the rank that reads its frame. Collective; equal on all ranks.

    ``most``: of a trajectory of another reader, a rank gets stretches of at most so many frames,
    in turn with the others; None: one stretch, which reads best.
    """
    if isinstance(trajectory, ZazenReader):
        return trajectory.owners(frames, comm)
    positions, whole = np.arange(len(frames)), -(-len(frames) // comm.size)
    if most is None or most >= whole:
        return positions * comm.size // len(frames)
    return positions // most % comm.size


def _stretches(positions: np.ndarray) -> list[np.ndarray]:
    """Cuts increasing positions where they do not follow each other."""
    return np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1) if len(positions) else []


def _fresh(analysis: AnalysisBase) -> AnalysisBase:
    """A copy to compute with: `_compute` overwrites what the caller's own object needs at the
    end."""
    made = copy.copy(analysis)
    made.results = Results({name: _copied(value) for name, value in analysis.results.items()})
    return made


def _copied(value: Any) -> Any:
    plain = (np.ndarray, list, dict, set, Results)
    return copy.deepcopy(value) if isinstance(value, plain) else value


def _compute_apart(
    analysis: AnalysisBase,
    frames: np.ndarray,
    shares: np.ndarray,
    arguments: dict[str, Any],
    together: _Together,
) -> AnalysisBase:
    """Stretches by copies of the analysis, joined in the order of the run."""
    comm = together.comm
    parts: list[tuple[int, bytes]] = []
    trajectory = analysis._trajectory
    with together.step():
        mine = np.flatnonzero(shares == comm.rank)
        with _Reading(trajectory, frames[mine, 1]) as reading:
            for stretch in _stretches(mine):
                reading.back()
                part = _fresh(analysis)._compute(frames[stretch], **arguments)
                parts.append((int(stretch[0]), pickle.dumps((part.frames, part.times, part.results), 5)))
    joined = sorted((part for parts in comm.allgather(parts) for part in parts), key=lambda part: part[0])
    done = [pickle.loads(pickled) for _, pickled in joined]
    whole = copy.copy(analysis)
    whole.frames = np.hstack([found[0] for found in done])
    whole.times = np.hstack([found[1] for found in done])
    counts = [len(found[0]) for found in done]
    whole.results = _weighted(analysis._get_aggregator(), counts).merge([found[2] for found in done])
    return whole


def _weighted(aggregator: ResultsGroup, counts: list[int]) -> ResultsGroup:
    """The aggregator for stretches of so many frames: MDAnalysis's means take all parts for equally
    long."""

    def mean(parts: list[Any]) -> Any:
        values = [np.asarray(part) for part in parts]
        if all(np.array_equal(value, values[0], equal_nan=True) for value in values):
            # Bins and the like, without rounding.
            return parts[0]
        return np.average(values, axis=0, weights=counts)

    means = (ResultsGroup.ndarray_mean, ResultsGroup.float_mean)
    weighted = copy.copy(aggregator)
    weighted._lookup = {
        name: mean if function in means else function for name, function in aggregator._lookup.items()
    }
    return weighted


class _Reading:
    """Tells a trajectory which frames are read next."""

    def __init__(self, trajectory: Any, frames: np.ndarray) -> None:
        self._trajectory, self._frames = trajectory, frames
        self._announces = isinstance(trajectory, ZazenReader)

    def __enter__(self) -> _Reading:
        if self._announces:
            self._began = self._trajectory.ts.copy()
            self._trajectory.announce(self._frames)
        return self

    def back(self) -> None:
        """To the Timestep at which the run began, because analyses may look at it when they
        begin."""
        if self._announces:
            self._trajectory.restore(self._began)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._announces:
            self._trajectory.recall()
        if error is None:
            # As every loop over frames ends.
            self._trajectory.rewind()


def _is_rmsf(analysis: AnalysisBase) -> bool:
    """RMSF as it is: it looks at nothing but the positions of its atoms, in turn."""
    kind = type(analysis)
    return kind._single_frame is RMSF._single_frame and kind._prepare is RMSF._prepare


class _Atoms:
    """Stands for the atoms of an RMSF."""

    def __init__(self, n_atoms: int) -> None:
        self.n_atoms = n_atoms
        self.positions = np.zeros((n_atoms, 3), dtype=np.float32)


def _replay_rmsf(analysis: RMSF, frames: np.ndarray, shares: np.ndarray, together: _Together) -> RMSF:
    """RMSF's sums depend on the order of frames, and each atom's on no other atom. The ranks read
    and decode each its own frames and send each other positions, so that each rank has a part of
    the atoms in all frames. It sums these up in the order of the run, as one process would."""
    comm, group, trajectory = together.comm, analysis.atomgroup, analysis._trajectory
    bounds = np.arange(comm.size + 1) * group.n_atoms // comm.size
    atoms = _Atoms(bounds[comm.rank + 1] - bounds[comm.rank])
    mine = np.flatnonzero(shares == comm.rank)
    analysis.atomgroup = atoms
    try:
        with together.step():
            analysis._prepare_sliced_trajectory(frames[:, 1])
            analysis._prepare()
        with _Reading(trajectory, frames[mine, 1]):
            for begin, end in _rounds(shares, _frames_in_round(group.n_atoms)):
                here = mine[(mine >= begin) & (mine < end)]
                with together.step():
                    positions = np.empty((len(here), group.n_atoms, 3), dtype=np.float32)
                    times = np.empty(len(here))
                    for at, frame in enumerate(frames[here, 1]):
                        step = trajectory[int(frame)]
                        positions[at], times[at] = group.positions, step.time
                readers = shares[begin:end]
                analysis.frames[begin:end] = frames[begin:end, 1]
                for rank, found in enumerate(comm.allgather(times)):
                    analysis.times[begin + np.flatnonzero(readers == rank)] = found
                for at, atoms.positions in enumerate(_exchanged(comm, positions, readers, bounds), begin):
                    analysis._frame_index = at
                    analysis._single_frame()
        parts = comm.allgather((analysis.mean, analysis.sumsquares))
        analysis.mean, analysis.sumsquares = (np.concatenate(part) for part in zip(*parts, strict=True))
    finally:
        analysis.atomgroup = group
    return analysis


def _frames_in_round(n_atoms: int) -> int:
    """How many frames a rank reads, at most, before the ranks exchange positions."""
    return max(1, _ROUND_BYTES // max(1, 12 * n_atoms))


def _rounds(shares: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cuts the run where a rank would have more than ``most`` frames: begin and end of each
    part."""
    begin, ranks = 0, int(shares.max(initial=0)) + 1
    while begin < len(shares):
        ahead = shares[begin : begin + most * ranks]
        # How many frames before this one the same rank has.
        order = np.argsort(ahead, kind="stable")
        first = np.searchsorted(ahead[order], ahead[order], side="left")
        before = np.empty(len(ahead), dtype=np.int64)
        before[order] = np.arange(len(ahead)) - first
        too_many = np.flatnonzero(before >= most)
        end = begin + (int(too_many[0]) if len(too_many) else len(ahead))
        yield begin, end
        begin = end


def _exchanged(comm: Any, positions: np.ndarray, readers: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """This rank's part of the atoms in all frames of a round, in their order. Collective.

    ``positions``: all atoms in the frames that this rank has read. ``readers``: for each frame of
    the round, the rank that has read it. Rank r gets the atoms from ``bounds[r]`` on.
    """
    counts = np.bincount(readers, minlength=comm.size)
    widths = 3 * np.diff(bounds)
    width = int(widths[comm.rank])
    sent = np.empty(positions.size, dtype=np.float32)
    for begin, end in itertools.pairwise(bounds):
        part = sent[3 * len(positions) * begin : 3 * len(positions) * end]
        part.reshape(len(positions), end - begin, 3)[...] = positions[:, begin:end]
    received = np.empty(len(readers) * width, dtype=np.float32)
    comm.Alltoallv([sent, len(positions) * widths], [received, counts * width])
    # It came rank by rank.
    ordered = np.empty((len(readers), width // 3, 3), dtype=np.float32)
    ordered[np.argsort(readers, kind="stable")] = received.reshape(ordered.shape)
    return ordered
