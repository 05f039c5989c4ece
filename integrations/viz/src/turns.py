"""The files of a step, one after the other: a thread brings the next ones while VTK parses those
that came. Files without a mount that other nodes hold come over the network meanwhile.

Memory is bounded by bytes, and a file that can't be brought raises its error in its turn.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import zazen
from zazen.viz.visualization import Memory, Visualization

__all__ = ["Came", "Remote", "advise", "in_turn"]

#: Bytes of files that are brought in one call, if several fit.
_GROUP_BYTES = 4 << 20
#: Bytes of files that came and are not parsed, unless one file alone has more.
_AHEAD_BYTES = 64 << 20
#: Bytes of files that are on their way from other nodes, unless one file alone has more.
REMOTE_BYTES = 64 << 20
#: Files in memory at a time that came and are not parsed, of one step: each has a descriptor, of
#: which a process may have few (1,024 by default). As many again may be on their way.
_FILES = 64
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


def in_turn(
    visualization: Visualization, step: int, files: Sequence[int], remote: Remote | None = None
) -> Iterator[Came]:
    """What came of each of ``files``, in their order. Close it to end the thread.

    ``remote``: what fetches those that other nodes hold. Nobody else uses it meanwhile."""
    if not visualization.brings_files:
        yield from _where_they_are(visualization, step, files)
        return
    with ExitStack() as own:
        if remote is None:
            remote = own.enter_context(Remote(visualization))
            # A file alone gains nothing by a thread.
            if len(files) > 1:
                remote.want({step: files})
        groups = list(_groups(files, [max(visualization.steps[step].bytes[file], 0) for file in files]))
        if len(groups) < 2:
            for group, _ in groups:
                yield from _bring(visualization, step, group, remote)
            return
        with _Bringer(visualization, step, groups, remote) as bringer:
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
        if group and (held + size > _GROUP_BYTES or len(group) >= _FILES // 4):
            yield group, held
            group, held = [], 0
        group.append(file)
        held += size
    if group:
        yield group, held


class Remote:
    """Fetches files that other nodes hold, if they come without a mount: a few at once, before
    their turn, since disks and networks work side by side.

    ``bytes_max``: of files on their way, unless one file alone has more; `REMOTE_BYTES` at most.

    One thread uses it. Close it: what is on its way is waited for, and forgotten.
    """

    def __init__(self, visualization: Visualization, bytes_max: int | None = None) -> None:
        self._visualization = visualization
        self._bytes_max = REMOTE_BYTES if bytes_max is None else min(REMOTE_BYTES, bytes_max)
        self._waiting = deque[tuple[int, int]]()
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[tuple[int, int], Future[Memory]] = {}
        self._held = 0

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Forgets all files."""
        self._waiting.clear()
        for wanted in list(self._coming):
            self._forget(wanted)
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def want(self, steps: Mapping[int, Sequence[int]]) -> None:
        """From now on the remote ones of these files come, in this order, and no others."""
        wanted = dict[tuple[int, int], None]()
        if self._visualization.without_mount:
            for step, files in steps.items():
                is_local = self._visualization.plan(step).is_local
                wanted |= {(step, file): None for file in files if not is_local[file]}
        for one in [one for one in self._coming if one not in wanted]:
            self._forget(one)
        self._waiting = deque(one for one in wanted if one not in self._coming)
        self._begin()

    def _forget(self, wanted: tuple[int, int]) -> None:
        coming = self._coming.pop(wanted)
        self._held -= self._bytes(wanted)
        if not coming.cancel():
            coming.add_done_callback(_let_go)

    def _bytes(self, wanted: tuple[int, int]) -> int:
        step, file = wanted
        return max(self._visualization.steps[step].bytes[file], 0)

    def _begin(self) -> None:
        """Begins further ones, as far as there is room."""
        while self._waiting:
            wanted = self._waiting[0]
            is_full = self._held + self._bytes(wanted) > self._bytes_max or len(self._coming) >= _FILES
            if self._coming and is_full:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_REMOTE_AT_ONCE, "zazen-viz-remote")
            self._waiting.popleft()
            self._held += self._bytes(wanted)
            self._coming[wanted] = self._threads.submit(self._visualization.fetch, *wanted)

    def fetch(self, step: int, file: int) -> Memory:
        """The file, which may be on its way; raises why it could not be fetched."""
        coming = self._coming.pop((step, file), None)
        if coming is None:
            return self._visualization.fetch(step, file)
        try:
            return coming.result()
        finally:
            self._held -= self._bytes((step, file))
            self._begin()


def _let_go(came: Future[Memory]) -> None:
    """Closes a file that nobody wants any more."""
    if not came.cancelled() and came.exception() is None:
        came.result().close()


def _bring(visualization: Visualization, step: int, files: list[int], remote: Remote) -> list[Came]:
    if visualization.without_mount:
        memories = [remote.fetch(step, file) for file in files]
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

    def __init__(
        self,
        visualization: Visualization,
        step: int,
        groups: list[tuple[list[int], int]],
        remote: Remote,
    ) -> None:
        self._visualization, self._step, self._groups, self._remote = visualization, step, groups, remote
        self._came: deque[tuple[list[Came] | BaseException, int, int]] = deque()
        #: Bytes and files of what came, or comes, and was not taken.
        self._held = self._files = 0
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
            came, size, files = self._came.popleft()
            self._held -= size
            self._files -= files
            self._changed.notify_all()
        if isinstance(came, BaseException):
            raise came
        return came

    def _is_full(self, files: int, size: int) -> bool:
        """Whether a group must wait until others are taken."""
        return self._files > 0 and (self._held + size > _AHEAD_BYTES or self._files + files > _FILES)

    def _work(self) -> None:
        for group, size in self._groups:
            with self._changed:
                while self._is_full(len(group), size) and not self._is_over:
                    self._changed.wait()
                if self._is_over:
                    return
                self._held += size
                self._files += len(group)
            came: list[Came] | BaseException
            try:
                came = _bring(self._visualization, self._step, group, self._remote)
            except BaseException as error:
                came = error
            with self._changed:
                self._came.append((came, size, len(group)))
                self._changed.notify_all()
            if isinstance(came, BaseException):
                return
