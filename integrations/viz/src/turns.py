"""The files of a step, one after the other: a thread brings the next ones while VTK parses those
that came. Files without a mount that other nodes hold come over the network meanwhile.

Memory is bounded by bytes, and a file that can't be brought raises its error in its turn.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import zazen
from zazen.viz.visualization import Memory, Visualization

__all__ = ["Came", "advise", "in_turn"]

#: Bytes of files that are brought in one call, if several fit.
_GROUP_BYTES = 4 << 20
#: Bytes of files that came and are not parsed, unless one file alone has more. As many again may be
#: on their way from other nodes.
_AHEAD_BYTES = 64 << 20
#: Files that come from other nodes at once.
_REMOTE_AT_ONCE = 2


@dataclass
class Came:
    """A file that was brought: ``item`` is what VTK reads it from, None for the file where it is.

    ``source``: as `zazen.Frame.source`, None without a frame. ``part``: what VTK made of it, if it
    was parsed ahead; then there is no ``item`` any more.
    """

    item: zazen.Frame | Memory | None
    length: int
    source: str | None
    part: Any = None

    @property
    def path(self) -> Any:
        """The path that VTK reads, or None: that of the file itself."""
        return None if self.item is None else self.item.path

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        if self.part is not None:
            return int(self.part.bytes)
        return 0 if self.item is None else self.length

    def take_part(self, part: Any) -> None:
        """VTK has parsed it to ``part``."""
        self.part = part
        self.close()

    def close(self) -> None:
        """Lets go of the bytes."""
        if isinstance(self.item, Memory):
            self.item.close()
        self.item = None


def in_turn(visualization: Visualization, step: int, files: Sequence[int]) -> Iterator[Came]:
    """What came of each of ``files``, in their order. Close it to end the thread."""
    if not visualization.brings_files:
        yield from _where_they_are(visualization, step, files)
        return
    groups = list(_groups(files, [max(visualization.steps[step].bytes[file], 0) for file in files]))
    if len(groups) < 2:
        for group, _ in groups:
            with _Remote(visualization, step, [group]) as remote:
                came = _bring(visualization, step, group, remote)
            yield from came
        return
    with _Bringer(visualization, step, groups) as bringer:
        for _ in groups:
            yield from bringer.take()


def _where_they_are(visualization: Visualization, step: int, files: Sequence[int]) -> Iterator[Came]:
    """Files that VTK reads where they are: while it parses one, the kernel reads the next."""
    for at, file in enumerate(files):
        advise(visualization, step, files[at + 1 : at + 2])
        yield Came(None, max(visualization.steps[step].bytes[file], 0), None)


def _groups(files: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Runs of files that are brought together, with their bytes."""
    group, held = list[int](), 0
    for file, size in zip(files, sizes, strict=True):
        if group and held + size > _GROUP_BYTES:
            yield group, held
            group, held = [], 0
        group.append(file)
        held += size
    if group:
        yield group, held


class _Remote:
    """Fetches the files of a step that other nodes hold, if they come without a mount: a few at
    once, before their turn, since disks and networks work side by side."""

    def __init__(self, visualization: Visualization, step: int, groups: Sequence[Sequence[int]]) -> None:
        self._visualization, self._step = visualization, step
        self._waiting = deque[int]()
        if visualization.without_mount:
            is_local = visualization.plan(step).is_local
            self._waiting.extend(file for group in groups for file in group if not is_local[file])
        #: A file alone gains nothing by a thread.
        if sum(map(len, groups)) < 2:
            self._waiting.clear()
        self._threads = ThreadPoolExecutor(_REMOTE_AT_ONCE, "zazen-viz-remote") if self._waiting else None
        self._coming: dict[int, Future[Memory]] = {}
        self._held = 0

    def __enter__(self) -> _Remote:
        self._begin()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _bytes(self, file: int) -> int:
        return max(self._visualization.steps[self._step].bytes[file], 0)

    def _begin(self) -> None:
        """Begins further ones, as far as there is room."""
        while self._waiting and self._threads is not None:
            file = self._waiting[0]
            if self._held and self._held + self._bytes(file) > _AHEAD_BYTES:
                return
            self._waiting.popleft()
            self._held += self._bytes(file)
            self._coming[file] = self._threads.submit(self._visualization.fetch, self._step, file)

    def fetch(self, file: int) -> Memory:
        """The file, which may be on its way; raises why it could not be fetched."""
        coming = self._coming.pop(file, None)
        if coming is None:
            return self._visualization.fetch(self._step, file)
        try:
            return coming.result()
        finally:
            self._held -= self._bytes(file)
            self._begin()


def _bring(visualization: Visualization, step: int, files: list[int], remote: _Remote) -> list[Came]:
    if visualization.without_mount:
        memories = [remote.fetch(file) for file in files]
        return [Came(memory, memory.length, None) for memory in memories]
    frames = visualization.read(step, files)
    assert frames is not None, "a visualization that brings files brings these"
    return [Came(frame, frame.length, frame.source) for frame in frames]


def advise(visualization: Visualization, step: int, files: Sequence[int]) -> None:
    """Asks the kernel to read files from where they are; returns at once. A file that can't be
    opened is named by who reads it."""
    for file in files:
        path = os.path.join(visualization.directory, visualization.steps[step].files[file])
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


class _Bringer:
    """Brings groups of files on a thread of its own, a few ahead of those that are taken."""

    def __init__(self, visualization: Visualization, step: int, groups: list[tuple[list[int], int]]) -> None:
        self._visualization, self._step, self._groups = visualization, step, groups
        self._came: deque[tuple[list[Came] | BaseException, int]] = deque()
        #: Bytes of what came and was not taken.
        self._held = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="zazen-viz-bring", daemon=True)

    def __enter__(self) -> _Bringer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def take(self) -> list[Came]:
        """The next group; raises why it could not be brought."""
        with self._changed:
            while not self._came:
                self._changed.wait()
            came, size = self._came.popleft()
            self._held -= size
            self._changed.notify_all()
        if isinstance(came, BaseException):
            raise came
        return came

    def _work(self) -> None:
        with _Remote(self._visualization, self._step, [group for group, _ in self._groups]) as remote:
            self._bring_all(remote)

    def _bring_all(self, remote: _Remote) -> None:
        for group, size in self._groups:
            with self._changed:
                while self._held and self._held + size > _AHEAD_BYTES and not self._is_over:
                    self._changed.wait()
                if self._is_over:
                    return
                self._held += size
            came: list[Came] | BaseException
            try:
                came = _bring(self._visualization, self._step, group, remote)
            except BaseException as error:
                came = error
            with self._changed:
                self._came.append((came, size))
                self._changed.notify_all()
            if isinstance(came, BaseException):
                return
