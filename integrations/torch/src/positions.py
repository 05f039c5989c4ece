"""The place of each frame among the frames that exist, in ascending order."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np
import zazen

__all__ = ["Positions"]


#: Frame numbers that are digested at a time.
_DIGEST_STEP = 1 << 16


class Positions:
    """Frame numbers by place and places by frame number. A regular extent takes a few bytes,
    however large."""

    def __init__(self, runs: Iterable[tuple[int, int, int]]) -> None:
        runs = list(runs)
        self._numbers: range | np.ndarray
        match runs:
            case []:
                self._numbers = range(0)
            case [(first, count, step)]:
                self._numbers = range(first, first + count * step, step)
            case _:
                self._numbers = _numbers(runs)

    @classmethod
    def of(cls, dataset: zazen.Dataset) -> Positions:
        """The frames of `dataset` that exist."""
        return cls(dataset.extent().runs())

    def __len__(self) -> int:
        return len(self._numbers)

    def digest(self) -> str:
        """Equal if, and only if, the frame numbers are."""
        found = hashlib.blake2b(digest_size=16)
        for first in range(0, len(self), _DIGEST_STEP):
            numbers = np.asarray(self._numbers[first : first + _DIGEST_STEP], dtype="<i8")
            found.update(numbers.tobytes())
        return found.hexdigest()

    def number(self, index: SupportsIndex) -> int:
        """The frame number of sample `index`; IndexError if there is no such sample."""
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"sample {at} of a dataset of {len(self)}")
        return int(self._numbers[at])

    def mask(self, held: zazen.RunSet) -> np.ndarray:
        """For each sample, whether its frame is in `held`."""
        numbers = np.asarray(self._numbers, dtype=np.int64)
        found = np.zeros(len(numbers), dtype=bool)
        have = _numbers(held.runs())
        at = np.searchsorted(numbers, have)
        inside = at < len(numbers)
        at, have = at[inside], have[inside]
        found[at[numbers[at] == have]] = True
        return found


def _numbers(runs: Iterable[tuple[int, int, int]]) -> np.ndarray:
    parts = [np.arange(first, first + count * step, step, dtype=np.int64) for first, count, step in runs]
    numbers = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    numbers.sort()
    return numbers
