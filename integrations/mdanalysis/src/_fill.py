"""Frames into Timesteps, by format, with the values that MDAnalysis's reader of that format
gives."""

from __future__ import annotations

import itertools
from typing import Any

import MDAnalysis
import numpy as np
import zazen.decoders
from MDAnalysis import units as mda_units
from MDAnalysis.coordinates.base import IOBase
from MDAnalysis.coordinates.H5MD import H5MDReader
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core._get_readers import get_reader_for
from MDAnalysis.lib.mdamath import triclinic_box
from zazen.decoders import Source
from zazen.decoders.source import SEVERAL_FRAMES
from zazen.mdanalysis._h5md import H5mdSource


def filler(
    source: Source | H5mdSource, convert_units: bool, sub: np.ndarray | None, dt: float | None
) -> Filler:
    """The filler for the source's format."""
    if isinstance(source, H5mdSource):
        return H5mdFiller(source, convert_units, sub, dt)
    if source.format == "h5md":
        raise zazen.UnsupportedError(
            "a frame of H5MD is positions only, without box and velocities; name the file itself, with "
            "the ending .h5md, .h5 or .hdf5, and MDAnalysis's own reader reads all of it",
        )
    kind = {"xtc": XdrFiller, "trr": XdrFiller, "dcd": DcdFiller, "ncdf": NetcdfFiller}.get(source.format)
    return (kind or FileFiller)(source, convert_units, sub, dt)


class Filler(IOBase):
    """Fills Timesteps. It has no reference to the source, so that it pickles."""

    units: dict[str, Any]
    n_atoms: int

    def __init__(self, source: Source, convert_units: bool, sub: np.ndarray | None, dt: float | None) -> None:
        self.format, self._convert, self._sub, self._given_dt = source.format, convert_units, sub, dt
        self._whole_files = source.header is None
        self._decoder = source.frame_decoder()
        self.n_atoms = self._decoder.n_atoms if sub is None else len(sub)
        self.timestep_arguments: dict[str, bool] = {}
        self._factor = 1.0

    def prepare(self) -> None:
        """What needs `units`."""
        if self._convert:
            length = self.units["length"]
            self._factor = float(mda_units.get_conversion_factor("length", length, "Angstrom"))

    def _decoded(self, ts: Timestep, data: Any) -> zazen.decoders.Frame:
        """Positions go into the Timestep."""
        ts.has_positions = True
        into = ts.positions if self._sub is None else np.empty((self._decoder.n_atoms, 3), dtype=np.float32)
        frame = self._decoder.decode(data, into, self._factor)
        if self._sub is not None and frame.has_positions:
            ts.positions = into[self._sub]
        return frame

    def _of_atoms(self, values: np.ndarray) -> np.ndarray:
        return values if self._sub is None else values[self._sub]

    def fill(self, ts: Timestep, number: int, source: Source) -> None:
        """All of the Timestep but its frame number."""
        raise NotImplementedError

    def dt(self, source: Source) -> float | None:
        """Picoseconds between frames; None if MDAnalysis finds it by itself."""
        raise NotImplementedError

    def _times(self, source: Source) -> list[Any]:
        """Of the first two frames, or of fewer."""
        scratch = np.empty((self._decoder.n_atoms, 3), dtype=np.float32)
        count = min(2, len(source))
        return [self._decoder.decode(source.read(number), scratch).time for number in range(count)]

    def writer(self, reader: Any, filename: str, n_atoms: int, **kwargs: Any) -> Any:
        return MDAnalysis.Writer(
            filename, n_atoms=n_atoms, format=self.format.upper(), multiframe=True, **kwargs
        )


class XdrFiller(Filler):
    """XTC and TRR."""

    def __init__(self, source: Source, convert_units: bool, sub: np.ndarray | None, dt: float | None) -> None:
        super().__init__(source, convert_units, sub, dt)
        self.units = {"time": "ps", "length": "nm"}
        if self.format == "trr":
            self.units |= {"velocity": "nm/ps", "force": "kJ/(mol*nm)"}

    def fill(self, ts: Timestep, number: int, source: Source) -> None:
        frame = self._decoded(ts, source.read(number))
        ts.time = frame.time if self._given_dt is None else number * self._given_dt
        ts.data["step"] = frame.step
        if self.format == "trr":
            self._fill_trr(ts, frame)
        ts.dimensions = triclinic_box(*frame.vectors)
        if self._convert and ts.dimensions is not None:
            self.convert_pos_from_native(ts.dimensions[:3])

    def _fill_trr(self, ts: Timestep, frame: zazen.decoders.Frame) -> None:
        ts.has_positions = frame.has_positions
        ts.has_velocities = frame.velocities is not None
        ts.has_forces = frame.forces is not None
        if ts.has_velocities:
            ts.velocities = self._of_atoms(frame.velocities)
            if self._convert:
                self.convert_velocities_from_native(ts.velocities)
        if ts.has_forces:
            ts.forces = self._of_atoms(frame.forces)
            if self._convert:
                self.convert_forces_from_native(ts.forces)
        ts.data["lambda"] = frame.data["lambda"]

    def dt(self, source: Source) -> float | None:
        times = self._times(source)
        return times[1] - times[0] if len(times) == 2 else 0


