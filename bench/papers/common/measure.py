"""Measures fairly: cold caches, systems in turns, the machine's load beside each figure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

# Above this share of all cores, a run measures the processor.
CPU_BOUND_SHARE = 0.85

Name = TypeVar("Name")
Sample = TypeVar("Sample")


def drop_caches() -> None:
    """Write dirty pages back and drop the page, inode and dentry caches (needs root)."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _busy_seconds() -> float:
    """Seconds that all cores together were not idle since boot; waiting for a disk counts as
    idle."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    # guest time is part of user time
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What the whole machine did during a measurement. Nothing else should run."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def cpu_share(self) -> float:
        """Of all cores, 0 … 1."""
        return self.cpu_seconds / (self.seconds * cores()) if self.seconds else 0.0

    @property
    def cpu_bound(self) -> bool:
        """Whether the processor limits the figure more than links and disks do."""
        return self.cpu_share > CPU_BOUND_SHARE


class Watch:
    """`with Watch() as load: …` measures wall and processor time of what is inside."""

    def __enter__(self) -> Load:
        self._load = Load()
        self._begin = (time.monotonic(), _busy_seconds())
        return self._load

    def __exit__(self, *exception: object) -> None:
        began, busy = self._begin
        self._load.seconds = time.monotonic() - began
        self._load.cpu_seconds = _busy_seconds() - busy


def in_turns(
    names: Sequence[Name],
    repeats: int,
    run: Callable[[Name], Sample],
    before: Callable[[], None] = lambda: None,
) -> dict[Name, list[Sample]]:
    """Run each name `repeats` times in the order ABC CBA …: a drift of the machine then affects all
    alike.

    `before` runs ahead of each (to drop caches, say).
    """
    samples: dict[Name, list[Sample]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            before()
            samples[name].append(run(name))
    return samples
