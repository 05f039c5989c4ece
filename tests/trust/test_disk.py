"""What breaks stays small: a prepared cache root, a damaged state file, a cache disk that fails, a
backing root that is loaded, a full cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import zazen
import zazen.testing
from launching import wait_for
from wire import Raw

from conftest import read_frames, write_frames

SIZE = 140_000


def zazend(programs: Path, *words: object) -> subprocess.CompletedProcess:
    """zazend as root, to its end."""
    return subprocess.run(
        [str(programs / "zazend"), *map(str, words)],
        env=zazen.testing.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def expected(files: list[Path]) -> dict[int, bytes]:
    return {number: file.read_bytes() for number, file in enumerate(files)}


# The cache root


def test_a_root_that_another_user_prepared_is_refused(ground, programs, start_node, a, b):
    """B fills a cache root with forged natives of A's dataset, in the daemon's own formats, and
    root starts on it."""
    node = start_node()
    write_frames(node.backing / "sim", a)
    forged = write_frames(ground / "forged", b)
    for file in forged:
        file.write_bytes(b"forged!!" * (SIZE // 8))
    with zazen.open(str(node.backing / "sim"), socket=str(node.socket)) as opened:
        list(opened.frames())
    node.stop()
    for number, file in enumerate(forged):
        cached = node.cache / "sim" / f"f-{number}.bin"
        cached.write_bytes(file.read_bytes())
    for path in [node.cache, *node.cache.rglob("*")]:
        b.own(path)
    words = ["--cache", node.cache, "--backing", node.backing, "--socket", node.socket]
    for extra in ([], ["--check"]):
        refused = zazend(programs, *words, *extra)
        said = refused.stdout + refused.stderr
        assert refused.returncode != 0
        assert f"belongs to user {b.uid}" in said and str(node.cache) in said, said
    # The root given back, and what is inside not: nothing of it is believed.
    for path in [node.cache, *(node.cache / ".zazen" / name for name in ("", "tmp", "lock"))]:
        os.chown(path, 0, 0)
    node.start()
    assert "cannot be opened and is left out" in node.log.read_text()
    assert read_frames(node.backing / "sim", node.socket) == expected(
        sorted((node.backing / "sim").iterdir())
    )


@pytest.mark.parametrize("place", ["the root", "a folder above"])
def test_a_root_that_others_may_write_to_is_refused(place, ground, programs, a):
    cache = ground / "above/cache"
    cache.mkdir(parents=True)
    (ground / "backing").mkdir()
    open_folder = cache if place == "the root" else cache.parent
    words = ["--cache", cache, "--backing", ground / "backing", "--socket", ground / "s"]
    assert zazend(programs, *words, "--check").returncode == 0
    for mode in (0o777, 0o757, 0o1777 if place == "the root" else 0o777):
        open_folder.chmod(mode)
        for extra in ([], ["--check"]):
            refused = zazend(programs, *words, *extra)
            said = refused.stdout + refused.stderr
            assert refused.returncode != 0
            assert "could change it" in said and str(open_folder) in said, said
    open_folder.chmod(0o755)
    a.own(open_folder)
    said = zazend(programs, *words, "--check").stdout
    assert f"belongs to user {a.uid}" in said, said


def test_a_root_through_a_strangers_link_is_refused(ground, programs, b):
    (ground / "backing").mkdir()
    shared = ground / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (ground / "real").mkdir()
    b.run(os.symlink, ground / "real", shared / "cache")
    refused = zazend(
        programs,
        "--cache",
        shared / "cache",
        "--backing",
        ground / "backing",
        "--socket",
        ground / "s",
        "--check",
    )
    assert refused.returncode != 0 and f"belongs to user {b.uid}" in refused.stdout, refused.stdout


def test_a_planted_log_is_set_aside(start_node, a, b):
    """A log that B could have written is not read, whatever it says."""
    node = start_node()
    files = write_frames(node.backing / "sim", a)
    assert read_frames(node.backing / "sim", node.socket) == expected(files)
    node.stop()
    logs = sorted(node.cache.rglob("*.log"))
    assert logs
    b.own(logs[0])
    node.start()
    assert read_frames(node.backing / "sim", node.socket) == expected(files)
    assert f"belongs to user {b.uid}" in node.log.read_text()
    assert [path.name for path in logs[0].parent.iterdir() if ".aside-" in path.name]


# Small files


def test_any_small_file_of_the_root_may_be_damaged(start_node, a):
    """Each is cut, emptied, and has bits flipped; the daemon starts and serves what the sources
    hold."""
    node = start_node()
    files = write_frames(node.backing / "sim", a)
    assert read_frames(node.backing / "sim", node.socket) == expected(files)
    node.stop()
    kept = node.cache.with_name("kept")
    shutil.copytree(node.cache, kept, symlinks=True)
    small = [
        path.relative_to(kept) for path in kept.rglob("*")
        if path.is_file() and ".zazen" in path.parts and path.name != "lock"
    ]  # fmt: skip
    assert {"node", "datasets", "clean", "zazend", "zazend.copy"} <= {path.name for path in small}
    for at, name in enumerate(small):
        whole = (kept / name).read_bytes()
        bit = bytearray(whole)
        bit[(7 * at) % len(bit)] ^= 1 << at % 8
        for damaged in (bytes(bit), whole[: len(whole) // 2], b"", b"\0" * len(whole)):
            shutil.rmtree(node.cache)
            shutil.copytree(kept, node.cache, symlinks=True)
            (node.cache / name).write_bytes(damaged)
            node.start()
            assert read_frames(node.backing / "sim", node.socket) == expected(files), name
            node.stop()


def test_with_both_copies_damaged_no_root_is_taken_for_another(ground, programs, start_node, a):
    """Two backing roots with datasets of one name: what the cache knew of the first is not served
    under the second."""
    other = ground / "other"
    node = start_node()
    write_frames(node.backing / "sim", a)
    files = write_frames(other / "sim", a)
    for file, twin in zip(files, sorted((node.backing / "sim").iterdir()), strict=True):
        file.write_bytes(bytes(reversed(range(256))) * (SIZE // 256) + b"x" * (SIZE % 256))
        os.utime(file, ns=(twin.stat().st_atime_ns, twin.stat().st_mtime_ns))
    read_frames(node.backing / "sim", node.socket)
    node.stop()
    for name in ("zazend", "zazend.copy"):
        path = node.cache / ".zazen" / name
        path.write_bytes(path.read_bytes().replace(b"z", b"y", 1))
    node.backing = other
    node.start()
    assert read_frames(other / "sim", node.socket) == expected(files)
    assert "starts without what they said" in node.log.read_text()


# The backing store


def test_loading_a_backing_root_costs_others_nothing(start_node, programs, a, b):
    """The root holds folders only. B loads it, again and again; A's opens all succeed."""
    node = start_node()
    write_frames(node.backing / "sim", a)
    for _ in range(8):
        b.call(programs / "zazen", "load", "--socket", node.socket, node.backing)
        a.run(open_once, node.backing / "sim", node.socket)
        # A misspelt name is the caller's mistake, not the store's absence.
        with pytest.raises(zazen.NotFoundError):
            a.run(open_once, node.backing / "none", node.socket)
    assert "does not answer" not in node.log.read_text()


