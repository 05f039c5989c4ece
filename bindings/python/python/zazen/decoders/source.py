"""The frames of a trajectory by index: 0 is the first, whatever its number in the dataset."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import zazen
from zazen.decoders._ahead import Ahead
from zazen.decoders._formats import FORMATS
from zazen.decoders._frame import Buffer, Frame

#: How a file with one frame is called -> its format.
_ENDINGS = {"nc": "ncdf"}
#: What to do with numbered files of several frames each.
SEVERAL_FRAMES = (
    "a numbered file of a directory is one frame; if each holds several, name a file itself, or list the "
    'files in zazen.toml beside them: trajectories = ["FILE", …]'
)


class Source:
    """An opened trajectory. Not for several threads at a time."""

    def __init__(self, path: str, open_options: dict[str, Any], known: Any = None) -> None:
        """``known``: what ``known`` of an earlier source of the same trajectory gave. Raises
        StaleError if that was replaced, cut or rewritten since."""
        if known is None:
            self.dataset = zazen.open(path, **open_options)
        else:
            opened, arguments = known
            self.dataset = opened(*arguments)
        self._numbers = Numbers(self.dataset.extent())
        #: "xtc", "trr", "dcd", "ncdf", or an ending that others may know; None if there is none.
        self.format: str | None = None
        #: The bytes before the first frame; None if each frame is a whole file.
        self.header: bytes | None = None
        #: What is wrong with the trajectory behind its last good frame.
        self.troubles: list[str] = []
        trajectory = self.dataset.trajectory
        if trajectory is not None:
            self.format, self.header = trajectory.format, trajectory.header
            self.troubles = list(trajectory.troubles)
        elif len(self._numbers):
            self.format = self._ending()
        self._ahead: Ahead | None = None
        #: Where the frame came from that was read last, and its length in bytes.
        self.came_from: str | None = None
        self.length = 0
        #: How ``owners`` assigned frames the last time.
        self.assignment: zazen.Assignment | None = None
        # The last index that was read, and its distance from the one before.
        self._last, self._step = -1, 0

    def _ending(self) -> str | None:
        """Of the files' names."""
        name = (self.dataset.layout or "").removesuffix(".gz").removesuffix(".bz2")
        ending = name.rpartition(".")[2].lower() if "." in name else None
        return _ENDINGS.get(ending or "", ending)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def known(self) -> Any:
        """What another source, perhaps in another process, needs to open the same trajectory."""
        return self.dataset.__reduce__()

    def read(self, index: int) -> memoryview:
        """The bytes of the frame. A loop with steps of equal length is read ahead.

        ``came_from`` is then "native", "alien", "backing" or "direct", as in ``Frame.source``, and
        ``length`` its length in bytes.
        """
        frame = self._read_ahead(index)
        if frame is None:
            frame = self.dataset.read(self._numbers[index])
        if isinstance(frame, Exception):
            raise frame
        self.came_from, self.length = frame.source, frame.length
        return frame.data

    def _read_ahead(self, index: int) -> Any:
        """The frame, or the exception of reading it, if it was read ahead."""
        if self._ahead is not None and not self._ahead.is_mine:
            self._ahead = None
        step, repeated = index - self._last, index - self._last == self._step
        self._last, self._step = index, step
        frame = None if self._ahead is None else self._ahead.take(index)
        if frame is None and repeated and step != 0:
            # The third in a row.
            self._start(range(index, len(self) if step > 0 else -1, step))
            frame = self._ahead.take(index)
        return frame

    def _start(self, indices: Sequence[int]) -> None:
        self.recall()
        self._ahead = Ahead(self._fetch, indices)

    def _fetch(self, indices: list[int]) -> list[Any]:
        return self.dataset.read_many([self._numbers[index] for index in indices], on_error="return")

    def frame_decoder(self) -> FrameDecoder:
        """A decoder of these frames. Raises CorruptError if frame 0 is damaged, KeyError for other
        formats."""
        return FrameDecoder(self)

    def announce(self, frames: np.ndarray) -> None:
        """Reads these frames ahead in this order."""
        self._start(frames)

    def recall(self) -> None:
        """Stops reading ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def path(self, index: int) -> str:
        """A file with exactly the frame's bytes. It lives until the next call."""
        self._kept = self.dataset.read(self._numbers[index])
        return str(self._kept.path)

    def owners(self, frames: np.ndarray, comm: Any) -> np.ndarray:
        """The rank of ``comm`` that reads each frame. Collective."""
        numbers = self._numbers.at(frames)
        begin, end = int(numbers.min()), int(numbers.max())
        stride = int(np.gcd.reduce(numbers - begin)) or 1
        self.assignment = self.dataset.assign(begin, end, stride, comm=comm)
        places = np.flatnonzero(contained(numbers, self.assignment.set))
        ranks = np.full(len(frames), -1, dtype=np.int32)
        for rank, found in enumerate(comm.allgather(places.astype(np.int64))):
            if np.any(ranks[found] != -1):
                raise _assignment_bug("two ranks")
            ranks[found] = rank
        if np.any(ranks == -1):
            raise _assignment_bug("no rank")
        return ranks

    def close(self) -> None:
        self.recall()
        self.dataset.close()


