"""Datasets for the reading figures: one file per frame, all different, incompressible, made
quickly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

PATTERN = "frame%09d"


def make(folder: Path, count: int, frame_bytes: int, seed: int = 1) -> None:
    """Write `count` frames of `frame_bytes` into `folder` (made). Frame i begins with i, a u64."""
    folder.mkdir(parents=True, exist_ok=True)
    # One random block, entered at another place by each frame: cheap, and no two frames are alike.
    block = np.random.default_rng(seed).integers(0, 256, size=frame_bytes + 65_536, dtype=np.uint8)
    for index in range(count):
        at = (index * 4_099) % 65_536
        data = block[at : at + frame_bytes].copy()
        data[: min(8, frame_bytes)] = np.frombuffer(index.to_bytes(8, "little"), dtype=np.uint8)[:frame_bytes]
        with open(folder / (PATTERN % index), "wb", buffering=0) as file:
            file.write(data)


def write_back(folder: Path) -> None:
    """Wait until the folder's file system has everything on its disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.sync()


def human(size: int) -> str:
    """430 KB, 2 MB: the paper's names of sizes."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size} B"


def write_json(file: Path, value: object) -> None:
    """A small JSON file."""
    file.write_text(json.dumps(value, indent=1) + "\n")
