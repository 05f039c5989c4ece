"""The reader: a trajectory of a Zazen dataset, as MDAnalysis wants it.

Timesteps equal those of MDAnalysis's readers for the same format, bit for bit. MDAnalysis ends a
``for`` loop without a word if a reader raises an OSError, and many of Zazen's errors are OSErrors.
So every failure to read a frame is a ReadError, which is none.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import zazen
from MDAnalysis.coordinates import base
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.lib.util import store_init_arguments
from zazen.decoders import Source
from zazen.mdanalysis._fill import filler
from zazen.mdanalysis._h5md import H5mdSource, is_h5md

PREFIX = "zazen:"


class ReadError(zazen.Error, RuntimeError):
    """A frame can't be read. The message names trajectory and frame, ``__cause__`` is the
    reason."""


def path_of(name: str) -> str:
    """The path in "zazen:/path", "zazen:///path" or "zazen:relative/path".

    Raises InvalidArgumentError for any other name.
    """
    path = name.removeprefix(PREFIX)
    if path.startswith("//"):
        # As in a URL, where the name of a host may stand before the path. There is none here.
        path = path[2:]
        if not path.startswith("/"):
            host = path.partition("/")[0]
            raise zazen.InvalidArgumentError(
                f"{name}: names the host {host!r}; write zazen:/path or zazen:///path"
            )
    if not name.startswith(PREFIX) or not path:
        raise zazen.InvalidArgumentError(f"{name!r} is no trajectory of Zazen; write zazen:/path")
    return path


class ZazenReader(base.ReaderBase):
    """Reads the trajectory ``filename``, "zazen:/path" of a trajectory file or of a directory of
    frames.

    ``convert_units``: convert to MDAnalysis's units. ``dt``: time between frames in picoseconds,
    instead of the file's. ``sub``: indices of the atoms to keep; the topology is that of these
    atoms. ``open_options``: a dict of more arguments of ``zazen.open``, such as ``{"direct":
    True}``.

    ``ts.data["zazen"]`` says where a frame came from, as ``zazen.Frame.source`` does, and
    ``ts.data["zazen_bytes"]`` how many bytes it has. The reader pickles, for MDAnalysis's parallel
    back ends; an unpickled reader opens the dataset again. Not for several threads at a time.
    Raises NotFoundError if there is no such trajectory, UnsupportedError if it has no frames, and
    ReadError if the first frame can't be read. A trajectory that ends within a frame gives a
    ZazenWarning, and a ReadError at the end of a loop over all frames.
    """

    format = "ZAZEN"
    units: dict[str, Any] = {"time": "ps", "length": "Angstrom"}  # noqa: RUF012 (MDAnalysis's declaration)

    _source: Source | H5mdSource | None = None
    _known: Any = None
    _announced = False

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        return isinstance(thing, str) and thing.startswith(PREFIX)

    @classmethod
    def parse_n_atoms(cls, filename: str, **kwargs: Any) -> int:
        """The number of atoms of the trajectory."""
        with cls(filename, **kwargs) as reader:
            return reader.n_atoms

    @store_init_arguments
    def __init__(
        self,
        filename: str,
        convert_units: bool = True,
        dt: float | None = None,
        sub: Any = None,
        open_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(filename, convert_units=convert_units, **kwargs)
        self._open_options = dict(open_options or {})
        self._path = path_of(self.filename)
        source = self._opened()
        self.n_frames = len(source)
        if self.n_frames == 0:
            raise zazen.UnsupportedError(f"{self.filename}: it has no frames, and MDAnalysis needs one")
        self._troubles = source.troubles
        self._frame = -1
        self._sub = None if sub is None else np.asarray(sub)
        try:
            self._filler = filler(source, self.convert_units, self._sub, dt)
            self._filler.prepare()
        except Exception as error:
            raise self._read_error(0, error) from error
        self.units = self._filler.units
        self.n_atoms = self._filler.n_atoms
        if dt is not None:
            self._ts_kwargs["dt"] = dt
        self.ts = Timestep(self.n_atoms, reader=self, **self._filler.timestep_arguments, **self._ts_kwargs)
        self._load(0)
        if dt is None:
            self._set_dt()

    def _set_dt(self) -> None:
        """The time between the first two frames, where the format has it there."""
        try:
            dt = self._filler.dt(self._opened())
        except Exception:
            # Whoever reads the second frame gets the error; the first is good.
            return
        if dt is not None:
            self.ts.dt = dt

    def _opened(self) -> Source | H5mdSource:
        if self._source is None:
            kind = H5mdSource if is_h5md(self._path) and "pattern" not in self._open_options else Source
            self._source = kind(self._path, self._open_options, self._known)
            # Whoever opens it again, here or unpickled elsewhere, must not read another file's
            # frames.
            self._known = self._source.known
        return self._source

    def _read_error(self, frame: int, error: Exception) -> ReadError:
        return ReadError(f"frame {frame} of {self.filename}: {error}")

    def _load(self, frame: int, ts: Timestep | None = None) -> Timestep:
        """Fills the Timestep with the frame; the reader stays where it is if that fails."""
        ts = self.ts if ts is None else ts
        try:
            source = self._opened()
            self._filler.fill(ts, frame, source)
            ts.data["zazen"], ts.data["zazen_bytes"] = source.came_from, source.length
        except Exception as error:
            # Half a frame must not pass for one.
            ts.positions = np.full((self.n_atoms, 3), np.nan, dtype=np.float32)
            raise self._read_error(frame, error) from error
        ts.frame = frame
        self._frame = frame
        return ts

    def _read_frame(self, frame: int) -> Timestep:
        return self._load(frame)

    def _read_next_timestep(self, ts: Timestep | None = None) -> Timestep:
        if self._frame >= self.n_frames - 1:
            if self._troubles:
                raise ReadError(
                    f"{self.filename} has no good frame after {self.n_frames - 1}: {self._troubles[0]}"
                )
            # MDAnalysis's word for the end.
            raise OSError(errno.EIO, "trying to go over trajectory limit")
        return self._load(self._frame + 1, ts)

    def _reopen(self) -> None:
        self._frame = -1

    def rewind(self) -> None:
        """Positions the reader at the first frame."""
        # Whoever announced frames comes back by itself, and needs no frame in between.
        if not self._announced:
            super().rewind()

    def owners(self, frames: Any, comm: Any) -> np.ndarray:
        """The rank of ``comm`` that reads each of ``frames``. Collective over ``comm``, an mpi4py
        communicator."""
        return self._opened().owners(np.asarray(frames, dtype=np.int64), comm)

    @property
    def assignment(self) -> zazen.Assignment | None:
        """How ``owners`` assigned frames the last time, as ``MPI`` asks it; None before."""
        return self._opened().assignment

    def restore(self, kept: Timestep) -> None:
        """Makes the Timestep what ``kept``, a copy of it, is. It stays the same object with the
        same arrays: analyses keep views of them."""
        ts = self.ts
        ts.has_positions, ts.has_velocities = kept.has_positions, kept.has_velocities
        ts.has_forces = kept.has_forces
        for name in ("positions", "velocities", "forces"):
            if getattr(kept, f"has_{name}"):
                getattr(ts, name)[...] = getattr(kept, name)
        ts.dimensions = kept.dimensions
        ts.frame, self._frame = kept.frame, kept.frame
        ts.data.update(kept.data)

    def announce(self, frames: np.ndarray) -> None:
        """Reads these frames ahead, in this order, until ``recall``. Until then the end of a loop
        over frames leaves the reader where it is."""
        self._announced = True
        self._opened().announce(frames)

    def recall(self) -> None:
        """Ends what ``announce`` began."""
        self._announced = False
        if self._source is not None:
            self._source.recall()

    def close(self) -> None:
        """Closes the dataset; the next access to a frame opens it again."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def Writer(self, filename: str, n_atoms: int | None = None, **kwargs: Any) -> Any:
        """A writer of this trajectory's format, with its properties."""
        return self._filler.writer(self, filename, self.n_atoms if n_atoms is None else n_atoms, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_source": None}
