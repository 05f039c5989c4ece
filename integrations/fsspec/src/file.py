"""An open file of `ZazenFileSystem`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile
from zazen.blocks import BlockReader

if TYPE_CHECKING:
    from zazen.fsspec.filesystem import ZazenFileSystem

__all__ = ["ZazenFile"]


class ZazenFile(AbstractBufferedFile):
    """A file opened for reading. One version of the file, as `BlockReader` says.

    A read that continues where the last one ended also brings the next ``ahead_bytes`` into memory,
    in the same call. Bytes in memory are not read again.
    """

    def __init__(
        self, fs: ZazenFileSystem, path: str, reader: BlockReader, ahead_bytes: int, **kwargs: Any
    ) -> None:
        self._reader, self._ahead_bytes = reader, ahead_bytes
        #: Where the last read ended.
        self._next = -1
        # The blocks are the cache: fsspec's own would keep the bytes twice.
        kwargs["cache_type"] = "none"
        super().__init__(fs, path, mode="rb", size=reader.size, **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        goes_on, self._next = start == self._next, end
        if goes_on and self._ahead_bytes and not self._reader.has(start, end):
            self._reader.keep_ahead(start, end + self._ahead_bytes)
        return self._reader.read(start, end)

    def read(self, length: int | None = -1) -> bytes:
        """At most `length` bytes; all that are left if it is negative or None."""
        return super().read(-1 if length is None else length)

    def readinto(self, buffer: Any) -> int:
        """Reads into `buffer`; returns how many bytes it read."""
        out = memoryview(buffer).cast("B")
        data = self.read(len(out))
        out[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file. Its blocks stay on the node's disk."""
        if not self.closed:
            self._reader.close()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise io.UnsupportedOperation(f"{self.path} is closed; pickle it while it is open")
        return _open_again, (self.fs, self.path, self._reader, self._ahead_bytes, self.tell())


def _open_again(
    fs: ZazenFileSystem, path: str, reader: BlockReader, ahead_bytes: int, position: int
) -> ZazenFile:
    file = ZazenFile(fs, path, reader, ahead_bytes)
    file.seek(position)
    return file
