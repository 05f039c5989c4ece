"""One frame of a molecular trajectory, decoded from its bytes in memory.

A decoder is made from what all frames of a trajectory share, and decodes any of its frames::

    decoder = zazen.decoders.decoder("trr", header, first_frame)
    positions = numpy.empty((decoder.n_atoms, 3), dtype=numpy.float32)
    frame = decoder.decode(data, positions)

``Source`` has the bytes of a trajectory's frames; ``zazen.mdanalysis`` and ``zazen.mdtraj`` build
on both. Bytes from outside are never believed: what is no whole frame of ``n_atoms`` atoms raises
``zazen.CorruptError``.
"""

from __future__ import annotations

from typing import Protocol

from zazen.decoders._formats import FORMATS
from zazen.decoders._frame import Buffer, Frame
from zazen.decoders.dcd import DcdDecoder
from zazen.decoders.netcdf import NetcdfDecoder
from zazen.decoders.source import Source
from zazen.decoders.trr import TrrDecoder
from zazen.decoders.xtc import XtcDecoder

__all__ = [
    "FORMATS",
    "Buffer",
    "DcdDecoder",
    "Decoder",
    "Frame",
    "NetcdfDecoder",
    "Source",
    "TrrDecoder",
    "XtcDecoder",
    "decoder",
]


class Decoder(Protocol):
    """Decodes the frames of one trajectory. Not for several threads at a time."""

    #: The number of atoms of each frame.
    n_atoms: int
    #: What positions are measured in: "nm" or "Angstrom".
    length_unit: str

    def decode(self, data: Buffer, positions, factor: float = 1.0) -> Frame:
        """Decode the frame that ``data`` is.

        ``positions``: C-contiguous float32 array of shape (n_atoms, 3), which gets the positions
        times ``factor``. It is left as it is if the frame has none (see ``Frame.has_positions``);
        its content is undefined after an exception. Raises CorruptError if ``data`` is not one
        whole frame.
        """
        ...


def decoder(format: str, header: Buffer, first_frame: Buffer | None = None) -> Decoder:
    """A decoder for a trajectory of ``format``, one of FORMATS.

    ``header``: the bytes of the file before its first frame (XTC and TRR have none).
    ``first_frame``: the bytes of frame 0; None if ``header`` goes on with them. Raises KeyError for
    another format, CorruptError if the bytes are none of this format.
    """
    return FORMATS[format](header, first_frame)
