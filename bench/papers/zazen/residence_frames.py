"""Frames for the water residence analysis, from a real simulation: each a one-frame DCD file.

The villin headpiece in water (8,867 atoms) is simulated by examples/simulate_peptide.py for some
dozens of frames. A frame of the dataset is four such boxes side by side (35,468 atoms, 426 KB),
each a simulated frame of its own, or one box (107 KB). Where simulated frames repeat, small random
displacements make copies differ.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from cluster import ROOT, BenchError, call, say

SIMULATED = 36
PATTERN = "frame-{:07d}.dcd"
STRIDES = (1, 5, 7, 11)
NOISE_ANGSTROM = 0.05


def make(folder: Path, scratch: Path, count: int, boxes: int = 4) -> Path:
    """Write `count` frames of `boxes` boxes (1 or 4); returns the topology's file. Some twenty
    seconds."""
    import MDAnalysis

    say(f"simulating {SIMULATED} frames, for {count} frames of the dataset")
    call([sys.executable, ROOT / "examples" / "simulate_peptide.py", "--out", scratch, "--files",
          "--frames", SIMULATED, "--threads", 2])  # fmt: skip
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = MDAnalysis.Universe(str(scratch / "topology.pdb"))
        positions, box = simulated(one, scratch)
        a, b, *_ = box
        shifts = np.array([[0, 0, 0], [a, 0, 0], [0, b, 0], [a, b, 0]], dtype=np.float32)[:boxes]
        tiled = MDAnalysis.Merge(*[one.atoms] * boxes)
        tiled.dimensions = box * np.array([2, 2, 1, 1, 1, 1] if boxes == 4 else [1] * 6, dtype=np.float32)
        noise = np.random.default_rng(1).normal(0, NOISE_ANGSTROM, (len(tiled.atoms), 3)).astype(np.float32)
        topology = scratch / "tiled.pdb"
        for at in range(count):
            # Strides without a common factor with SIMULATED.
            picked = [
                positions[(at * stride + 9 * tile) % SIMULATED] for tile, stride in enumerate(STRIDES[:boxes])
            ]
            placed = np.concatenate([pick + shift for pick, shift in zip(picked, shifts, strict=True)])
            tiled.atoms.positions = placed + np.roll(noise, 7 * (at // SIMULATED), axis=0) * (at >= SIMULATED)
            if at == 0:
                tiled.atoms.write(str(topology))
            with MDAnalysis.Writer(
                str(folder / PATTERN.format(at)), len(tiled.atoms), format="DCD"
            ) as writer:
                writer.write(tiled.atoms)
    return topology


def simulated(universe, scratch: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """All simulated positions, and the box, which must be one."""
    positions, boxes = [], []
    for at in range(SIMULATED):
        universe.load_new(str(scratch / PATTERN.format(at)), format="DCD")
        positions.append(universe.atoms.positions.copy())
        boxes.append(universe.dimensions.copy())
    if any(not np.array_equal(box, boxes[0]) for box in boxes):
        raise BenchError("the simulated box changes; boxes cannot be put side by side")
    return positions, boxes[0]
