"""A map-style dataset over the frames of a `zazen.Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.data
import zazen
from zazen.torch.positions import Positions

__all__ = ["Dataset", "frame_bytes"]


def frame_bytes(frame: zazen.Frame) -> bytes:
    """The frame's bytes: what a sample is where no transform is given."""
    return bytes(frame.data)


class Dataset(torch.utils.data.Dataset):
    """Sample i is the i-th frame of `dataset`, by ascending frame number.

    ``transform`` makes a sample of a ``zazen.Frame`` (``number``, ``data``, ``path``); without it a
    sample is the frame's bytes. It runs in the worker that reads the frame. With `spawn` and
    `forkserver` it must be picklable.

    The frames that exist are listed once. Workers by fork, forkserver and spawn work: each opens
    the dataset for itself. Reading raises what ``zazen.Dataset.read`` raises, and IndexError beyond
    the last sample.
    """

    def __init__(self, dataset: zazen.Dataset, transform: Callable[[zazen.Frame], Any] = frame_bytes) -> None:
        self.frames, self.transform = dataset, transform
        self.positions = Positions.of(dataset)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.frames.read(self.positions.number(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch, read in one call."""
        numbers = [self.positions.number(index) for index in indices]
        return [self.transform(frame) for frame in self.frames.read_many(numbers)]
