import collections
import contextlib
import os
import threading
import warnings
from pathlib import Path

import pytest
import zazen
from sample import FRAMES, PATTERN, frame_bytes


def check(frames, numbers):
    """All of `numbers` come once, with their bytes."""
    got = collections.Counter()
    for number, data, path in frames:
        assert bytes(data) == frame_bytes(number), number
        with open(path, "rb") as file:
            assert file.read() == data, number
        got[number] += 1
    assert got == collections.Counter(numbers)


def test_without_a_daemon_it_warns_once_and_reads(dataset):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with zazen.open(dataset) as opened:
                assert not opened.has_daemon
                check(opened.frames(), range(FRAMES))
    # Once per process: an earlier test may have had it.
    assert len([w for w in caught if issubclass(w.category, zazen.ZazenWarning)]) <= 1


def test_direct_reads_say_so(dataset):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = zazen.open(str(dataset), direct=True)
        frames = opened.frames()
        assert {frame.source for frame in frames} == {"direct"}
    assert frames.stats.backing_reads == frames.stats.frames == FRAMES
    assert frames.stats.native == frames.stats.alien == frames.stats.mended == 0
    assert frames.stats.local_share == 0.0
    assert frames.stats.bytes == sum(len(frame_bytes(number)) for number in range(FRAMES))


