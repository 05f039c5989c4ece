#!/usr/bin/env python3
"""What recording spans costs: the same calls to a daemon with `--spans` and to one without.

    .venv/bin/python bench/sim/span_cost.py

Three ways, each in turns, so that a machine that changes its speed changes both: `d[n]`, a call for
each frame of 64 KB, pushes of 1 MB, and forwarded reads of 4 KB (the worst case: the shortest
call). A figure is the time with spans over the time without, of turns that follow each other; the
median over all turns is judged. Readers stay between turns, so their start is in no turn.

A third daemon, also without spans, tells what the bench cannot see: two daemons that do the same
differ by its figure, since their memory lies elsewhere. Daemons are started anew several times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable

import zazen
import zazen.testing
from page import SPANS_GOAL

FRAMES, FRAME_BYTES = 2_000, 64 << 10
PUSHES, PUSH_BYTES = 100, 1 << 20
READS, READ_BYTES = 20_000, 4 << 10
KINDS = ("with", "without", "again")
WAYS = ("d[n]", "push", "forwarded pread")
# A forwarded program that times its own reads, so many for each line that it gets.
READER = """
import os, sys, time
count, size = int(sys.argv[2]), int(sys.argv[3])
file = os.open(sys.argv[1], os.O_RDONLY)
for _ in sys.stdin:
    begin = time.perf_counter()
    for _ in range(count):
        os.pread(file, size, 0)
    print(time.perf_counter() - begin, flush=True)
"""


def timed(work: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


class Side:
    """One daemon and what calls it."""

    def __init__(self, folder: pathlib.Path, backing: pathlib.Path, kind: str) -> None:
        self.kind, self.backing = kind, backing
        exported = folder / "exported"
        arguments: list[object] = ["--plugin", "posix", "--export", exported]
        if kind == "with":
            arguments += ["--spans", folder / "spans"]
        self.cluster = zazen.testing.Cluster(folder / kind, backing, arguments=arguments)
        self.exported = exported

    def __enter__(self) -> Side:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(self.cluster)
            socket = cluster.sockets[0]
            program = zazen.testing.program("zazen")
            frames = self.backing / "frames"
            subprocess.run([program, "load", "--socket", socket, frames], check=True, capture_output=True)
            self.frames = stack.enter_context(zazen.open(frames, socket=socket))
            run = [program, "run", "--socket", socket, "--relay", "--forward", f"/zz={self.exported}", "--"]
            reader = ["python3", "-c", READER, "/zz/a", str(READS), str(READ_BYTES)]
            pipe = subprocess.PIPE
            self.reader = subprocess.Popen([*run, *reader], stdin=pipe, stdout=pipe, text=True, bufsize=1)
            stack.callback(self.reader.wait)
            stack.callback(self.reader.stdin.close)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def read(self, turn: int) -> float:
        order = random.Random(turn).sample(range(FRAMES), FRAMES)

        def each() -> None:
            for number in order:
                len(self.frames[number].data)

        return timed(each)

    def push(self, turn: int) -> float:
        data, content = self.backing / f"pushed{turn}", bytes(PUSH_BYTES)
        data.mkdir(exist_ok=True)
        how = {"key": self.cluster.key, "pattern": "f{n:06}.dat", "on_slow": "block"}

        def each() -> None:
            with zazen.Writer(data, self.cluster.nodes, **how) as writer:
                for number in range(PUSHES):
                    writer.push(number, content)

        return timed(each)

    def forwarded(self, _turn: int) -> float:
        self.reader.stdin.write("\n")
        return float(self.reader.stdout.readline())


def measure(kinds: list[str], turns: int, ways: list[str], first: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of each turn, for each way and side, with daemons that start in this order."""
    took: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="zs", dir="/dev/shm") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        frames = folder / "backing" / "frames"
        frames.mkdir(parents=True)
        for number in range(FRAMES):
            (frames / f"f{number:06d}.dat").write_bytes(os.urandom(FRAME_BYTES))
        (folder / "exported").mkdir()
        (folder / "exported" / "a").write_bytes(bytes(READ_BYTES))
        sides = [stack.enter_context(Side(folder, folder / "backing", kind)) for kind in kinds]
        for turn in range(first, first + turns):
            # Each side is first, second and last as often.
            order = sides[turn % 3 :] + sides[: turn % 3]
            for way, call in (("d[n]", Side.read), ("push", Side.push), ("forwarded pread", Side.forwarded)):
                if way in ways:
                    took[way].append({side.kind: call(side, turn) for side in order})
    return took


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, at 95 %, by the bootstrap."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2_000))
    return medians[50], medians[-51]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results/sim"))
    parser.add_argument("--turns", type=int, default=10, help="of each three daemons [default: 10]")
    parser.add_argument("--rounds", type=int, default=6, help="how often daemons are started [default: 6]")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one; may be repeated")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ways = options.way or list(WAYS)
    took: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(options.rounds):
        # Which one started first makes a difference too.
        kinds = [KINDS[(number + place) % 3] for place in range(3)]
        for way, turns in measure(kinds, options.turns, ways, number * options.turns).items():
            took[way] += turns
    rows = []
    for way, turns in took.items():
        row: dict[str, object] = {"way": way, "seconds": turns}
        for name, side in (("cost", "with"), ("control", "again")):
            found = [turn[side] / turn["without"] - 1 for turn in turns]
            row[name], row[f"{name}_interval"] = statistics.median(found), interval(found)
        rows.append(row)
        held = "held" if row["cost"] < SPANS_GOAL else "NOT HELD"
        (low, high), (control_low, control_high) = row["cost_interval"], row["control_interval"]
        print(
            f"goal spans cost < 2 %: {way}: {100 * row['cost']:+.1f} % ({100 * low:+.1f} .. "
            f"{100 * high:+.1f} %; a second daemon without spans {100 * row['control']:+.1f} %, "
            f"{100 * control_low:+.1f} .. {100 * control_high:+.1f} %; {len(turns)} turns): {held}"
        )
    (options.out / "span_cost.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
