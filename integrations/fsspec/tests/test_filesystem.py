"""Names, ranges, versions and refusals, compared with the files themselves."""

import errno
import io
import itertools
import os
import pickle
import random
from pathlib import Path

import pytest
import zazen
from block_size import BLOCK_BYTES

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")

import fsspec
from zazen.fsspec import BlockReader, ZazenFileSystem

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 77]


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def files(backing, settle):
    """Files of all sizes around the block's, some in a folder whose name has braces."""
    made = {}
    for at, size in enumerate(SIZES):
        path = backing / ("a{n}b" if at % 2 else "plain") / f"file-{size}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(size, at))
        made[str(path)] = content(size, at)
    settle()
    return made


def test_protocol_is_registered(node, files):
    fs = fsspec.filesystem("zazen", socket=str(node.socket))
    assert isinstance(fs, ZazenFileSystem)
    path, data = next(reversed(files.items()))
    with fsspec.open(f"zazen://{path}", socket=str(node.socket)) as file:
        assert file.read() == data
    assert fs._strip_protocol(["zazen:///a/b/", "zazen:/a", "/a/"]) == ["/a/b", "/a", "/a"]
    assert fs.unstrip_protocol("/a/b") == "zazen:///a/b"


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("zazen://s3://bucket/key", r"zazen.open\(.s3://"),
        ("zazen://https://example.org/a", "https://, or mount it"),
        ("zazen::file:///a", "leave out file://"),
    ],
)
def test_urls_of_other_file_systems_are_refused(url, instead):
    for read in (fsspec.open, fsspec.core.url_to_fs):
        with pytest.raises(zazen.UnsupportedError, match=instead):
            read(url)


def test_urls_are_refused_in_every_call(fs, backing, files):
    for call in (fs.info, fs.ls, fs.open, fs.cat_file, fs.exists, fs.isfile, fs.isdir, fs.lexists):
        with pytest.raises(zazen.UnsupportedError, match="https://"):
            call("https://example.org/a")
        with pytest.raises(zazen.UnsupportedError, match=r"zazen.open\(.s3://"):
            call("zazen:s3://bucket/key")
    with pytest.raises(zazen.UnsupportedError, match="leave out file://"):
        fs.cat(f"file://{next(iter(files))}")
    # A name with a colon is one.
    (backing / "s3:x").write_bytes(b"here")
    assert fs.cat_file(str(backing / "s3:x")) == b"here"


def test_a_store_that_fails_is_no_missing_file(fs, backing, files, monkeypatch):
    path = next(iter(files))
    assert fs.exists(path) and fs.isfile(path) and not fs.isdir(path) and fs.isdir(str(backing))
    for gone in (f"{path}/below", str(backing / ("n" * 300)), str(backing / "none")):
        assert not fs.exists(gone) and not fs.isfile(gone) and not fs.isdir(gone)

    def fails(*_, **__):
        raise OSError(errno.ESTALE, "the server is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", fails)
        for call in (fs.exists, fs.isfile, fs.isdir):
            with pytest.raises(OSError, match="the server is gone"):
                call(path)


def test_names_and_sizes(fs, backing, files):
    assert sorted(fs.find(str(backing))) == sorted(files)
    for path, data in files.items():
        info = fs.info(f"zazen://{path}")
        assert (info["name"], info["size"], info["type"]) == (path, len(data), "file")
        assert info["mtime"] == os.stat(path).st_mtime
    assert fs.ls(str(backing), detail=False) == [str(backing / "a{n}b"), str(backing / "plain")]
    assert fs.isdir(str(backing)) and not fs.exists(str(backing / "none"))
    (backing / "dangling").symlink_to("nowhere")
    assert [one["type"] for one in fs.ls(str(backing))] == ["directory", "other", "directory"]
    with pytest.raises(FileNotFoundError):
        fs.ls(str(backing / "none"))
    with pytest.raises(FileNotFoundError, match="none"):
        fs.cat_file(str(backing / "none"))
    with pytest.raises(FileNotFoundError, match="none"):
        fs.open(str(backing / "none"))
    with pytest.raises(IsADirectoryError):
        fs.cat_file(str(backing / "plain"))
    with pytest.raises((IsADirectoryError, zazen.Error), match="directory"):
        fs.open(str(backing / "plain"))


