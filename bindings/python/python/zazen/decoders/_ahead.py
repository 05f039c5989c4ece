"""Reads frames ahead of a loop, in blocks, in a thread of its own: the loop decodes one block while
the next is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: A block has at most so many bytes, but at least one frame; two blocks are in memory.
BLOCK_BYTES = 8 << 20
BLOCK_FRAMES_MAX = 512
#: Of the first block; each is twice as long as the one before, so that a loop that ends early has
#: read little in vain.
FIRST_FRAMES = 4


class Ahead:
    """Reads ``indices`` in this order. ``fetch`` reads a list of them, and gives a frame or an
    exception for each.

    Not for several threads at a time. A forked child must not use it: see ``is_mine``.
    """

    def __init__(self, fetch: Callable[[list[int]], list[Any]], indices: Sequence[int]) -> None:
        self._fetch, self._indices = fetch, indices
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zazen-ahead")
        self._at, self._block = 0, FIRST_FRAMES
        self._here: dict[int, Any] = {}
        self._coming: tuple[list[int], Future[list[Any]]] | None = None
        self._request()

    @property
    def is_mine(self) -> bool:
        """Whether this process made it. Its thread does not exist in a forked child."""
        return os.getpid() == self._pid

    def _request(self) -> None:
        wanted = [int(index) for index in self._indices[self._at : self._at + self._block]]
        self._at += len(wanted)
        if wanted:
            self._coming = (wanted, self._thread.submit(self._fetch, wanted))
        else:
            self._coming = None
            self.close()

    def _receive(self) -> None:
        """Waits for the block that is coming, and requests the next."""
        assert self._coming is not None
        wanted, future = self._coming
        frames = future.result()
        self._here = dict(zip(wanted, frames, strict=True))
        lengths = [frame.length for frame in frames if not isinstance(frame, Exception)]
        fit = BLOCK_BYTES // max(1, *lengths, 1)
        self._block = max(1, min(2 * self._block, fit, BLOCK_FRAMES_MAX))
        self._request()

    def take(self, index: int) -> Any:
        """The frame, or the exception of reading it; None if it is not the next one."""
        if index not in self._here and self._coming is not None and index in self._coming[0][:1]:
            self._receive()
        return self._here.pop(index, None)

    def close(self) -> None:
        """Stops reading ahead. It does not wait for a read that has begun."""
        if self.is_mine:
            self._thread.shutdown(wait=False, cancel_futures=True)
