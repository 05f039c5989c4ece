"""DCD of CHARMM, NAMD, X-PLOR, OpenMM: positions, and the unit cell as six numbers. Both byte
orders, record markers of 32 and of 64 bits, and files with fixed atoms, whose later frames hold the
free atoms only."""

from __future__ import annotations

import numpy as np

from zazen.decoders._frame import ATOMS_MAX, Buffer, Frame, damaged

_CONTROL_BYTES = 84


class DcdDecoder:
    """Positions are in Angstrom.

    ``Frame.cell`` is the record [A, gamma, B, beta, alpha, C] as it is in the file: its angles are
    degrees, cosines or (new CHARMM) components of vectors. Without that record it is None. Frames
    have no time of their own: see ``first_step``, ``steps_per_frame`` and ``delta``.
    """

    length_unit = "Angstrom"

    def __init__(self, header: Buffer, first_frame: Buffer | None = None) -> None:
        header = memoryview(header)
        self._order, self._marker = _markers(header)
        control, at = self._record(header, 0)
        if len(control) != _CONTROL_BYTES:
            raise damaged("DCD", "its header is that of no DCD file")
        at = self._behind_titles(header, at)
        count, at = self._record(header, at)
        numbers = self._ints(control[4:])
        (atoms,) = self._ints(count) if len(count) == 4 else (-1,)
        if not 0 <= atoms < ATOMS_MAX:
            raise damaged("DCD", f"its header says {atoms} atoms")
        self.n_atoms = int(atoms)
        #: Step of the first frame, and steps from frame to frame.
        self.first_step, self.steps_per_frame = int(numbers[1]), int(numbers[2])
        charmm = numbers[19] != 0
        #: Time from step to step, in the units of AKMA (1/20.45 ps). X-PLOR writes it as a double.
        self.delta = float(np.frombuffer(control, self._order + ("f4" if charmm else "f8"), 1, 40)[0])
        self._has_cell = bool(charmm and numbers[10])
        self._has_fourth = bool(charmm and numbers[11] == 1)
        self._free = None
        if numbers[8] != 0:
            free, at = self._record(header, at)
            self._free = self._checked_free(self._ints(free).astype(np.int64) - 1, int(numbers[8]))
        #: Length of the header in bytes.
        self.header_bytes = at
        first_frame = header[at:] if first_frame is None else memoryview(first_frame)
        if len(first_frame) < 12 * self.n_atoms:
            raise damaged("DCD", f"it says {self.n_atoms} atoms, and has {len(first_frame)} bytes")
        if self._free is not None:
            self._first = np.empty((self.n_atoms, 3), dtype=np.float32)
            self._read(first_frame, self._first, None)

    def _ints(self, record: memoryview) -> np.ndarray:
        if len(record) % 4:
            raise damaged("DCD", f"a record of numbers has {len(record)} bytes")
        return np.frombuffer(record, self._order + "i4")

    def _checked_free(self, free: np.ndarray, fixed: int) -> np.ndarray:
        if len(free) != self.n_atoms - fixed or (
            len(free) and not 0 <= free.min() <= free.max() < self.n_atoms
        ):
            raise damaged(
                "DCD", f"its header says {fixed} fixed atoms of {self.n_atoms}, but lists {len(free)}"
            )
        return free

    def _length(self, data: memoryview, at: int) -> int:
        """The marker at a place."""
        if at + self._marker.itemsize > len(data):
            raise damaged("DCD", f"it is cut off after {len(data)} bytes")
        return int(np.frombuffer(data, self._marker, 1, at)[0])

    def _record(self, data: memoryview, at: int) -> tuple[memoryview, int]:
        """The record at a place, which lies between two copies of its length, and where it ends."""
        length, begin = self._length(data, at), at + self._marker.itemsize
        if length < 0 or self._length(data, begin + length) != length:
            raise damaged("DCD", f"the record at byte {at} is damaged")
        return data[begin : begin + length], begin + length + self._marker.itemsize

    def _behind_titles(self, data: memoryview, at: int) -> int:
        """Some writers state the wrong length for the titles, so their number counts, as in other
        readers."""
        length, begin = self._length(data, at), at + self._marker.itemsize
        if begin + 4 <= len(data):
            titles = int(np.frombuffer(data, self._order + "i4", 1, begin)[0])
            end = begin + 4 + 80 * titles
            if titles >= 0 and end + self._marker.itemsize <= len(data) and self._length(data, end) == length:
                return end + self._marker.itemsize
        return self._record(data, at)[1]

    def decode(self, data: Buffer, positions: np.ndarray, factor: float = 1.0) -> Frame:
        frame = self._read(data, positions, self._free)
        if factor != 1.0:
            positions *= np.float32(factor)
        return frame

    def _read(self, data: Buffer, positions: np.ndarray, free: np.ndarray | None) -> Frame:
        data, records, at = memoryview(data), [], 0
        while at < len(data):
            record, at = self._record(data, at)
            records.append(record)
        frame = Frame()
        if self._has_cell:
            if not records or len(records[0]) != 48:
                raise damaged("DCD", "the record of the unit cell is missing")
            frame.cell = np.frombuffer(records.pop(0), self._order + "f8").astype(np.float64)
        axes = records[:3]
        if len(records) != 3 + self._has_fourth or len({len(axis) for axis in axes}) != 1:
            raise damaged("DCD", f"it has {len(records)} records of coordinates, or of different lengths")
        count, rest = divmod(len(axes[0]), 4)
        if rest or count not in {self.n_atoms, len(free) if free is not None else self.n_atoms}:
            raise damaged("DCD", f"it has {len(axes[0])} bytes for an axis of {self.n_atoms} atoms")
        whole = count == self.n_atoms
        if not whole:
            positions[...] = self._first
        for column, axis in enumerate(axes):
            values = np.frombuffer(axis, self._order + "f4")
            if whole:
                positions[:, column] = values
            else:
                positions[free, column] = values
        return frame


def _markers(header: memoryview) -> tuple[str, np.dtype]:
    """Byte order, and the type of the markers around records."""
    for order in "<>":
        for width in ("i4", "i8"):
            marker = np.dtype(order + width)
            begin = np.array([_CONTROL_BYTES], marker).tobytes()
            match bytes(header[: len(begin) + 4]).removeprefix(begin):
                case b"CORD":
                    return order, marker
                case b"VELD":
                    raise damaged("DCD", "it holds velocities (VELD), no positions")
    raise damaged("DCD", "it does not begin as a DCD file")
