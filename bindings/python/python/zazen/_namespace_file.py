"""An open file of the namespace, as io's buffers need it."""

from __future__ import annotations

import errno
import io
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zazen.namespace import Namespace

BUFFER_BYTES = 1 << 20
ANY_PATH = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def to_bytes(path: ANY_PATH) -> bytes:
    """The bytes of a path, which has no NUL."""
    path = os.fsencode(path)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    return path


class RawFile(io.RawIOBase):
    """An open file without a buffer; `Namespace.open` puts io's buffers and decoders in front of
    it.

    ``readinto_at`` and ``write_at`` leave the file's position alone, so that threads can share it.
    """

    def __init__(
        self, namespace: Namespace, path: ANY_PATH, mode: str = "r", permissions: int = 0o666
    ) -> None:
        kinds = set(mode) & set("rwxa")
        if len(kinds) != 1 or set(mode) - set("rwxab+") or len(mode) != len(set(mode)):
            raise ValueError(f"invalid mode: {mode!r}")
        (kind,) = kinds
        self._namespace, self._path, self.mode = namespace, to_bytes(path), mode
        self._reads = kind == "r" or "+" in mode
        self._writes = kind != "r" or "+" in mode
        self._appends = kind == "a"
        self._at = 0
        #: The path, as it was given.
        self.name = path
        #: Counts the processes in which it was opened.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        creates = kind != "r"
        permissions &= ~namespace.umask
        self._file = namespace._link.open(
            self._path, self._reads, self._writes, kind == "w", creates, kind == "x", permissions
        )
        self._inode = self._file.opened()[0]
        if self._appends:
            self._at = self._size()

    def _opened(self) -> Any:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._pid != os.getpid():
            # The handle is the parent's, and a thread that is not here may hold the lock.
            self._lock = threading.Lock()
            self._file = self._again()
            self._pid = os.getpid()
        return self._file

    def _again(self) -> Any:
        file = self._namespace._link.open(self._path, self._reads, self._writes, False, False, False, 0)
        if file.opened()[0] != self._inode:
            file.close()
            raise OSError(errno.ESTALE, "the path leads to another file since it was opened", self.name)
        return file

    def _do(self, name: str, *arguments: Any) -> Any:
        file = self._opened()
        try:
            return getattr(file, name)(*arguments)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        # The daemon was restarted: what was open in it is not.
        with self._lock:
            if self._file is file:
                self._file = self._again()
        return getattr(self._file, name)(*arguments)

    def _size(self) -> int:
        # By the path only if nobody renamed the file since: the inode says so.
        found = self._namespace._link.stat(self._path, True)
        if found[1] != self._inode:
            raise OSError(errno.ESTALE, "the path leads to another file since it was opened", self.name)
        return found[5]

    def _need(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(f"not {what}")

    def readable(self) -> bool:
        """Whether it was opened for reading."""
        return self._reads

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        return self._writes

    def seekable(self) -> bool:
        """True."""
        return True

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Fills ``buffer`` from ``offset``; how many bytes: fewer only where the file ends."""
        self._need(self._reads, "readable")
        return self._do("read_into", buffer, offset)

    def write_at(self, data: Any, offset: int) -> int:
        """Writes ``data`` at ``offset``; how many bytes: fewer only before an error."""
        self._need(self._writes, "writable")
        return self._do("write", data, offset)

    def readinto(self, buffer: Any) -> int:
        """Fills ``buffer`` from the position."""
        self._need(self._reads, "readable")
        got = self._do("read_into", buffer, self._at)
        self._at += got
        return got

    def readall(self) -> bytes:
        """All bytes behind the position."""
        self._need(self._reads, "readable")
        parts = []
        while part := self.read(max(self._size() - self._at, BUFFER_BYTES)):
            parts.append(part)
        return b"".join(parts)

    def write(self, data: Any) -> int:
        """Writes at the position, or at the file's end if the mode is "a"."""
        self._need(self._writes, "writable")
        if self._appends:
            put = self._do("write", data, None)
            self._at = self._size()
        else:
            put = self._do("write", data, self._at)
            self._at += put
        return put

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position; returns it."""
        self._need(True, "")
        base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._at, os.SEEK_END: self._size}.get(whence)
        if base is None:
            raise ValueError(f"invalid whence: {whence}")
        at = base() + offset
        if at < 0:
            raise OSError(errno.EINVAL, "the position would be before the file", self.name)
        self._at = at
        return at

    def tell(self) -> int:
        """The position."""
        self._need(True, "")
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Cuts or extends the file to ``size``, or to the position."""
        self._need(self._writes, "writable")
        size = self._at if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, "a length is not negative", self.name)
        self._do("truncate", size)
        return size

    def sync(self) -> None:
        """Returns when the bytes are on the holder's disk and their length is known to all."""
        self._need(True, "")
        self._do("sync")

    def close(self) -> None:
        """Closes it. What was written is known to all when it returns."""
        if not self.closed:
            try:
                super().close()
            finally:
                if self._pid == os.getpid():
                    self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # The daemon was restarted: a new open has it tell the length of what was written.
            self._again().close()

    def __reduce__(self) -> Any:
        mode = self.mode.replace("w", "r+").replace("x", "r+") if self._writes else self.mode
        mode = mode.replace("++", "+")
        return _reopened, (self._namespace, self._path, mode, self._inode, self._at)


def _reopened(namespace: Namespace, path: bytes, mode: str, inode: int, at: int) -> RawFile:
    file = RawFile(namespace, path, mode)
    if file._inode != inode:
        file.close()
        raise OSError(errno.ESTALE, "the path leads to another file since it was pickled", os.fsdecode(path))
    file._at = at
    return file
