"""The models that the paper's figures rest on: the disk with a head, and LRU."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "papers" / "zazen"))

from scan_twice import lru_hits
from spindle import BUFFER_BYTES, NEAR_BYTES, Arm, Queue

RATE, SEEK = 100e6, 0.008
PIECE = 1_000_000
FAR = 1 << 30


def served(*offsets: int, asked_at: float = 0.0) -> list[float]:
    """When pieces at `offsets`, all waiting from the beginning, are done."""
    arm = Arm(RATE, SEEK)
    return [arm.serve(offset, PIECE, asked_at) for offset in offsets]


def test_what_follows_costs_no_seek():
    done = served(*range(FAR, FAR + 5 * PIECE, PIECE))
    assert done[0] == pytest.approx(SEEK + 0.01)
    assert [after - before for before, after in pairwise(done)] == pytest.approx([0.01] * 4)


def test_two_interleaved_streams_seek_each_time():
    done = served(FAR, 2 * FAR, FAR + PIECE, 2 * FAR + PIECE)
    assert done[-1] == pytest.approx(4 * (SEEK + 0.01))


def test_a_small_gap_costs_its_passing_only():
    arm = Arm(RATE, SEEK)
    first = arm.serve(0, PIECE, 0.0)
    assert arm.serve(PIECE + NEAR_BYTES, PIECE, 0.0) - first == pytest.approx(0.01 + NEAR_BYTES / RATE)
    assert arm.serve(0, PIECE, 0.0) > first + SEEK, "backwards is a seek"


def test_the_disk_reads_on_into_its_buffer_while_nobody_asks_and_no_further():
    arm = Arm(RATE, SEEK)
    arm.serve(0, PIECE, 0.0)
    assert arm.serve(PIECE, PIECE, 10.0) == 10.0
    held = BUFFER_BYTES // PIECE
    late = [arm.serve((2 + at) * PIECE, PIECE, 10.0) for at in range(held + 1)]
    assert late[0] == 10.0 and late[-1] > 10.0


def test_the_nearest_upwards_is_next_then_the_lowest():
    queue = Queue()
    for offset in (50, 10, 30):
        queue.put((offset, 0, 0, memoryview(b"")))
    assert [queue.next(at)[0] for at in (20, 30, 50)] == [30, 50, 10]


def test_lru_gives_nothing_on_a_cyclic_scan_and_all_where_all_fits():
    scan = [list(range(10))]
    assert lru_hits([scan] * 3, 9) == [0, 0, 0]
    assert lru_hits([scan] * 3, 10) == [0, 1, 1]
    there_and_back = [scan, [list(reversed(range(10)))]]
    assert lru_hits(there_and_back, 4) == [0, 0.4]