def test_links(fs, backing, files, folder):
    """Also those that lead out of their folder, as people put them beside their scripts."""
    path, data = next(reversed(files.items()))
    home = folder / "home"
    home.mkdir()
    (home / "mine").symlink_to(path)
    (home / "again").symlink_to("mine")
    (home / "gone").symlink_to("nowhere")
    (backing / "there").symlink_to(os.path.relpath(path, backing))
    for link in (home / "mine", home / "again", backing / "there"):
        assert fs.cat_file(str(link)) == data
        with fsspec.filesystem("zazen", direct=True).open(str(link)) as file:
            assert file.read() == data
    with pytest.raises(FileNotFoundError):
        fs.cat_file(str(home / "gone"))


def test_ranges_are_those_of_bytes(fs, files):
    chance = random.Random(5)
    for path, data in files.items():
        for _ in range(30):
            bounds = [None, 0, len(data), *(chance.randint(-len(data) - 3, len(data) + 3) for _ in range(4))]
            start, end = chance.choice(bounds), chance.choice(bounds)
            assert fs.cat_file(path, start, end) == data[start:end], (path, start, end)


def test_many_ranges_in_one_call(fs, files):
    chance = random.Random(6)
    paths = chance.choices(list(files), k=200)
    starts = [chance.randint(0, len(files[path])) for path in paths]
    ends = [start + chance.randint(0, 3 * BLOCK_BYTES) for start in starts]
    wanted = [files[path][start:end] for path, start, end in zip(paths, starts, ends, strict=True)]
    assert fs.cat_ranges(paths, starts, ends) == wanted
    assert fs.cat_ranges(paths, None, None) == [files[path] for path in paths]
    missing = paths[0] + ".none"
    found = fs.cat_ranges([missing, paths[1]], [0, starts[1]], [5, ends[1]])
    assert isinstance(found[0], FileNotFoundError) and found[1] == wanted[1]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([missing], [0], [5], on_error="raise")
    with pytest.raises(ValueError, match="as many of each"):
        fs.cat_ranges(paths, [0], [1])


def test_an_open_file_is_like_one(fs, files):
    chance = random.Random(7)
    for path, data in files.items():
        with fs.open(path) as ours:
            theirs = io.BytesIO(data)
            assert ours.size == len(data)
            for _ in range(60):
                match chance.randrange(4):
                    case 0:
                        place = chance.randint(0, len(data))
                        assert ours.seek(place) == theirs.seek(place)
                    case 1:
                        count = chance.randint(0, 2 * BLOCK_BYTES)
                        assert ours.read(count) == theirs.read(count)
                    case 2:
                        assert ours.readline() == theirs.readline()
                    case 3:
                        mine, other = bytearray(100), bytearray(100)
                        assert ours.readinto(mine) == theirs.readinto(other) and mine == other
                assert ours.tell() == theirs.tell()


def test_nothing_is_fetched_twice(fs, backing, settle, node):
    """Read-ahead included: what the daemon fetched is the file, once."""
    path, data = backing / "large", content(200 * BLOCK_BYTES + 5)
    path.write_bytes(data)
    settle()
    asked = []
    with fs.open(str(path)) as file:
        fetch = file._reader._fetch
        file._reader._fetch = lambda indices: asked.extend(indices) or fetch(indices)
        read = b"".join(iter(lambda: file.read(1000), b""))
    assert read == data
    assert asked == list(range(201)), "each block is read once, in order"
    cached = zazen.open(backing, pattern=f"large{{n*{BLOCK_BYTES}}}", socket=str(node.socket))
    numbers = cached.extent()
    natives, aliens = cached.query(0, 1 << 40)
    assert (len(numbers), len(natives), len(aliens)) == (201, 0, 201)