class DcdFiller(Filler):
    """DCD; the time of a frame follows from its number."""

    def __init__(self, source: Source, convert_units: bool, sub: np.ndarray | None, dt: float | None) -> None:
        super().__init__(source, convert_units, sub, dt)
        self.units = {"time": "AKMA", "length": "Angstrom"}

    def fill(self, ts: Timestep, number: int, source: Source) -> None:
        frame = self._decoded(ts, source.read(number))
        decoder = self._decoder.inner
        # A whole file says when its only frame was written.
        at = 0 if self._whole_files else number
        first = decoder.first_step / decoder.steps_per_frame if decoder.steps_per_frame else 0.0
        ts.time = (at + first) * self._dt()
        # As MDAnalysis counts it: frames, not steps.
        ts.data["step"] = number + 1
        ts.dimensions = _dcd_dimensions(frame.cell)

    def _dt(self) -> float:
        if self._given_dt is not None:
            return self._given_dt
        delta = mda_units.convert(self._decoder.inner.delta, self.units["time"], "ps")
        return delta * self._decoder.inner.steps_per_frame

    def dt(self, source: Source) -> float | None:
        return self._dt()

    def writer(self, reader: Any, filename: str, n_atoms: int, **kwargs: Any) -> Any:
        kwargs = {"dt": reader.ts.dt, "convert_units": self._convert} | kwargs
        return super().writer(reader, filename, n_atoms, **kwargs)


def _dcd_dimensions(cell: np.ndarray | None) -> np.ndarray:
    """Lengths and angles of a DCD's unit cell, which are there in one of three ways."""
    if cell is None:
        return np.array([0.0, 0.0, 0.0, 90.0, 90.0, 90.0])
    found = cell[[0, 2, 5, 4, 3, 1]]
    if np.all(np.abs(found[3:]) <= 1.0):
        # By arcsin, as MDAnalysis does it: right angles come out exactly.
        found[3:] = 90.0 - np.arcsin(found[3:]) * 90.0 / (np.pi / 2)
    elif np.any(found < 0.0) or np.any(found[3:] > 180.0):
        return triclinic_box(cell[[0, 1, 3]], cell[[1, 2, 4]], cell[[3, 4, 5]])
    return found


class NetcdfFiller(Filler):
    """AMBER's NetCDF."""

    def __init__(self, source: Source, convert_units: bool, sub: np.ndarray | None, dt: float | None) -> None:
        super().__init__(source, convert_units, sub, dt)
        self.units = {
            "time": "ps",
            "length": "Angstrom",
            "velocity": "Angstrom/ps",
            "force": "kcal/(mol*Angstrom)",
        }
        velocities, forces = self._decoder.inner.has_velocities, self._decoder.inner.has_forces
        self.timestep_arguments = {"velocities": velocities, "forces": forces}

    def fill(self, ts: Timestep, number: int, source: Source) -> None:
        frame = self._decoded(ts, source.read(number))
        if frame.time is not None:
            ts.time = frame.time
        if frame.velocities is not None:
            ts.velocities = self._of_atoms(frame.velocities)
        if frame.forces is not None:
            ts.forces = self._of_atoms(frame.forces)
        if frame.cell is not None:
            ts.dimensions = frame.cell
        if self._convert:
            if frame.velocities is not None:
                self.convert_velocities_from_native(ts.velocities)
            if frame.forces is not None:
                self.convert_forces_from_native(ts.forces)

    def dt(self, source: Source) -> float | None:
        if self._whole_files:
            return None
        times = self._times(source)
        return times[1] - times[0] if len(times) == 2 and None not in times else None

    def writer(self, reader: Any, filename: str, n_atoms: int, **kwargs: Any) -> Any:
        header = self._decoder.inner.header
        kept = {
            "remarks": header.attributes.get("title", b"").decode("utf-8", "replace"),
            "convert_units": self._convert,
            "velocities": self._decoder.inner.has_velocities,
            "forces": self._decoder.inner.has_forces,
        }
        for name in ("time", "cell_lengths", "cell_angles", "coordinates", "velocities", "forces"):
            factor = (
                header.variables[name].attributes.get("scale_factor") if name in header.variables else None
            )
            kept[f"scale_{name}"] = None if factor is None else float(np.ravel(factor)[0])
        return super().writer(reader, filename, n_atoms, **kept | kwargs)


