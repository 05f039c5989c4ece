"""Bad input in each format: an error that names file, frame and byte offset, and every good frame
before it."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zazen
import zazen.testing
from test_damage import good_frames
from test_frames import WAYS, frames_of, opened

from conftest import slices, write

ATOMS, FRAMES = 57, 9


@dataclass
class Sample:
    """A file, as others than Zazen cut it into frames."""

    ending: str
    header: bytes
    frames: list[bytes]

    @property
    def data(self) -> bytes:
        return self.header + b"".join(self.frames)

    def offset(self, number: int) -> int:
        return len(self.header) + sum(map(len, self.frames[:number]))


def by_libraries(ending: str, folder: Path, atoms: int, seed: int) -> Sample:
    path = write(folder / f"{seed}.{ending}", atoms, FRAMES, seed)
    frames = slices(path)
    return Sample(ending, path.read_bytes()[: -sum(map(len, frames))], frames)


def large_xtc(_: str, folder: Path, atoms: int, seed: int) -> Sample:
    """Frames of GROMACS's second magic number: the number of packed bytes has 64 bits."""
    small = by_libraries("xtc", folder, atoms, seed)

    def converted(frame: bytes) -> bytes:
        (packed,) = struct.unpack_from(">i", frame, 88)
        return struct.pack(">i", 2023) + frame[4:88] + struct.pack(">q", packed) + frame[92:]

    return Sample("xtc", b"", [converted(frame) for frame in small.frames])


def dcd(ending: str, folder: Path, atoms: int, seed: int) -> Sample:
    """Each frame has a record for the cell and one for each axis, between two lengths."""
    data = write(folder / f"{seed}.{ending}", atoms, FRAMES, seed).read_bytes()
    length = 8 + 48 + 3 * (8 + 4 * atoms)
    begin = len(data) - FRAMES * length
    return Sample(ending, data[:begin], [data[begin + n * length :][:length] for n in range(FRAMES)])


def gro(ending: str, folder: Path, atoms: int, seed: int) -> Sample:
    one = write(folder / f"{seed}.gro", atoms, 1, seed).read_bytes()
    title, rest = one.split(b"\n", 1)
    return Sample(ending, b"", [b"%s, frame %d\n%s" % (title, n, rest) for n in range(FRAMES)])


def text(head: str) -> Callable[[str, Path, int, int], Sample]:
    """Frames of a head and a line for each atom."""

    def made(ending: str, _: Path, atoms: int, seed: int) -> Sample:
        def frame(step: int) -> bytes:
            lines = "".join(f"{atom + 1} {seed}.5 {atom}.25 -{step}.125\n" for atom in range(atoms))
            return (head.format(atoms=atoms, step=step) + lines).encode()

        return Sample(ending, b"", [frame(step) for step in range(FRAMES)])

    return made


XYZ = "{atoms}\nstep {step}, made by a test\n"
EXTENDED = '{atoms}\nLattice="9.0 0.0 0.0 0.0 9.0 0.0 0.0 0.0 9.0" Properties=species:S:1:pos:R:3 i={step}\n'
LAMMPS = (
    "ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n{atoms}\nITEM: BOX BOUNDS pp pp pp\n0 9\n0 9\n0 9\n"
    "ITEM: ATOMS id x y z\n"
)
MAKERS = {
    "xtc": ("xtc", by_libraries),
    "xtc-2023": ("xtc", large_xtc),
    "trr": ("trr", by_libraries),
    "dcd": ("dcd", dcd),
    "ncdf": ("ncdf", by_libraries),
    "gro": ("gro", gro),
    "lammps": ("lammpstrj", text(LAMMPS)),
    "xyz": ("xyz", text(XYZ)),
    "extended-xyz": ("extxyz", text(EXTENDED)),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zazen.testing.Daemon]:
    """One daemon for all these tests; each has a file of its own."""
    folder = tmp_path_factory.mktemp("n")
    (folder / "backing").mkdir()
    with zazen.testing.Daemon(folder, folder / "backing") as daemon:
        yield daemon


@dataclass
class Case:
    """A format, a way to open, and a folder of the test's own."""

    kind: str
    way: str
    node: zazen.testing.Daemon
    folder: Path
    work: Path

    def sample(self, atoms: int = ATOMS, seed: int = 1) -> Sample:
        ending, make = MAKERS[self.kind]
        return make(ending, self.work, atoms, seed)

    def write(self, ending: str, data: bytes) -> Path:
        path = self.folder / f"md.{ending}"
        path.write_bytes(data)
        return path

    def open(self, path: Path) -> zazen.Dataset:
        return opened(self.way, path, self.node)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=MAKERS)
def case(request: pytest.FixtureRequest, way: str, node: zazen.testing.Daemon, tmp_path: Path) -> Case:
    folder = node.backing / request.node.name.replace("[", "-").replace("]", "")
    folder.mkdir()
    return Case(request.param, way, node, folder, tmp_path)


