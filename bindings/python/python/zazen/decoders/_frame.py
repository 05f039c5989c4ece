"""What decoders give back, and what they share."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import zazen

Buffer = Any
#: The most atoms that a decoder makes arrays for; a header that says more is damaged.
ATOMS_MAX = 1 << 31


@dataclass(slots=True)
class Frame:
    """What a frame holds besides the positions, in the units of its format."""

    #: Step of the simulation; None if the format has none.
    step: int | None = None
    #: In picoseconds; None if the format has none per frame.
    time: float | None = None
    #: Three box vectors, float32 of shape (3, 3), in the decoder's length unit; None if the format
    #: has no vectors.
    vectors: np.ndarray | None = None
    #: What the format has instead: six float64, whose meaning the decoder's class states.
    cell: np.ndarray | None = None
    #: Whether the frame has positions.
    has_positions: bool = True
    #: Arrays of shape (n_atoms, 3), in the file's byte order and precision; None if the frame has
    #: none.
    velocities: np.ndarray | None = None
    forces: np.ndarray | None = None
    #: More numbers by name.
    data: dict[str, float] = field(default_factory=dict)


def damaged(format: str, what: str) -> zazen.CorruptError:
    """The error for bytes that are no frame."""
    return zazen.CorruptError(errno.EBADMSG, f"damaged {format} frame: {what}")


def scaled(source: np.ndarray, into: np.ndarray, factor: float) -> None:
    """Writes ``source`` times ``factor`` to ``into``: first in float32, then multiplied, as other
    readers do."""
    into[...] = source
    if factor != 1.0:
        into *= np.float32(factor)
