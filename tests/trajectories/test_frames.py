"""Each frame of a trajectory file is one frame of a dataset, byte for byte, with a daemon and
without one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import zazen
import zazen.testing

from conftest import slices, write

WAYS = ["daemon", "direct"]


def opened(way: str, path: Path, daemon: zazen.testing.Daemon) -> zazen.Dataset:
    return zazen.open(path, direct=True) if way == "direct" else zazen.open(path, socket=daemon.socket)


def frames_of(dataset: zazen.Dataset) -> dict[int, bytes]:
    return {frame.number: bytes(frame.data) for frame in dataset.frames()}


def check(dataset: zazen.Dataset, expected: list[bytes]) -> None:
    assert len(dataset.extent()) == len(expected)
    assert frames_of(dataset) == dict(enumerate(expected))
    some = random.Random(3).choices(range(len(expected)), k=9)
    assert [bytes(dataset.read(number).data) for number in some] == [expected[number] for number in some]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, atoms", [("md.xtc", 57), ("few.xtc", 7), ("md.trr", 57)])
def test_a_file_is_a_dataset_of_its_frames(
    daemon: zazen.testing.Daemon, way: str, name: str, atoms: int
) -> None:
    path = write(daemon.backing / name, atoms)
    expected = slices(path)
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None
        assert (dataset.trajectory.format, dataset.trajectory.n_atoms) == (path.suffix[1:], atoms)
        assert (dataset.trajectory.header, dataset.trajectory.files) == (b"", [str(path)])
        assert dataset.trajectory.troubles == [] and dataset.trajectory.n_frames == 23
        check(dataset, expected)
        check(dataset, expected)
        if way == "daemon":
            natives, aliens = dataset.query(0, 22)
            assert len(natives) + len(aliens) == 23, "all frames are cached now"
    assert list(path.parent.iterdir()) == [path], "nothing is left beside the data"


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_with_one_trajectory_is_that_trajectory(daemon: zazen.testing.Daemon, way: str) -> None:
    path = write(daemon.backing / "sim" / "md.xtc") if (daemon.backing / "sim").mkdir() is None else Path()
    (path.parent / "top.gro").write_text("title\n")
    with opened(way, path.parent, daemon) as dataset:
        check(dataset, slices(path))
        assert dataset.trajectory is not None and dataset.trajectory.files == [str(path)]


@pytest.mark.parametrize("way", WAYS)
def test_a_manifest_names_several_files(daemon: zazen.testing.Daemon, way: str) -> None:
    names = [f"run-{n}.xtc" for n in range(3)]
    paths = [write(daemon.backing / name, n_frames=5 + n, seed=n) for n, name in enumerate(names)]
    (daemon.backing / "zazen.toml").write_text(f"trajectories = {names}\n")
    with opened(way, daemon.backing, daemon) as dataset:
        check(dataset, [frame for path in paths for frame in slices(path)])
        assert dataset.trajectory is not None and dataset.trajectory.files == [str(path) for path in paths]


@pytest.mark.parametrize("way", WAYS)
def test_a_link_to_a_file_elsewhere(daemon: zazen.testing.Daemon, way: str, tmp_path: Path) -> None:
    """As people put trajectories beside their scripts."""
    (daemon.backing / "scratch").mkdir()
    path = write(daemon.backing / "scratch" / "md.xtc")
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine.xtc").symlink_to(path)
    with opened(way, home / "mine.xtc", daemon) as dataset:
        check(dataset, slices(path))
        assert dataset.trajectory is not None and dataset.trajectory.files == [str(path)]


def test_a_manifest_of_thousands_of_files(daemon: zazen.testing.Daemon, tmp_path: Path) -> None:
    """Each is looked through once: all indexes are kept."""
    source = write(tmp_path / "one.xtc", n_frames=2)
    data, count, frames = source.read_bytes(), 4500, slices(source)
    names = [f"clone-{n}.xtc" for n in range(count)]
    for name in names:
        (daemon.backing / name).write_bytes(data)
    (daemon.backing / "zazen.toml").write_text(f"trajectories = {names}\n")

    def kept() -> dict[str, int]:
        folder = daemon.cache / ".zazen" / "trajectories"
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    def look() -> None:
        with opened("daemon", daemon.backing, daemon) as dataset:
            assert len(dataset) == 2 * count
            assert [bytes(dataset.read(n).data) for n in (0, 2 * count - 1)] == frames

    # The second look is of files that are no longer young, and could have changed unseen.
    look(), look()
    before = kept()
    assert len(before) == count
    look()
    daemon.stop()
    daemon.start()
    look()
    assert kept() == before, "no index is built anew"


@pytest.mark.parametrize("way", WAYS)
def test_other_datasets_have_no_trajectory(daemon: zazen.testing.Daemon, way: str) -> None:
    for number in range(3):
        (daemon.backing / f"f-{number}.bin").write_bytes(b"x" * 10)
    with opened(way, daemon.backing, daemon) as dataset:
        assert dataset.trajectory is None and len(dataset.extent()) == 3
