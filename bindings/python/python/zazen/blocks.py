"""One version of a file, read in blocks that the node's daemon caches."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import zazen

__all__ = ["BLOCK_BYTES", "BlockReader", "Version"]

#: Bytes of a block. Readers that use the same size share what is cached.
BLOCK_BYTES = 1 << 20

#: Size, modification time, change time and inode; times in nanoseconds, 0 where they are not known.
Version = tuple[int, int, int, int]


#: As the kernel follows.
_LINKS_MAX = 40

_FARTHEST_FIRST = ("direct", "backing", "alien", "native")

#: The longest tick of a file system's times, in nanoseconds.
_TICK = 2_000_000_000


def _check_utf8(path: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="replace").decode()
        raise zazen.InvalidArgumentError(f"{shown}: its name is not UTF-8; rename it") from None


def _itself(path: str) -> str:
    """The file at `path` or, where that is a link that leads out of its folder, the file that it
    leads to, as the link spells it. Names are looked up beneath the folder only."""
    for _ in range(_LINKS_MAX):
        if not os.path.islink(path):
            break
        folder = os.path.dirname(path)
        target = os.path.join(folder, os.readlink(path))
        beneath = os.path.join(os.path.realpath(folder), "")
        if os.path.realpath(target).startswith(beneath):
            break
        path = target
    return path


class BlockReader:
    """Byte ranges of one version of the file at `path`.

    All bytes that it returns are of the version that it opened. Once the file is changed or
    replaced, reads raise ``zazen.StaleError``. Threads may share it; their reads run one after the
    other. Pickled, it opens the file again, and raises StaleError if it is another version by then.

    ``block_bytes``: the unit of caching. ``kept_bytes``: how many bytes of blocks it keeps in
    memory. ``options`` go to ``zazen.open``. Raises what ``zazen.open`` raises.
    """

    def __init__(
        self,
        path: str,
        block_bytes: int = BLOCK_BYTES,
        kept_bytes: int = 32 << 20,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.block_bytes, self.kept_bytes = path, block_bytes, kept_bytes
        self._options = dict(options or {})
        #: In nanoseconds since 1970.
        self._opened = time.time_ns()
        folder, name = os.path.split(_itself(path))
        _check_utf8(path, name)
        pattern = f"{name}{{n*{block_bytes}}}"
        self._dataset = zazen.open(folder or "/", pattern=pattern, **self._options)
        version = self._dataset.version
        assert version is not None, f"{pattern} is a pattern of blocks"
        self.version: Version = version
        numbers = self._dataset.extent()
        self._first = next(iter(numbers), 0)
        #: Where each block came from that was read, as ``zazen.Frame.source`` says.
        self._sources: dict[int, str] = {}
        #: Blocks by index, the one used last at the end.
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.version[0]

    @property
    def settled(self) -> bool:
        """Whether a later change of the file shows in its times: it had not been changed shortly
        before it was opened.

        File systems keep times in ticks, of two seconds at most. A file that is changed twice
        within a tick, without a change of its size, looks the same.
        """
        _, modified, changed, _ = self.version
        return self._opened - max(modified, changed) >= _TICK

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to, but not including, `end`, as far as the file has them."""
        return self.read_ranges([(start, end)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `read`, for many ranges: each block is read once, blocks that are not in memory in one
        call."""
        clipped = [(max(start, 0), min(end, self.size)) for start, end in ranges]
        blocks = self._blocks({index for start, end in clipped for index in self._indices(start, end)})
        return [self._join(blocks, start, end) for start, end in clipped]

    def came_from(self, ranges: Sequence[tuple[int, int]]) -> str | None:
        """Where the bytes came from when they were read last, as ``zazen.Frame.source`` says; the
        farthest place if they came from several. None: they were not read."""
        indices = {index for start, end in ranges for index in self._indices(start, min(end, self.size))}
        found = {self._sources[index] for index in indices if index in self._sources}
        return next((source for source in _FARTHEST_FIRST if source in found), None)

    def owners(self, comm: Any) -> Any:
        """For each block, the rank of ``comm`` whose node holds it, and -1 if no node does, as
        ``Dataset.owners`` says. Collective. Raises StaleError on all ranks if they have opened
        different versions of the file."""
        if any(version != self.version for version in comm.allgather(self.version)):
            raise zazen.StaleError(
                116, f"{self.path} changed while the ranks opened it; open it again", self.path
            )
        return self._dataset.owners(comm)

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Reads the blocks of these ranges into memory, in one call. Blocks that do not fit push
        others out."""
        self._blocks({index for start, end in ranges for index in self._indices(start, min(end, self.size))})

    def keep_ahead(self, start: int, end: int) -> None:
        """Reads the blocks of this range into memory, as far as they fit there and the file has
        them."""
        end = min(end, self.size, start + self.kept_bytes)
        self._blocks(set(self._indices(start, end)))

    def has(self, start: int, end: int) -> bool:
        """Whether the blocks of this range are in memory."""
        with self._lock:
            return all(index in self._kept for index in self._indices(start, end))

    def close(self) -> None:
        """Closes the connection to the daemon and frees the blocks."""
        self._dataset.close()
        with self._lock:
            self._kept.clear()

    def _indices(self, start: int, end: int) -> range:
        return range(start // self.block_bytes, -(-end // self.block_bytes)) if start < end else range(0)

    def _blocks(self, wanted: set[int]) -> dict[int, memoryview]:
        with self._lock:
            found = {index: self._kept[index] for index in wanted if index in self._kept}
            for index in found:
                self._kept.move_to_end(index)
        missing = sorted(wanted - found.keys())
        if missing:
            read = dict(zip(missing, self._fetch(missing), strict=True))
            with self._lock:
                self._kept.update(read)
                while len(self._kept) * self.block_bytes > max(self.kept_bytes, self.block_bytes):
                    self._kept.popitem(last=False)
            found |= read
        return found

    def _fetch(self, indices: Iterable[int]) -> list[memoryview]:
        frames = self._dataset.read_many([self._first + index for index in indices])
        self._sources.update((frame.number - self._first, frame.source) for frame in frames)
        return [frame.data for frame in frames]

    def _join(self, blocks: dict[int, memoryview], start: int, end: int) -> bytes:
        parts = []
        for index in self._indices(start, end):
            origin = index * self.block_bytes
            parts.append(blocks[index][max(start - origin, 0) : end - origin])
        return b"".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path, self.block_bytes, self.kept_bytes, self._options, self.version)


def _open_again(
    path: str, block_bytes: int, kept_bytes: int, options: dict[str, Any], version: Version
) -> BlockReader:
    reader = BlockReader(path, block_bytes, kept_bytes, options)
    if reader.version != version:
        reader.close()
        raise zazen.StaleError(
            116, f"{path} was changed or replaced after it was opened; open it again", path
        )
    return reader