def _assignment_bug(whom: str) -> zazen.ProtocolError:
    return zazen.ProtocolError(errno.EPROTO, f"a frame was assigned to {whom}: this is a bug of Zazen")


def contained(numbers: np.ndarray, among: zazen.RunSet) -> np.ndarray:
    """Which of the numbers are in the set."""
    found = np.zeros(len(numbers), dtype=bool)
    for first, count, step in among.runs():
        found |= (
            (numbers >= first) & (numbers <= first + (count - 1) * step) & ((numbers - first) % step == 0)
        )
    return found


class FrameDecoder:
    """A decoder of a source's frames, also of those that are whole files. It has no reference to
    the source."""

    def __init__(self, source: Source) -> None:
        assert source.format is not None
        self._kind = FORMATS[source.format]
        self._whole_files = source.header is None
        first = source.read(0)
        #: The format's own decoder. Of whole files: that of the last frame that was decoded.
        with self._hint():
            self.inner = self._kind(first) if self._whole_files else self._kind(source.header, first)
        #: The number of atoms, and what positions are measured in, "nm" or "Angstrom".
        self.n_atoms, self.length_unit = self.inner.n_atoms, self.inner.length_unit

    def decode(self, data: Buffer, positions: np.ndarray, factor: float = 1.0) -> Frame:
        """As ``Decoder.decode``."""
        with self._hint():
            return self._decode(data, positions, factor)

    @contextlib.contextmanager
    def _hint(self) -> Iterator[None]:
        """Errors about a whole file say what to do if it holds several frames."""
        try:
            yield
        except zazen.CorruptError as error:
            if not self._whole_files:
                raise
            raise zazen.CorruptError(errno.EBADMSG, f"{error.strerror}; {SEVERAL_FRAMES}") from error

    def _decode(self, data: Buffer, positions: np.ndarray, factor: float) -> Frame:
        if self._whole_files and hasattr(self.inner, "header_bytes"):
            # Its header is its own: among other things it says when the frame was written.
            inner = self._kind(data)
            if inner.n_atoms != self.n_atoms:
                raise zazen.CorruptError(
                    errno.EBADMSG, f"it has {inner.n_atoms} atoms, the first frame has {self.n_atoms}"
                )
            self.inner, data = inner, memoryview(data)[inner.header_bytes :]
        return self.inner.decode(data, positions, factor)


class Numbers:
    """The numbers of a run set, by position."""

    def __init__(self, numbers: zazen.RunSet) -> None:
        runs = sorted(numbers.runs())
        if len(runs) == 1:
            first, count, step = runs[0]
            self._numbers: range | np.ndarray = range(first, first + count * step, step)
        else:
            parts = [first + step * np.arange(count, dtype=np.int64) for first, count, step in runs]
            self._numbers = np.sort(np.concatenate(parts)) if parts else range(0)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return int(self._numbers[index])

    def at(self, indices: np.ndarray) -> np.ndarray:
        """Of many positions."""
        numbers = self._numbers
        if isinstance(numbers, range):
            return numbers.start + numbers.step * np.asarray(indices, dtype=np.int64)
        return numbers[indices]
