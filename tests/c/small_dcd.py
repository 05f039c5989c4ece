"""A DCD file made by hand: its frames decode only with its header."""

import struct
from pathlib import Path

ATOMS, STEPS = 5, 3


def write(path: Path) -> tuple[bytes, int]:
    """Writes whole frames and one that is cut. Returns the header, and where the cut one begins."""
    control = struct.pack("<4s20i", b"CORD", STEPS, *[0] * 18, 24)
    parts = [control, struct.pack("<i80s", 1, b"made by a test"), struct.pack("<i", ATOMS)]
    header = b"".join(record(part) for part in parts)
    frame = 3 * record(bytes(4 * ATOMS))
    path.write_bytes(header + STEPS * frame + frame[:-1])
    return header, len(header) + STEPS * len(frame)


def record(data: bytes) -> bytes:
    """As Fortran writes it: between two copies of its length."""
    length = struct.pack("<i", len(data))
    return length + data + length
