#!/usr/bin/env python3
"""A model of a disk with a head: a block device in which a request costs a seek unless it follows
the last one.

The machine's own disks cost the same whatever the order of the requests, and a limit of requests
per second charges one reader as much as eight. Here every request for the device, reads as well as
written-back pages, waits for one arm: `seek_s` if it begins elsewhere than the last one ended, then
its bytes at `bytes_per_s`. Of the requests that wait, up to 32 as in a SATA disk, the arm takes the
next one upwards, then from below.

A FUSE file (this program is its server) under a loop device under ext4: page cache, read-ahead and
the I/O scheduler in between are the kernel's own. `Spindle` sets it up and takes it down; root
only.

    spindle.py IMAGE MOUNTPOINT --bytes-per-s 100e6 --seek-ms 8
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

NAME = "disk"
ROOT_NODE, DISK_NODE = 1, 2
REQUEST_BYTES = 1 << 20
# A request this little ahead is reached by waiting for it to come round: as fast as reading up to
# it.
NEAR_BYTES = 256 << 10
# What the disk holds of what it read on.
BUFFER_BYTES = 8 << 20
HEADER = struct.Struct("<IIQQIIIHH")
REPLY = struct.Struct("<IiQ")
QUEUE_DEPTH = 32
ASYNC_READ, BIG_WRITES, MAX_PAGES = 1 << 0, 1 << 5, 1 << 22
DIRECT_IO = 1 << 0
PR_SET_IO_FLUSHER = 57


class Code(enum.IntEnum):
    """FUSE requests (include/uapi/linux/fuse.h)."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    DESTROY = 38
    BATCH_FORGET = 42


class Arm:
    """When a request is done, by the model."""

    def __init__(self, bytes_per_s: float, seek_s: float) -> None:
        self.bytes_per_s, self.seek_s = bytes_per_s, seek_s
        # Where the head is, and when it came there.
        self.at, self.came = -1, 0.0

    def serve(self, offset: int, size: int, now: float) -> float:
        """The time at which the request is done."""
        gap = offset - self.at
        if 0 <= gap <= NEAR_BYTES:
            # The disk has read ahead into its own buffer meanwhile.
            began = max(self.came, now - BUFFER_BYTES / self.bytes_per_s)
            began += min(self.seek_s, gap / self.bytes_per_s)
        else:
            began = max(self.came, now) + self.seek_s
        self.at, self.came = offset + size, began + size / self.bytes_per_s
        return max(self.came, now)