def test_a_file_that_is_replaced(fs, backing, settle):
    """Readers of the old version get its bytes or an error; new readers get the new version."""
    path = backing / "f"
    old, new = content(8 * BLOCK_BYTES, 1), content(8 * BLOCK_BYTES, 2)
    for in_place in (True, False):
        path.write_bytes(old)
        settle()
        assert fs.cat_file(str(path), 0, 100) == old[:100]
        file = fs.open(str(path))
        assert file.read(BLOCK_BYTES) == old[:BLOCK_BYTES]
        if in_place:
            path.write_bytes(new)
        else:
            (backing / "g").write_bytes(new)
            (backing / "g").rename(path)
        settle()
        assert fs.cat_file(str(path)) == new
        with pytest.raises(zazen.StaleError, match=r"f was changed or replaced") as caught:
            file.seek(7 * BLOCK_BYTES)
            file.read()
        assert caught.value.errno == errno.ESTALE
        file.close()


def test_a_file_changed_twice_within_a_tick(fs, backing, settle, monkeypatch):
    """A reader of a file that is young is not used again: its times may not show the next
    change."""
    path = backing / "f"
    path.write_bytes(b"a" * 100)
    settle()
    # The tick of the times is longer than this test.
    monkeypatch.setattr(zazen.fsspec.filesystem, "_is_now", lambda version, found: True)
    assert fs.cat_file(str(path)) == b"a" * 100
    path.write_bytes(b"b" * 100)
    settle()
    assert fs.cat_file(str(path)) == b"b" * 100
    # Of a file that has not changed lately the reader is kept.
    assert not fs._idle
    monkeypatch.setattr(zazen.blocks, "_TICK", 0)
    fs.cat_file(str(path))
    assert len(fs._idle) == 1


def test_growing_and_shrinking(fs, backing, settle):
    path = backing / "f"
    path.write_bytes(content(3 * BLOCK_BYTES))
    settle()
    file = fs.open(str(path))
    with path.open("ab") as more:
        more.write(b"tail")
    settle()
    with pytest.raises(zazen.StaleError):
        file.read()
    assert fs.cat_file(str(path))[-4:] == b"tail"
    os.truncate(path, 10)
    settle()
    assert fs.cat_file(str(path)) == content(3 * BLOCK_BYTES)[:10]


def test_a_file_replaced_all_the_time(fs, backing, settle):
    """Whatever is read is one whole version, or an error."""
    path = backing / "f"
    versions = [bytes([at]) * (4 * BLOCK_BYTES) for at in range(40)]
    path.write_bytes(versions[0])
    for version in versions:
        (backing / "g").write_bytes(version)
        (backing / "g").rename(path)
        for _ in range(3):
            try:
                read = fs.cat_file(str(path))
            except zazen.StaleError:
                continue
            assert read in versions and len(set(read)) == 1


def test_writes_are_refused(fs, backing, files):
    path = next(iter(files))
    calls = {
        "open wb": lambda: fs.open(path, "wb"),
        "open ab": lambda: fs.open(path, "ab"),
        "open r+b": lambda: fs.open(path, "r+b"),
        "pipe": lambda: fs.pipe(path, b"x"),
        "put": lambda: fs.put(path, str(backing / "new")),
        "copy": lambda: fs.cp_file(path, str(backing / "new")),
        "move": lambda: fs.mv(path, str(backing / "new")),
        "mkdir": lambda: fs.mkdir(str(backing / "new")),
        "makedirs": lambda: fs.makedirs(str(backing / "new" / "deep"), exist_ok=True),
        "remove": lambda: fs.rm(path),
        "remove file": lambda: fs.rm_file(path),
        "rmdir": lambda: fs.rmdir(str(backing)),
        "touch": lambda: fs.touch(path),
    }
    before = {one: os.stat(one) for one in files}
    for name, call in calls.items():
        with pytest.raises(OSError, match="read-only") as caught:
            call()
        assert caught.value.errno == errno.EROFS, name
    assert {one: os.stat(one) for one in files} == before and not (backing / "new").exists()