class H5mdFiller(Filler):
    """H5MD, by MDAnalysis's own reader over the blocks of the file."""

    def __init__(
        self, source: H5mdSource, convert_units: bool, sub: np.ndarray | None, dt: float | None
    ) -> None:
        self.format, self._convert, self._sub, self._given_dt = "h5md", convert_units, sub, dt
        reader = self._reader(source)
        self.units = dict(reader.units)
        self.n_atoms = reader.n_atoms if sub is None else len(sub)
        self._compression = {
            "compression": reader.compression,
            "compression_opts": reader.compression_opts,
        }
        self.timestep_arguments = {
            "positions": reader.has_positions,
            "velocities": reader.has_velocities,
            "forces": reader.has_forces,
        }

    def _reader(self, source: H5mdSource) -> H5MDReader:
        """One for each opening of the file."""
        reader = getattr(source, "reader", None)
        if reader is None:
            source.prepare(0)
            try:
                reader = source.reader = H5MDReader(source.file, convert_units=self._convert)
            except Exception as error:
                raise source.cause(error) from error
        return reader

    def prepare(self) -> None:
        pass

    def fill(self, ts: Timestep, number: int, source: H5mdSource) -> None:
        reader = self._reader(source)
        source.prepare(number)
        own = reader.ts
        if self._sub is None:
            reader.ts = ts
        try:
            reader._read_frame(number)
        except Exception as error:
            raise source.cause(error) from error
        finally:
            reader.ts = own
        if self._sub is not None:
            for name, there in self.timestep_arguments.items():
                if there:
                    setattr(ts, name, getattr(own, name)[self._sub])
            ts.dimensions = own.dimensions
            ts.data.update(own.data)
        if self._given_dt is not None:
            ts.time = number * self._given_dt

    def dt(self, source: H5mdSource) -> float | None:
        return None

    def writer(self, reader: Any, filename: str, n_atoms: int, **kwargs: Any) -> Any:
        return super().writer(
            reader, filename, n_atoms, **self.timestep_arguments | self._compression | kwargs
        )


def _holds_more(reader: Any, path: str) -> bool:
    """Whether a file holds more than the frame that `reader` is at."""
    if reader.format != "GRO":
        return reader.n_frames > 1
    # This reader looks at the first frame only.
    with open(path, "rb") as file:
        lines_before = 2 + reader.n_atoms + 1
        return any(line.strip() for line in itertools.islice(file, lines_before, None))


class FileFiller(Filler):
    """Any other format that MDAnalysis reads: each frame through a reader of its own, on a file
    with exactly its bytes. This is slow; for formats of which single frames are written, such as
    PDB and GRO."""

    def __init__(self, source: Source, convert_units: bool, sub: np.ndarray | None, dt: float | None) -> None:
        self.format, self._convert, self._sub, self._given_dt = source.format, convert_units, sub, dt
        self._whole_files = source.header is None
        with self._reader(source, 0) as reader:
            self.units, self._file_atoms = dict(reader.units), reader.n_atoms
            self.n_atoms = reader.n_atoms if sub is None else len(sub)
            arguments = {"velocities": reader.ts.has_velocities, "forces": reader.ts.has_forces}
        self.timestep_arguments = arguments

    def _reader(self, source: Source, number: int) -> Any:
        path = source.path(number)
        name = {None: None, "lammpstrj": "LAMMPSDUMP"}.get(self.format, str(self.format).upper())
        kind = get_reader_for(path, name)
        reader = kind(path, convert_units=self._convert)
        if self._whole_files and _holds_more(reader, path):
            reader.close()
            raise zazen.UnsupportedError(f"its file holds more than one frame; {SEVERAL_FRAMES}")
        return reader

    def prepare(self) -> None:
        pass

    def fill(self, ts: Timestep, number: int, source: Source) -> None:
        with self._reader(source, number) as reader:
            found = reader.ts
            # With `sub` too: in a frame with other atoms, its indices mean others.
            if found.n_atoms != self._file_atoms:
                raise zazen.CorruptError(
                    74, f"it has {found.n_atoms} atoms, the first frame has {self._file_atoms}"
                )
            ts.positions = self._of_atoms(found.positions)
            ts.dimensions = found.dimensions
            ts.has_velocities, ts.has_forces = found.has_velocities, found.has_forces
            if found.has_velocities:
                ts.velocities = self._of_atoms(found.velocities)
            if found.has_forces:
                ts.forces = self._of_atoms(found.forces)
            ts.data.update({name: value for name, value in found.data.items() if name != "dt"})

    def dt(self, source: Source) -> float | None:
        return None

    def writer(self, reader: Any, filename: str, n_atoms: int, **kwargs: Any) -> Any:
        return MDAnalysis.Writer(filename, n_atoms=n_atoms, multiframe=True, **kwargs)