class Queue:
    """Requests that wait for the arm."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, int, memoryview]] = []
        self.changed = threading.Condition()

    def put(self, request: tuple[int, int, int, memoryview]) -> None:
        with self.changed:
            self.waiting.append(request)
            self.changed.notify()

    def next(self, at: int) -> tuple[int, int, int, memoryview]:
        """The nearest upwards of `at`, else the lowest."""
        with self.changed:
            while not self.waiting:
                self.changed.wait()
            ready = self.waiting[:QUEUE_DEPTH]
            chosen = min(ready, key=lambda request: (request[0] < at, request[0]))
            self.waiting.remove(chosen)
            return chosen


class Server:
    """Serves a directory with one file, the disk."""

    def __init__(self, image: Path, arm: Arm) -> None:
        self.queue = Queue()
        self.image, self.arm = os.open(image, os.O_RDWR), arm
        self.size = os.fstat(self.image).st_size
        self.device = os.open("/dev/fuse", os.O_RDWR)

    def mount(self, mountpoint: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,max_read={REQUEST_BYTES}"
        done = libc.mount(b"spindle", os.fsencode(mountpoint), b"fuse", 0, options.encode())
        if done != 0:
            raise OSError(ctypes.get_errno(), f"mount {mountpoint}")
        # Pages of this process must not be written back through itself when memory is short.
        libc.prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0)

    def run(self) -> None:
        """Until the file system is unmounted."""
        threading.Thread(target=self.move_arm, daemon=True).start()
        while True:
            buffer = memoryview(bytearray(REQUEST_BYTES + (64 << 10)))
            try:
                length = os.readv(self.device, [buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            _, code, unique, node, *_ = HEADER.unpack_from(buffer)
            body = buffer[HEADER.size : length]
            if code in (Code.READ, Code.WRITE):
                self.queue.put((struct.unpack_from("<QQ", body)[1], code, unique, body))
            elif code not in (Code.FORGET, Code.BATCH_FORGET):
                self.reply(unique, lambda code=code, node=node, body=body: self.answer(code, node, body))

    def move_arm(self) -> None:
        while True:
            offset, code, unique, body = self.queue.next(self.arm.at)
            (size,) = struct.unpack_from("<I", body, 16)
            until = self.arm.serve(offset, size, time.monotonic())
            self.reply(
                unique,
                lambda code=code, size=size, offset=offset, body=body, until=until: self.transfer(
                    code, offset, size, body, until
                ),
            )

    def transfer(self, code: int, offset: int, size: int, body: memoryview, until: float) -> bytes:
        """Read or write the image; done at `until`."""
        if code == Code.READ:
            answer = os.pread(self.image, size, offset)
        else:
            answer = struct.pack("<II", os.pwrite(self.image, body[40 : 40 + size], offset), 0)
        left = until - time.monotonic()
        if left > 0:
            time.sleep(left)
        return answer

    def reply(self, unique: int, work: Callable[[], bytes]) -> None:
        try:
            parts, failed = [work()], 0
        except OSError as error:
            parts, failed = [], error.errno or errno.EIO
        size = REPLY.size + sum(map(len, parts))
        try:
            os.writev(self.device, [REPLY.pack(size, -failed, unique), *parts])
        except OSError as error:
            # The asker was interrupted, or the file system is gone, meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def answer(self, code: int, node: int, body: memoryview) -> bytes:
        match code:
            case Code.INIT:
                return self.init(body)
            case Code.LOOKUP:
                if bytes(body).rstrip(b"\0") != NAME.encode():
                    raise OSError(errno.ENOENT, "no such file")
                return struct.pack("<QQQQII", DISK_NODE, 0, 3600, 3600, 0, 0) + self.attributes(DISK_NODE)
            case Code.GETATTR | Code.SETATTR:
                return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
            case Code.OPEN:
                return struct.pack("<QII", 0, DIRECT_IO, 0)
            case Code.STATFS:
                return struct.pack("<QQQQQIII", 0, 0, 0, 0, 0, 512, 255, 512) + bytes(28)
            case Code.RELEASE | Code.FSYNC | Code.FLUSH | Code.DESTROY:
                return b""
        raise OSError(errno.ENOSYS, "not needed")

    def init(self, body: memoryview) -> bytes:
        major, _, _, offered = struct.unpack_from("<IIII", body)
        if major != 7:
            raise OSError(errno.EPROTO, "another protocol")
        flags = offered & (ASYNC_READ | BIG_WRITES | MAX_PAGES)
        pages = REQUEST_BYTES // 4096
        head = struct.pack("<IIIIHHIIHHI", 7, 31, 0, flags, 128, 96, REQUEST_BYTES, 1, pages, 0, 0)
        return head + bytes(64 - len(head))

    def attributes(self, node: int) -> bytes:
        folder = node == ROOT_NODE
        mode, links = (stat.S_IFDIR | 0o755, 2) if folder else (stat.S_IFREG | 0o600, 1)
        size = 0 if folder else self.size
        times = (0, 0, 0, 0, 0, 0)
        return struct.pack(
            "<QQQQQQIIIIIIIIII",
            node,
            size,
            size // 512,
            *times[:3],
            *times[3:],
            mode,
            links,
            0,
            0,
            0,
            4096,
            0,
        )


class Spindle:
    """An ext4 file system on such a disk, mounted at `mountpoint`; its parts live in `folder`.

    A context manager.
    """

    def __init__(
        self, folder: Path, mountpoint: Path, *, size: int, bytes_per_s: float, seek_s: float
    ) -> None:
        self.folder, self.mountpoint, self.size = folder, mountpoint, size
        self.bytes_per_s, self.seek_s = bytes_per_s, seek_s
        self.server: subprocess.Popen | None = None

    def __enter__(self) -> Spindle:
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self) -> None:
        self.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        raw, image = self.folder / "raw", self.folder / "image"
        raw.mkdir(exist_ok=True)
        with image.open("wb") as file:
            file.truncate(self.size)
        # Made past the arm: formatting is no part of any measurement.
        tool("mkfs.ext4", "-q", "-F", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1", image)
        words = [sys.executable, __file__, image, raw, "--bytes-per-s", self.bytes_per_s]
        words += ["--seek-ms", self.seek_s * 1000]
        # A session of its own: Ctrl-C must not take the disk away from under its file system.
        self.server = subprocess.Popen([str(word) for word in words], start_new_session=True)
        until = time.monotonic() + 10
        while not (raw / NAME).exists():
            if self.server.poll() is not None or time.monotonic() > until:
                raise OSError(f"{raw}: the disk's server did not come up")
            time.sleep(0.02)
        loop = tool("losetup", "-f", "--show", "--direct-io=on", raw / NAME).strip()
        # Requests that FUSE takes whole: parts of split ones would come in another order.
        queue = Path("/sys/block") / Path(loop).name / "queue"
        (queue / "read_ahead_kb").write_text("128")
        (queue / "max_sectors_kb").write_text(str(REQUEST_BYTES >> 10))
        tool("mount", "-o", "noatime", loop, self.mountpoint)

    def __exit__(self, *exception: object) -> None:
        self.clear()
        if self.server:
            try:
                self.server.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server = None

    def clear(self) -> None:
        """Unmount and detach, also what a run that was killed has left; the server ends by itself
        then."""
        raw = self.folder / "raw"
        unmount(self.mountpoint)
        # Looked up by name, not remembered: it may be another run's.
        for line in tool("losetup", "-l", "-n", "-O", "NAME,BACK-FILE", tolerant=True).splitlines():
            name, _, backing = line.strip().partition(" ")
            if backing.strip() == str(raw / NAME):
                tool("losetup", "-d", name, tolerant=True)
        unmount(raw)
        shutil.rmtree(self.folder, ignore_errors=True)


def unmount(mountpoint: Path) -> None:
    """Give the kernel some time to let go, then take the mount away from whoever still uses it."""
    until = time.monotonic() + 5
    while os.path.ismount(mountpoint):
        if time.monotonic() > until:
            tool("umount", "-l", mountpoint, tolerant=True)
            return
        tool("umount", mountpoint, tolerant=True)
        if os.path.ismount(mountpoint):
            time.sleep(0.05)


def tool(*words: object, tolerant: bool = False) -> str:
    """Run a system tool; its stdout."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0 and not tolerant:
        raise OSError(f"`{' '.join(map(str, words))}`: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("image", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--bytes-per-s", type=float, default=100e6)
    parser.add_argument("--seek-ms", type=float, default=8.0)
    arguments = parser.parse_args()
    server = Server(arguments.image, Arm(arguments.bytes_per_s, arguments.seek_ms / 1000))
    server.mount(arguments.mountpoint)
    server.run()


if __name__ == "__main__":
    main()
