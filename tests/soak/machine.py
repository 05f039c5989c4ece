"""What of a machine a soak breaks: disks, the network between nodes, and clocks.

A `Machine` has a network and mounts of its own, so that nothing of the real ones is touched and
nothing stays. That needs root. Without it, `Machine.without` says what a soak leaves out.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
#: ext4 answers everything with EIO from then on; 2: also what its journal has not written is lost.
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
DISK_BYTES = 96 << 20

#: A library for LD_PRELOAD: the time of day, shifted by the seconds in the file $SOAK_CLOCK.
CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *shift;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SOAK_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) shift = at;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int done = (int)syscall(SYS_clock_gettime, clock, now);
  if (done == 0 && clock == CLOCK_REALTIME && shift) now->tv_sec += *shift;
  return done;
}
"""


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


class Machine:
    """Disks, a network and clocks that can be broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: What cannot be done here, and why.
        self.without: list[str] = []
        self.has_network = self.has_disks = False
        if os.geteuid() != 0:
            self.without.append("partitions, full disks and disk errors: they need root")
        else:
            self._alone()
        self.clock_library = self._clock_library()
        self._shifts: dict[int, mmap.mmap] = {}

    def _alone(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
            why = os.strerror(ctypes.get_errno())
            self.without.append(f"partitions, full disks and disk errors: no namespaces of our own ({why})")
            return
        _run("mount", "--make-rprivate", "/")
        if shutil.which("ip") is None:
            # Without its loopback device, nothing could connect at all.
            raise SystemExit("soak: no program `ip`; it comes with Debian's package iproute2")
        _run("ip", "link", "set", "lo", "up")
        self.has_network = self.has_disks = True

    def _clock_library(self) -> Path | None:
        if shutil.which("cc") is None:
            self.without.append("clocks that jump: no C compiler")
            return None
        source, library = self.folder / "clock.c", self.folder / "clock.so"
        source.write_text(CLOCK)
        _run("cc", "-shared", "-fPIC", "-O1", "-o", library, source)
        return library

    # Disks

    def disk(self, place: Path) -> Path:
        """A folder for a node's cache, on a disk of its own where that can be."""
        at = place / "disk"
        at.mkdir()
        if self.has_disks:
            try:
                self._mount(place)
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", b"") or str(error).encode()
                self.without.append(f"full disks and disk errors: {said.decode().strip()}")
                self.has_disks = False
        (at / "cache").mkdir(exist_ok=True)
        return at / "cache"

    def _mount(self, place: Path) -> None:
        image = place / "disk.img"
        image.unlink(missing_ok=True)
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", image)
        _run("mount", "-o", "loop", image, place / "disk")

    def replace_disk(self, place: Path) -> None:
        """A new, empty disk in the place of one that nobody uses any more but readers, who have
        files of it open."""
        _run("umount", "--lazy", place / "disk")
        self._mount(place)
        (place / "disk/cache").mkdir()

    def take_down(self, place: Path) -> None:
        """Unmounts the disk of `place`, so that its folder can be removed."""
        if self.has_disks:
            _run("umount", "--lazy", place / "disk")

    def break_disk(self, place: Path) -> None:
        """Every operation on the disk fails with EIO from now on."""
        folder = os.open(place / "disk", os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def full_disk(self, place: Path):
        """Something else takes all of the disk meanwhile."""
        filler = place / "disk/filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 20)):
                    pass
            except OSError:
                pass
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                filler.unlink()

    # The network

    @contextlib.contextmanager
    def partition(self, address: str):
        """Nobody reaches `address` meanwhile; connections to it get no more packets through."""
        _run("ip", "route", "add", "unreachable", f"{address}/32", "table", "local")
        try:
            yield
        finally:
            _run("ip", "route", "del", "unreachable", f"{address}/32", "table", "local")

    # Clocks

    def clock(self, node: int) -> dict[str, str]:
        """The environment of a node's daemon, whose clock `shift` moves."""
        if self.clock_library is None:
            return {}
        path = self.folder / f"clock.{node}"
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self._shifts[node] = mmap.mmap(file.fileno(), 8)
        return {"LD_PRELOAD": str(self.clock_library), "SOAK_CLOCK": str(path)}

    def shift(self, node: int, seconds: int) -> None:
        """The node's time of day is so much later than the machine's, or earlier."""
        self._shifts[node][:8] = struct.pack("q", seconds)
