"""Reading through NFS in user space: libnfs, one connection per reader."""

from __future__ import annotations

import ctypes
import os

LIBRARY = "libnfs.so.13"
VERSION = 3


class Client:
    """One connection, for one thread. A file is nfs://SERVER/EXPORT/PATH."""

    def __init__(self) -> None:
        self._nfs = _library()
        self._context = self._nfs.nfs_init_context()

    def connect(self, file: str) -> None:
        """Mount the export that holds the file."""
        server, export, _ = file.removeprefix("nfs://").split("/", 2)
        self._check(self._nfs.nfs_set_version(self._context, VERSION))
        self._check(self._nfs.nfs_mount(self._context, server.encode(), f"/{export}".encode()))

    def read(self, file: str, buffer: memoryview) -> tuple[int, bytes]:
        """Read the whole file through `buffer`: its size and its first eight bytes."""
        path = file.removeprefix("nfs://").split("/", 2)[2]
        handle = ctypes.c_void_p()
        self._check(self._nfs.nfs_open(self._context, f"/{path}".encode(), os.O_RDONLY, ctypes.byref(handle)))
        target = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        size, head = 0, b""
        try:
            while True:
                # libnfs splits this into requests as large as the server takes, all in flight at
                # once.
                got = self._nfs.nfs_pread(self._context, handle, size, len(buffer), target)
                self._check(got)
                head = head or bytes(buffer[: min(8, got)])
                size += got
                # Less than asked for is the end: asking again would cost a round trip.
                if got < len(buffer):
                    return size, head
        finally:
            self._nfs.nfs_close(self._context, handle)

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, (self._nfs.nfs_get_error(self._context) or b"").decode(errors="replace"))


def code() -> list[str]:
    """Files of the libraries that reading needs."""
    _library()
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if LIBRARY in line})


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    pointer, text, number, whole = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int
    signatures = {
        "nfs_init_context": (pointer, []),
        "nfs_get_error": (text, [pointer]),
        "nfs_set_version": (whole, [pointer, whole]),
        "nfs_mount": (whole, [pointer, text, text]),
        "nfs_open": (whole, [pointer, text, whole, ctypes.POINTER(pointer)]),
        "nfs_pread": (whole, [pointer, pointer, number, number, pointer]),
        "nfs_close": (whole, [pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
