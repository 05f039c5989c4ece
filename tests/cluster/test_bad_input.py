"""What is damaged, full, gone or absurd gets a clear error, or costs time: nothing else is lost."""

import contextlib
import os
import shutil
import subprocess

import pytest
import zazen
import zazen.testing

FRAMES = 60

pytestmark = pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")


def frame_bytes(number):
    # Some are packed into segments, some are files of their own.
    return bytes((number * 13 + at) % 241 for at in range(1000)) * (1 + number % 3 * 70)


def name(number):
    return f"frame-{number:05}.bin"


@pytest.fixture
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("z") / "backing" / "sim1"
    path.mkdir(parents=True)
    for number in range(FRAMES):
        (path / name(number)).write_bytes(frame_bytes(number))
    return path


def push(cluster, dataset):
    with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
        for number in range(FRAMES):
            writer.push(number, frame_bytes(number), name(number))
    return writer


@pytest.fixture
def cluster(dataset):
    """One node that holds every frame."""
    with zazen.testing.Cluster(dataset.parent.parent / "c", dataset.parent) as cluster:
        assert push(cluster, dataset).counters.pushed == FRAMES
        yield cluster


def read_all(cluster, dataset):
    """Every frame, once and right; the counters."""
    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        assert opened.has_daemon
        frames = opened.frames()
        seen = {}
        for frame in frames:
            assert frame.number not in seen
            assert bytes(frame.data) == frame_bytes(frame.number), frame.number
            seen[frame.number] = frame.source
    assert sorted(seen) == list(range(FRAMES))
    return frames.stats


def logs(cluster):
    """The sequence logs of the node's datasets."""
    found = [
        path for path in (cluster.folder / "cache0").rglob("*") if path.is_file() and "native" in path.name
    ]
    assert found, sorted((cluster.folder / "cache0").rglob("*"))
    return found


@pytest.mark.parametrize("left", [0.0, 0.01, 0.5, 0.999])
def test_a_log_cut_short_costs_copies_not_frames(cluster, dataset, left):
    """As a crash of the machine leaves it: the first so much of the log is there."""
    cluster.kill(0)
    for log in logs(cluster):
        with log.open("r+b") as file:
            file.truncate(int(log.stat().st_size * left))
    cluster.start(0)
    first = read_all(cluster, dataset)
    assert first.native < FRAMES and first.native + first.backing_reads == FRAMES, first
    again = read_all(cluster, dataset)
    assert again.backing_reads == 0, again


def test_a_log_of_garbage_costs_copies_not_frames(cluster, dataset):
    cluster.kill(0)
    for log in logs(cluster):
        size = log.stat().st_size
        log.write_bytes(bytes(at * 7 % 256 for at in range(size)))
    cluster.start(0)
    read_all(cluster, dataset)
    assert read_all(cluster, dataset).backing_reads == 0