def test_without_a_daemon(files):
    fs = ZazenFileSystem(direct=True, block_bytes=BLOCK_BYTES, skip_instance_cache=True)
    for path, data in files.items():
        assert fs.cat_file(path) == data
        with fs.open(path) as file:
            assert file.read() == data


def test_a_daemon_that_dies(fs, node, backing, settle):
    path, data = backing / "f", content(8 * BLOCK_BYTES)
    path.write_bytes(data)
    settle()
    file = fs.open(str(path))
    assert file.read(10) == data[:10]
    node.kill()
    file.seek(6 * BLOCK_BYTES)
    with pytest.warns(zazen.ZazenWarning):
        assert file.read() == data[6 * BLOCK_BYTES :]
    # The version counts there too.
    path.write_bytes(content(8 * BLOCK_BYTES, 9))
    settle()
    file.seek(0)
    with pytest.raises(zazen.StaleError):
        file._reader.read(5 * BLOCK_BYTES, 6 * BLOCK_BYTES)


def test_pickles(fs, backing, settle):
    path, data = backing / "f", content(3 * BLOCK_BYTES)
    path.write_bytes(data)
    settle()
    assert pickle.loads(pickle.dumps(fs)).cat_file(str(path), 5, 9) == data[5:9]
    file = fs.open(str(path))
    file.seek(100)
    text = pickle.dumps(file)
    again = pickle.loads(text)
    assert again.read() == data[100:]
    path.write_bytes(data[::-1])
    settle()
    with pytest.raises(zazen.StaleError, match="f was changed or replaced"):
        pickle.loads(text)


def test_bad_arguments(node, backing, files):
    for wrong in (0, 4095, (1 << 30) + 1):
        with pytest.raises(zazen.InvalidArgumentError, match="4096 to 1073741824"):
            BlockReader(next(iter(files)), wrong, options={"socket": str(node.socket)})
    with pytest.raises(zazen.InvalidArgumentError, match="names no file"):
        zazen.open(backing, pattern="{n*4096}", socket=str(node.socket))


def test_a_name_that_is_not_utf8_is_told(backing):
    path = os.fsdecode(os.fsencode(backing) + b"/caf\xe9.bin")
    Path(path).write_bytes(b"x")
    with pytest.raises(zazen.InvalidArgumentError, match=r"caf\?\.bin: its name is not UTF-8"):
        fsspec.filesystem("zazen", direct=True).cat_file(path)


def test_files_whose_numbers_overlap(backing, settle, node):
    """The blocks of two files take each other's place in the cache; the bytes are right all the
    same."""
    block_bytes, size = 4096, 1 << 30
    firsts = {}
    for at in range(4000):
        name = f"f{at}"
        with (backing / name).open("wb") as file:
            file.truncate(size)
        with zazen.open(backing, pattern=f"{name}{{n*{block_bytes}}}", direct=True) as blocks:
            firsts[blocks.extent().first] = name
    order = sorted(firsts)
    low, high = min(itertools.pairwise(order), key=lambda pair: pair[1] - pair[0])
    if high - low >= size // block_bytes:
        pytest.skip("no two of these names overlap")
    one, other, shift = firsts[low], firsts[high], high - low
    for name, index, byte in ((one, shift, b"1"), (other, 0, b"2")):
        with (backing / name).open("r+b") as file:
            file.seek(index * block_bytes)
            file.write(byte * block_bytes)
    settle()
    readers = {}
    for name in (one, other):
        readers[name] = zazen.open(backing, pattern=f"{name}{{n*{block_bytes}}}", socket=str(node.socket))
    for _ in range(3):
        assert bytes(readers[one].read(high).data) == b"1" * block_bytes
        assert bytes(readers[other].read(high).data) == b"2" * block_bytes


def test_a_forked_child(fs, backing, settle):
    path, data = backing / "f", content(3 * BLOCK_BYTES)
    path.write_bytes(data)
    settle()
    file = fs.open(str(path))
    assert file.read(10) == data[:10]
    child = os.fork()
    if child == 0:
        good = file.read() == data[10:] and fs.cat_file(str(path)) == data
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read() == data[10:]
