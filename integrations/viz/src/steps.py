"""Time steps that a rank keeps in memory, and those that it fetches before they are asked for.

A background thread brings the files of the next steps to this node and into memory. Where VTK lets
go of Python's lock while it renders, the thread parses them as well; older VTK keeps the lock, so
there it only waits for disks and networks.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import zazen
from zazen.viz.visualization import Memory, Visualization

__all__ = ["Ahead", "Kept"]

#: How long a step waits until the background thread has begun.
_BEGIN_SECONDS_MAX = 0.05


class Kept:
    """The last steps, up to a number of bytes; what was asked for longest ago goes first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._steps: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Bytes of all steps kept."""
        return sum(size for _, size in self._steps.values())

    def get(self, key: Any) -> Any:
        """The value kept for ``key``, or None."""
        found = self._steps.get(key)
        if found is None:
            return None
        self._steps.move_to_end(key)
        return found[0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Keeps ``value``, unless it alone is larger than all may be."""
        self._steps.pop(key, None)
        if size > self.bytes_max:
            return
        self._steps[key] = (value, size)
        while self.bytes > self.bytes_max:
            self._steps.popitem(last=False)

    def clear(self) -> None:
        """Forgets all."""
        self._steps.clear()


class Ahead:
    """Brings the files of coming steps, one step after the other, on a thread of its own.

    ``fetched(step)`` gives the frames of a step that came, or waits for them if they are under way.

    ``parse(step, file, frame)``: parses one of them, on this thread; None if it can't. ``parsed``
    gives what came of it. A step's parts count as its frames do: an upper bound of both is held.
    """

    def __init__(
        self,
        visualization: Visualization,
        bytes_max: int,
        parse: Callable[[int, int, zazen.Frame | Memory | None], Any] | None = None,
    ) -> None:
        self._visualization, self._bytes_max, self._parse = visualization, bytes_max, parse
        self._frames: dict[int, list[zazen.Frame | Memory]] = {}
        self._parsed: dict[int, dict[int, Any]] = {}
        self._wanted: list[int] = []
        self._under_way: int | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()

    def want(self, steps: list[int]) -> None:
        """From now on these steps come, in this order; others that came are forgotten."""
        with self._changed:
            self._frames = {step: frames for step, frames in self._frames.items() if step in steps}
            self._parsed = {step: parts for step, parts in self._parsed.items() if step in steps}
            here = {*self._frames, *self._parsed, self._under_way}
            self._wanted = [step for step in steps if step not in here]
            if not self._wanted:
                return
            if self._under_way is not None:
                return
            self._begun.clear()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="zazen-viz-ahead", daemon=True)
                self._thread.start()
        # VTK will keep Python's lock, so the thread must be beyond it before this returns.
        self._begun.wait(_BEGIN_SECONDS_MAX)

    def fetched(self, step: int) -> list[zazen.Frame | Memory] | None:
        """The frames of ``step``, in the order of the rank's files; None if nobody fetched them."""
        with self._changed:
            while self._under_way == step:
                self._changed.wait()
            return self._frames.pop(step, None)

    def parsed(self, step: int) -> dict[int, Any]:
        """What ``parse`` made of files of ``step``, by file. To be asked after `fetched`."""
        with self._changed:
            return self._parsed.pop(step, {})

    def stop(self) -> None:
        """Fetches no more."""
        with self._changed:
            self._wanted.clear()

    def _next(self) -> int | None:
        with self._changed:
            if not self._wanted or self._held() >= self._bytes_max:
                self._under_way = None
                self._thread = None
                self._changed.notify_all()
                return None
            self._under_way = self._wanted.pop(0)
            return self._under_way

    def _held(self) -> int:
        """Bytes of all frames and parts that wait for their step."""
        frames = sum(frame.length for frames in self._frames.values() for frame in frames)
        return frames + sum(part.bytes for parts in self._parsed.values() for part in parts.values())

    def _parse_all(self, step: int, files: list[int], frames: list[Any] | None) -> dict[int, Any]:
        """Parses the files of a step, as far as memory allows."""
        if self._parse is None:
            return {}
        with self._changed:
            room = self._bytes_max - self._held() - sum(frame.length for frame in frames or [])
        parsed = dict[int, Any]()
        for at, file in enumerate(files):
            room -= max(self._visualization.steps[step].bytes[file], 0)
            if room < 0:
                break
            part = self._parse(step, file, frames[at] if frames is not None else None)
            if part is not None:
                parsed[file] = part
        return parsed

    def _work(self) -> None:
        while (step := self._next()) is not None:
            frames, parsed = None, dict[int, Any]()
            try:
                files = self._visualization.mine(step)
                self._begun.set()
                if self._visualization.without_mount:
                    frames = [self._visualization.fetch(step, file) for file in files]
                else:
                    frames = self._visualization.read(step, files)
                if frames is None:
                    advise(self._visualization, step, files)
                parsed = self._parse_all(step, files, frames)
            except Exception:
                # The step itself will meet the fault, and name it.
                frames = None
            finally:
                self._begun.set()
                with self._changed:
                    if frames is not None:
                        self._frames[step] = frames
                    if parsed:
                        self._parsed[step] = parsed
                    self._under_way = None
                    self._changed.notify_all()


def advise(visualization: Visualization, step: int, files: list[int]) -> None:
    """Asks the kernel to read files from where they are; returns at once."""
    for file in files:
        descriptor = os.open(visualization.path_of(step, file), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