def check_good_before(case: Case, path: Path, sample: Sample, bad: int, words: str) -> None:
    """The frames before `bad` come; `bad` is an error that says where it is."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = case.open(path)
    where = f"frame {bad} of {path.name}, at byte {sample.offset(bad)}"
    assert any(where in str(one.message) for one in said), [str(one.message) for one in said]
    with dataset:
        assert dataset.trajectory is not None and where in dataset.trajectory.troubles[0]
        # Frames come in storage order, so the error may come before good frames.
        got, errors = good_frames(dataset)
        assert all(where in str(error) for error in errors)
        assert got == dict(enumerate(sample.frames[:bad]))
        with pytest.raises(zazen.Error, match=words) as raised:
            dataset.read(bad)
        assert where in str(raised.value)
        assert bytes(dataset.read(bad - 1).data) == sample.frames[bad - 1]


def test_frames_of_a_good_file(case: Case) -> None:
    sample = case.sample()
    with case.open(case.write(sample.ending, sample.data)) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.n_atoms == ATOMS
        assert dataset.trajectory.troubles == []
        assert frames_of(dataset) == dict(enumerate(sample.frames))


@pytest.mark.parametrize("missing", [1, 5, 200])
def test_a_last_frame_that_is_cut(case: Case, missing: int) -> None:
    sample = case.sample()
    path = case.write(sample.ending, sample.data[:-missing])
    check_good_before(case, path, sample, FRAMES - 1, "is not complete")


def test_garbage_in_the_middle(case: Case) -> None:
    sample = case.sample()
    data = bytearray(sample.data)
    at = sample.offset(4)
    data[at : at + 64] = b"\xa5" * 64
    path = case.write(sample.ending, bytes(data))
    if case.kind == "ncdf":
        # A record has no header: whoever decodes it meets the garbage (docs/datasets.md).
        with case.open(path) as dataset:
            assert bytes(dataset.read(4).data) == data[at : at + len(sample.frames[4])]
        return
    check_good_before(case, path, sample, 4, "is damaged")


def test_a_program_that_ended_within_a_frame_and_went_on(case: Case) -> None:
    """What it wrote of the frame stays in the middle of the file."""
    sample = case.sample()
    if case.kind == "ncdf":
        pytest.skip("a record of NetCDF has a fixed place: nobody can append behind a part of one")
    kept = sample.frames[4]
    # Text: whole lines.
    part = kept[: len(kept) // 2] if b"\n" not in kept[:40] else kept[: kept.index(b"\n", len(kept) // 2) + 1]
    data = sample.data[: sample.offset(4)] + part + b"".join(sample.frames[4:])
    path = case.write(sample.ending, data)
    if case.kind.startswith("xtc") or case.kind in ("trr", "dcd"):
        # The frame's header is whole, but the next one is not where it belongs.
        at = sample.offset(4)
        before = [*sample.frames[:4], data[at : at + len(kept)]]
        check_good_before(
            case,
            path,
            Sample("", sample.header, before),
            5,
            "is damaged.*the frame before it may be damaged, too",
        )
        return
    check_good_before(case, path, sample, 4, "is damaged")


def test_atoms_that_change(case: Case) -> None:
    sample, other = case.sample(), case.sample(ATOMS + 1, seed=2)
    path = case.write(sample.ending, sample.data + other.data)
    if case.kind == "ncdf":
        # Its header says how many records there are. What is behind them is none of it.
        with case.open(path) as dataset:
            assert frames_of(dataset) == dict(enumerate(sample.frames))
        return
    words = "is damaged" if case.kind == "dcd" else f"{ATOMS + 1} atoms, the frames before it {ATOMS}"
    check_good_before(case, path, sample, FRAMES, words)


def test_no_frames(case: Case) -> None:
    sample = case.sample()
    header = bytearray(sample.header)
    if case.kind == "ncdf":
        header[4:8] = bytes(4)
    path = case.write(sample.ending, bytes(header))
    with pytest.raises(zazen.Error, match=path.name):
        case.open(path)


def test_a_file_that_shrinks_while_it_is_read(case: Case) -> None:
    sample = case.sample()
    path = case.write(sample.ending, sample.data)
    with case.open(path) as dataset:
        assert bytes(dataset.read(1).data) == sample.frames[1]
        with path.open("r+b") as file:
            file.truncate(sample.offset(5) + 10)
        with pytest.raises(zazen.StaleError, match=rf"frame 8.*{path.name}.*cut to"):
            dataset.read(8)
    check_good_before(case, path, sample, 5, "is not complete")


def test_a_file_that_is_replaced_while_it_is_read(case: Case) -> None:
    sample, other = case.sample(), case.sample(seed=2)
    path = case.write(sample.ending, sample.data)
    with case.open(path) as dataset:
        assert bytes(dataset.read(1).data) == sample.frames[1]
        fresh = case.folder / "fresh"
        fresh.write_bytes(other.data)
        os.replace(fresh, path)
        with pytest.raises(zazen.StaleError, match=rf"frame 7.*{path.name}.*replaced.*open it again"):
            dataset.read(7)
    with case.open(path) as dataset:
        assert frames_of(dataset) == dict(enumerate(other.frames))


def test_a_writer_that_still_writes(case: Case) -> None:
    sample = case.sample()
    data, ends = sample.data, [sample.offset(number + 1) for number in range(FRAMES)]
    path = case.folder / f"md.{sample.ending}"
    step = (len(data) - len(sample.header)) // 4 + 7
    with path.open("wb") as file:
        begin = 0
        for end in [*range(len(sample.header) + step, len(data), step), len(data)]:
            file.write(data[begin:end])
            file.flush()
            begin = end
            whole = sum(one <= end for one in ends)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = case.open(path)
            with dataset:
                assert frames_of(dataset) == dict(enumerate(sample.frames[:whole]))
    assert whole == FRAMES


def sparse(path: Path, pieces: list[tuple[int, bytes]], size: int) -> Path:
    with path.open("wb") as file:
        for at, data in pieces:
            file.seek(at)
            file.write(data)
        file.truncate(size)
    return path


def netcdf_header(atoms: int, records: int) -> bytes:
    """256 bytes: the header of version 5, with one variable, whose records begin behind it."""

    def name(word: str) -> bytes:
        return struct.pack(">q", len(word)) + word.encode().ljust(-(-len(word) // 4) * 4, b"\0")

    absent = struct.pack(">iq", 0, 0)
    header = b"CDF\x05" + struct.pack(">qiq", records, 10, 3)
    header += b"".join(
        name(word) + struct.pack(">q", length)
        for word, length in (("frame", 0), ("atom", atoms), ("spatial", 3))
    )
    header += absent + struct.pack(">iq", 11, 1) + name("coordinates") + struct.pack(">4q", 3, 0, 1, 2)
    return (header + absent + struct.pack(">iqq", 5, 12 * atoms, 256)).ljust(256, b"\0")


def test_files_beyond_two_to_the_forty(way: str, node: zazen.testing.Daemon) -> None:
    """Frames of gigabytes, all holes but for their headers."""
    folder = node.backing / f"huge-{way}"
    folder.mkdir()
    atoms = (1 << 31) // 12
    vectors = 12 * atoms
    # TRR: many large frames, and a last one with a box only.
    fields = [0, 0, 36, 0, 0, 0, 0, vectors, vectors, vectors, atoms, 0, 0]
    head = struct.pack(">3i12s13i2f", 1993, 13, 12, b"GMX_trn_file", *fields, 0.0, 0.0)
    small = head[:52] + struct.pack(">3i", 0, 0, 0) + head[64:] + bytes(36)
    length, count = len(head) + 36 + 3 * vectors, 180
    pieces = [(number * length, head) for number in range(count)] + [(count * length, small)]
    trr = sparse(folder / "huge.trr", pieces, count * length + len(small))
    # DCD: the first lengths of each frame.
    cell, axis = struct.pack("<i", 48), struct.pack("<i", 4 * atoms)
    control = struct.pack("<4s20i", b"CORD", 0, *[0] * 9, 1, *[0] * 8, 24)
    parts = [control, struct.pack("<i80s", 1, b"holes"), struct.pack("<i", atoms)]
    header = b"".join(struct.pack("<i", len(part)) + part + struct.pack("<i", len(part)) for part in parts)
    frame = 56 + 3 * (8 + 4 * atoms)
    pieces = [(0, header)]
    for number in range(600):
        pieces.append((len(header) + number * frame, cell + bytes(48) + cell + axis))
    dcd = sparse(folder / "huge.dcd", pieces, len(header) + 600 * frame)
    # NetCDF, whose records have no header: all of it is said in the file's.
    ncdf = sparse(folder / "huge.ncdf", [(0, netcdf_header(atoms, 600))], 256 + 600 * vectors)
    for path, frames in ((trr, count + 1), (dcd, 600), (ncdf, 600)):
        assert path.stat().st_size > 1 << 40
        with opened(way, path, node) as dataset:
            assert len(dataset) == frames and dataset.trajectory is not None
            assert dataset.trajectory.n_atoms == atoms and dataset.trajectory.troubles == []
    with opened(way, trr, node) as dataset:
        assert bytes(dataset.read(count).data) == small
    # Text: a hole is no line.
    texts = {
        "xyz": b"1\nargon\nAr 0.0 0.0 0.0\n",
        "gro": b"argon\n    1\n    1ARGON   AR    1   0.100   0.200   0.300\n   1.0   1.0   1.0\n",
        "lammpstrj": LAMMPS.format(atoms=1, step=0).encode() + b"1 0.5 0.25 0.125\n",
    }
    for ending, frame in texts.items():
        name = f"huge.{ending}"
        huge = sparse(folder / name, [(0, frame * 2)], (1 << 40) + 5)
        with (
            pytest.warns(zazen.ZazenWarning, match=f"frame 2 of {name}, at byte {2 * len(frame)}"),
            opened(way, huge, node) as dataset,
        ):
            assert bytes(dataset.read(1).data) == frame
            with pytest.raises(zazen.CorruptError, match=f"frame 2 of {name}"):
                dataset.read(2)
