"""H5MD: a frame is a row of the positions, where HDF5 has it as one range of bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zazen
import zazen.testing
from test_damage import good_frames
from test_frames import WAYS, frames_of, opened

try:
    import h5py
except ImportError as absent:  # pragma: no cover
    pytest.skip(f"h5py is not installed: {absent}", allow_module_level=True)

from MDAnalysis.coordinates.H5MD import H5MDWriter

from conftest import universe
from conftest import write as write_with_mdanalysis

ATOMS, FRAMES = 57, 23
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "a chunk a frame": {"chunks": (1, ATOMS, 3)},
    "a chunk a frame that grows": {"chunks": (1, ATOMS, 3), "maxshape": (None, ATOMS, 3)},
    "several frames a chunk": {"chunks": (4, ATOMS, 3)},
}
# ESPResSo writes so: a chunk has room for more atoms, and each dimension can grow.
ROOMY: dict[str, dict[str, Any]] = {
    "a frame": {"chunks": (1, 1000, 3), "maxshape": (None, None, None)},
    "several frames": {"chunks": (4, 100, 3), "maxshape": (None, None, 3)},
    "a fixed number of frames": {"chunks": (4, 100, 3), "maxshape": (FRAMES, None, 3)},
    "the same, newer": {"chunks": (4, 100, 3), "maxshape": (FRAMES, None, 3), "libver": "latest"},
}


def places(frames: int = FRAMES, atoms: int = ATOMS, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, atoms, 3)).astype("<f4")


def write(
    path: Path,
    values: np.ndarray,
    written: int | None = None,
    libver: Any = None,
    block: int = 0,
    **layout: Any,
) -> Path:
    """An H5MD file behind a user block. Positions, velocities and boxes are written frame by frame,
    so that frames lie apart."""
    written = len(values) if written is None else written
    with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        group = file.create_group("particles/all")
        data = [
            group.create_dataset(f"{name}/value", values.shape, "<f4", **layout)
            for name in ("position", "velocity")
        ]
        group.create_dataset("box/edges/value", (len(values), 3), "<f4", chunks=(1, 3), maxshape=(None, 3))
        for number in range(written):
            for array in data:
                array[number] = values[number]
            group["box/edges/value"][number] = [40, 50, 60]
            file.flush()
    return path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("libver", [None, "latest"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_are_rows(daemon: zazen.testing.Daemon, way: str, libver: Any, layout: str) -> None:
    values = places()
    path = write(daemon.backing / "md.h5md", values, libver=libver, **LAYOUTS[layout])
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None
        assert (dataset.trajectory.format, dataset.trajectory.n_atoms) == ("h5md", ATOMS)
        assert dataset.trajectory.troubles == []
        header = json.loads(dataset.trajectory.header)
        assert header == {
            "array": "particles/all/position/value",
            "dtype": "<f4",
            "shape": [ATOMS, 3],
            "filters": [],
        }
        for _ in range(2):
            for number, data in frames_of(dataset).items():
                found = np.frombuffer(data, header["dtype"]).reshape(header["shape"])
                assert np.array_equal(found, values[number])
        assert [bytes(one.data) for one in dataset.read_many([7, 3, 22])] == [
            values[number].tobytes() for number in (7, 3, 22)
        ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ROOMY)
def test_chunks_with_room_for_more_atoms(daemon: zazen.testing.Daemon, way: str, layout: str) -> None:
    values = places()
    path = write(daemon.backing / "md.h5md", values, **ROOMY[layout])
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None
        assert (dataset.trajectory.n_atoms, dataset.trajectory.troubles) == (ATOMS, [])
        assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(values)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("libver", [None, "latest"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_behind_a_user_block(daemon: zazen.testing.Daemon, way: str, libver: Any, layout: str) -> None:
    """The first bytes belong to others than HDF5. A block beyond the first page is looked for if
    the name says what the file is."""
    values, whole = places(), {n: row.tobytes() for n, row in enumerate(places())}
    for name, block in (("md.data", 512), ("md2.data", 2048), ("md.h5md", 4096), ("md.H5", 1 << 20)):
        path = write(daemon.backing / name, values, libver=libver, block=block, **LAYOUTS[layout])
        with path.open("r+b") as file:
            file.write(b"a picture")
        with opened(way, path, daemon) as dataset:
            assert dataset.trajectory is not None and dataset.trajectory.troubles == []
            assert frames_of(dataset) == whole
        # What stood before it is taken away: addresses count from the superblock all the same.
        path.write_bytes(path.read_bytes()[block:])
        with opened(way, path, daemon) as dataset:
            assert dataset.trajectory is not None and dataset.trajectory.troubles == []
            assert frames_of(dataset) == whole
    path = write(daemon.backing / "cut.h5md", values, libver=libver, block=4096, **LAYOUTS[layout])
    size = path.stat().st_size - 5000
    with path.open("r+b") as file:
        file.truncate(size)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            dataset = opened(way, path, daemon)
        except zazen.NotFoundError as error:
            assert f"the file ends at byte {size}" in str(error)
            return
    with dataset:
        frames = frames_of(dataset)
        assert frames == {n: whole[n] for n in range(len(frames))}
        assert any(f"the file ends at byte {size}" in str(one.message) for one in said)


@pytest.mark.parametrize("libver", [None, "latest"])
def test_compressed_frames_come_as_they_are(tmp_path: Path, libver: Any) -> None:
    values = np.round(places(), 1)
    path = write(
        tmp_path / "md.h5", values, libver=libver, chunks=(1, ATOMS, 3), compression="gzip", shuffle=True
    )
    with zazen.open(path, direct=True) as dataset:
        assert dataset.trajectory is not None
        filters = json.loads(dataset.trajectory.header)["filters"]
        assert [(one["id"], one["values"]) for one in filters] == [(2, [4]), (1, [4])]
        for number, data in frames_of(dataset).items():
            planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(4, -1)
            found = planes.T.copy().view("<f4").reshape(ATOMS, 3)
            assert np.array_equal(found, values[number])


def test_what_mdanalysis_writes(daemon: zazen.testing.Daemon) -> None:
    path, made, random = daemon.backing / "md.h5md", universe(ATOMS), np.random.default_rng(1)
    made.dimensions = [40, 50, 60, 90, 90, 90]
    with H5MDWriter(str(path), ATOMS, convert_units=False) as writer:
        for _ in range(FRAMES):
            made.atoms.positions = random.normal(size=(ATOMS, 3))
            writer.write(made.atoms)
    # MDAnalysis 2.11 leaves that to the end of the process.
    writer.h5md_file.close()
    with h5py.File(path) as file:
        expected = file["particles/trajectory/position/value"][:]
    with opened("daemon", path, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.troubles == []
        assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(expected)}


@pytest.mark.parametrize("libver", [None, "latest"])
def test_many_chunks(tmp_path: Path, libver: Any) -> None:
    """Indexes of several levels. From number 131,060 on, HDF5 divides the blocks of the newer one
    into pages."""
    values = places(frames=140_000, atoms=1)
    path = tmp_path / "md.h5md"
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group("particles/all/position")
        data = group.create_dataset("value", values.shape, "<f4", chunks=(1, 1, 3), maxshape=(None, 1, 3))
        data[:] = values
    with zazen.open(path, direct=True) as dataset:
        assert len(dataset) == len(values)
        some = [0, 1, 63, 64, 65_000, 65_537, 131_059, 131_060, 139_999, *range(3, 140_000, 4999)]
        for number, frame in zip(some, dataset.read_many(some), strict=True):
            assert bytes(frame.data) == values[number].tobytes(), number


@pytest.mark.parametrize("way", WAYS)
def test_frames_that_were_never_written(daemon: zazen.testing.Daemon, way: str) -> None:
    values = places()
    path = write(daemon.backing / "md.h5md", values, written=9, **LAYOUTS["a chunk a frame"])
    with pytest.warns(zazen.ZazenWarning, match=r"frame 9 of md\.h5md.*has room for 23 frames"):
        dataset = opened(way, path, daemon)
    with dataset:
        assert frames_of(dataset) == {n: values[n].tobytes() for n in range(9)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["contiguous", "a chunk a frame"])
def test_a_file_that_was_cut(daemon: zazen.testing.Daemon, way: str, layout: str) -> None:
    values = places()
    path = write(daemon.backing / "md.h5md", values, **LAYOUTS[layout])
    whole = path.stat().st_size
    seen = set()
    for end in range(2048, whole, 997):
        cut = daemon.backing / f"cut-{end}.h5md"
        cut.write_bytes(path.read_bytes()[:end])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                dataset = opened(way, cut, daemon)
            except zazen.Error as error:
                assert cut.name in str(error)
                continue
        with dataset:
            frames = frames_of(dataset)
            assert frames == {n: values[n].tobytes() for n in range(len(frames))}
            seen.add(len(frames))
            assert any("is not complete" in str(one.message) for one in said), end
    assert seen, "no frame of a file that was cut can be read"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["replaced", "changed", "cut"])
def test_a_file_that_changes_while_it_is_read(daemon: zazen.testing.Daemon, way: str, how: str) -> None:
    values, others = places(), places(seed=2)
    path = write(daemon.backing / "md.h5md", values, **LAYOUTS["a chunk a frame"])
    with opened(way, path, daemon) as dataset:
        assert bytes(dataset.read(1).data) == values[1].tobytes()
        if how == "replaced":
            os.replace(write(daemon.backing / "new", others, **LAYOUTS["a chunk a frame"]), path)
        elif how == "changed":
            with h5py.File(path, "r+") as file:
                file["particles/all/position/value"][:] = others
        else:
            with path.open("r+b") as file:
                file.truncate(4000)
        with pytest.raises(zazen.StaleError, match=r"frame 7.*md\.h5md.*open it again"):
            dataset.read(7)
    if how != "cut":
        with opened(way, path, daemon) as dataset:
            assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(others)}


def test_a_file_that_grows_is_opened_again(daemon: zazen.testing.Daemon) -> None:
    values = places(frames=40)
    layout = LAYOUTS["a chunk a frame that grows"]
    path = write(daemon.backing / "md.h5md", values[:10], **layout)
    with opened("daemon", path, daemon) as dataset:
        assert len(frames_of(dataset)) == 10
    with h5py.File(path, "r+") as file:
        data = file["particles/all/position/value"]
        data.resize(40, axis=0)
        data[10:] = values[10:]
    with opened("daemon", path, daemon) as dataset:
        assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(values)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("libver", [None, "latest"])
def test_a_file_that_is_being_written(daemon: zazen.testing.Daemon, way: str, libver: Any) -> None:
    """HDF5 keeps some of what was written in memory, and writes the rest in an order of its own."""
    values = places(frames=300)
    path = daemon.backing / "md.h5md"
    counts = set()
    with h5py.File(path, "w", libver=libver, rdcc_nbytes=20_000) as file:
        group = file.create_group("particles/all")
        data = [
            group.create_dataset(
                f"{name}/value", (0, ATOMS, 3), "<f4", **LAYOUTS["a chunk a frame that grows"]
            )
            for name in ("position", "velocity")
        ]
        for number, row in enumerate(values):
            for array in data:
                array.resize(number + 1, axis=0)
                array[number] = row
            if number % 41 == 0:
                file.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    dataset = opened(way, path, daemon)
                except zazen.Error as error:
                    assert path.name in str(error)
                    continue
            with dataset:
                frames = frames_of(dataset)
                assert frames == {n: values[n].tobytes() for n in range(len(frames))}
                counts.add(len(frames))
    if libver is None:
        assert len(counts) > 3, "what was flushed is read"
    else:
        assert not counts, "a newer file says that a program writes it"
    with opened(way, path, daemon) as dataset:
        assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(values)}


@pytest.mark.parametrize("way", WAYS)
def test_several_groups_of_particles(daemon: zazen.testing.Daemon, way: str) -> None:
    """The first by name, as MDAnalysis takes it; the header tells which."""
    values = places()
    path = write(daemon.backing / "md.h5md", values, **LAYOUTS["a chunk a frame"])
    with h5py.File(path, "r+") as file:
        for name in ("zinc", "Argon", *(f"more{n}" for n in range(30))):
            shape = (FRAMES, 2, 3)
            file[f"particles/{name}/position/value"] = np.zeros(shape, "<f8")
        file["particles/Argon/position/value"][:] = 7.5
    with opened(way, path, daemon) as dataset:
        assert dataset.trajectory is not None and dataset.trajectory.n_atoms == 2
        header = json.loads(dataset.trajectory.header)
        assert header["array"] == "particles/Argon/position/value" and header["dtype"] == "<f8"
        assert frames_of(dataset) == {n: np.full((2, 3), 7.5).tobytes() for n in range(FRAMES)}


@pytest.mark.parametrize("way", WAYS)
def test_a_manifest_of_h5md(daemon: zazen.testing.Daemon, way: str) -> None:
    values = [places(frames=5, seed=seed) for seed in range(3)]
    for nth, layout in enumerate(("contiguous", "a chunk a frame", "several frames a chunk")):
        write(daemon.backing / f"run-{nth}.h5md", values[nth], **LAYOUTS[layout])
    manifest = daemon.backing / "zazen.toml"
    manifest.write_text('trajectories = ["run-0.h5md", "run-1.h5md", "run-2.h5md"]\n')
    with opened(way, daemon.backing, daemon) as dataset:
        assert frames_of(dataset) == {n: row.tobytes() for n, row in enumerate(np.concatenate(values))}
    write(
        daemon.backing / "run-1.h5md",
        values[1].astype(">f8").astype("<f4"),
        chunks=(1, ATOMS, 3),
        fletcher32=True,
    )
    with pytest.raises(zazen.InvalidArgumentError, match="positions is not like that of run-0"):
        opened(way, daemon.backing, daemon)
    fewer = write(daemon.backing / "fewer.h5md", places(atoms=12))
    other = write_with_mdanalysis(daemon.backing / "md.xtc")
    for last, words in (
        (fewer, "has 12 atoms, but run-0.h5md has 57"),
        (other, "is xtc, but run-0.h5md is h5md"),
    ):
        manifest.write_text(f'trajectories = ["run-0.h5md", "{last.name}"]\n')
        with pytest.raises(zazen.InvalidArgumentError, match=words):
            opened(way, daemon.backing, daemon)


def test_what_is_refused(tmp_path: Path) -> None:
    """The error names the file and says what to do."""
    values = places()

    def check(path: Path, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words) as raised:
            zazen.open(path, direct=True)
        assert path.name in str(raised.value)

    def changed(name: str, change: Callable[[Any], object]) -> Path:
        path = write(tmp_path / name, values)
        with h5py.File(path, "r+") as file:
            change(file)
        return path

    several = write(tmp_path / "several.h5md", values, chunks=(1, 20, 3))
    check(
        several, zazen.UnsupportedError, "57 atoms in 3 dimensions, and a chunk has 20 in 3; repack.*h5repack"
    )
    packed = write(tmp_path / "packed.h5md", values, chunks=(4, ATOMS, 3), compression="gzip")
    check(packed, zazen.UnsupportedError, "4 frames lie in each chunk.*h5repack")
    # Noise cannot be compressed, so that HDF5 leaves out the filter.
    noise = write(tmp_path / "noise.h5md", values, chunks=(1, ATOMS, 3), compression="lzf")
    check(noise, zazen.UnsupportedError, "its filters gained nothing.*h5repack")
    unflushed = write(tmp_path / "unflushed.h5md", values)
    with unflushed.open("r+b") as raw:
        raw.seek(96)
        raw.write(bytes(1000))
    check(unflushed, zazen.CorruptError, "no object header; if a program is still writing it")
    tree = write(
        tmp_path / "tree.h5md", values, libver="latest", chunks=(1, ATOMS, 3), maxshape=(None, None, 3)
    )
    check(tree, zazen.UnsupportedError, "several dimensions")
    ints = tmp_path / "ints.h5md"
    with h5py.File(ints, "w") as file:
        file["particles/all/position/value"] = np.zeros((3, 2, 3), "i4")
    check(ints, zazen.UnsupportedError, "no floating-point")
    full = tmp_path / "full.h5md"
    with h5py.File(full, "w") as file:
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_norm(h5py.h5t.NORM_NONE)
        group = file.create_group("particles/all/position")
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(group.id, b"value", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    check(full, zazen.UnsupportedError, "no IEEE numbers")
    check(changed("none.h5md", lambda file: file.pop("particles")), zazen.InvalidArgumentError, "no H5MD")

    def link(file: Any) -> None:
        file.move("particles/all/position", "elsewhere")
        file["particles/all/position"] = h5py.SoftLink("/elsewhere")

    check(changed("link.h5md", link), zazen.UnsupportedError, "is a link")
    for name, data in (("short.h5md", b"\x89HDF\r\n\x1a\n"), ("text.h5", b"no HDF5" * 2000)):
        (tmp_path / name).write_bytes(data)
        check(tmp_path / name, zazen.CorruptError, "superblock.*still writing")


@pytest.mark.parametrize("libver", [None, "latest"])
def test_the_command_that_an_error_names(tmp_path: Path, libver: Any) -> None:
    """It makes a file with the same positions whose frames can be found."""
    if shutil.which("h5repack") is None:
        pytest.skip("no h5repack: apt-get install hdf5-tools")
    values = places()
    grows = (None, None, 3)
    files: dict[str, dict[str, Any]] = {
        "several chunks": {"chunks": (1, 20, 3)},
        "a part of a chunk": {"chunks": (4, 57, 2), "maxshape": (None, 57, 3)},
    }
    if libver:
        files["in several dimensions"] = {"chunks": (1, ATOMS, 3), "maxshape": grows}
    else:
        # h5repack 1.10 cannot read what newer libraries call the latest kind of these.
        files["packed together"] = {"chunks": (4, ATOMS, 3), "compression": "gzip"}
        files["packed with room"] = {"chunks": (1, 100, 3), "maxshape": grows, "compression": "gzip"}
    for name, layout in files.items():
        path = write(tmp_path / "a.h5md", values, libver=libver, **layout)
        with pytest.raises(zazen.UnsupportedError, match="; repack it: ") as raised:
            zazen.open(path, direct=True)
        words = str(raised.value).partition("; repack it: ")[2].partition(";")[0].split()
        command = [{"FILE": str(path), "NEW": str(tmp_path / "new.h5md")}.get(word, word) for word in words]
        assert words[0] == "h5repack"
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with zazen.open(tmp_path / "new.h5md", direct=True) as dataset:
            assert dataset.trajectory is not None
            filters = json.loads(dataset.trajectory.header)["filters"]
            for number, data in frames_of(dataset).items():
                plain = zlib.decompress(data) if filters else data
                assert np.array_equal(np.frombuffer(plain, "<f4").reshape(ATOMS, 3), values[number]), name
        (tmp_path / "new.h5md").unlink()


def test_a_name_that_a_shell_would_read(tmp_path: Path) -> None:
    """It is no part of the command that the error names."""
    path = tmp_path / "md.h5md"
    with h5py.File(path, "w") as file:
        file.create_dataset("particles/a;rm x/position/value", data=places(), chunks=(1, 20, 3))
    with pytest.raises(zazen.UnsupportedError, match="h5repack -l CHUNK=1x57x3 FILE NEW"):
        zazen.open(path, direct=True)


@pytest.mark.parametrize("way", WAYS)
def test_no_frames(daemon: zazen.testing.Daemon, way: str) -> None:
    layout = LAYOUTS["a chunk a frame that grows"]
    zero = write(daemon.backing / "zero.h5md", places()[:0], **layout)
    never = write(daemon.backing / "never.h5md", places(), written=0, **layout)
    for path, words in ((zero, "no whole frame"), (never, "frame 0.* was never written")):
        with pytest.raises(zazen.NotFoundError, match=words) as raised:
            opened(way, path, daemon)
        assert path.name in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_garbage_in_the_middle(daemon: zazen.testing.Daemon, way: str) -> None:
    """In the index of the chunks: the frames before it are good. A frame's own bytes have no
    checksum, unless the file was written with Fletcher-32."""
    values = places(frames=40)
    layout = LAYOUTS["a chunk a frame that grows"]
    path = daemon.backing / "md.h5md"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("particles/all/position/value", data=values, dtype="<f4", **layout)
    data = bytearray(path.read_bytes())
    # The index has four frames itself, this block the next ones.
    at = data.index(b"EADB")
    data[at + 20 : at + 84] = b"\xa5" * 64
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = opened(way, path, daemon)
    where = f"frame 4 of md.h5md, at byte {at}, is damaged: its checksum is wrong"
    assert any(where in str(one.message) for one in said), [str(one.message) for one in said]
    with dataset:
        got, errors = good_frames(dataset)
        assert got == {n: values[n].tobytes() for n in range(4)}
        assert all(where in str(error) for error in errors)
        with pytest.raises(zazen.CorruptError) as raised:
            dataset.read(4)
        assert where in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_beyond_two_to_the_forty(daemon: zazen.testing.Daemon, way: str) -> None:
    """A file of holes."""
    atoms, frames = 100_000_000, 1000
    path = daemon.backing / "huge.h5md"
    with h5py.File(path, "w") as file:
        group = file.create_group("particles/all/position")
        space = h5py.h5s.create_simple((frames, atoms, 3))
        kept = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        kept.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        kept.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        made = h5py.h5d.create(group.id, b"value", h5py.h5t.IEEE_F32LE, space, kept)
        h5py.Dataset(made)[frames - 1, atoms - 1] = [1, 2, 3]
    assert path.stat().st_size > 1 << 40
    with opened(way, path, daemon) as dataset:
        assert len(dataset) == frames and dataset.trajectory is not None
        assert dataset.trajectory.n_atoms == atoms and dataset.trajectory.troubles == []


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [zazen.testing.program("zazen"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_index_and_push(tmp_path: Path) -> None:
    backing, folder = tmp_path / "b", tmp_path / "c"
    (backing / "sim").mkdir(parents=True)
    folder.mkdir()
    values = places()
    path = backing / "sim" / "md.h5md"
    with zazen.testing.Cluster(folder, backing, nodes=1) as cluster:
        nodes = tmp_path / "nodes"
        nodes.write_text("\n".join(cluster.nodes) + "\n")
        words = ["--nodes", nodes, "--key", cluster.key]
        command = [zazen.testing.program("zazen"), "push", "--watch", path.parent, *words]
        write(path, values, **LAYOUTS["a chunk a frame"])
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL) as watch:
            try:
                end = time.monotonic() + 120
                while True:
                    assert watch.poll() is None and time.monotonic() < end, "the frames are not pushed"
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        with zazen.open(path, socket=cluster.sockets[0]) as dataset:
                            if len(dataset.query(0, FRAMES - 1)[0]) == FRAMES:
                                break
                    time.sleep(0.1)
            finally:
                watch.kill()
        with zazen.open(path, socket=cluster.sockets[0]) as dataset:
            reading = dataset.frames()
            assert {frame.number: bytes(frame.data) for frame in reading} == {
                n: row.tobytes() for n, row in enumerate(values)
            }
            assert reading.stats.native == FRAMES and reading.stats.backing_reads == 0
        done = run("index", path, "--socket", cluster.sockets[0], "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["format"], told["atoms"], told["frames"]) == ("h5md", ATOMS, FRAMES)
