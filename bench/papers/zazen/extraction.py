"""The first half of the water residence analysis (examples/water_residence.py) on frames that are
one-frame DCD files: which waters are near the protein. Frames are decoded in memory, as
`residence_frames.py` wrote them."""

from __future__ import annotations

import struct

import MDAnalysis
import numpy as np


class Extraction:
    """Of one topology; used for frame after frame."""

    def __init__(self, topology: str, select: str) -> None:
        self._universe = MDAnalysis.Universe(topology)
        self._select = select

    def ids(self, data: memoryview) -> np.ndarray:
        """The ids of the selected atoms in the frame whose file has these bytes."""
        positions, box = read_dcd_frame(data)
        self._universe.atoms.positions = positions
        self._universe.dimensions = box
        return self._universe.select_atoms(self._select).ids.astype("<i8")


def read_dcd_frame(data: memoryview) -> tuple[np.ndarray, np.ndarray]:
    """Positions and box of a DCD file with one frame and a unit cell, as MDAnalysis writes it."""
    parts, at = [], 0
    while at + 4 <= len(data) and len(parts) < 8:
        (length,) = struct.unpack_from("<I", data, at)
        parts.append(data[at + 4 : at + 4 + length])
        at += length + 8
    lengths = [len(part) for part in parts]
    if len(parts) != 7 or at != len(data) or bytes(parts[0][:4]) != b"CORD" or lengths[3] != 48:
        raise ValueError("this is no DCD file of one frame with a unit cell")
    a, gamma, b, beta, alpha, c = np.frombuffer(parts[3], "<f8")
    angles = np.array([alpha, beta, gamma])
    if np.all(np.abs(angles) <= 1):
        # The record may hold cosines.
        angles = np.degrees(np.arccos(angles))
    axes = [np.frombuffer(part, "<f4") for part in parts[4:]]
    return np.stack(axes, axis=1), np.array([a, b, c, *angles], np.float32)
