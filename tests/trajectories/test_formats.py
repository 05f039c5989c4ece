"""DCD, AMBER NetCDF and text: what MDAnalysis writes comes back frame by frame."""

from __future__ import annotations

from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
import zazen
import zazen.testing
from test_frames import WAYS, check, frames_of, opened

from conftest import slices, write


def positions(path: Path) -> list[np.ndarray]:
    with mda.coordinates.core.get_reader_for(str(path))(str(path), n_atoms=57) as reader:
        return [ts.positions.copy() for ts in reader]


@pytest.mark.parametrize("way", WAYS)
def test_dcd_frames_decode_behind_the_header(daemon: zazen.testing.Daemon, tmp_path: Path, way: str) -> None:
    path = write(daemon.backing / "md.dcd")
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None
        assert (dataset.trajectory.format, dataset.trajectory.n_atoms) == ("dcd", 57)
        header, frames = dataset.trajectory.header, frames_of(dataset)
    whole = header + b"".join(frames[number] for number in sorted(frames))
    assert whole == path.read_bytes(), "header and frames are the file"
    expected = positions(path)
    for number in (0, 11, 22):
        alone = tmp_path / f"alone-{number}.dcd"
        alone.write_bytes(header + frames[number])
        from MDAnalysis.lib.formats.libdcd import DCDFile

        with DCDFile(str(alone)) as file:
            assert np.array_equal(file.read().xyz, expected[number])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["md.ncdf", "md.nc"])
def test_netcdf_records_are_frames(daemon: zazen.testing.Daemon, way: str, name: str) -> None:
    path = write(daemon.backing / name)
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.format == "ncdf"
        check(dataset, slices(path))
        assert path.read_bytes().startswith(dataset.trajectory.header)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", [1, 2])
def test_scipy_writes_other_versions(daemon: zazen.testing.Daemon, way: str, version: int) -> None:
    from scipy.io import netcdf_file

    path = daemon.backing / "odd.nc"
    with netcdf_file(str(path), "w", version=version) as file:
        file.Conventions = "AMBER"
        for name, size in (("frame", None), ("spatial", 3), ("atom", 5), ("odd", 3)):
            file.createDimension(name, size)
        fixed = file.createVariable("spatial", "c", ("spatial",))
        fixed[:] = list("xyz")
        short = file.createVariable("odd", "h", ("frame", "odd"))
        places = file.createVariable("coordinates", "f", ("frame", "atom", "spatial"))
        for step in range(7):
            short[step] = [step, 1, 2]
            places[step] = np.full((5, 3), step)
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.n_atoms == 5
        check(dataset, slices(path))


def text_frames(path: Path, starts: str) -> list[bytes]:
    """Cut before each line that equals or begins with `starts`, with plain Python."""
    frames: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        if line.startswith(starts.encode()):
            frames.append(b"")
        frames[-1] += line
    # MDAnalysis ends an XYZ file with a blank line, which is no frame's.
    frames[-1] = frames[-1].rstrip(b"\n") + b"\n"
    return frames


@pytest.mark.parametrize("way", WAYS)
def test_text_frames_end_at_a_known_line(daemon: zazen.testing.Daemon, way: str) -> None:
    xyz = write(daemon.backing / "md.xyz", n_frames=9)
    with opened(way, xyz, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.format == "xyz"
        check(dataset, text_frames(xyz, "57"))
    one = write(daemon.backing / "one.gro", n_frames=1)
    many = daemon.backing / "md.gro"
    many.write_bytes(b"".join(one.read_bytes().replace(b"Written", b"Frame %d" % n, 1) for n in range(5)))
    with opened(way, many, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.format == "gro"
        check(dataset, text_frames(many, "Frame "))
    dump = daemon.backing / "md.lammpstrj"
    lines = [
        "ITEM: TIMESTEP",
        "{n}",
        "ITEM: NUMBER OF ATOMS",
        "3",
        "ITEM: BOX BOUNDS pp pp pp",
        "0 9",
        "0 9",
        "0 9",
    ]
    lines += ["ITEM: ATOMS id type x y z", "1 1 {n} 0 0", "2 1 0 {n} 0", "3 1 0 0 {n}", ""]
    dump.write_text("".join("\n".join(lines).format(n=n) for n in range(12)))
    assert len(mda.Universe(str(dump), format="LAMMPSDUMP").trajectory) == 12
    with opened(way, dump, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.format == "lammpstrj"
        check(dataset, text_frames(dump, "ITEM: TIMESTEP"))


def test_samples_of_mdanalysis_have_as_many_frames_as_its_readers_say() -> None:
    files = pytest.importorskip("MDAnalysisTests.datafiles", reason="MDAnalysisTests is not installed")
    names = [
        "XTC",
        "TRR",
        "DCD",
        "NCDF",
        "LAMMPSDUMP",
        "DCD_NAMD_TRICLINIC",
        "DCD_TRICLINIC",
        "COORDINATES_XTC",
    ]
    seen = 0
    for name in names:
        path = Path(getattr(files, name, "/"))
        if not path.is_file() or path.suffix in (".bz2", ".gz"):
            continue
        with zazen.open(path, direct=True) as dataset:
            assert dataset.trajectory is not None
            form = {"lammpstrj": "LAMMPSDUMP"}.get(dataset.trajectory.format)
            reader = mda.coordinates.core.get_reader_for(str(path), format=form)
            with reader(str(path), n_atoms=dataset.trajectory.n_atoms) as known:
                assert len(dataset.extent()) == known.n_frames, name
        seen += 1
    assert seen >= 5