def test_copies_cut_short_behind_the_daemons_back_are_mended(cluster, dataset):
    cached = [path for path in (cluster.folder / "cache0").rglob("frame-*.bin") if path.is_file()]
    assert cached
    for path in cached:
        path.chmod(0o600)
        os.truncate(path, path.stat().st_size // 2)
    assert read_all(cluster, dataset).backing_reads == len(cached)
    assert read_all(cluster, dataset).backing_reads == 0


def test_a_cache_deleted_under_the_daemon_costs_copies_not_frames(cluster, dataset):
    shutil.rmtree(cluster.folder / "cache0" / "sim1")
    stats = read_all(cluster, dataset)
    assert stats.native < FRAMES, stats


def test_a_frame_missing_in_mid_dataset_is_one_frames_error(cluster, dataset):
    (dataset / name(30)).unlink()
    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        frames, read, errors = iter(opened.frames(0, FRAMES - 1)), [], []
        while True:
            try:
                read.append(next(frames).number)
            except StopIteration:
                break
            except zazen.NotFoundError as error:
                errors.append(str(error))
        assert sorted(read) == [number for number in range(FRAMES) if number != 30]
        assert len(errors) == 1 and "frame 30" in errors[0], errors
        # Asked for what exists, nothing is wrong.
        assert len(opened.extent()) == FRAMES - 1 or 30 in opened.extent()


@pytest.mark.parametrize("absurd", [2**40 + 1, 2**63, 2**64, 10**30])
def test_absurd_numbers_are_refused_or_passed_over(cluster, dataset, absurd):
    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        for call in (
            lambda: opened.read(absurd),
            lambda: opened.query(0, absurd),
            lambda: opened.frames(0, absurd),
        ):
            with pytest.raises((zazen.TooLargeError, OverflowError)):
                call()
    # A file whose name has such a number is no frame.
    (dataset / f"frame-{absurd}.bin").write_bytes(b"x")
    read_all(cluster, dataset)


def test_a_frame_that_claims_more_than_it_has_is_refused(cluster, dataset):
    """A piece past the end of its file: the writer is told, and nothing is stored."""
    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        held = opened.query(0, FRAMES)[0]
    with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
        with pytest.raises(zazen.Error):
            writer.push(2**40 + 1, b"x", "frame-00001.bin")
        with pytest.raises(zazen.Error):
            writer.push(1, b"x", "../../etc/passwd")
    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        assert opened.query(0, FRAMES)[0] == held
    read_all(cluster, dataset)


def test_a_full_disk_skips_copies_and_loses_no_frame(tmp_path_factory, dataset):
    """The cache's file system has room for a part of the frames only; the budget knows nothing of
    it."""
    folder = tmp_path_factory.mktemp("z") / "c"
    cache = folder / "cache0"
    cache.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(cache)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system to fill: {mounted.stderr.strip()}")
    try:
        with zazen.testing.Cluster(folder, dataset.parent, arguments=["--budget", "1G"]) as cluster:
            counters = push(cluster, dataset).counters
            assert 0 < counters.pushed < FRAMES, counters
            stats = read_all(cluster, dataset)
            assert stats.native == counters.pushed and stats.backing_reads == FRAMES - counters.pushed, stats
            assert read_all(cluster, dataset).frames == FRAMES
            # Room again: the daemon needs no restart.
            assert cluster.pid(0)
            # Somebody else takes the rest. A daemon that starts then has its frames.
            with contextlib.suppress(OSError), open(cache / "hog", "wb", buffering=0) as hog:
                while True:
                    hog.write(bytes(4096))
            cluster.kill(0)
            cluster.start(0)
            stats = read_all(cluster, dataset)
            assert stats.native == counters.pushed, stats
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def check_settings(tmp_path, settings):
    command = [zazen.testing.program("zazend"), "--check", "--config", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    return done.returncode, done.stdout + done.stderr


def test_settings_that_are_no_plain_file_are_refused(tmp_path):
    # A daemon reads them again while it serves: it must not wait for a FIFO's writer.
    os.mkfifo(tmp_path / "fifo")
    for settings in (tmp_path / "fifo", "/dev/zero"):
        status, said = check_settings(tmp_path, settings)
        assert status == 1 and "it is not a plain file" in said, said


def test_the_file_of_settings_takes_a_plug_in_as_the_flag_does(tmp_path):
    (tmp_path / "backing").mkdir()
    settings = tmp_path / "zazend.toml"
    usual = f'cache = "{tmp_path}/cache"\nbacking = ["{tmp_path}/backing"]\nsocket = "{tmp_path}/s"\n'
    settings.write_text(usual + 'plugin = ["posix"]\n')
    status, said = check_settings(tmp_path, settings)
    assert status == 0 and "posix" in said, said
    settings.write_text(usual + "plugin = [7]\n")
    status, said = check_settings(tmp_path, settings)
    assert status == 1 and "a plug-in as --plugin takes it" in said, said
