"""`zazen push --watch` pushes a trajectory frame by frame while it grows: whole frames only."""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import zazen
import zazen.testing
from conftest import slices, write
from test_frames import frames_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[zazen.testing.Cluster]:
    backing = tmp_path / "b"
    backing.mkdir()
    folder = tmp_path / "c"
    folder.mkdir()
    with zazen.testing.Cluster(folder, backing, nodes=1) as cluster:
        yield cluster


def watch(cluster: zazen.testing.Cluster, directory: Path, *words: str) -> subprocess.Popen[str]:
    command = [zazen.testing.program("zazen"), "push", "--watch", str(directory)]
    nodes = directory.parent.parent / "nodes"
    nodes.write_text("\n".join(cluster.nodes) + "\n")
    command += ["--nodes", str(nodes)]
    command += ["--key", str(cluster.key), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def natives(cluster: zazen.testing.Cluster, path: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with zazen.open(path, socket=cluster.sockets[0]) as dataset:
                return len(dataset.query(0, 1 << 20)[0])
        except zazen.NotFoundError:
            return 0


def await_natives(cluster: zazen.testing.Cluster, path: Path, count: int) -> None:
    end = time.monotonic() + 20
    while natives(cluster, path) < count:
        assert time.monotonic() < end, f"{natives(cluster, path)} of {count} frames are pushed"
        time.sleep(0.1)


def test_a_growing_trajectory_is_pushed_as_it_grows(cluster: zazen.testing.Cluster, tmp_path: Path) -> None:
    expected = slices(write(tmp_path / "source.xtc", n_frames=30))
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    path = sim / "md.xtc"
    with watch(cluster, sim, "--idle-exit", "6s") as process, path.open("wb") as file:
        for number, frame in enumerate(expected):
            file.write(frame[:100])
            file.flush()
            if number == 20:
                # The program keeps its file open, half a frame in.
                await_natives(cluster, path, 20)
                time.sleep(0.5)
                assert natives(cluster, path) == 20, "half a frame is not pushed"
            file.write(frame[100:])
            file.flush()
        await_natives(cluster, path, 30)
        said = process.communicate(timeout=30)[0]
    assert process.returncode == 0, said
    for place in (path, sim):
        with zazen.open(place, socket=cluster.sockets[0]) as dataset:
            reading = dataset.frames()
            assert {frame.number: bytes(frame.data) for frame in reading} == dict(enumerate(expected))
            assert reading.stats.native == 30 and reading.stats.backing_reads == 0


def test_a_trajectory_that_is_still_open_when_the_watch_ends_is_pushed(
    cluster: zazen.testing.Cluster, tmp_path: Path
) -> None:
    """The program writes its last file, `--until`, and closes the trajectory only when it exits."""
    expected = slices(write(tmp_path / "source.dcd.xtc", n_frames=12))
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    with watch(cluster, sim, "--until", "done") as process:
        time.sleep(2)
        with (sim / "md.xtc").open("wb") as file:
            file.write(b"".join(expected))
            file.flush()
            (sim / "done").touch()
            said = process.communicate(timeout=30)[0]
            assert process.returncode == 0, said
    assert natives(cluster, sim / "md.xtc") == 12, said


def test_a_restart_pushes_the_rewritten_frames_anew(cluster: zazen.testing.Cluster, tmp_path: Path) -> None:
    one = slices(write(tmp_path / "one.xtc", n_frames=12, seed=1))
    other = slices(write(tmp_path / "other.xtc", n_frames=20, seed=2))
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    path = sim / "md.xtc"
    path.write_bytes(b"".join(one))
    with watch(cluster, sim, "--idle-exit", "4s") as process:
        await_natives(cluster, path, 12)
        with path.open("r+b") as file:
            file.truncate(sum(map(len, one[:5])))
            file.seek(0, 2)
            file.write(b"".join(other[5:]))
        process.communicate(timeout=30)
    with zazen.open(path, socket=cluster.sockets[0]) as dataset:
        assert frames_of(dataset) == dict(enumerate(one[:5] + other[5:]))


def test_the_files_of_a_manifest_are_one_dataset(cluster: zazen.testing.Cluster, tmp_path: Path) -> None:
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    paths = [write(sim / f"run-{n}.xtc", n_frames=4 + n, seed=n) for n in range(3)]
    (sim / "zazen.toml").write_text(f"trajectories = {[path.name for path in paths]}\n")
    with watch(cluster, sim, "--idle-exit", "3s") as process:
        process.communicate(timeout=30)
    with zazen.open(sim, socket=cluster.sockets[0]) as dataset:
        reading = dataset.frames()
        found = {frame.number: bytes(frame.data) for frame in reading}
        assert found == dict(enumerate(frame for path in paths for frame in slices(path)))
        assert reading.stats.native == 15
