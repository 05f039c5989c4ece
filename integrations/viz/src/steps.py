"""Time steps that a rank keeps in memory, and those that it fetches before they are asked for.

A background thread brings the files of the next steps to this node and into memory. Where VTK lets
go of Python's lock while it renders, the thread parses them as well, while the next ones come;
older VTK keeps the lock, so there it only waits for disks and networks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from typing import Any

from zazen.viz.turns import Came, Remote, advise, in_turn
from zazen.viz.visualization import Visualization

__all__ = ["Ahead", "Kept"]

#: Files that came and wait for their step, unless they are parsed: each has a descriptor, of which
#: a process may have few (1,024 by default).
_FILES_MAX = 256
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
    """Brings the files of coming steps, one step after the other, on a thread of its own. Those
    that other nodes hold come before that, whichever step they are of: so a disk that gives more
    than others in one step may give less in the next.

    ``parse(step, file, path)``: parses one of them, on this thread, while the next ones come; None
    if it can't. ``fetched`` gives what came of a step.
    """

    def __init__(
        self,
        visualization: Visualization,
        bytes_max: int,
        parse: Callable[[int, int, Any], Any] | None = None,
    ) -> None:
        self._visualization, self._bytes_max, self._parse = visualization, bytes_max, parse
        self._came: dict[int, list[Came]] = {}
        self._wanted: list[int] = []
        self._under_way: int | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()

    def want(self, steps: list[int]) -> None:
        """From now on these steps come, in this order; others that came are forgotten."""
        with self._changed:
            self._came = {step: came for step, came in self._came.items() if step in steps}
            here = {*self._came, self._under_way}
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

    def fetched(self, step: int) -> list[Came]:
        """What came of the first of this rank's files of ``step``, in their order; if it is under
        way, once it is done. Memory may not have sufficed for all."""
        with self._changed:
            while self._under_way == step:
                self._changed.wait()
            return self._came.pop(step, [])

    def stop(self) -> None:
        """Fetches no more."""
        with self._changed:
            self._wanted.clear()

    def _next(self) -> int | None:
        with self._changed:
            if not self._wanted or self._held() >= self._bytes_max or self._files() >= _FILES_MAX:
                self._under_way = None
                self._thread = None
                self._changed.notify_all()
                return None
            self._under_way = self._wanted.pop(0)
            return self._under_way

    def _held(self) -> int:
        """Bytes of all that waits for its step."""
        return sum(each.bytes for came in self._came.values() for each in came)

    def _files(self) -> int:
        """Files of all that waits for its step, which are not parsed."""
        return sum(each.item is not None for came in self._came.values() for each in came)

    def _bring(self, step: int, room: int, remote: Remote) -> list[Came]:
        """What comes of the files of a step, as far as there is room for it."""
        files, brought = self._visualization.mine(step), list[Came]()
        with self._changed:
            files_left = _FILES_MAX - self._files()
        self._begun.set()
        with self._changed:
            later = list(self._wanted)
        wanted = self._within([step, *later], room)
        remote.want(wanted)
        own = wanted[step]
        with closing(in_turn(self._visualization, step, own, remote)) as coming:
            for file, came in zip(own, coming, strict=True):
                # A part takes about as much as its file, and both are held while VTK parses.
                if self._parse is not None and came.bytes + came.length <= room:
                    part = self._parse(step, file, came.path)
                    if part is not None:
                        came.take_part(part)
                if came.part is None and came.item is None:
                    # The kernel was asked for this file. It may be asked for the others.
                    advise(self._visualization, step, files[len(brought) + 1 :])
                    break
                brought.append(came)
                room -= came.bytes
                files_left -= came.item is not None
                if room <= 0 or files_left <= 0:
                    break
        return brought

    def _within(self, steps: list[int], room: int) -> dict[int, list[int]]:
        """The first files of these steps that there is room for: others would come in vain."""
        wanted = dict[int, list[int]]()
        for step in steps:
            sizes, wanted[step] = self._visualization.steps[step].bytes, []
            for file in self._visualization.mine(step):
                if room <= 0:
                    return wanted
                room -= max(sizes[file], 0)
                wanted[step].append(file)
        return wanted

    def _work(self) -> None:
        with Remote(self._visualization, self._bytes_max) as remote:
            while (step := self._next()) is not None:
                self._bring_all(step, remote)

    def _bring_all(self, step: int, remote: Remote) -> None:
        with self._changed:
            room = self._bytes_max - self._held()
        came = list[Came]()
        try:
            came = self._bring(step, room, remote)
        except Exception:
            # The step itself will meet the fault, and name it.
            came = []
        finally:
            self._begun.set()
            with self._changed:
                if came:
                    self._came[step] = came
                self._under_way = None
                self._changed.notify_all()