def open_once(dataset: Path, socket: Path) -> int:
    with zazen.open(str(dataset), socket=str(socket)) as opened:
        return sum(len(data) for _, data, _ in opened.frames())


# Room


def test_evictions_and_refusals_leave_a_trace(start_node, a):
    node = start_node("--budget", "1M")
    for name in ("one", "two", "three"):
        files = write_frames(node.backing / name, a, count=14)
        assert read_frames(node.backing / name, node.socket) == expected(files)
        # A dataset stays in use until the daemon has seen the scan's connection close.
        wait_for(
            lambda: not any(one["scans"] for one in Raw(node.socket).status()["datasets"]), "the scan's end"
        )
    files = write_frames(node.backing / "large", a, count=1, size=2_000_000)
    assert read_frames(node.backing / "large", node.socket) == expected(files)
    said = node.log.read_text()
    assert "evicted dataset one" in said and "to make room for dataset" in said, said
    assert said.count("no room for") == 1, said


# The cache disk


@pytest.fixture
def break_disk(ground):
    """A file system of its own at `ground`/cache, and a way to make it refuse all changes in the
    middle of work."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting a file system needs root and mkfs.ext4")
    cache, image = ground / "cache", ground / "image"
    cache.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be made here: {made.stderr.strip()}")
    mount("-o", "loop,errors=remount-ro", image, cache)
    cache.chmod(0o700)
    # As after an error of the device: files that are open for writing do not keep the kernel from
    # it.
    yield lambda: mount("-o", "remount,abort", cache)
    subprocess.run(["umount", "-l", str(cache)], check=True)


def mount(*words: object) -> None:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def disk_of(node, programs: Path) -> dict:
    done = subprocess.run(
        [programs / "zazen", "status", "--json", "--socket", node.socket], capture_output=True, text=True
    )
    return json.loads(done.stdout)["nodes"][0]["status"]["disk"]


def metrics_of(node) -> dict[str, float]:
    """The page's metrics without labels."""
    address = json.loads(node.log.with_suffix(".ready").read_text())["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=90) as page:
        lines = page.read().decode().splitlines()
    pairs = [line.split() for line in lines if "{" not in line]
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] != "#"}


