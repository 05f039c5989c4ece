"""Bad trajectories: a clear error that names file, frame and byte offset, and every good frame
before it."""

from __future__ import annotations

import os
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import zazen
import zazen.testing
from test_frames import WAYS, frames_of, opened

from conftest import slices, write


def good_frames(dataset: zazen.Dataset) -> tuple[dict[int, bytes], list[zazen.Error]]:
    """All frames that can be had, and the errors of the others."""
    frames, errors = {}, []
    reading = dataset.frames()
    while True:
        try:
            frame = next(reading)
        except StopIteration:
            return frames, errors
        except zazen.Error as error:
            errors.append(error)
            continue
        frames[frame.number] = bytes(frame.data)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["xtc", "trr", "dcd", "ncdf", "xyz"])
def test_a_last_frame_that_is_cut_is_told(daemon: zazen.testing.Daemon, way: str, ending: str) -> None:
    whole = write(daemon.backing / f"whole.{ending}")
    with opened("direct", whole, daemon) as dataset:
        expected = frames_of(dataset)
        header = dataset.trajectory.header if dataset.trajectory else b""
    path = daemon.backing / f"cut.{ending}"
    path.write_bytes(whole.read_bytes()[:-5])
    offset = len(header) + sum(len(expected[number]) for number in range(22))
    with pytest.warns(
        zazen.ZazenWarning, match=f"frame 22 of cut.{ending}, at byte {offset}, is not complete"
    ):
        dataset = opened(way, path, daemon)
    with dataset:
        assert frames_of(dataset) == {number: expected[number] for number in range(22)}
        assert dataset.trajectory is not None and str(offset) in dataset.trajectory.troubles[0]
        with pytest.raises(zazen.NotFoundError, match=f"frame 22 of cut.{ending}, at byte {offset}"):
            dataset.read(22)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["xtc", "trr", "dcd"])
def test_garbage_in_the_middle_is_an_error_behind_the_good_frames(
    daemon: zazen.testing.Daemon, way: str, ending: str
) -> None:
    path = write(daemon.backing / f"md.{ending}")
    with opened("direct", path, daemon) as dataset:
        expected = frames_of(dataset)
        header = len(dataset.trajectory.header) if dataset.trajectory else 0
    offset = header + sum(len(expected[number]) for number in range(7))
    data = bytearray(path.read_bytes())
    data[offset : offset + 64] = b"\xa5" * 64
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = opened(way, path, daemon)
    assert any(f"frame 7 of md.{ending}, at byte {offset}, is damaged" in str(one.message) for one in said)
    with dataset:
        frames, errors = good_frames(dataset)
    assert frames == {number: expected[number] for number in range(7)}
    (error,) = errors
    assert isinstance(error, zazen.CorruptError)
    assert f"md.{ending}" in str(error) and "frame 7" in str(error) and f"byte {offset}" in str(error)


@pytest.mark.parametrize("way", WAYS)
def test_atoms_that_change_are_an_error(daemon: zazen.testing.Daemon, way: str) -> None:
    one, other = write(daemon.backing / "a.xtc", 57, 4), write(daemon.backing / "b.xtc", 58, 4)
    path = daemon.backing / "joined.xtc"
    path.write_bytes(one.read_bytes() + other.read_bytes())
    with pytest.warns(zazen.ZazenWarning, match="58 atoms, the frames before it 57"):
        dataset = opened(way, path, daemon)
    with dataset:
        frames, errors = good_frames(dataset)
        assert frames == dict(enumerate(slices(one)))
        assert f"frame 4 of joined.xtc, at byte {len(one.read_bytes())}" in str(errors[0])


@pytest.mark.parametrize("way", WAYS)
def test_files_without_frames_are_an_error(daemon: zazen.testing.Daemon, way: str) -> None:
    def check(name: str, data: bytes, kind: type[zazen.Error], words: str, where: str = "byte 0") -> None:
        (daemon.backing / name).write_bytes(data)
        with pytest.raises(kind, match=words) as raised:
            opened(way, daemon.backing / name, daemon)
        assert Path(name).name in str(raised.value) and where in str(raised.value)

    whole = write(daemon.backing / "whole.xtc")
    check("empty.xtc", b"", zazen.NotFoundError, "is empty")
    check("cut.xtc", whole.read_bytes()[:40], zazen.NotFoundError, "is not complete")
    check("text.xtc", b"hello, this is no trajectory\n", zazen.InvalidArgumentError, "is no trajectory")
    check("zeros.xtc", bytes(5000), zazen.InvalidArgumentError, "is no trajectory")
    (daemon.backing / "sim1").mkdir(exist_ok=True)
    words = "for a folder of frames, give the folder"
    check("sim1/frame-100.bin", bytes(100), zazen.InvalidArgumentError, words)
    check("x.h5", b"\x89HDF\r\n\x1a\n" + bytes(600), zazen.UnsupportedError, "8 bytes", where="MDAnalysis")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_replaced_or_cut_while_it_is_read(daemon: zazen.testing.Daemon, way: str) -> None:
    path = write(daemon.backing / "md.xtc", n_frames=40)
    expected = slices(path)
    with opened(way, path, daemon) as dataset:
        assert bytes(dataset.read(3).data) == expected[3]
        # Another file comes into its place: the bytes at the old places are not its frames.
        other = write(daemon.backing / "other.xtc", n_frames=40, seed=2)
        os.replace(other, path)
        with pytest.raises(zazen.StaleError, match=r"frame 7.*md.xtc.*replaced.*open it again"):
            dataset.read(7)
        with pytest.raises(zazen.StaleError, match=r"md.xtc.*replaced.*open it again"):
            for _ in dataset.frames(5, 9):
                pass
    expected = slices(path)
    with opened(way, path, daemon) as dataset:
        assert bytes(dataset.read(3).data) == expected[3], "no copy of the old file"
        with path.open("r+b") as file:
            file.truncate(sum(map(len, expected[:5])) + 10)
        with pytest.raises(zazen.StaleError, match=r"frame 30.*md.xtc.*cut to"):
            dataset.read(30)
    with pytest.warns(zazen.ZazenWarning, match="frame 5 of md.xtc"), opened(way, path, daemon) as dataset:
        assert frames_of(dataset) == dict(enumerate(expected[:5]))


