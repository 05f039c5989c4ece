#!/usr/bin/env python3
"""Any frame at once: `read_many` of small frames that are cached, and `d[n]`, beside opening the
frames' files.

    .venv/bin/python bench/data/random_access.py            a table
    .venv/bin/python bench/data/random_access.py --json     the same for programs

One process, bound to one core, reads frames in random order from its node's daemon, which holds
them all: by `read_many` with 1,000 numbers a call, and one by one. Beside it, turn by turn, the
same process opens, reads and closes the files of the same frames. Printed: frames per second of
each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zazen
import zazen.testing

FRAMES, FRAME_BYTES, CALL, TURNS = 20_000, 3000, 1000, 5
GOAL = 100_000
#: Of a turn. They are slow where the other core is busy.
EXCHANGES = 2000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    order = random.Random(1).sample(range(FRAMES), FRAMES)
    with tempfile.TemporaryDirectory(prefix="zz") as name:
        folder = Path(name)
        frames = folder / "b" / "sim"
        frames.mkdir(parents=True)
        for number in range(FRAMES):
            (frames / f"f-{number}.bin").write_bytes(number.to_bytes(8, "little") * (FRAME_BYTES // 8))
        time.sleep(0.1)
        with zazen.testing.Daemon(folder, frames.parent) as node:
            with zazen.open(frames, socket=str(node.socket)) as dataset:
                rates = measure(dataset, [str(frames / f"f-{number}.bin") for number in order], order)
    row = {
        "what": f"{FRAMES} frames of {FRAME_BYTES} bytes, {CALL} a call, one core, {TURNS} turns",
        "rate": {name: statistics.median(found) for name, found in rates.items()},
        "spread": {name: [min(found), max(found)] for name, found in rates.items()},
        "load": os.getloadavg()[0],
    }
    rate = row["rate"]
    row["good"] = rate["read_many"] >= GOAL and rate["d[n]"] >= rate["files"]
    if options.json:
        print(json.dumps(row))
        return 0
    print(f"{row['what']}; load average {row['load']:.1f}")
    goals = {"read_many": f", goal {GOAL:,}", "d[n]": f", goal as files ({rate['files']:,.0f})"}
    for name, (low, high) in row["spread"].items():
        print(f"  {name:17} {rate[name]:9,.0f} a second ({low:,.0f} … {high:,.0f}){goals.get(name, '')}")
    print('  "bare": a question to another process for each frame, and its answer, without any work')
    return 0


class Echo:
    """A child bound to `core` that answers a few bytes with a few bytes; a context manager."""

    def __init__(self, core: int) -> None:
        self.here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sys.stdout.flush()
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                self.here.close()
                os.sched_setaffinity(0, {core})
                while there.recv(256):
                    there.send(bytes(100))
                status = 0
            finally:
                os._exit(status)
        there.close()

    def exchange(self, count: int) -> int:
        """How many of `count` exchanges were answered."""
        answered = 0
        for _ in range(count):
            self.here.send(bytes(64))
            answered += len(self.here.recv(256)) == 100
        return answered

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.here.close()
        os.waitpid(self.child, 0)


def measure(dataset: zazen.Dataset, paths: list[str], order: list[int]) -> dict[str, list[float]]:
    """Frames per second of each way, by turn."""

    def read_many() -> int:
        count = 0
        for at in range(0, len(order), CALL):
            wanted = order[at : at + CALL]
            for number, frame in zip(wanted, dataset.read_many(wanted), strict=True):
                count += int.from_bytes(frame.data[:8], "little") == number
        return count

    def one_by_one() -> int:
        return sum(int.from_bytes(dataset[number].data[:8], "little") == number for number in order)

    def files() -> int:
        count = 0
        for number, path in zip(order, paths, strict=True):
            with open(path, "rb", buffering=0) as file:
                count += int.from_bytes(file.read()[:8], "little") == number
        return count

    ways: dict[str, Callable[[], int]] = {"read_many": read_many, "d[n]": one_by_one, "files": files}
    # The cache is filled before, and by more than one core.
    for way in ways.values():
        assert way() == len(order)
    cores = sorted(os.sched_getaffinity(0))
    with Echo(cores[-1]) as same, Echo(cores[0]) as other:
        ways["bare, same core"] = lambda: same.exchange(EXCHANGES)
        if len(cores) > 1:
            ways["bare, other core"] = lambda: other.exchange(EXCHANGES)
        os.sched_setaffinity(0, {cores[-1]})
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS):
            for name in list(ways) if turn % 2 == 0 else list(reversed(ways)):
                began = time.perf_counter()
                done = ways[name]()
                rates[name].append(done / (time.perf_counter() - began))
                assert done == (EXCHANGES if "bare" in name else len(order))
    return rates


if __name__ == "__main__":
    sys.exit(main())
