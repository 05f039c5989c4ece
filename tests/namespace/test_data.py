"""The bytes of files on a testbed of nodes: checksums, scrubs, space."""

import errno
import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest
import zazen.testing

BLOCK = 64 << 10
# Larger files are not checked when their own node opens them.
CHECKED_AT_OPEN = 4 << 20


def tool(*words: object, status: int = 0) -> str:
    """Runs `zazen`; its standard output, and standard error if it was to fail."""
    command = [zazen.testing.program("zazen"), *map(str, words)]
    done = subprocess.run(
        command, env=zazen.testing.environment(), text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stdout + done.stderr


def within(seconds: float, work, wrong: tuple[type[Exception], ...] = (OSError, AssertionError)):
    """What `work` returns; it may fail for so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except wrong:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


class Bed:
    """A testbed with a namespace, as each of its nodes sees it."""

    def __init__(self, folder: Path, nodes: int, *more: object) -> None:
        self.dir, mounts = folder / "bed", folder / "m"
        tool("testbed", "up", nodes, "--dir", self.dir, "--namespace", "--mounts", mounts, *more)
        self.mounts = [mounts / str(number) for number in range(nodes)]
        record = json.loads((self.dir / "testbed.json").read_text())
        self.sockets = [node["socket"] for node in record["nodes"]]
        self.data = [Path(self.status(number)["data"]) for number in range(nodes)]

    def status(self, node: int) -> dict:
        return json.loads(tool("namespace", "status", "--json", "--socket", self.sockets[node]))

    def object(self, node: int, path: Path) -> Path:
        """The file on the node's disk that has the bytes of `path`."""
        (found,) = (self.data[node] / "objects").glob(f"*/{path.stat().st_ino:016x}-*")
        return found

    def seal(self, node: int, path: Path) -> Path:
        found = self.object(node, path)
        return self.data[node] / "sums" / found.parent.name / found.name

    def wait_for_seal(self, node: int, path: Path) -> None:
        def is_there():
            meta, seal = self.object(node, path).stat(), self.seal(node, path).read_bytes()
            assert int.from_bytes(seal[24:32], "little") == meta.st_size
            assert int.from_bytes(seal[32:40], "little") == meta.st_mtime_ns

        within(20, is_there)

    def down(self) -> None:
        tool("testbed", "down", "--dir", self.dir)


def flip(path: Path, at: int) -> None:
    """Changes a bit as a bad disk does: no time changes."""
    meta = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    os.utime(path, ns=(meta.st_atime_ns, meta.st_mtime_ns))


def fails(code: int, work) -> None:
    with pytest.raises(OSError) as raised:
        work()
    assert raised.value.errno == code


def read_at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def a_flipped_bit_is_an_error(bed: Bed) -> None:
    data = random.Random(1).randbytes(5 * BLOCK + 999)
    here, there = bed.mounts[0] / "small", bed.mounts[1] / "small"
    here.write_bytes(data)
    bed.wait_for_seal(0, here)
    assert within(5, there.read_bytes) == data
    flip(bed.object(0, here), 3 * BLOCK + 17)
    fails(errno.EIO, there.read_bytes)
    assert read_at(there, 4 * BLOCK - 3 * BLOCK, BLOCK) == data[BLOCK : 2 * BLOCK]
    # Its own node checks it at an open, and the kernel reads it no more.
    fails(errno.EIO, here.read_bytes)
    assert read_at(here, 5 * BLOCK, 999) == data[5 * BLOCK :]
    # A part written anew would hide the rest; all written anew is well.
    fails(errno.EIO, lambda: os.close(os.open(here, os.O_WRONLY)))
    there.write_bytes(data)
    assert within(5, here.read_bytes) == data
    bed.wait_for_seal(1, here)


def scrub_finds_what_nobody_read(bed: Bed) -> None:
    data = random.Random(2).randbytes(CHECKED_AT_OPEN + 3 * BLOCK)
    here, there = bed.mounts[0] / "large", bed.mounts[1] / "large"
    here.write_bytes(data)
    whole = bed.mounts[1] / "whole"
    whole.write_bytes(b"whole" * 1000)
    bed.wait_for_seal(0, here)
    bed.wait_for_seal(1, whole)
    # What a crash left.
    left = bed.object(0, here)
    left = left.with_name(left.name + "7")
    left.write_bytes(b"left" * 5000)
    time.sleep(5.2)
    socket = ["--socket", bed.sockets[1]]
    first, second = json.loads(tool("namespace", "scrub", "--json", *socket))
    assert first["damaged_inodes"] == [] and first["removed"] == 1 and not left.exists()
    assert first["removed_bytes"] >= 20_000 and first["bytes_checked"] >= len(data)
    assert second["removed"] == 0 and second["bytes_checked"] >= 5000 and second["error"] is None

    flip(bed.object(0, here), CHECKED_AT_OPEN + 5)
    said = tool("namespace", "scrub", *socket, status=1)
    assert f"inode {here.stat().st_ino} is damaged" in said and "1 files are damaged" in said
    for path in (here, there):
        assert read_at(path, BLOCK, 1000) == data[BLOCK : BLOCK + 1000]
        fails(errno.EIO, lambda path=path: read_at(path, CHECKED_AT_OPEN, BLOCK))
    assert bed.status(0)["damaged_files"] == 1
    # It is known after a restart of the daemon.
    tool("testbed", "kill", 0, "--dir", bed.dir)
    tool("testbed", "revive", 0, "--dir", bed.dir)
    within(30, lambda: fails(errno.EIO, lambda: read_at(there, CHECKED_AT_OPEN, BLOCK)))
    there.unlink()
    within(10, lambda: tool("namespace", "scrub", *socket))
    assert bed.status(0)["damaged_files"] == 0


def space_is_told(bed: Bed) -> None:
    disk = os.statvfs(bed.data[0])
    seen = os.statvfs(bed.mounts[1])
    # Both nodes are on one disk here, and each counts it.
    assert seen.f_blocks * seen.f_frsize == pytest.approx(2 * disk.f_blocks * disk.f_frsize, rel=0.01)
    assert 0 < seen.f_bavail < seen.f_blocks and seen.f_files > 0


def test_checksums_scrub_and_space(folder, alone):
    def test():
        bed = Bed(folder, 2)
        a_flipped_bit_is_an_error(bed)
        scrub_finds_what_nobody_read(bed)
        within(10, lambda: space_is_told(bed))
        bed.down()

    alone(test)
