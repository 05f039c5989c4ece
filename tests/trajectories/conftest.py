"""Trajectory files that MDAnalysis writes, and the places of their frames as others find them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zazen
import zazen.testing

try:
    import MDAnalysis as mda
except ImportError as absent:  # pragma: no cover
    pytest.skip(f"MDAnalysis is not installed: {absent}", allow_module_level=True)

import numpy as np


def universe(n_atoms: int) -> mda.Universe:
    """`n_atoms` atoms without a trajectory yet."""
    made = mda.Universe.empty(n_atoms, trajectory=True)
    made.add_TopologyAttr("name", ["CA"] * n_atoms)
    made.add_TopologyAttr("type", ["C"] * n_atoms)
    made.add_TopologyAttr("resname", ["ALA"])
    made.add_TopologyAttr("resid", [1])
    made.add_TopologyAttr("mass", [12.0] * n_atoms)
    return made


def write(path: Path, n_atoms: int = 57, n_frames: int = 23, seed: int = 1, **options: object) -> Path:
    """Writes random frames with MDAnalysis; the format is that of the ending."""
    random = np.random.default_rng(seed)
    made = universe(n_atoms)
    place = random.normal(size=(n_atoms, 3)) * 10 + 30
    with mda.Writer(str(path), n_atoms=n_atoms, **options) as writer:
        for step in range(n_frames):
            place = place + random.normal(size=(n_atoms, 3)) * (0.1 + (step % 5))
            made.atoms.positions = place
            made.dimensions = [60.0, 61.0, 62.0 + step, 90, 90, 90]
            made.trajectory.ts.time = float(step)
            made.trajectory.ts.frame = step
            writer.write(made.atoms)
    return path


def slices(path: Path) -> list[bytes]:
    """The frames' bytes as others find them: libmdaxdr's offsets, SciPy's records, or lines."""
    data = path.read_bytes()
    kind = path.suffix[1:]
    if kind in ("xtc", "trr"):
        from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile

        with {"xtc": XTCFile, "trr": TRRFile}[kind](str(path)) as file:
            offsets = [int(at) for at in file.offsets]
        return [data[a:b] for a, b in zip(offsets, [*offsets[1:], len(data)], strict=True)]
    if kind in ("nc", "ncdf"):
        from scipy.io import netcdf_file

        with netcdf_file(str(path), mmap=False) as file:
            size, count = file._recsize, file._recs
        begin = len(data) - size * count
        return [data[begin + size * n : begin + size * (n + 1)] for n in range(count)]
    raise AssertionError(f"no oracle for {kind}")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Indexes go to a folder of these tests, unless an earlier test of this process opened a
    trajectory."""
    folder = tmp_path_factory.mktemp("xdg")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    write(folder / "probe.xtc", n_frames=1)
    zazen.open(folder / "probe.xtc", direct=True).close()
    if not (folder / "zazen").exists():
        folder = Path(before or Path.home() / ".cache")
    yield folder / "zazen" / "trajectories"
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[zazen.testing.Daemon]:
    """A daemon over the backing directory `tmp_path/backing`."""
    backing = tmp_path / "backing"
    backing.mkdir()
    folder = tmp_path / "node"
    folder.mkdir()
    with zazen.testing.Daemon(folder, backing) as daemon:
        yield daemon
