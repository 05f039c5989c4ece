"""AMBER's NetCDF trajectories (NetCDF 3: classic, 64-bit offsets, 64-bit data).

A frame is one record of the file. The header says where in a record each variable lies.
https://ambermd.org/netcdf/nctraj.xhtml
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zazen.decoders._frame import ATOMS_MAX, Buffer, Frame, damaged, scaled

_TYPES = {
    1: "i1",
    2: "S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: "u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_LIST_MAX = 10_000
#: Variable -> the unit that the convention demands.
_UNITS = {
    "time": b"picosecond",
    "coordinates": b"angstrom",
    "velocities": b"angstrom/picosecond",
    "forces": b"kilocalorie/mole/angstrom",
    "cell_lengths": b"angstrom",
    "cell_angles": b"degree",
}


class NetcdfDecoder:
    """Positions are in Angstrom, velocities in Angstrom/ps, forces in kcal/(mol Angstrom).

    ``Frame.cell`` is [A, B, C, alpha, beta, gamma], angles in degrees. Factors of scale are
    applied.
    """

    length_unit = "Angstrom"

    def __init__(self, header: Buffer, first_frame: Buffer | None = None) -> None:
        self.header = NetcdfHeader(memoryview(header))
        conventions = self.header.attributes.get("Conventions", b"").replace(b",", b" ").split()
        if b"AMBER" not in conventions:
            raise damaged("NetCDF", 'its attribute Conventions does not say "AMBER"')
        self.n_atoms = self.header.dimensions.get("atom", -1)
        if not 0 <= self.n_atoms < ATOMS_MAX or self.header.dimensions.get("spatial") != 3:
            raise damaged("NetCDF", "it has no dimensions atom and spatial (3)")
        self._shapes = {
            "coordinates": (self.n_atoms, 3),
            "velocities": (self.n_atoms, 3),
            "forces": (self.n_atoms, 3),
            "time": (),
            "cell_lengths": (3,),
            "cell_angles": (3,),
        }
        #: Length of the header in bytes.
        self.header_bytes = begin = self.header.header_bytes
        first_frame = memoryview(header)[begin:] if first_frame is None else memoryview(first_frame)
        if len(memoryview(header)) < begin or len(first_frame) != self.header.record_bytes:
            raise damaged(
                "NetCDF", f"its header wants {begin} bytes, and {self.header.record_bytes} for a frame"
            )
        self._at = {name: self._place(name) for name in self._shapes if name in self.header.variables}
        if "coordinates" not in self._at:
            raise damaged("NetCDF", "it has no coordinates for each frame")
        self.has_velocities, self.has_forces = "velocities" in self._at, "forces" in self._at

    def _place(self, name: str) -> tuple[np.dtype, int, int, np.floating | None]:
        """Type, number of values, offset in a record, factor of scale."""
        variable, shape = self.header.variables[name], self._shapes[name]
        if not variable.is_record or variable.shape != shape or variable.type.kind != "f":
            raise damaged("NetCDF", f"its variable {name} is not one of floats of shape (frame, {shape})")
        unit = variable.attributes.get("units")
        if unit != _UNITS[name]:
            raise damaged("NetCDF", f"its variable {name} is in units {unit!r}, not in {_UNITS[name]!r}")
        factor = variable.attributes.get("scale_factor")
        if factor is not None:
            factor = np.asarray(factor).ravel()[0]
            if not isinstance(factor, np.floating):
                raise damaged("NetCDF", f"the scale_factor of its variable {name} is no float")
            factor = None if np.isclose(factor, 1) else factor
        count = int(np.prod(shape, dtype=np.int64))
        return variable.type, count, variable.begin - self.header.header_bytes, factor

    def decode(self, data: Buffer, positions: np.ndarray, factor: float = 1.0) -> Frame:
        if len(memoryview(data)) != self.header.record_bytes:
            raise damaged(
                "NetCDF", f"it has {len(memoryview(data))} bytes, a record has {self.header.record_bytes}"
            )
        scaled(self._values(data, "coordinates"), positions, factor)
        frame = Frame()
        if "time" in self._at:
            frame.time = self._values(data, "time")[()]
        if self.has_velocities:
            frame.velocities = self._values(data, "velocities")
        if self.has_forces:
            frame.forces = self._values(data, "forces")
        if "cell_lengths" in self._at and "cell_angles" in self._at:
            frame.cell = np.zeros(6)
            frame.cell[:3], frame.cell[3:] = (
                self._values(data, "cell_lengths"),
                self._values(data, "cell_angles"),
            )
        return frame

    def _values(self, data: Buffer, name: str) -> np.ndarray:
        dtype, count, offset, factor = self._at[name]
        values = np.frombuffer(data, dtype, count, offset).reshape(self._shapes[name])
        return values if factor is None else values * factor


@dataclass(slots=True)
class Variable:
    """A variable of a NetCDF file."""

    #: Of one record; without the dimension of records.
    shape: tuple[int, ...]
    is_record: bool
    type: np.dtype
    #: Its first byte in the file.
    begin: int
    attributes: dict[str, Any]


class NetcdfHeader:
    """The header of a NetCDF 3 file, which may be followed by anything."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        version = data[3] if len(data) > 3 and bytes(data[:3]) == b"CDF" else 0
        if version not in (1, 2, 5):
            raise damaged("NetCDF", "it does not begin as a NetCDF 3 file")
        self._at = 4
        self._wide, self._long = version == 5, version != 1
        self._size()
        dimensions = [(self._name(), self._size()) for _ in range(self._list(_DIMENSION))]
        #: Name -> length; that of the records is 0.
        self.dimensions: dict[str, int] = dict(dimensions)
        #: Name -> value: bytes for text, else an array.
        self.attributes = self._attributes()
        #: Name -> variable.
        self.variables = {}
        sizes = []
        for _ in range(self._list(_VARIABLE)):
            name, variable, size = self._variable(dimensions)
            self.variables[name] = variable
            sizes.append((variable, size))
        records = [(variable, size) for variable, size in sizes if variable.is_record]
        #: Length of a record, and of what lies before the first.
        self.record_bytes, self.header_bytes = 0, self._at
        if records:
            self.header_bytes = min(variable.begin for variable, _ in records)
            # The values of a single variable lie close together.
            self.record_bytes = sum(size if len(records) == 1 else -(-size // 4) * 4 for _, size in records)
            for variable, size in records:
                if variable.begin + size > self.header_bytes + self.record_bytes:
                    raise damaged("NetCDF", "its variables do not lie one behind the other")
        del self._data

    def _variable(self, dimensions: list[tuple[str, int]]) -> tuple[str, Variable, int]:
        name = self._name()
        numbers = [self._size() for _ in range(self._count())]
        if any(number >= len(dimensions) for number in numbers):
            raise damaged("NetCDF", f"its variable {name} has a dimension that does not exist")
        shape = tuple(dimensions[number][1] for number in numbers)
        attributes = self._attributes()
        dtype = self._type()
        self._size()
        begin = self._integer(8 if self._long else 4)
        is_record = bool(shape) and shape[0] == 0
        shape = shape[1:] if is_record else shape
        size = dtype.itemsize
        for length in shape:
            size *= length
        return name, Variable(shape, is_record, dtype, begin, attributes), size

    def _attributes(self) -> dict[str, Any]:
        return {self._name(): self._value() for _ in range(self._list(_ATTRIBUTE))}

    def _value(self) -> Any:
        dtype, count = self._type(), self._size()
        raw = self._take(count * dtype.itemsize)
        self._at += -self._at % 4
        return bytes(raw).rstrip(b"\0") if dtype.char == "S" else np.frombuffer(raw, dtype)

    def _name(self) -> str:
        name = bytes(self._take(self._size()))
        self._at += -self._at % 4
        return name.decode("utf-8", "replace")

    def _list(self, tag: int) -> int:
        found, count = self._integer(4), self._count()
        if found not in (0, tag) or (found == 0 and count):
            raise damaged("NetCDF", f"its header has {found} where {tag} belongs")
        return count

    def _count(self) -> int:
        count = self._size()
        if count > _LIST_MAX:
            raise damaged("NetCDF", f"its header has a list of {count}")
        return count

    def _type(self) -> np.dtype:
        code = self._integer(4)
        if code not in _TYPES:
            raise damaged("NetCDF", f"its header has type {code}")
        return np.dtype(_TYPES[code])

    def _size(self) -> int:
        return self._integer(8 if self._wide else 4)

    def _integer(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, length: int) -> memoryview:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise damaged("NetCDF", f"its header is cut off after {len(self._data)} bytes")
        self._at += length
        return taken
