"""H5MD: a frame lies in chunks of an HDF5 file, which may be compressed and apart.

So a frame is no byte range of the file, and the nodes keep blocks of the file instead
(``zazen.blocks``). HDF5 and MDAnalysis's own reader decode what the blocks hold, so Timesteps are
theirs, bit for bit. Which blocks a frame needs is known from the file's own index of chunks: so
frames are read ahead, and each rank reads the frames whose blocks its node holds.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import zazen
from zazen.blocks import BlockReader
from zazen.decoders._ahead import Ahead

try:
    import h5py
except ImportError:
    h5py = None

#: The endings of names of H5MD files.
ENDINGS = (".h5md", ".h5", ".hdf5")
#: What a particle group may hold of each frame.
_PER_FRAME = ("position", "velocity", "force")
#: Bytes of blocks that are kept in memory, but at least four frames.
_KEPT_BYTES = 64 << 20


def is_h5md(path: str) -> bool:
    """Whether the path is that of an H5MD file, as far as its name tells."""
    return path.lower().endswith(ENDINGS) and not os.path.isdir(path)


class BlockFile(io.RawIOBase):
    """A file over a `BlockReader`, for h5py. HDF5 replaces an error by one of its own, so it is
    kept here."""

    def __init__(self, reader: BlockReader) -> None:
        self._reader, self._at = reader, 0
        self._errors = threading.local()

    @property
    def error(self) -> Exception | None:
        """Why a read of this thread failed, since the last time it was asked."""
        found, self._errors.last = getattr(self._errors, "last", None), None
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        try:
            data = self._reader.read(self._at, self._at + len(out))
        except Exception as error:
            self._errors.last = error
            raise
        out[: len(data)] = data
        self._at += len(data)
        return len(data)


class H5mdSource:
    """An opened H5MD file. Not for several threads at a time. Offers what ``zazen.decoders.Source``
    does, but for the bytes of a frame."""

    format = "h5md"

    def __init__(self, path: str, open_options: dict[str, Any], known: Any = None) -> None:
        if h5py is None:
            raise zazen.UnsupportedError(
                errno.ENOTSUP, f"{path}: reading H5MD needs h5py: pip install 'zazen[mdanalysis]'", path
            )
        self.path = os.path.abspath(path)
        self._reader = BlockReader(self.path, kept_bytes=_KEPT_BYTES, options=open_options)
        if known not in (None, self.known):
            self._reader.close()
            raise zazen.StaleError(
                errno.ESTALE, f"{path} was changed or replaced after it was opened; open it again", path
            )
        self._raw = BlockFile(self._reader)
        #: An error here is one at its opening.
        self.troubles: list[str] = []
        self.came_from: str | None = None
        self.length = 0
        #: Frames of H5MD are dealt out here, by their blocks.
        self.assignment: zazen.Assignment | None = None
        self._ahead: Ahead | None = None
        self._last, self._step = -1, 0
        try:
            self.file = h5py.File(self._raw, "r")
            if "particles" not in self.file:
                raise zazen.UnsupportedError(
                    f"{path} is an HDF5 file, but no H5MD trajectory: it has no group `particles`"
                )
            # MDAnalysis reads the first group too.
            names = list(self.file["particles"])
            if not names:
                raise KeyError("it has no group of particles")
            group = _of_this_file(self.file["particles"], names[0], path)
            there = [name for name in _PER_FRAME if group.get(name, getlink=True) is not None]
            self._data = [_of_this_file(_of_this_file(group, name, path), "value", path) for name in there]
            if not self._data:
                raise KeyError("it has neither positions nor velocities nor forces")
            for data in self._data:
                if data.is_virtual or data.external:
                    raise _elsewhere(data.name, path)
            _check_steps(group, _observables(self.file, path), path)
            self._length = len(self._data[0])
            frame_bytes = sum(end - start for start, end in self._ranges(0))
        except zazen.UnsupportedError:
            self._reader.close()
            raise
        except Exception as error:
            cause = self.cause(error)
            self._reader.close()
            if cause is not error:
                raise cause from error
            raise zazen.CorruptError(
                errno.EBADMSG,
                f"{path} cannot be read as H5MD: {error}; if a program is still writing it, open it when "
                "that has closed it",
                path,
            ) from error
        self._reader.kept_bytes = max(_KEPT_BYTES, 4 * frame_bytes)

    def __len__(self) -> int:
        return self._length

    @property
    def known(self) -> Any:
        """As ``zazen.decoders.Source.known``: the version of the file."""
        return self._reader.version

    def cause(self, error: Exception) -> Exception:
        """What made HDF5 fail: an error of Zazen's, if there was one."""
        return self._raw.error or error

    def prepare(self, index: int) -> None:
        """Brings the frame's blocks into memory; a loop with steps of equal length is read ahead.
        Raises CorruptError for a frame that was never written."""
        ranges = self._ranges(index)
        if not self._came_ahead(index):
            self._reader.keep(ranges)
        self.came_from, self.length = (
            self._reader.came_from(ranges),
            sum(end - start for start, end in ranges),
        )

    def _came_ahead(self, index: int) -> bool:
        if self._ahead is not None and not self._ahead.is_mine:
            self._ahead = None
        step, repeated = index - self._last, index - self._last == self._step
        self._last, self._step = index, step
        found = None if self._ahead is None else self._ahead.take(index)
        if found is None and repeated and step != 0:
            self._start(range(index, len(self) if step > 0 else -1, step))
            found = self._ahead.take(index)
        if isinstance(found, Exception):
            raise found
        return found is not None

    def _start(self, indices: Sequence[int]) -> None:
        self.recall()
        self._ahead = Ahead(self._fetch, indices)

    def _fetch(self, indices: list[int]) -> list[Any]:
        try:
            wanted = [self._ranges(index) for index in indices]
            self._reader.keep([one for ranges in wanted for one in ranges])
        except Exception:
            # Each frame raises its own error when it is read.
            return [_Kept(0)] * len(indices)
        return [_Kept(sum(end - start for start, end in ranges)) for ranges in wanted]

    def announce(self, frames: np.ndarray) -> None:
        """Reads these frames ahead in this order."""
        self._start(frames)

    def recall(self) -> None:
        """Stops reading ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _ranges(self, index: int) -> list[tuple[int, int]]:
        """Where the frame's arrays lie in the file, as (start, end)."""
        return [one for data in self._data for one in _places(data, index)] if index < self._length else []

    def owners(self, frames: np.ndarray, comm: Any) -> np.ndarray:
        """The rank of ``comm`` that reads each frame: the one whose node holds most of the frame's
        bytes. What no node holds is dealt out in stretches that level the ranks' numbers of frames.
        Collective."""
        of_block = np.asarray(self._reader.owners(comm))
        told: tuple[str, Any] = ("", None)
        if comm.rank == 0:
            try:
                told = ("", _level(np.array([self._owner(frame, of_block) for frame in frames]), comm.size))
            except Exception as error:
                told = (f"rank 0: {error}", None)
        failure, ranks = comm.bcast(told)
        if failure:
            raise zazen.CorruptError(errno.EBADMSG, failure, self.path)
        return ranks

    def _owner(self, frame: int, of_block: np.ndarray) -> int:
        size, held = self._reader.block_bytes, {}
        for start, end in self._ranges(int(frame)):
            for block in range(start // size, -(-end // size)):
                owner = int(of_block[block])
                bytes_there = min(end, (block + 1) * size) - max(start, block * size)
                if owner >= 0:
                    held[owner] = held.get(owner, 0) + bytes_there
        return min(held, key=lambda rank: (-held[rank], rank), default=-1)

    def close(self) -> None:
        """Closes the file."""
        self.recall()
        self.file.close()
        self._reader.close()


class _Kept:
    """Stands for a frame whose blocks are in memory."""

    def __init__(self, length: int) -> None:
        self.length = length


def _places(data: Any, index: int) -> list[tuple[int, int]]:
    """Where row `index` of an HDF5 dataset lies in its file."""
    row_bytes = int(np.prod(data.shape[1:], dtype=np.int64)) * data.dtype.itemsize
    if data.chunks is None:
        offset = data.id.get_offset()
        if offset is not None:
            return [(offset + index * row_bytes, offset + (index + 1) * row_bytes)]
        if data.id.get_storage_size() == 0 and row_bytes > 0:
            raise _never_written(data, index)
        # It is kept in the file's own header.
        return []
    first = index // data.chunks[0] * data.chunks[0]
    counts = [range(0, size, chunk) for size, chunk in zip(data.shape[1:], data.chunks[1:], strict=True)]
    places = []
    for corner in np.ndindex(*(len(count) for count in counts)):
        at = (first, *(count[step] for count, step in zip(counts, corner, strict=True)))
        chunk = data.id.get_chunk_info_by_coord(at)
        if chunk.byte_offset is None:
            raise _never_written(data, index)
        places.append((chunk.byte_offset, chunk.byte_offset + chunk.size))
    return places


def _of_this_file(group: Any, name: str, path: str) -> Any:
    """The object of this name. Raises UnsupportedError if it is a link to another file."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise _elsewhere(f"{group.name.rstrip('/')}/{name}", path)
    return group[name]


def _elsewhere(name: str, path: str) -> zazen.UnsupportedError:
    """Nobody would notice that the other files change."""
    return zazen.UnsupportedError(
        errno.ENOTSUP,
        f"{path}: its {name} lies in other files (a virtual or external dataset, or an external link); read "
        "it with MDAnalysis's own reader, or repack it into one file",
        path,
    )


def _observables(file: Any, path: str) -> list[tuple[str, Any]]:
    """The groups whose values MDAnalysis puts into ``ts.data``: those of observables, or a level
    below."""
    if file.get("observables", getlink=True) is None:
        return []
    found = _groups_in(_of_this_file(file, "observables", path), path)
    deeper = [group for group in found if group.get("value", getlink=True) is None]
    elements = [group for group in found if group not in deeper]
    for group in deeper:
        elements += _groups_in(group, path)
    for element in elements:
        if element.get("value", getlink=True) is not None:
            data = _of_this_file(element, "value", path)
            if isinstance(data, h5py.Dataset) and (data.is_virtual or data.external):
                raise _elsewhere(data.name, path)
    return [(element.name.lstrip("/"), element) for element in elements]


def _groups_in(group: Any, path: str) -> list[Any]:
    inner = [_of_this_file(group, name, path) for name in group]
    return [one for one in inner if isinstance(one, h5py.Group)]


def _check_steps(group: Any, observables: list[tuple[str, Any]], path: str) -> None:
    """Raises UnsupportedError unless all that MDAnalysis reads by the number of the frame was
    written at the same steps: H5MD may write a box, velocities, forces or observables less often
    than positions, and then row n is not frame n."""
    if isinstance(group.get("box/edges"), h5py.Dataset):
        raise zazen.UnsupportedError(
            errno.ENOTSUP,
            f"{path}: its box is the same for all frames (box/edges has no value of each), which "
            "MDAnalysis's reader of H5MD does not know; write box/edges/value",
            path,
        )
    first: tuple[str, Any, int] | None = None
    elements = [(name, group[name]) for name in (*_PER_FRAME, "box/edges") if name in group]
    for name, element in elements + observables:
        if not isinstance(element, h5py.Group) or not isinstance(element.get("value"), h5py.Dataset):
            continue
        rows = len(element["value"])
        step = element["step"] if "step" in element and element["step"].shape == (rows,) else None
        if first is None:
            first = (name, step, rows)
        elif rows != first[2] or not _same_steps(step, first[1]):
            raise zazen.UnsupportedError(
                errno.ENOTSUP,
                f"{path}: {name} was not written at the steps of {first[0]} ({rows} and {first[2]} rows), so "
                "that a frame cannot be put together by its number",
                path,
            )


def _same_steps(one: Any, other: Any) -> bool:
    # Writers link one array of steps into several groups.
    return one is None or other is None or one.id == other.id or np.array_equal(one[:], other[:])


def _never_written(data: Any, index: int) -> zazen.CorruptError:
    return zazen.CorruptError(
        errno.EBADMSG, f"its {data.parent.name.rpartition('/')[2]} was never written; HDF5 would give zeros"
    )


def _level(ranks: np.ndarray, size: int) -> np.ndarray:
    """Deals out what has no owner (-1), in stretches, so that the ranks' numbers of frames are
    level."""
    counts = np.bincount(ranks[ranks >= 0], minlength=size)
    free = np.flatnonzero(ranks < 0)
    # The lowest level that takes all of them.
    low, high = 0, int(counts.max(initial=0)) + len(free)
    while low < high:
        middle = (low + high) // 2
        if np.maximum(middle - counts, 0).sum() >= len(free):
            high = middle
        else:
            low = middle + 1
    rooms = np.maximum(low - counts, 0)
    taking = np.flatnonzero(rooms)
    # The last ones take one less where not all are needed.
    rooms[taking[len(taking) - (int(rooms.sum()) - len(free)) :]] -= 1
    ranks[free] = np.repeat(np.arange(size), rooms)
    return ranks