@pytest.mark.parametrize("way", WAYS)
def test_frames_that_are_rewritten_in_place_are_seen(daemon: zazen.testing.Daemon, way: str) -> None:
    path = write(daemon.backing / "md.dcd", n_frames=9)
    with opened(way, path, daemon) as dataset:
        before = frames_of(dataset)
    data = path.read_bytes()
    other = write(daemon.backing / "other.dcd", n_frames=9, seed=5).read_bytes()
    assert len(other) == len(data)
    with path.open("r+b") as file:
        file.write(other)
    with opened(way, path, daemon) as dataset:
        after = frames_of(dataset)
        assert dataset.trajectory is not None
        assert dataset.trajectory.header + b"".join(after[number] for number in range(9)) == other
        assert after != before


@pytest.mark.parametrize("way", WAYS)
def test_an_index_of_another_file_is_not_used(
    daemon: zazen.testing.Daemon, way: str, own_cache: Path
) -> None:
    one, other = write(daemon.backing / "a.xtc"), write(daemon.backing / "b.xtc", n_frames=31, seed=9)
    for path in (one, other):
        opened(way, path, daemon).close()
    folder = own_cache if way == "direct" else daemon.cache / ".zazen" / "trajectories"
    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)[-2:]
    assert len(kept) == 2 and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    first, second = kept
    # Each index under the other's name; one of them damaged.
    shutil.copy(first, folder / "x")
    shutil.copy(second, first)
    shutil.copy(folder / "x", second)
    if way == "daemon":
        daemon.stop()
        daemon.start()
    for path in (one, other):
        with opened(way, path, daemon) as dataset:
            assert frames_of(dataset) == dict(enumerate(slices(path)))
    second.write_bytes(second.read_bytes()[:-3])
    with opened(way, other, daemon) as dataset:
        assert len(dataset.extent()) == 31


@pytest.mark.parametrize("way", WAYS)
def test_mixed_files_are_an_error(daemon: zazen.testing.Daemon, way: str) -> None:
    write(daemon.backing / "a.xtc"), write(daemon.backing / "b.trr"), write(daemon.backing / "c.xtc", 12)

    def check(names: list[str], words: str) -> None:
        (daemon.backing / "zazen.toml").write_text(f"trajectories = {names}\n")
        with pytest.raises(zazen.InvalidArgumentError, match=words):
            opened(way, daemon.backing, daemon)

    check(["a.xtc", "b.trr"], "b.trr.*is trr, but a.xtc is xtc")
    check(["a.xtc", "c.xtc"], "c.xtc.*has 12 atoms, but a.xtc has 57")
    (daemon.backing / "zazen.toml").write_text('trajectories = ["a.xtc", "gone.xtc"]\n')
    with pytest.raises(zazen.NotFoundError, match=r"gone.xtc"):
        opened(way, daemon.backing, daemon)
    (daemon.backing / "zazen.toml").unlink()
    with pytest.raises(zazen.Error, match="xtc"):
        opened(way, daemon.backing, daemon).frames()


@pytest.mark.parametrize("way", WAYS)
def test_a_sparse_file_beyond_two_to_the_forty(daemon: zazen.testing.Daemon, way: str) -> None:
    """Three frames of half a terabyte each, and a small one behind them."""
    path = daemon.backing / "huge.xtc"
    packed = (1 << 39) - 8
    large = struct.pack(">4i9fi8iq", 2023, 57, 0, 0, *[1.0] * 9, 57, 0x447A0000, 0, 0, 0, 9, 9, 9, 30, packed)
    small = (
        struct.pack(">4i9fi8iq", 2023, 57, 0, 0, *[1.0] * 9, 57, 0x447A0000, 0, 0, 0, 9, 9, 9, 30, 8)
        + b"y" * 8
    )
    with path.open("wb") as file:
        for number in range(3):
            file.seek(number * (packed + 96))
            file.write(large)
        begin = 3 * (packed + 96)
        file.seek(begin)
        file.write(small)
    assert path.stat().st_size > 1 << 40
    with opened(way, path, daemon) as dataset:
        assert len(dataset.extent()) == 4
        assert bytes(dataset.read(3).data) == small


@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_still_writes(daemon: zazen.testing.Daemon, way: str) -> None:
    """The file grows in pieces that end anywhere; each opening has the whole frames and nothing
    else."""
    source = write(daemon.backing / "source.xtc", n_frames=30)
    data, expected = source.read_bytes(), slices(source)
    path = daemon.backing / "grows.xtc"
    ends = [sum(map(len, expected[: n + 1])) for n in range(30)]
    step = len(data) // 9 + 1
    with path.open("wb") as file:
        for at in range(0, len(data), step):
            file.write(data[at : at + step])
            file.flush()
            whole = sum(end <= min(at + step, len(data)) for end in ends)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = opened(way, path, daemon)
            with dataset:
                assert frames_of(dataset) == dict(enumerate(expected[:whole]))
