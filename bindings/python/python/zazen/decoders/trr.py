"""GROMACS TRR: positions, velocities and forces, each in some frames only, in single or double
precision."""

from __future__ import annotations

import struct

import numpy as np

from zazen.decoders._frame import ATOMS_MAX, Buffer, Frame, damaged, scaled

_MAGIC = 1993
_VERSION = b"GMX_trn_file"
#: Magic, twice the length of the version, the version, ten lengths of blocks, atoms, step, nre.
_HEADER = struct.Struct(">iii12s13i")


class TrrDecoder:
    """Positions and box are in nanometres, velocities in nm/ps, forces in kJ/(mol nm).

    ``Frame.data["lambda"]`` is the coupling parameter of free energies.
    """

    length_unit = "nm"

    def __init__(self, header: Buffer, first_frame: Buffer | None = None) -> None:
        self.n_atoms = _Header(memoryview(header if first_frame is None else first_frame)).atoms

    def decode(self, data: Buffer, positions: np.ndarray, factor: float = 1.0) -> Frame:
        data = memoryview(data)
        head = _Header(data)
        if head.atoms != self.n_atoms:
            raise damaged("TRR", f"it has {head.atoms} atoms, the first frame has {self.n_atoms}")
        real, at = head.real, _HEADER.size
        time, coupling = np.frombuffer(data, real, 2, at)
        at += 2 * real.itemsize
        blocks = {}
        for name, length in head.blocks:
            blocks[name] = np.frombuffer(data, real, length // real.itemsize, at)
            at += length
        vectors = (
            blocks["box"].astype(np.float32).reshape(3, 3) if len(blocks["box"]) else np.zeros((3, 3), "f4")
        )
        arrays = {
            name: blocks[name].reshape(-1, 3) if len(blocks[name]) else None for name in ("x", "v", "f")
        }
        if arrays["x"] is not None:
            scaled(arrays["x"], positions, factor)
        return Frame(
            step=head.step,
            time=float(np.float32(time)),
            vectors=vectors,
            has_positions=arrays["x"] is not None,
            velocities=arrays["v"],
            forces=arrays["f"],
            data={"lambda": float(np.float32(coupling))},
        )


class _Header:
    """A frame's header, checked against the frame's length."""

    def __init__(self, data: memoryview) -> None:
        if len(data) < _HEADER.size:
            raise damaged("TRR", f"it is cut off after {len(data)} bytes")
        magic, outer, inner, version, *fields = _HEADER.unpack_from(data)
        if magic != _MAGIC or (outer, inner, version) != (len(_VERSION) + 1, len(_VERSION), _VERSION):
            raise damaged("TRR", "it does not begin with the header of a TRR frame")
        lengths, (self.atoms, self.step, _) = fields[:10], fields[10:]
        if not 0 <= self.atoms < ATOMS_MAX or min(lengths) < 0:
            raise damaged("TRR", f"its header says {self.atoms} atoms and blocks of {lengths} bytes")
        ir, e, box, virial, pressure, topology, symmetry, x, v, f = lengths
        self.real = np.dtype(">f8" if self._is_double(box, [x, v, f]) else ">f4")
        atoms_bytes, box_bytes = 3 * self.atoms * self.real.itemsize, 9 * self.real.itemsize
        if any((ir, e, topology, symmetry)):
            raise damaged("TRR", "it has blocks that no known program writes")
        if {box, virial, pressure} - {0, box_bytes} or {x, v, f} - {0, atoms_bytes}:
            raise damaged("TRR", f"its blocks of {lengths} bytes do not fit {self.atoms} atoms")
        self.blocks = [("box", box), ("virial", virial), ("pressure", pressure), ("x", x), ("v", v), ("f", f)]
        whole = _HEADER.size + 2 * self.real.itemsize + sum(length for _, length in self.blocks)
        if len(data) != whole:
            raise damaged("TRR", f"it has {len(data)} bytes, and its header says {whole}")

    def _is_double(self, box: int, arrays: list[int]) -> bool:
        """As GROMACS decides it: by the box, else by the atoms' arrays."""
        if box:
            return box == 72
        return any(length == 24 * self.atoms for length in arrays if length)