def test_a_read_only_cache_costs_nobody_a_frame(break_disk, start_node, programs, a):
    """Half of the frames are cached when the disk turns read-only: all are read, and the disk is
    named."""
    node = start_node("--metrics", "127.0.0.1:0")
    files = write_frames(node.backing / "sim", a, count=60)
    with zazen.open(str(node.backing / "sim"), socket=str(node.socket)) as opened:
        cached = {number: bytes(data) for number, data, _ in opened.frames(0, 29)}
    assert disk_of(node, programs) == {
        "ok": True, "trouble": None, "read_failures": 0, "change_failures": 0
    }  # fmt: skip
    assert metrics_of(node)["zazen_cache_disk_ok"] == 1
    break_disk()
    assert a.run(read_frames, node.backing / "sim", node.socket) == expected(files)
    disk = disk_of(node, programs)
    assert not disk["ok"] and disk["change_failures"] > 0, disk
    metrics = metrics_of(node)
    assert metrics["zazen_cache_disk_ok"] == 0 and metrics["zazen_cache_disk_failures"] > 0, metrics
    assert "Read-only file system" in disk["trouble"], disk
    table = subprocess.run(
        [programs / "zazen", "status", "--socket", node.socket], capture_output=True, text=True
    ).stdout
    assert "disk fails" in table and "Read-only file system" in table, table
    # A frame whose source changed is not served from the copy that cannot be replaced.
    files[3].write_bytes(b"new" * 10_000)
    assert read_frames(node.backing / "sim", node.socket)[3] == b"new" * 10_000
    said = node.log.read_text()
    assert said.count("cannot be written to") == 1, said
    assert len(cached) == 30


def test_a_cache_disk_that_is_gone_costs_nobody_a_frame(break_disk, start_node, a):
    """Every file of the cache is unreadable: logs, segments and frames. Sources are read
    instead."""
    node = start_node()
    small = write_frames(node.backing / "small", a, count=20, size=1000)
    large = write_frames(node.backing / "large", a, count=20)
    assert read_frames(node.backing / "small", node.socket) == expected(small)
    assert read_frames(node.backing / "large", node.socket) == expected(large)
    for path in node.cache.rglob("*"):
        if path.is_file() and path.name != "lock":
            path.write_bytes(b"") if path.suffix != ".log" else path.unlink()
    break_disk()
    assert a.run(read_frames, node.backing / "small", node.socket) == expected(small)
    assert a.run(read_frames, node.backing / "large", node.socket) == expected(large)


def test_a_start_on_a_read_only_disk_says_what_to_do(break_disk, start_node, programs):
    node = start_node()
    node.stop()
    break_disk()
    refused = zazend(programs, *node.command_line[1:])
    assert refused.returncode != 0
    said = refused.stderr
    assert "the cache disk fails; look at it" in said and "Read-only file system" in said, said


# Descriptors


def test_more_datasets_than_descriptors(start_node, programs, a, monkeypatch):
    """A daemon that may open 200 files serves 300 datasets, is killed, and starts again."""
    node = start_node()
    node.stop()
    limits = ["prlimit", "--nofile=200:200"]
    node.popen = lambda words, **options: subprocess.Popen([*limits, *words], **options)
    node.start()
    names = [f"d{number}" for number in range(300)]
    frames = {name: write_frames(node.backing / name, a, count=1) for name in names}
    for name in names:
        assert read_frames(node.backing / name, node.socket) == expected(frames[name])
    open_files = len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))
    assert open_files < 120, open_files
    node.kill()
    node.start()
    for name in names[::17]:
        assert read_frames(node.backing / name, node.socket) == expected(frames[name])
