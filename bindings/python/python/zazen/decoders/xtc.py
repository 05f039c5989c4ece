"""GROMACS XTC: compressed positions, and the box as vectors. Both magic numbers (1995 and 2023)."""

from __future__ import annotations

import numpy as np

from zazen import _zazen
from zazen.decoders._frame import Buffer, Frame


class XtcDecoder:
    """Positions and box are in nanometres."""

    length_unit = "nm"

    def __init__(self, header: Buffer, first_frame: Buffer | None = None) -> None:
        self.n_atoms: int = _zazen._xtc_atoms(header if first_frame is None else first_frame)

    def decode(self, data: Buffer, positions: np.ndarray, factor: float = 1.0) -> Frame:
        try:
            step, time, vectors = _zazen._xtc_decode(data, positions, factor)
        except _zazen.InvalidArgumentError:
            atoms = _zazen._xtc_atoms(data)
            if atoms == self.n_atoms:
                raise
            raise _zazen.CorruptError(
                74, f"damaged XTC frame: it has {atoms} atoms, the first frame has {self.n_atoms}"
            ) from None
        return Frame(step, time, np.array(vectors, dtype=np.float32).reshape(3, 3))
