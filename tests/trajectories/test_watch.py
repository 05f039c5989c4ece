"""`zazen push --watch` pushes a trajectory frame by frame while it grows: whole frames only."""

from __future__ import annotations

import contextlib
import json
import struct
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


@contextlib.contextmanager
def watch(cluster: zazen.testing.Cluster, directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A watch of `directory`; it ends with the test, also with one that fails."""
    command = [zazen.testing.program("zazen"), "push", "--watch", str(directory)]
    nodes = directory.parent.parent / "nodes"
    nodes.write_text("\n".join(cluster.nodes) + "\n")
    command += ["--nodes", str(nodes)]
    command += ["--key", str(cluster.key), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def natives(cluster: zazen.testing.Cluster, path: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with zazen.open(path, socket=cluster.sockets[0]) as dataset:
                return len(dataset.query(0, 1 << 20)[0])
        except zazen.NotFoundError:
            return 0


def await_natives(cluster: zazen.testing.Cluster, path: Path, count: int) -> None:
    end = time.monotonic() + 60
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
        said = process.communicate(timeout=90)[0]
    assert process.returncode == 0, said
    for place in (path, sim):
        with zazen.open(place, socket=cluster.sockets[0]) as dataset:
            reading = dataset.frames()
            assert {frame.number: bytes(frame.data) for frame in reading} == dict(enumerate(expected))
            assert reading.stats.native == 30 and reading.stats.backing_reads == 0


def outcome(said: str) -> dict[str, int]:
    """What `zazen push --json` says at its end."""
    return json.loads(said[said.index("\n{") if "\n{" in said else said.index("{") :])


def from_cache(cluster: zazen.testing.Cluster, path: Path) -> tuple[dict[int, bytes], zazen.Stats]:
    with zazen.open(path, socket=cluster.sockets[0]) as dataset:
        reading = dataset.frames()
        return {frame.number: bytes(frame.data) for frame in reading}, reading.stats


# Where OpenMM's and most other writers of DCD count the frames, and where the last step stands.
COUNTERS = (8, 20)


@pytest.mark.parametrize("counters", ["before each frame", "after each frame"])
def test_a_dcd_that_is_made_during_the_watch_is_pushed_once_while_it_grows(
    cluster: zazen.testing.Cluster, tmp_path: Path, counters: str
) -> None:
    source = write(tmp_path / "source.dcd", n_atoms=3000, n_frames=40)
    with zazen.open(source, direct=True) as dataset:
        assert dataset.trajectory
        header = dataset.trajectory.header
        expected = [bytes(frame.data) for frame in dataset.frames(ordered=True)]
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    path = sim / "md.dcd"
    with watch(cluster, sim, "--until", "done", "--json") as process:
        time.sleep(1)
        with path.open("wb") as file:
            file.write(header)

            def count(frames: int) -> None:
                for at in COUNTERS:
                    file.seek(at)
                    file.write(struct.pack("<i", frames))
                    file.flush()
                    time.sleep(0.03)
                file.seek(0, 2)

            for number, frame in enumerate(expected):
                if counters == "before each frame":
                    count(number + 1)
                file.write(frame[:5000])
                file.flush()
                time.sleep(0.05)
                file.write(frame[5000:])
                file.flush()
                if counters == "after each frame":
                    count(number + 1)
                if number == 30:
                    await_natives(cluster, path, 30)
            (sim / "done").touch()
            said = process.communicate(timeout=90)[0]
    assert process.returncode == 0, said
    told = outcome(said)
    # A header that is changed behind the last frame makes its copy stale: it is pushed once more.
    touched = 0 if counters == "before each frame" else 1
    assert told["pushed"] == 40 and told["already_there"] <= touched, said
    found, stats = from_cache(cluster, path)
    assert found == dict(enumerate(expected)) and (stats.native, stats.backing_reads) == (40, 0)


def test_an_xtc_that_is_made_during_the_watch_is_pushed_once_while_it_grows(
    cluster: zazen.testing.Cluster, tmp_path: Path
) -> None:
    expected = slices(write(tmp_path / "source.xtc", n_atoms=2000, n_frames=60))
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    path = sim / "md.xtc"
    with watch(cluster, sim, "--until", "done", "--json") as process:
        time.sleep(1)
        with path.open("wb") as file:
            for number, frame in enumerate(expected):
                file.write(frame)
                file.flush()
                time.sleep(0.03)
                if number == 30:
                    await_natives(cluster, path, 30)
            (sim / "done").touch()
            said = process.communicate(timeout=90)[0]
    assert process.returncode == 0, said
    told = outcome(said)
    assert (told["submitted"], told["pushed"], told["already_there"]) == (60, 60, 0), said
    found, stats = from_cache(cluster, path)
    assert found == dict(enumerate(expected)) and (stats.native, stats.backing_reads) == (60, 0)


@pytest.mark.parametrize("frames", [40, 50, 30])
def test_a_trajectory_that_is_rewritten_whole_is_pushed_anew(
    cluster: zazen.testing.Cluster, tmp_path: Path, frames: int
) -> None:
    """DCD frames are all of one length, so only their bytes tell; 40: the file's length is the old
    one."""
    one = write(tmp_path / "one.dcd", n_atoms=3000, n_frames=40, seed=1).read_bytes()
    other = write(tmp_path / "other.dcd", n_atoms=3000, n_frames=frames, seed=2)
    with zazen.open(other, direct=True) as dataset:
        expected = frames_of(dataset)
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    path = sim / "md.dcd"
    with watch(cluster, sim, "--until", "done", "--json") as process:
        time.sleep(1)
        with path.open("w+b") as file:
            file.write(one)
            file.flush()
            await_natives(cluster, path, 40)
            inode = path.stat().st_ino
            # In place: no moment tells that another trajectory begins.
            file.seek(0)
            file.write(other.read_bytes())
            file.truncate()
            file.flush()
            time.sleep(1)
            (sim / "done").touch()
            said = process.communicate(timeout=90)[0]
    assert process.returncode == 0 and path.stat().st_ino == inode, said
    assert outcome(said)["submitted"] >= 40 + frames, said
    found, stats = from_cache(cluster, path)
    assert found == expected and (stats.native, stats.backing_reads) == (frames, 0)


def test_a_second_trajectory_begins_in_the_same_folder(
    cluster: zazen.testing.Cluster, tmp_path: Path
) -> None:
    """Equilibration, then production: each file is a dataset of its own, and both grow."""
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    expected = {
        sim / name: slices(write(tmp_path / name, n_atoms=2000, n_frames=20, seed=seed))
        for seed, name in enumerate(["equil.xtc", "prod.xtc"])
    }
    with watch(cluster, sim, "--until", "done", "--json") as process:
        time.sleep(1)
        first, second = ((path.open("wb"), frames) for path, frames in expected.items())
        with first[0], second[0]:
            for number in range(30):
                for begun, (file, frames) in zip((0, 10), (first, second), strict=True):
                    if 0 <= number - begun < 20:
                        file.write(frames[number - begun])
                        file.flush()
                time.sleep(0.05)
            for path in expected:
                await_natives(cluster, path, 20)
            (sim / "done").touch()
            said = process.communicate(timeout=90)[0]
    assert process.returncode == 0 and outcome(said)["submitted"] == 40, said
    for path, frames in expected.items():
        found, stats = from_cache(cluster, path)
        assert found == dict(enumerate(frames)) and (stats.native, stats.backing_reads) == (20, 0)


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
            said = process.communicate(timeout=90)[0]
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
        process.communicate(timeout=90)
    with zazen.open(path, socket=cluster.sockets[0]) as dataset:
        assert frames_of(dataset) == dict(enumerate(one[:5] + other[5:]))


def test_the_files_of_a_manifest_are_one_dataset(cluster: zazen.testing.Cluster, tmp_path: Path) -> None:
    sim = tmp_path / "b" / "sim"
    sim.mkdir()
    paths = [write(sim / f"run-{n}.xtc", n_frames=4 + n, seed=n) for n in range(3)]
    (sim / "zazen.toml").write_text(f"trajectories = {[path.name for path in paths]}\n")
    with watch(cluster, sim, "--idle-exit", "3s") as process:
        process.communicate(timeout=90)
    with zazen.open(sim, socket=cluster.sockets[0]) as dataset:
        reading = dataset.frames()
        found = {frame.number: bytes(frame.data) for frame in reading}
        assert found == dict(enumerate(frame for path in paths for frame in slices(path)))
        assert reading.stats.native == 15