def test_opened_through_the_daemon(pushed, dataset):
    with zazen.open(dataset, socket=pushed.sockets[0]) as opened:
        assert opened.has_daemon and opened.path == str(dataset) and opened.layout == PATTERN
        assert "through the daemon" in repr(opened)
        assert opened.extent() == zazen.RunSet.range(0, FRAMES - 1)
        natives, aliens = opened.query(0, FRAMES - 1)
        assert len(natives) == FRAMES // 2 and not aliens
        assert opened.query(0, FRAMES - 1, 2)[0] == natives & zazen.RunSet(range(0, FRAMES, 2))
        check(opened.frames(), range(FRAMES))
        natives_after, aliens = opened.query(0, FRAMES - 1)
        assert natives_after == natives and aliens == opened.extent() - natives
        frames = opened.frames()
        assert (frames.assignment.natives, frames.assignment.aliens) == (FRAMES // 2, FRAMES // 2)
        assert frames.assignment.residue == 0 and frames.assignment.set == opened.extent()
        check(frames, range(FRAMES))
        assert frames.stats.local_share == 1.0 and frames.stats.backing_reads == 0
        assert (frames.stats.native, frames.stats.alien) == (FRAMES // 2, FRAMES // 2)


def test_ranges(dataset):
    opened = zazen.open(dataset, direct=True)
    last = FRAMES - 1
    for arguments, numbers in [
        ((3, 9), range(3, 10)),
        ((3, 9, 2), range(3, 10, 2)),
        ((None, None, 7), range(0, FRAMES, 7)),
        ((30,), range(30, FRAMES)),
        ((None, 5), range(6)),
        ((last, last), [last]),
    ]:
        frames = opened.frames(*arguments)
        assert len(frames) == len(list(numbers)), arguments
        check(frames, numbers)
    for bad in [(5, 4), (0, 9, 0)]:
        with pytest.raises(zazen.InvalidArgumentError):
            opened.frames(*bad)
    with pytest.raises(zazen.TooLargeError):
        opened.query(0, 2**40 + 1)
    with pytest.raises(zazen.InvalidArgumentError, match="numbered from 0 on"):
        opened.query(-1, 5)


def test_options_are_checked(dataset):
    opened = zazen.open(dataset, direct=True)
    for bad in [{"rules": "none"}, {"protocol": "none"}]:
        with pytest.raises(zazen.InvalidArgumentError):
            opened.assign(**bad)
    with pytest.raises(TypeError, match="mpi4py communicator"):
        opened.assign(comm=object())
    with pytest.raises(zazen.InvalidArgumentError):
        opened.assign(comm=object(), carrier="pigeon")
    check(opened.frames(rules="paper", protocol="bitmaps", memory=1, readers=1, check=False), range(FRAMES))


def test_a_frame_outlives_everything(dataset):
    opened = zazen.open(dataset, direct=True)
    frames = opened.frames()
    kept = [next(frames) for _ in range(3)]
    views = [frame.data for frame in kept]
    numbers = [frame.number for frame in kept]
    frames.close()
    opened.close()
    del opened, frames, kept
    assert [bytes(view) for view in views] == [frame_bytes(number) for number in numbers]
    assert views[0].readonly and views[0].format == "B" and views[0].contiguous
    with pytest.raises(TypeError):
        views[0][0] = 1


def test_frame_is_a_triple(dataset):
    frame = zazen.open(dataset, direct=True).read(7)
    number, data, path = frame
    assert (number, bytes(data), path) == (7, frame_bytes(7), frame.path)
    assert len(frame) == 3 and frame[0] == 7 and frame[-1] == path and frame[:1] == (7,)
    assert "Frame 7" in repr(frame) and frame.__match_args__ == ("number", "data", "path")
    numpy = pytest.importorskip("numpy")
    assert numpy.frombuffer(frame.data, dtype=numpy.uint8).tobytes() == frame_bytes(7)


def test_iteration_ends_and_counts(dataset):
    frames = zazen.open(dataset, direct=True).frames(0, 4)
    assert len(frames) == frames.remaining == 5
    next(frames)
    assert frames.remaining == 4 and len(frames) == 5 and frames.stats.frames == 1
    assert len(list(frames)) == 4
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(frames)
    before = frames.stats.frames
    frames.close()
    frames.close()
    assert frames.stats.frames == before == 5 and frames.remaining == 0
    assert "backing_reads=5" in repr(frames.stats) and "path=" in repr(frames.assignment)


def test_a_missing_frame_is_one_frames_error(dataset):
    (dataset / "frame-0000003.bin").unlink()
    opened = zazen.open(dataset, direct=True, pattern=PATTERN)
    got, failed = [], []
    frames = opened.frames(0, 9)
    while True:
        try:
            got.append(next(frames).number)
        except StopIteration:
            break
        except zazen.NotFoundError as error:
            failed.append(str(error))
    assert sorted(got) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert len(failed) == 1 and "3" in failed[0]
    with pytest.raises(zazen.NotFoundError):
        opened.read(3)


def test_closed_datasets_say_so(dataset):
    with contextlib.closing(zazen.open(dataset, direct=True)) as opened:
        pass
    opened.close()
    with pytest.raises(zazen.InvalidArgumentError, match="closed"):
        opened.extent()


def test_threads_share_an_iterator(dataset):
    frames = zazen.open(dataset, direct=True).frames()
    got, lock = [], threading.Lock()

    def take():
        for frame in frames:
            with lock:
                got.append(frame.number)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(FRAMES))


def test_a_dead_daemon_costs_no_frame(pushed, dataset):
    opened = zazen.open(dataset, socket=pushed.sockets[0])
    pushed.kill(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zazen.ZazenWarning)
        with contextlib.suppress(zazen.UnavailableError):
            check(opened.frames(), range(FRAMES))
        check(zazen.open(dataset, socket=pushed.sockets[0]).frames(), range(FRAMES))
    pushed.start(0)
    again = zazen.open(dataset, socket=pushed.sockets[0])
    assert len(again.query(0, FRAMES - 1)[0]) == FRAMES // 2


def test_a_daemon_stops_in_good_order(cluster):
    assert cluster.stop(1) == 0
    assert cluster.log(1).exists()


def test_a_timeout_is_seconds(dataset, monkeypatch):
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(zazen.InvalidArgumentError, match="timeout"):
            zazen.open(dataset, timeout=bad)
    monkeypatch.setenv("ZAZEN_TIMEOUT", "soon")
    with pytest.raises(zazen.ConfigError, match=r"ZAZEN_TIMEOUT.*soon.*seconds"):
        zazen.open(dataset)
    monkeypatch.setenv("ZAZEN_TIMEOUT", "2.5")
    with zazen.open(dataset) as opened:
        assert len(opened.extent()) > 0


def test_paths_without_bytes(pushed, dataset, monkeypatch):
    """Each frame has a path to its bytes; what has a file of its own is not read."""
    big = dataset.parent / "big"
    big.mkdir()
    whole = {number: bytes([number]) * 300_000 for number in range(6)}
    for number, data in whole.items():
        (big / f"s-{number}.bin").write_bytes(data)

    def check(paths, expected):
        total = len(paths)
        found = {}
        for number, path in paths:
            assert number not in found
            found[number] = Path(path).read_bytes(), type(path)
        assert {number: data for number, (data, _) in found.items()} == expected and total == len(expected)
        return {kind for _, kind in found.values()}

    with zazen.open(big, socket=pushed.sockets[0]) as opened:
        # The first time they are brought to the cache.
        assert check(opened.paths(), whole) == {str}
        assert str(pushed.folder) in dict(opened.paths())[3]
        before = bytes_read()
        assert {number for number, _ in opened.paths(1, 5, 2)} == {1, 3, 5}
        assert bytes_read() - before < 300_000
    with zazen.open(big, direct=True) as opened:
        assert check(opened.paths(), whole) == {str}
        assert dict(opened.paths())[2] == str(big / "s-2.bin")
    small = {number: frame_bytes(number) for number in range(FRAMES)}
    for options in ({"socket": pushed.sockets[0]}, {"direct": True}):
        with zazen.open(dataset, **options) as opened:
            check(opened.paths(), small)
            (dataset / PATTERN.replace("{n:07}", "0000004")).rename(dataset / "away")
            paths = opened.paths(2, 6)
            seen = []
            with pytest.raises(zazen.NotFoundError, match="frame 4"):
                seen.extend(number for number, _ in paths)
            seen += [number for number, _ in paths]
            assert sorted(seen) == [2, 3, 5, 6]
            (dataset / "away").rename(dataset / PATTERN.replace("{n:07}", "0000004"))


def test_a_store_that_is_away_leaves_no_frame_out(pushed, dataset):
    """What a cache holds is not all there is. Without a range nobody knows, and with one each frame
    is read or an error."""
    (dataset / PATTERN.replace("{n:07}", f"{FRAMES:07}")).write_bytes(b"not in the cache")
    store = dataset.parent
    with zazen.open(dataset, socket=pushed.sockets[0]) as cached:
        held, _ = cached.query(0, FRAMES - 1)
    away = store.with_name("away")
    store.rename(away)
    try:
        with zazen.open(dataset, socket=pushed.sockets[0]) as opened:
            for whole in (opened.extent, lambda: list(opened.frames()), lambda: len(opened)):
                with pytest.raises(zazen.UnavailableError, match="does not answer"):
                    whole()
            first = next(iter(held))
            assert [frame.number for frame in opened.frames(first, first)] == [first]
            with pytest.raises(zazen.Error):
                list(opened.frames(0, FRAMES))
    finally:
        away.rename(store)


@pytest.mark.filterwarnings("ignore")
def test_paths_outlive_the_daemon(cluster, dataset):
    many = dataset.parent / "many"
    many.mkdir()
    for number in range(300):
        (many / f"s-{number}.bin").write_bytes(bytes([number % 251]) * 20_000)
    with zazen.open(many, socket=cluster.sockets[0]) as opened:
        paths = opened.paths()
        found = dict([next(paths)])
        cluster.kill(0)
        found |= dict(paths)
        assert sorted(found) == list(range(300))
        assert all(Path(path).read_bytes() == bytes([n % 251]) * 20_000 for n, path in found.items())
        assert str(many / "s-299.bin") in found.values()


def bytes_read():
    """Bytes that this process has read so far, in any way."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def sockets():
    """The sockets of this process."""
    links = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry.path))
    return {link for link in links if link.startswith("socket:")}


def test_a_closed_datasets_connection_serves_the_next(cluster, dataset):
    """Connecting costs more than reading a small file."""
    options = {"socket": cluster.sockets[0]}
    before = sockets()
    for _ in range(3):
        with zazen.open(dataset, **options) as opened:
            assert opened.has_daemon and bytes(opened[3].data) == frame_bytes(3)
            first = sockets() - before
            assert len(first) == 1
    assert sockets() - before == first
    with zazen.open(dataset, **options) as one, zazen.open(dataset, **options) as other:
        assert len(sockets() - before) == 2 and bytes(one[4].data) == bytes(other[4].data)
    with zazen.open(dataset.parent, socket=cluster.sockets[1], pattern="*") as elsewhere:
        assert elsewhere.has_daemon and len(elsewhere) == 0
    # A daemon that was started again since is found, and a frame is read through it.
    cluster.kill(0)
    cluster.start(0)
    with zazen.open(dataset, **options) as opened:
        assert opened.has_daemon and opened[3].source != "direct"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's rights: needs root")
def test_a_kept_connection_has_the_rights_that_it_was_made_with(cluster, dataset):
    """A service that takes a user's rights and closes a dataset gives him no connection of its
    own."""
    options = {"socket": cluster.sockets[0]}
    before = sockets()
    opened = zazen.open(dataset, **options)
    first = sockets() - before
    os.seteuid(65534)
    try:
        opened.close()
    finally:
        os.seteuid(0)
    with zazen.open(dataset, **options):
        assert sockets() - before == first, "the connection is root's, and root takes it again"


def test_many_datasets_one_after_the_other(cluster, dataset):
    """Handles are given back: more than a connection may have open."""
    for number in range(4200):
        pattern = f"frame-0000001.bin{{n*{4096 + number}}}"
        zazen.open(dataset, socket=cluster.sockets[0], pattern=pattern).close()
