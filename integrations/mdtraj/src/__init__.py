"""mdtraj reads trajectories through Zazen, in chunks of frames.

::

    import zazen.mdtraj

    for chunk in zazen.mdtraj.iterload("/lustre/sim1/md.xtc", top="top.pdb", chunk=100):
        print(chunk)

``chunk`` is an ``mdtraj.Trajectory``, equal to that of ``mdtraj.iterload``. Under MPI, ``share``
gives each rank the frames that its node holds. Trajectories are XTC, TRR, DCD and AMBER NetCDF
files, and directories of numbered files with one frame each of these formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mdtraj
import numpy as np
import zazen
import zazen.decoders

__all__ = ["iterload", "share"]


def iterload(
    path: str,
    chunk: int = 100,
    *,
    top: Any,
    stride: int = 1,
    skip: int = 0,
    atom_indices: Any = None,
    **open_options: Any,
) -> Iterator[mdtraj.Trajectory]:
    """Iterate over the trajectory ``path`` in chunks of ``chunk`` frames (0: all at once), in
    order.

    ``top``: an mdtraj.Topology, an mdtraj.Trajectory, or the file of one. ``stride``: every so many
    frames. ``skip``: frames that are left out at the start. ``atom_indices``: the atoms to keep.
    ``open_options``: more arguments of ``zazen.open``.

    Raises CorruptError for a damaged frame after all good ones before it, and InvalidArgumentError
    if the topology has another number of atoms.
    """
    with _Trajectory(path, top, atom_indices, open_options) as trajectory:
        frames = np.arange(skip, len(trajectory), stride)
        for _, made in trajectory.chunks(frames, chunk):
            yield made
        trajectory.complain()


def share(
    path: str,
    chunk: int = 100,
    *,
    top: Any,
    comm: Any,
    stride: int = 1,
    skip: int = 0,
    atom_indices: Any = None,
    **open_options: Any,
) -> Iterator[tuple[np.ndarray, mdtraj.Trajectory]]:
    """Iterate over this rank's share of the trajectory, as (frames, chunk): every frame is on
    exactly one rank.

    ``frames``: the indices of the chunk's frames, increasing. ``comm``: an mpi4py communicator. The
    first step of the iteration is collective over it, the rest is not. The other arguments are
    those of ``iterload``.
    """
    with _Trajectory(path, top, atom_indices, open_options) as trajectory:
        frames = np.arange(skip, len(trajectory), stride)
        if len(frames):
            frames = frames[trajectory.source.owners(frames, comm) == comm.rank]
        yield from trajectory.chunks(frames, chunk)
        trajectory.complain()


class _Trajectory:
    """An opened trajectory with its topology."""

    def __init__(self, path: str, top: Any, atom_indices: Any, open_options: dict[str, Any]) -> None:
        self.path = path
        self.source = zazen.decoders.Source(path.removeprefix("zazen:"), open_options)
        if self.source.format not in zazen.decoders.FORMATS:
            self.source.close()
            known = ", ".join(zazen.decoders.FORMATS)
            raise zazen.UnsupportedError(
                f"{path}: its format is {self.source.format}; zazen.mdtraj reads {known}"
            )
        self.topology = top if isinstance(top, mdtraj.Topology) else _topology(top)
        self.atoms = None if atom_indices is None else np.asarray(atom_indices)
        self.chosen = self.topology if self.atoms is None else self.topology.subset(self.atoms)

    def __enter__(self) -> _Trajectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.source.close()

    def __len__(self) -> int:
        return len(self.source)

    def complain(self) -> None:
        """At the end: what is wrong behind the last good frame."""
        if self.source.troubles:
            raise zazen.CorruptError(74, f"{self.path}: {self.source.troubles[0]}")

    def chunks(self, frames: np.ndarray, chunk: int) -> Iterator[tuple[np.ndarray, mdtraj.Trajectory]]:
        if not len(frames):
            return
        self.source.announce(frames)
        frame_decoder = self.source.frame_decoder()
        if frame_decoder.n_atoms != self.topology.n_atoms:
            raise zazen.InvalidArgumentError(
                f"{self.path} has {frame_decoder.n_atoms} atoms, the topology {self.topology.n_atoms}"
            )
        for begin in range(0, len(frames), chunk or len(frames)):
            some = frames[begin : begin + (chunk or len(frames))]
            yield some, self._decoded(some, frame_decoder)

    def _decoded(self, frames: np.ndarray, frame_decoder: Any) -> mdtraj.Trajectory:
        n_atoms = frame_decoder.n_atoms
        positions = np.empty(
            (len(frames), n_atoms if self.atoms is None else len(self.atoms), 3), dtype=np.float32
        )
        whole = None if self.atoms is None else np.empty((n_atoms, 3), dtype=np.float32)
        factor = 1.0 if frame_decoder.length_unit == "nm" else 0.1
        found = []
        for at, index in enumerate(frames):
            try:
                into = positions[at] if whole is None else whole
                frame = frame_decoder.decode(self.source.read(int(index)), into, factor)
                if not frame.has_positions:
                    raise zazen.CorruptError(74, "it has no positions")
            except zazen.CorruptError as error:
                raise zazen.CorruptError(74, f"frame {index} of {self.path}: {error}") from error
            if whole is not None:
                positions[at] = whole[self.atoms]
            found.append(frame)
        return self._made(positions, frames, found, factor)

    def _made(
        self, positions: np.ndarray, frames: np.ndarray, found: list[zazen.decoders.Frame], factor: float
    ) -> mdtraj.Trajectory:
        # As mdtraj has it, the time is the frame's number where the format has none.
        times = [
            frame.time if frame.time is not None else number
            for frame, number in zip(found, frames, strict=True)
        ]
        time = np.array(times, dtype=None if found[0].time is None else np.float32)
        made = mdtraj.Trajectory(positions, self.chosen, time=time)
        if found[0].vectors is not None:
            vectors = np.array([frame.vectors for frame in found])
            if np.any(vectors):
                made.unitcell_vectors = vectors
        elif found[0].cell is not None:
            lengths, angles = zip(
                *(_lengths_and_angles(self.source.format, frame.cell) for frame in found), strict=True
            )
            made.unitcell_lengths = np.array(lengths, dtype=np.float32) * np.float32(factor)
            made.unitcell_angles = np.array(angles, dtype=np.float32)
        return made


def _topology(top: Any) -> mdtraj.Topology:
    return top.topology if isinstance(top, mdtraj.Trajectory) else mdtraj.load_topology(str(top))


def _lengths_and_angles(format: str, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A unit cell's record in the file's unit and in degrees."""
    if format == "dcd":
        lengths, angles = cell[[0, 2, 5]], cell[[4, 3, 1]]
        if np.all(np.abs(angles) <= 1.0):
            angles = 90.0 - np.rad2deg(np.arcsin(angles))
        return lengths, angles
    return cell[:3], cell[3:]
