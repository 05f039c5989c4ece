"""Small frames of a trajectory come in blocks, also while the file grows and when it is
rewritten."""

from __future__ import annotations

import threading
from pathlib import Path

import zazen
import zazen.testing
from conftest import slices, write
from test_frames import frames_of, opened


def test_cold_frames_are_those_of_the_file(daemon: zazen.testing.Daemon) -> None:
    path = write(daemon.backing / "md.xtc", 57, 3000)
    expected = slices(path)
    with opened("daemon", path, daemon) as dataset:
        picked = range(100, 3000, 7)
        reading = dataset.frames(100, 2999, 7)
        assert {frame.number: bytes(frame.data) for frame in reading} == {n: expected[n] for n in picked}
    with opened("daemon", path, daemon) as dataset:
        reading = dataset.frames()
        assert {frame.number: bytes(frame.data) for frame in reading} == dict(enumerate(expected))
        assert reading.stats.alien == len(picked)


def test_a_file_that_is_rewritten_while_its_frames_are_fetched(
    daemon: zazen.testing.Daemon, tmp_path: Path
) -> None:
    """Each frame is of the file that was opened, or an error: never of another one."""
    one = write(tmp_path / "one.trr", 57, 6000, seed=1)
    other = write(tmp_path / "other.trr", 57, 7000, seed=2).read_bytes()
    path = daemon.backing / "md.trr"
    path.write_bytes(one.read_bytes())
    expected = slices(one)
    with opened("daemon", path, daemon) as dataset:
        reading = iter(dataset.frames())
        found = {frame.number: bytes(frame.data) for frame, _ in zip(reading, range(500), strict=False)}
        writer = threading.Thread(target=path.write_bytes, args=(other,))
        writer.start()
        failed = 0
        while True:
            try:
                frame = next(reading)
            except StopIteration:
                break
            except zazen.Error as error:
                assert isinstance(error, zazen.StaleError), error
                failed += 1
                continue
            found[frame.number] = bytes(frame.data)
        writer.join()
    assert failed
    assert all(expected[number] == data for number, data in found.items())
    with opened("daemon", path, daemon) as dataset:
        path_frames = slices(path)
        assert frames_of(dataset) == dict(enumerate(path_frames))
