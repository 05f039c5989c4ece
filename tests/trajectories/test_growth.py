"""Trajectories that grow: cached frames stay, new ones come, rewritten ones are never handed
out."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import warnings
from pathlib import Path

import pytest
import zazen
import zazen.testing
from conftest import slices, write
from test_frames import frames_of, opened


def bytes_of(path: Path, count: int) -> bytes:
    return b"".join(slices(path)[:count])


def cached(dataset: zazen.Dataset, last: int) -> int:
    natives, aliens = dataset.query(0, last)
    return len(natives) + len(aliens)


@pytest.mark.parametrize("ending, atoms", [("xtc", 57), ("xtc", 9000), ("dcd", 3000), ("ncdf", 57)])
def test_cached_frames_of_a_file_that_grew_stay(
    daemon: zazen.testing.Daemon, tmp_path: Path, ending: str, atoms: int
) -> None:
    source = write(tmp_path / f"source.{ending}", atoms, 20)
    with zazen.open(source, direct=True) as dataset:
        header = dataset.trajectory.header if dataset.trajectory else b""
        frames = frames_of(dataset)
    path = daemon.backing / f"md.{ending}"
    shorter = write(tmp_path / f"shorter.{ending}", atoms, 12).read_bytes()
    assert shorter[len(header) :] == b"".join(frames[n] for n in range(12)), "the writer is deterministic"
    path.write_bytes(shorter)
    time.sleep(0.05)
    with opened("daemon", path, daemon) as dataset:
        assert frames_of(dataset) == {n: frames[n] for n in range(12)}
    # It grows, and its header counts the frames.
    with path.open("r+b") as file:
        file.write(source.read_bytes()[: len(header)])
        file.seek(0, 2)
        file.write(b"".join(frames[n] for n in range(12, 20)))
    with opened("daemon", path, daemon) as dataset:
        assert len(dataset.extent()) == 20
        reading = dataset.frames(0, 11)
        assert {frame.number: bytes(frame.data) for frame in reading} == {n: frames[n] for n in range(12)}
        assert (reading.stats.alien, reading.stats.backing_reads) == (12, 0), "all from the cache"
        reading = dataset.frames()
        assert {frame.number: bytes(frame.data) for frame in reading} == frames
        assert reading.stats.alien == 12 and reading.stats.backing_reads == 8


def test_comparing_large_frames_reads_little(daemon: zazen.testing.Daemon, tmp_path: Path) -> None:
    """A few KiB of each frame, and of its copy: else the cache would save nothing."""
    source = write(tmp_path / "source.trr", 9000, 41)
    data, frames = source.read_bytes(), slices(source)
    path = daemon.backing / "md.trr"
    path.write_bytes(data[: -len(frames[40])])
    with opened("daemon", path, daemon) as dataset:
        assert frames_of(dataset) == dict(enumerate(frames[:40]))
    path.write_bytes(data)

    def bytes_read() -> int:
        return int(Path(f"/proc/{daemon.pid}/io").read_text().split()[1])

    with opened("daemon", path, daemon) as dataset:
        before = bytes_read()
        reading = dataset.frames(0, 39)
        assert {frame.number: bytes(frame.data) for frame in reading} == dict(enumerate(frames[:40]))
        assert (reading.stats.alien, reading.stats.backing_reads) == (40, 0)
        # Beside them, the daemon may compare its index with the file twice.
        assert bytes_read() - before < 40 * 10_000 + 600_000


@pytest.mark.parametrize("atoms", [57, 9000])
def test_a_restart_from_a_checkpoint_makes_the_rewritten_frames_stale(
    daemon: zazen.testing.Daemon, tmp_path: Path, atoms: int
) -> None:
    one = slices(write(tmp_path / "one.xtc", atoms, 20, seed=1))
    other = slices(write(tmp_path / "other.xtc", atoms, 30, seed=2))
    path = daemon.backing / "md.xtc"
    path.write_bytes(b"".join(one))
    time.sleep(0.05)
    with opened("daemon", path, daemon) as dataset:
        assert frames_of(dataset) == dict(enumerate(one))
    # Cut after frame 7, and written on, beyond its old end.
    with path.open("r+b") as file:
        file.truncate(sum(map(len, one[:8])))
        file.seek(0, 2)
        file.write(b"".join(other[8:]))
    expected = one[:8] + other[8:]
    with opened("daemon", path, daemon) as dataset:
        reading = dataset.frames()
        assert {frame.number: bytes(frame.data) for frame in reading} == dict(enumerate(expected))
        assert reading.stats.alien == 8, "the frames before the checkpoint stay"


def test_frames_are_read_while_the_file_grows(daemon: zazen.testing.Daemon, tmp_path: Path) -> None:
    expected = slices(write(tmp_path / "source.xtc", 200, 400))
    path = daemon.backing / "md.xtc"
    path.write_bytes(b"".join(expected[:10]))
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            for frame in expected[10:]:
                file.write(frame[: len(frame) // 2])
                file.flush()
                file.write(frame[len(frame) // 2 :])
                file.flush()
                if stop.wait(0.004):
                    return

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(6):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = opened("daemon", path, daemon)
            with dataset:
                found = frames_of(dataset)
                assert found == dict(enumerate(expected[: len(found)])) and len(found) >= 10
    finally:
        stop.set()
        writer.join()


def test_the_index_is_extended_by_reading_the_new_part_only(
    daemon: zazen.testing.Daemon, own_cache: Path
) -> None:
    source = write(daemon.backing / "source.xtc", 57, 400)
    data, expected = source.read_bytes(), slices(source)
    path = daemon.backing / "md.xtc"
    ends = [sum(map(len, expected[:n])) for n in (300, 301, 400)]
    path.write_bytes(data[: ends[0]])
    with zazen.open(path, direct=True) as dataset:
        assert len(dataset.extent()) == 300
    for end, count in zip(ends[1:], (301, 400), strict=True):
        with path.open("ab") as file:
            file.write(data[path.stat().st_size : end])
        with zazen.open(path, direct=True) as dataset:
            assert frames_of(dataset) == dict(enumerate(expected[:count]))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [zazen.testing.program("zazen"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_zazen_index_says_what_is_there(daemon: zazen.testing.Daemon) -> None:
    path = write(daemon.backing / "md.xtc")
    done = run("index", path, "--socket", daemon.socket, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["format"], said["atoms"], said["frames"], said["daemon"]) == ("xtc", 57, 23, True)
    assert said["files"][0]["path"] == str(path) and said["files"][0]["trouble"] is None
    with path.open("ab") as file:
        file.write(b"\x00\x00\x07\xcb\x00\x00")
    done = run("index", path, "--direct")
    assert done.returncode == 0 and "xtc, 57 atoms, 23 frames" in done.stdout
    offset = path.stat().st_size - 6
    assert f"frame 23 of md.xtc, at byte {offset}, is not complete" in done.stderr
    for name, words in (("none.xtc", "no such"), ("text.xtc", "is no trajectory")):
        (daemon.backing / "text.xtc").write_text("hello, this is no trajectory\n")
        done = run("index", daemon.backing / name, "--direct")
        assert done.returncode == 1 and words in done.stderr, done.stderr


def test_zazen_index_follows_a_file(daemon: zazen.testing.Daemon) -> None:
    source = write(daemon.backing / "source.xtc", n_frames=12)
    expected, path = slices(source), daemon.backing / "md.xtc"
    command = [
        zazen.testing.program("zazen"),
        "index",
        path,
        "--direct",
        "--follow",
        "--idle-exit",
        "4s",
        "--json",
    ]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        time.sleep(0.3)
        path.write_bytes(b"".join(expected[:5]))
        time.sleep(1.5)
        with path.open("ab") as file:
            file.write(b"".join(expected[5:]))
        assert process.stdout is not None
        said = [json.loads(line)["frames"] for line in process.stdout]
    assert process.returncode == 0 and said[0] <= 5 and said[-1] == 12 and said == sorted(said)
