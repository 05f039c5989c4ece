"""Run forwarded, with --sockets: bytes of every size come and go as they are, whichever way they
are carried.

Prints one line for each kind, with what did not hold.
"""

import ctypes
import os
import random
import select
import socket
import sys

SIZES = [
    0,
    1,
    511,
    512,
    513,
    3900,
    4095,
    4096,
    4097,
    8192,
    65000,
    65535,
    65536,
    65537,
    262143,
    262145,
    1 << 20,
]
SIZES += [(1 << 20) + 1, 3_000_001, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20_000_001]

libc = ctypes.CDLL(None, use_errno=True)
for name in ("pread", "pwrite"):
    getattr(libc, name).argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    getattr(libc, name).restype = ctypes.c_ssize_t
libc.zazen_forward_allocate.argtypes = [ctypes.c_size_t]
libc.zazen_forward_allocate.restype = ctypes.c_void_p
libc.zazen_forward_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def wrong_sizes(fd: int, allocate, free) -> list:
    """Sizes that did not come back, or of which other bytes changed."""
    wrong = []
    for size in SIZES:
        data = random.Random(size).randbytes(size)
        address = allocate(size + 100)
        if not address:
            wrong.append(("no memory", size))
            continue
        ctypes.memmove(address, data, size)
        wrote = libc.pwrite(fd, address, size, 13)
        if os.pread(fd, size, 13) != data:
            wrong.append(("written", size, wrote))
        ctypes.memset(address, 0xAA, size + 100)
        got = libc.pread(fd, address, size, 13)
        if got != size or ctypes.string_at(address, size) != data:
            wrong.append(("read", size, got))
        if ctypes.string_at(address + size, 100) != b"\xaa" * 100:
            wrong.append(("beyond", size))
        # Short: the file ends before the buffer does.
        os.ftruncate(fd, 13 + size // 2)
        ctypes.memset(address, 0x55, size)
        got = libc.pread(fd, address, size, 13)
        if got != size // 2 or ctypes.string_at(address, got) != data[:got]:
            wrong.append(("short", size, got))
        if ctypes.string_at(address + size // 2, size - size // 2) != b"\x55" * (size - size // 2):
            wrong.append(("what was not read", size))
        free(address, size + 100)
    return wrong


kept = []


def own(size: int) -> int:
    kept.append(ctypes.create_string_buffer(size))
    return ctypes.addressof(kept[-1])


def main() -> None:
    fd = os.open(f"{sys.argv[1]}/sizes", os.O_RDWR | os.O_CREAT, 0o600)
    print("own memory:", wrong_sizes(fd, own, lambda *_: kept.clear()))
    # More often than the pool is large.
    for _ in range(3):
        print("pool:", wrong_sizes(fd, libc.zazen_forward_allocate, libc.zazen_forward_free))
    parts = [random.Random(n).randbytes(n * 1000) for n in range(20)]
    os.pwritev(fd, parts, 0)
    back = [bytearray(len(part)) for part in parts]
    os.preadv(fd, back, 0)
    print("parts:", [n for n in range(20) if parts[n] != back[n]])
    # A question and an answer that are longer than what a ring's slots take.
    poll, sockets = select.poll(), []
    for _ in range(700):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", 0))
        sockets.append(one)
        poll.register(one, select.POLLIN)
    sockets[333].sendto(b"x", sockets[666].getsockname())
    ready = [fd for fd, _ in poll.poll(10000)]
    print("poll:", [] if ready == [sockets[666].fileno()] else ready)


if __name__ == "__main__":
    main()
