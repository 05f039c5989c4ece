"""Datasets in a bucket, read through a daemon."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import zazen
import zazen.testing

from conftest import daemon, location, read

# The warning before an error says why.
pytestmark = pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")

SIZES = (0, 1, 1000, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 4 << 20, (9 << 20) + 7)


def pattern(number: int, size: int) -> bytes:
    block = bytes((number * 31 + at * 7) % 251 for at in range(4099))
    return (block * (size // len(block) + 1))[:size]


def zazen_tool(socket, *words):
    command = [zazen.testing.program("zazen"), *map(str, words)]
    environment = zazen.testing.environment() | {"ZAZEN_SOCKET": str(socket)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_frames_of_all_sizes_are_read_and_cached(store, helper, tmp_path):
    frames = {number: pattern(number, size) for number, size in enumerate(SIZES)}
    for number, data in frames.items():
        store.put(f"{store.prefix}/run1/frame{number:04}.bin", data)
    with daemon(tmp_path, helper, location(store)) as running:
        path = f"s3://{store.bucket}/{store.prefix}/run1"
        assert read(path, running.socket) == frames
        # A trailing and a doubled slash name the same dataset, whose frames are cached by now.
        assert read(f"s3://{store.bucket}//{store.prefix}/run1/", running.socket) == frames
        datasets = zazen_tool(running.socket, "datasets")
        assert path in datasets.stdout, datasets.stdout + datasets.stderr


def test_a_frame_that_was_replaced_within_a_second_is_stale_100_of_100(store, helper, tmp_path):
    # A time is a whole second here: the ETag alone tells two versions of one size apart.
    with daemon(tmp_path, helper, location(store)) as running:
        path = f"s3://{store.bucket}/{store.prefix}/run1"
        for turn in range(100):
            data = turn.to_bytes(2, "big") * 512
            store.put(f"{store.prefix}/run1/frame0.bin", data)
            assert read(path, running.socket) == {0: data}, f"turn {turn} of 100"


def test_load_explain_doctor_and_status_know_object_stores(store, helper, tmp_path):
    frames = {number: pattern(number, 5000) for number in range(40)}
    for number, data in frames.items():
        store.put(f"{store.prefix}/run1/frame{number:04}.bin", data)
    with daemon(tmp_path, helper, location(store)) as running:
        path = f"s3://{store.bucket}/{store.prefix}/run1"
        loaded = zazen_tool(running.socket, "load", path)
        assert loaded.returncode == 0, loaded.stderr + loaded.stdout
        with zazen.open(path, socket=str(running.socket)) as dataset:
            assert {frame.number: bytes(frame.data) for frame in dataset.frames()} == frames
        datasets = zazen_tool(running.socket, "datasets")
        assert path in datasets.stdout, datasets.stdout + datasets.stderr
        pushed = zazen_tool(running.socket, "push", path)
        assert pushed.returncode == 1 and "with the store's own tools" in pushed.stderr, pushed.stderr
        doctor = zazen_tool(running.socket, "doctor", "--json")
        stores = [line for line in doctor.stdout.splitlines() if "backing store" in line and "error" in line]
        assert not stores, doctor.stdout


def test_what_is_not_there_is_told_apart(store, helper, tmp_path):
    store.put(f"{store.prefix}/run1/frame0.bin", b"x")
    with daemon(tmp_path, helper, location(store)) as running:
        with pytest.raises(FileNotFoundError):
            zazen.open(f"s3://{store.bucket}/{store.prefix}/none", socket=str(running.socket))
        with pytest.raises(ConnectionError, match="start zazend with this store as --backing"):
            zazen.open("s3://other/run1", socket=str(running.socket))
        for bad in ("s3://", "s3:///run1", f"s3://{store.bucket}/../run1"):
            with pytest.raises(ValueError):
                zazen.open(bad, socket=str(running.socket))
        # A bucket that does not exist is a store that does not answer.
    missing = f"s3://nobucket?endpoint={store.endpoint}"
    (tmp_path / "second").mkdir()
    with (
        daemon(tmp_path / "second", helper, missing) as running,
        pytest.raises(ConnectionError, match="nobucket"),
    ):
        zazen.open("s3://nobucket/run1", socket=str(running.socket))


def test_without_a_daemon_the_error_says_what_to_do(tmp_path):
    with pytest.raises(ConnectionError, match="start zazend with this store as --backing"):
        zazen.open("s3://bucket/run1", socket=str(tmp_path / "nobody"))


def test_patterns_folders_manifests_and_odd_names(store, helper, tmp_path):
    names = ["a b.jpg", "ü.jpg", "100%.jpg", "x+y.jpg", "q?r#s.jpg", "deep/er/z.jpg", "deep.jpg"]
    for name in names:
        store.put(f"{store.prefix}/d/{name}", name.encode())
    store.put(f"{store.prefix}/d/", b"")
    store.put(f"{store.prefix}/d/deep/", b"")
    store.put(f"{store.prefix}/m/zazen.toml", b'files = ["one", "two"]')
    store.put(f"{store.prefix}/m/one", b"1")
    store.put(f"{store.prefix}/m/two", b"22")
    with daemon(tmp_path, helper, location(store)) as running:
        root = f"s3://{store.bucket}/{store.prefix}"
        flat = sorted((name for name in names if "/" not in name), key=str.encode)
        assert read(f"{root}/d", running.socket, pattern="*.jpg") == {
            number: name.encode() for number, name in enumerate(flat)
        }
        every = sorted(names, key=str.encode)
        assert read(f"{root}/d", running.socket, pattern="**/*.jpg") == {
            number: name.encode() for number, name in enumerate(every)
        }
        assert read(f"{root}/m", running.socket) == {0: b"1", 1: b"22"}


def test_many_frames_are_found_and_looked_at_by_few_requests(helper, tmp_path):
    from hostile import Hostile

    frames = {number: b"%05d" % number for number in range(1500)}
    objects = {f"p/run1/frame{number:05}": data for number, data in frames.items()}
    with (
        Hostile(objects) as server,
        daemon(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as running,
    ):
        assert read("s3://b/p/run1", running.socket) == frames
        server.requests.clear()
        assert read("s3://b/p/run1", running.socket) == frames
        # All are cached: each is compared with its source, by listings.
        kinds = [command for command, key, _ in server.requests if key.startswith("p/run1/frame")]
        assert len(kinds) < len(frames) / 4, f"{len(kinds)} requests for {len(frames)} cached frames"


def test_an_opened_dataset_is_read_after_few_requests_for_names(helper, tmp_path):
    from hostile import Hostile

    objects = {f"p/run1/frame{number:05}": b"%05d" % number for number in range(20)}
    with (
        Hostile(objects) as server,
        daemon(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as running,
        zazen.open("s3://b/p/run1", socket=str(running.socket)) as dataset,
    ):
        server.requests.clear()
        assert len(list(dataset.frames())) == 20
        names = [told for told in server.requests if not told[1].startswith("p/run1/frame")]
        # For the frames: is it a folder, has it a manifest, which names are there? For the reader:
        # is it still a folder?
        assert len(names) <= 7, names
        # A manifest that came since then counts.
        objects["p/run1/zazen.toml"] = b'pattern = "other{n}"\n'
        objects["p/run1/other7"] = b"seven"
        assert read("s3://b/p/run1", running.socket) == {7: b"seven"}
        # And so does an object where a folder was.
        for name in [name for name in objects if name.startswith("p/run1/")]:
            del objects[name]
        objects["p/run1"] = b"an object"
        with pytest.raises(zazen.Error, match="trajectory run1"):
            read("s3://b/p/run1", running.socket)


@pytest.mark.parametrize(
    ("size", "count", "most"), [(64 << 10, 200, 1.0), (4 << 20, 48, 1.4), (20 << 20, 8, 6.0)]
)
def test_a_cold_read_asks_for_no_byte_twice_and_seldom(helper, tmp_path, size, count, most):
    from hostile import Hostile

    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    objects = {f"p/run1/frame{number:05}": data for number in range(count)}
    with (
        Hostile(objects) as server,
        daemon(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as running,
    ):
        with zazen.open("s3://b/p/run1", socket=str(running.socket)) as dataset:
            server.requests.clear()
            assert sum(frame.length for frame in dataset.frames()) == size * count
        asked = [told for told in server.requests if told[1].startswith("p/run1/frame")]
        assert len(asked) <= most * count, f"{len(asked) / count} requests for each object"
        bytes_asked = 0
        for _, _, ranged in asked:
            if ranged is not None:
                first, last = map(int, ranged.removeprefix("bytes=").split("-"))
                bytes_asked += min(last + 1, size) - first
        assert bytes_asked == size * count


@pytest.fixture
def open_folder():
    """A folder that all users may enter."""
    with tempfile.TemporaryDirectory(prefix="zz") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting for another user needs root")
def test_only_those_whom_the_administrator_names_may_read(store, helper, open_folder):
    store.put(f"{store.prefix}/run1/frame0.bin", b"secret")
    path = f"s3://{store.bucket}/{store.prefix}/run1"
    other, group = 4_054_321, 64_900

    def tried(uid, groups, socket):
        """What this user gets: bytes, or the name of the error."""
        told, told_by = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            try:
                os.setgroups(groups)
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                answer = [next(iter(read(path, socket).values())).decode()]
            except BaseException as error:
                answer = [type(error).__name__, getattr(error, "errno", None), str(error)]
            os.write(told_by, json.dumps(answer).encode())
            os._exit(0)
        os.close(told_by)
        with os.fdopen(told) as pipe:
            answer = json.loads(pipe.read())
        os.waitpid(child, 0)
        return answer

    settings = [
        ({}, (other, []), False),
        ({"owner": other, "mode": "0400"}, (other, []), True),
        ({"owner": other, "mode": "0400"}, (other + 1, []), False),
        ({"group": group, "mode": "0440"}, (other, [group]), True),
        ({"group": group, "mode": "0440"}, (other, []), False),
        ({"mode": "0444"}, (other, []), True),
    ]
    for number, (told, (uid, groups), may) in enumerate(settings):
        folder = open_folder / str(number)
        folder.mkdir(mode=0o755)
        with daemon(folder, helper, location(store, **told)) as running:
            # The frame is cached before the other user asks.
            assert read(path, running.socket) == {0: b"secret"}
            answer = tried(uid, groups, running.socket)
            if may:
                assert answer == ["secret"], (told, answer)
            else:
                assert answer[0] == "PermissionDeniedError", (told, answer)
                # The daemon refused it, and not a folder on the way to the daemon.
                assert "secret" not in answer and "may not read s3://" in answer[2], answer
