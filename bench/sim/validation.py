#!/usr/bin/env python3
"""How far the simulator is from real daemons: calibrated on small runs, held against larger ones
and another workload.

    .venv/bin/python bench/sim/validation.py --out bench/results/sim
    .venv/bin/python bench/sim/validation.py --quick

Trains on pushes to one and two nodes. Holds out pushes to four nodes, and frames of other sizes on
two nodes. Each held-out run is repeated; the error of a row is that of its medians over the
repetitions, beside how much the repetitions differ and beside a naive baseline (the training run's
mean time for a byte). Daemons share this machine's processors and its one disk, so a number from
here says nothing of a real cluster's disks or links.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import zazen.testing
from zazen.testing import Cluster

MAPE_GOAL = 0.04
KIB = 1 << 10
# (name, nodes, frames, sizes of frames in bytes)
TRAINING = [
    ("train-1", 1, 300, [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB]),
    ("train-2", 2, 300, [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB]),
]
HELD_OUT = [
    ("larger", 4, 300, [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB]),
    ("other-sizes", 2, 200, [512 * KIB, 2048 * KIB]),
]


def zazen_sim(*arguments: object) -> str:
    command = [zazen.testing.program("zazen"), "sim", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def push(folder: pathlib.Path, spans: pathlib.Path, nodes: int, frames: int, sizes: list[int]) -> None:
    """Real daemons record spans while a writer pushes frames of these sizes in turns."""
    backing = folder / "backing"
    data = backing / "run"
    data.mkdir(parents=True)
    content = os.urandom(max(sizes))
    for number in range(frames):
        (data / f"f{number:06d}.dat").write_bytes(content[: sizes[number % len(sizes)]])
    with Cluster(folder / "nodes", backing, nodes=nodes, arguments=["--spans", spans]) as cluster:
        command = [
            zazen.testing.program("zazen"),
            "push",
            "--nodes",
            ",".join(cluster.nodes),
            "--key",
            cluster.key,
        ]
        files = sorted(map(str, data.iterdir()))
        subprocess.run([*command, "--on-slow", "block", *files], check=True, capture_output=True)


def record(root: pathlib.Path, run: tuple[str, int, int, list[int]], repetition: int) -> pathlib.Path:
    name, nodes, frames, sizes = run
    spans = root / "spans" / f"{name}.{repetition}"
    with tempfile.TemporaryDirectory(prefix="zv", dir=root) as folder:
        push(pathlib.Path(folder), spans, nodes, frames, sizes)
    return spans


def rows_of(cluster: pathlib.Path, name: str, folders: list[pathlib.Path]) -> list[dict]:
    """A row for each operation: medians over the repetitions, and how far these are apart."""
    found = json.loads(zazen_sim("validate", cluster, *folders, "--json"))["rows"]
    rows = []
    for op in sorted({row["op"] for row in found}):
        mine = [row for row in found if row["op"] == op]
        recorded = [row["recorded_s"] for row in mine]
        middle = statistics.median(recorded)
        simulated = statistics.median(row["simulated_s"] for row in mine)
        naive = [
            row["recorded_s"] * (1 + row["naive_error"]) for row in mine if row["naive_error"] is not None
        ]
        rows.append(
            {
                "run": name,
                "op": op,
                "nodes": mine[0]["nodes"],
                "repetitions": len(mine),
                "recorded_s": middle,
                "noise": (max(recorded) - min(recorded)) / 2 / middle,
                "error": simulated / middle - 1,
                "naive_error": statistics.median(naive) / middle - 1 if naive else None,
            }
        )
    return rows


def report(rows: list[dict]) -> None:
    def percent(part: float | None) -> str:
        return "-" if part is None else f"{100 * part:+.1f} %"

    print(f"{'run':<14}{'op':<20}{'nodes':>6}{'reps':>6}{'median s':>10}{'noise':>9}{'error':>9}{'naive':>9}")
    for row in rows:
        print(
            f"{row['run']:<14}{row['op']:<20}{row['nodes']:>6}{row['repetitions']:>6}"
            f"{row['recorded_s']:>10.4f}"
            f"{percent(row['noise']):>9}{percent(row['error']):>9}{percent(row['naive_error']):>9}"
        )
    mape = statistics.mean(abs(row["error"]) for row in rows)
    noise = statistics.mean(row["noise"] for row in rows)
    beaten = sum(
        row["naive_error"] is not None and abs(row["error"]) < abs(row["naive_error"]) for row in rows
    )
    held = "held" if mape < MAPE_GOAL else "NOT HELD"
    print(
        f"goal held-out error: < 4 %: {100 * mape:.1f} % (repetitions differ by {100 * noise:.1f} %): {held}"
    )
    every = "held" if beaten == len(rows) else "NOT HELD"
    print(f"goal better than the naive baseline on every row: {beaten} of {len(rows)}: {every}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results/sim"))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition")
    options = parser.parse_args()
    repetitions = 1 if options.quick else options.repetitions
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zv") as folder:
        root = pathlib.Path(folder)
        # Training and held-out runs take turns, so that a machine that slows down slows both.
        training, held_out = [], {run[0]: [] for run in HELD_OUT}
        for repetition in range(repetitions):
            training += [record(root, run, repetition) for run in TRAINING]
            for run in HELD_OUT:
                held_out[run[0]].append(record(root, run, repetition))
        cluster = options.out / "calibrated.toml"
        print(zazen_sim("calibrate", *training, "-o", cluster), flush=True)
        rows = [row for name, folders in held_out.items() for row in rows_of(cluster, name, folders)]
    report(rows)
    (options.out / "validation.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(options.out / "validation.json", file=sys.stderr)


if __name__ == "__main__":
    main()
