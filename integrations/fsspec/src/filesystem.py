"""The file system: names and sizes from the mounted backing store, bytes through the node's
daemon."""

from __future__ import annotations

import datetime
import errno
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import zazen
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path
from zazen.blocks import BLOCK_BYTES, BlockReader, Version
from zazen.fsspec.file import ZazenFile

__all__ = ["ZazenFileSystem"]

#: Files that stay open for the next `cat_file`.
OPEN_MAX = 16
#: Bytes of blocks that each of them keeps.
OPEN_KEPT_BYTES = 4 << 20
#: Files that one call reads at once.
THREADS_MAX = 8
#: How a URL of another file system begins.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class ZazenFileSystem(AbstractFileSystem):
    """Files of a mounted backing store, read through the node's Zazen daemon. Read-only.

    ``socket``, ``backing``, ``direct``, ``timeout``: as for ``zazen.open``. ``block_bytes``: the
    unit of caching, 4096 to 2**30; processes share what is cached if they use the same size.
    ``ahead_bytes``: how far an open file that is read from front to back is read ahead.

    Names, sizes and permissions come from the mount. A path must be readable by the caller; nobody
    reads more through Zazen than without it. All bytes of one call, and of one open file, are of
    one version of the file. If the file is replaced while it is open, reads raise
    ``zazen.StaleError``. Threads may share the file system.
    """

    protocol = "zazen"
    root_marker = "/"

    def __init__(
        self,
        *,
        socket: str | None = None,
        backing: str | None = None,
        direct: bool = False,
        timeout: float | None = None,
        block_bytes: int = BLOCK_BYTES,
        ahead_bytes: int = 4 << 20,
        **kwargs: Any,
    ) -> None:
        if target := kwargs.get("target_protocol"):
            raise _not_mounted(f"zazen::{target}://", target)
        super().__init__(**kwargs)
        self.block_bytes, self.ahead_bytes = block_bytes, ahead_bytes
        options = {"socket": socket, "backing": backing, "direct": direct, "timeout": timeout}
        self._options = {name: value for name, value in options.items() if value}
        self._lock = threading.Lock()
        #: Readers that no call uses now, the one used last at the end.
        self._idle: OrderedDict[tuple[str, Version], list[BlockReader]] = OrderedDict()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("zazen://", "zazen:"):
            path = path.removeprefix(prefix)
        if url := _URL.match(path):
            raise _not_mounted(f"zazen://{path}", url[0].removesuffix("://"))
        if not path.startswith("/"):
            path = os.path.join(os.getcwd(), path)
        return path.rstrip("/") or "/"

    # Names and sizes.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Name, size, type and times of the file or folder at `path`. Raises FileNotFoundError if
        there is none."""
        path = self._strip_protocol(path)
        return _described(path, os.stat(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is in the folder at `path`, sorted by name; the file itself if it is a file."""
        path = self._strip_protocol(path)
        try:
            with os.scandir(path) as entries:
                found = [_described_entry(entry) for entry in entries]
        except NotADirectoryError:
            found = [self.info(path)]
        found.sort(key=lambda one: one["name"])
        return found if detail else [one["name"] for one in found]

    def modified(self, path: str) -> datetime.datetime:
        """When the file was last modified."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.UTC)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something at `path`. Raises what `info` raises if that cannot be
        known."""
        return self._kind(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether there is a file at `path`. Raises as `exists` does."""
        return self._kind(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether there is a folder at `path`. Raises as `exists` does."""
        return self._kind(path) == "directory"

    def _kind(self, path: str) -> str | None:
        # fsspec's own methods take every error for "no", an unreachable server or a URL of another
        # file system, too.
        try:
            return str(self.info(path)["type"])
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something at `path`, also a link that leads nowhere."""
        return os.path.lexists(self._strip_protocol(path))

    # Bytes.

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> ZazenFile:
        if mode != "rb":
            self._refuse(f"open with mode {mode!r}", path)
        path = self._strip_protocol(path)
        reader = BlockReader(path, self.block_bytes, options=self._options)
        return ZazenFile(self, path, reader, self.ahead_bytes)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file from `start` up to `end`; negative numbers count from its end."""
        return self._cat_one(self._strip_protocol(path), [(start, end)])[0]

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int] | None,
        ends: int | list[int] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Many ranges of many files, in the order of `paths`.

        Ranges of one file are read together, each block once. With ``on_error="return"`` the
        exception of a file takes the place of its ranges' bytes; otherwise the first one is raised.
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths is {type(paths).__name__}; give a list")
        # fsspec lets one number stand for all.
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(starts) == len(ends) == len(paths):
            raise ValueError(
                f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends; give as many of each"
            )
        by_file: dict[str, list[int]] = {}
        for at, path in enumerate(paths):
            by_file.setdefault(self._strip_protocol(path), []).append(at)
        results: list[Any] = [None] * len(paths)

        def cat(path: str, places: list[int]) -> None:
            try:
                read: Sequence[Any] = self._cat_one(path, [(starts[at], ends[at]) for at in places])
            except Exception as error:
                if on_error != "return":
                    raise
                read = [error] * len(places)
            for at, data in zip(places, read, strict=True):
                results[at] = data

        if len(by_file) <= 1:
            for path, places in by_file.items():
                cat(path, places)
            return results
        with ThreadPoolExecutor(min(THREADS_MAX, len(by_file)), "zazen-cat") as pool:
            list(pool.map(cat, by_file.keys(), by_file.values()))
        return results

    def _cat_one(self, path: str, ranges: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        try:
            return self._cat_once(path, ranges)
        except zazen.StaleError:
            # Replaced meanwhile. All ranges are read again, from the version that is there now.
            return self._cat_once(path, ranges)

    def _cat_once(self, path: str, ranges: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        reader = self._take(path)
        try:
            read = reader.read_ranges([slice(*one).indices(reader.size)[:2] for one in ranges])
        except BaseException:
            reader.close()
            raise
        self._give_back(path, reader)
        return read

    def _take(self, path: str) -> BlockReader:
        """A reader of what `path` leads to now, which nobody else uses."""
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        with self._lock:
            for (of, version), readers in self._idle.items():
                if of == path and _is_now(version, found) and readers:
                    reader = readers.pop()
                    if not readers:
                        del self._idle[of, version]
                    return reader
        return BlockReader(path, self.block_bytes, OPEN_KEPT_BYTES, self._options)

    def _give_back(self, path: str, reader: BlockReader) -> None:
        if not reader.settled:
            reader.close()
            return
        dropped = []
        with self._lock:
            self._idle.setdefault((path, reader.version), []).append(reader)
            self._idle.move_to_end((path, reader.version))
            while sum(map(len, self._idle.values())) > OPEN_MAX:
                key, readers = next(iter(self._idle.items()))
                dropped.append(readers.pop(0))
                if not readers:
                    del self._idle[key]
        for one in dropped:
            one.close()

    # What a read-only file system refuses.

    def _refuse(self, what: str, path: Any) -> NoReturn:
        text = f"{what}: Zazen's file system is read-only; write to the mounted path, without zazen://"
        raise OSError(errno.EROFS, text, stringify_path(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Refused."""
        self._refuse("write", path)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("upload", rpath)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("copy", path2)

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("rename", path1)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("make a folder", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Refused, unless the folder exists and `exist_ok` is true."""
        if not (exist_ok and self.isdir(path)):
            self._refuse("make a folder", path)

    def rm_file(self, path: str) -> None:
        """Refused."""
        self._refuse("remove", path)

    def _rm(self, path: str) -> None:
        self._refuse("remove", path)

    def rm(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("remove", path[0] if isinstance(path, list) and path else path)

    def rmdir(self, path: str) -> None:
        """Refused."""
        self._refuse("remove a folder", path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Refused."""
        self._refuse("touch", path)


#: What the kernel says of a path that leads nowhere, or nowhere that this user may look.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


def _not_mounted(what: str, protocol: str) -> Exception:
    """Why a URL of another file system cannot be read here, and what can."""
    if protocol == "file":
        instead = "leave out file://"
    elif protocol in ("s3", "s3a"):
        instead = 'zazen.open("s3://BUCKET/PREFIX") reads a bucket that the daemon serves'
    else:
        instead = f"read it with fsspec's own {protocol}://, or mount it"
    return zazen.UnsupportedError(
        f"{what}: Zazen's file system has the files of mounted directories only; {instead}"
    )


def _is_now(version: Version, found: os.stat_result) -> bool:
    now = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    # Times of change and inodes that are not known are 0.
    return all(
        one == other or (at > 1 and one == 0)
        for at, (one, other) in enumerate(zip(version, now, strict=True))
    )


def _described_entry(entry: os.DirEntry[str]) -> dict[str, Any]:
    try:
        return _described(entry.path, entry.stat())
    except FileNotFoundError:
        # A link that leads nowhere, or a file that is gone by now.
        return {"name": entry.path, "size": 0, "type": "other"}


def _described(path: str, found: os.stat_result) -> dict[str, Any]:
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
    return {
        "name": path,
        "size": found.st_size,
        "type": kind,
        "created": found.st_ctime,
        "mtime": found.st_mtime,
        "mode": found.st_mode,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "ino": found.st_ino,
        "nlink": found.st_nlink,
    }
