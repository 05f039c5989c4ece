#!/usr/bin/env python3
"""What recording spans costs: the same calls to a daemon with `--spans` and to one without.

    .venv/bin/python bench/sim/span_cost.py

Two ways, each in turns, so that a machine that changes its speed changes both: `d[n]`, a call for
each frame of 64 KB (the worst case: a short call), and pushes of 1 MB. A repetition's figure is the
time with spans over the time without; the median of the repetitions is judged.
"""

from __future__ import annotations

import argparse
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

GOAL = 0.02
FRAMES, FRAME_BYTES = 2_000, 64 << 10
PUSHES, PUSH_BYTES = 100, 1 << 20


def timed(work: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results/sim"))
    parser.add_argument("--repetitions", type=int, default=21)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="zs", dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        frames = folder / "backing" / "frames"
        frames.mkdir(parents=True)
        for number in range(FRAMES):
            (frames / f"f{number:06d}.dat").write_bytes(os.urandom(FRAME_BYTES))
        clusters = {
            kind: zazen.testing.Cluster(folder / kind, folder / "backing", arguments=arguments)
            for kind, arguments in (("with", ["--spans", folder / "spans"]), ("without", []))
        }
        with clusters["with"], clusters["without"]:
            open_sets = {}
            for kind, cluster in clusters.items():
                command = [zazen.testing.program("zazen"), "load", "--socket", cluster.sockets[0], frames]
                subprocess.run(command, check=True, capture_output=True)
                open_sets[kind] = zazen.open(frames, socket=cluster.sockets[0])

            def read(kind: str, order: list[int]) -> None:
                dataset = open_sets[kind]
                for number in order:
                    len(dataset[number].data)

            def push(kind: str, repetition: int) -> None:
                data, content = folder / "backing" / f"pushed{repetition}", bytes(PUSH_BYTES)
                data.mkdir(exist_ok=True)
                cluster = clusters[kind]
                how = {"key": cluster.key, "pattern": "f{n:06}.dat", "on_slow": "block"}
                with zazen.Writer(data, cluster.nodes, **how) as writer:
                    for number in range(PUSHES):
                        writer.push(number, content)

            ratios: dict[str, list[float]] = {"d[n]": [], "push": []}
            for repetition in range(options.repetitions):
                order = random.Random(repetition).sample(range(FRAMES), FRAMES)
                kinds = ["with", "without"] if repetition % 2 else ["without", "with"]
                took = {kind: timed(read, kind, order) for kind in kinds}
                ratios["d[n]"].append(took["with"] / took["without"])
                took = {kind: timed(push, kind, repetition) for kind in kinds}
                ratios["push"].append(took["with"] / took["without"])
            for dataset in open_sets.values():
                dataset.close()
    for way, found in ratios.items():
        cost = statistics.median(found) - 1
        low, _, high = statistics.quantiles(found, n=4)
        rows.append({"way": way, "cost": cost, "quartiles": [low - 1, high - 1]})
        held = "held" if cost < GOAL else "NOT HELD"
        print(
            f"goal spans cost < 2 %: {way}: {100 * cost:+.1f} % (quartiles {100 * (low - 1):+.1f} .. "
            f"{100 * (high - 1):+.1f} %, {len(found)} pairs): {held}"
        )
    (options.out / "span_cost.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
