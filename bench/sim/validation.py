#!/usr/bin/env python3
"""How far the simulator is from real daemons: calibrated on one and two nodes, held against larger
scales and other workloads.

    sudo .venv/bin/python bench/sim/validation.py --out bench/results/sim
    sudo .venv/bin/python bench/sim/validation.py --quick
    sudo .venv/bin/python bench/sim/validation.py --spans DIR --repetitions 2   # adds two to DIR

The daemons run on testbeds whose links are shaped and whose disks are throttled, so that these
decide and not this machine's processors. Needs root, iproute2 and an I/O control group; without
them the bench says so and ends with code 1.

At each scale, three workloads are recorded: a writer pushes over its link, nodes load frames over
the file server's link, nodes check cold frames on their disks. Trained on 1 and 2 nodes. Held out:
3 and 4 nodes; 2 nodes with frames of other sizes; `mixed`, in which pushes and loads meet on the
nodes' links; `writers`, in which each of 3 nodes has a writer of its own; `checks`, in which two
checks share each disk. Training and held-out runs take turns.

A row is the whole of a run, or the calls of one operation that hold at least a twentieth of all
calls' time. Rows of fewer than 30 calls are shown and not judged. A row's error is that of medians
over the repetitions, beside how much the repetitions differ and beside a naive baseline (the
training runs' mean time for a byte). A row is better or worse than that baseline if the 95 %
interval of the difference of their errors, by the bootstrap over the repetitions, says so;
otherwise the repetitions do not tell them apart. `paused` is the part of the simulated run that is
the client's pauses, which the recording gives.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import zazen.testing
from page import CALLS_MIN, MAPE_GOAL

KIB = 1 << 10
MIB = 1 << 20
LINK = "160mbit"
DISK = "10MB"
# Rows of less than this part of a run's calls are not judged.
SHARE_MIN = 0.05
# Sizes of frames: of pushes, and of loads and checks, whose calls are for 64 frames each.
SIZES = ([256 * KIB, 1 * MIB, 4 * MIB], [64 * KIB, 160 * KIB])
OTHER_SIZES = ([512 * KIB, 2 * MIB], [32 * KIB, 96 * KIB, 256 * KIB])
# Bytes that each workload moves: a few seconds of it.
PUSHED = 64 * MIB
LOADED = 48 * MIB
CHECKED_BY_NODE = 24 * MIB


def zazen_sim(*arguments: object) -> str:
    command = [zazen.testing.program("zazen"), "sim", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


class Testbed:
    """Daemons behind shaped links, with throttled disks, that record spans."""

    def __init__(self, folder: pathlib.Path, nodes: int) -> None:
        self.folder, self.nodes, self.spans = folder / "tb", nodes, folder / "spans"
        self.server = self.folder / "server"
        #: (run, begin, end): which spans belong to which run.
        self.runs: list[tuple[str, int, int]] = []

    def zazen(self, *arguments: object) -> list[str]:
        return [zazen.testing.program("zazen"), *map(str, arguments)]

    def testbed(self, *arguments: object) -> list[str]:
        return self.zazen("testbed", "--dir", self.folder, *arguments)

    def __enter__(self) -> Testbed:
        flags = ["--net", "--link", LINK, "--server-link", LINK, "--disk-bps", DISK, "--spans", self.spans]
        done = subprocess.run(
            self.testbed("up", self.nodes, *flags), capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or "unlimited" in done.stderr:
            subprocess.run(self.testbed("down"), capture_output=True, check=False)
            raise SystemExit(f"validation needs shaped links and throttled disks: {done.stderr.strip()}")
        return self

    def __exit__(self, *exception: object) -> None:
        subprocess.run(self.testbed("down"), capture_output=True, check=False)

    def on(self, host: str, *command: object) -> list[str]:
        """`command` on a host, which it also has as the name of its machine."""
        inner = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh", *map(str, command)]
        return self.testbed("run", "--on", host, "--", *inner)

    def files(self, name: str, total: int, sizes: list[int]) -> list[pathlib.Path]:
        """A dataset on the file server: files of these sizes, `total` bytes in all. The sizes are
        drawn, the same in each repetition: in turns, they would meet the nodes in turns, and each
        node would get files of one size."""
        data = self.server / name
        data.mkdir()
        content = os.urandom(max(sizes))
        drawn = random.Random(name)
        made: list[pathlib.Path] = []
        while total > 0:
            size = drawn.choice(sizes)
            made.append(data / f"f{len(made):06d}.dat")
            made[-1].write_bytes(content[:size])
            total -= size
        return made

    def cool(self) -> None:
        """Takes what the caches hold out of memory, so that the disks are read."""
        for path in self.folder.glob("n*/cache/**/*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @contextlib.contextmanager
    def run(self, name: str) -> Iterator[None]:
        begin = time.time_ns()
        yield
        self.runs.append((name, begin, time.time_ns()))

    def split(self, out: pathlib.Path, repetition: int) -> None:
        """Writes each run's spans into a folder of its own; the daemons have ended."""
        every = self.spans.parent / "all.jsonl"
        subprocess.run(self.zazen("sim", "export", self.spans, "--format", "jsonl", "-o", every), check=True)
        with every.open() as lines:
            spans = [(json.loads(line)["start_ns"], line) for line in lines]
        for name, begin, end in self.runs:
            folder = out / f"{name}.{repetition}"
            folder.mkdir(parents=True)
            inside = (line for start, line in spans if begin <= start <= end)
            (folder / "all.spans.jsonl").write_text("".join(inside))


def at_once(*commands: list[str]) -> None:
    """Runs commands side by side; ends the bench if one fails."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in commands
    ]
    for process in running:
        said, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"{process.args}: {said.decode(errors='replace')}")


def push(bed: Testbed, files: list[pathlib.Path], host: str = "sim") -> list[str]:
    return bed.on(host, *bed.zazen("push", "--on-slow", "block", *files))


def load(bed: Testbed, name: str) -> list[str]:
    return bed.on("sim", *bed.zazen("load", bed.server / name))


def check(bed: Testbed, name: str) -> list[str]:
    return bed.on("sim", *bed.zazen("verify", bed.server / name))


def each(bed: Testbed, run: str, sizes_of: tuple[list[int], list[int]]) -> None:
    """The three workloads, one after the other."""
    sizes, small = sizes_of
    with bed.run(f"{run}-push"):
        at_once(push(bed, bed.files("pushed", PUSHED, sizes)))
    bed.files("loaded", LOADED, small)
    with bed.run(f"{run}-load"):
        at_once(load(bed, "loaded"))
    # As much on each disk at every scale.
    at_once(push(bed, bed.files("checked", CHECKED_BY_NODE * bed.nodes, small)))
    bed.cool()
    with bed.run(f"{run}-check"):
        at_once(check(bed, "checked"))


def mixed(bed: Testbed) -> None:
    files = bed.files("pushed", PUSHED, SIZES[0])
    bed.files("loaded", LOADED, SIZES[1])
    with bed.run("mixed"):
        at_once(push(bed, files), load(bed, "loaded"))
    bed.cool()
    with bed.run("checks"):
        at_once(check(bed, "pushed"), check(bed, "loaded"))


def writers(bed: Testbed) -> None:
    sets = [(f"n{node}", bed.files(f"pushed{node}", PUSHED // 2, SIZES[0])) for node in range(bed.nodes)]
    with bed.run("writers"):
        at_once(*(push(bed, files, host) for host, files in sets))


# (nodes, what is done there): the first two are the training.
PLAN: list[tuple[int, Callable[[Testbed], None]]] = [
    (1, lambda bed: each(bed, "train-1", SIZES)),
    (2, lambda bed: each(bed, "train-2", SIZES)),
    (3, lambda bed: each(bed, "three", SIZES)),
    (4, lambda bed: each(bed, "four", SIZES)),
    (2, lambda bed: each(bed, "sizes", OTHER_SIZES)),
    (2, mixed),
    (3, writers),
]


def record(root: pathlib.Path, spans: pathlib.Path, repetition: int) -> None:
    for nodes, work in PLAN:
        with tempfile.TemporaryDirectory(prefix="zv", dir=root) as name:
            bed = Testbed(pathlib.Path(name), nodes)
            with bed:
                work(bed)
            bed.split(spans, repetition)


def beside_naive(repeats: list[tuple[float, float, float]]) -> str:
    """Whether the simulated times are nearer to the recorded ones than the naive ones are:
    `better`, `worse`, or `alike` if these repetitions do not tell."""
    if len(repeats) < 2:
        return "alike"
    if len(repeats) <= 5:
        drawn = list(itertools.product(repeats, repeat=len(repeats)))
    else:
        rng = random.Random(1)
        drawn = [tuple(rng.choices(repeats, k=len(repeats))) for _ in range(5_000)]

    def further(draw: tuple[tuple[float, float, float], ...]) -> float:
        recorded, simulated, naive = (statistics.median(times) for times in zip(*draw, strict=True))
        return (abs(simulated - recorded) - abs(naive - recorded)) / recorded

    found = sorted(map(further, drawn))
    low, high = found[int(0.025 * len(found))], found[int(0.975 * len(found))]
    return "better" if high < 0 else "worse" if low > 0 else "alike"


def rows_of(cluster: pathlib.Path, name: str, folders: list[pathlib.Path]) -> list[dict]:
    """A row for each operation: medians over the repetitions, and how far these are apart."""
    found = json.loads(zazen_sim("validate", cluster, *folders, "--json"))["rows"]
    calls_s = sum(row["recorded_s"] for row in found if row["op"] != "all")
    rows = []
    for op in sorted({row["op"] for row in found}):
        mine = [row for row in found if row["op"] == op]
        recorded = [row["recorded_s"] for row in mine]
        if op != "all" and sum(recorded) < SHARE_MIN * calls_s:
            continue
        middle = statistics.median(recorded)
        repeats = [
            (row["recorded_s"], row["simulated_s"], row["recorded_s"] * (1 + row["naive_error"]))
            for row in mine
            if row["naive_error"] is not None
        ]
        simulated = statistics.median(row["simulated_s"] for row in mine)
        naive = [repeat[2] for repeat in repeats]
        rows.append(
            {
                "run": name,
                "op": op,
                "nodes": mine[0]["nodes"],
                "repetitions": len(mine),
                "calls": sum(row["calls"] for row in mine),
                "recorded_s": middle,
                "noise": (max(recorded) - min(recorded)) / 2 / middle,
                "error": simulated / middle - 1,
                "naive_error": statistics.median(naive) / middle - 1 if naive else None,
                "paused": statistics.median(row["paused_s"] for row in mine) / simulated,
                "repeats": repeats,
                "beside_naive": beside_naive(repeats),
            }
        )
    return rows


def report(rows: list[dict]) -> None:
    def percent(part: float | None) -> str:
        return "-" if part is None else f"{100 * part:+.1f} %"

    print(
        f"{'run':<14}{'op':<20}{'nodes':>6}{'reps':>6}{'median s':>10}{'noise':>9}{'error':>9}{'naive':>9}"
        f"{'':>8}{'paused':>9}{'calls':>7}"
    )
    for row in rows:
        print(
            f"{row['run']:<14}{row['op']:<20}{row['nodes']:>6}{row['repetitions']:>6}"
            f"{row['recorded_s']:>10.4f}"
            f"{percent(row['noise']):>9}{percent(row['error']):>9}{percent(row['naive_error']):>9}"
            f"{row['beside_naive']:>8}"
            f"{percent(row['paused'] if row['op'] == 'all' else None):>9}{row['calls']:>7}"
        )
    judged = [row for row in rows if row["calls"] >= CALLS_MIN]
    mape = statistics.mean(abs(row["error"]) for row in judged)
    noise = statistics.mean(row["noise"] for row in judged)
    beaten = sum(
        row["naive_error"] is not None and abs(row["error"]) < abs(row["naive_error"]) for row in rows
    )
    few = [f"{row['run']} {row['op']}" for row in rows if row not in judged]
    if few:
        with_few = statistics.mean(abs(row["error"]) for row in rows)
        print(
            f"not judged, because they have fewer than {CALLS_MIN} calls: {', '.join(few)} "
            f"(with them: {100 * with_few:.1f} %)"
        )
    held = "held" if mape < MAPE_GOAL else "NOT HELD"
    print(
        f"goal held-out error: < 4 %: {100 * mape:.1f} % (repetitions differ by {100 * noise:.1f} %): {held}"
    )
    every = "held" if beaten == len(rows) else "NOT HELD"
    print(f"goal better than the naive baseline on every row: {beaten} of {len(rows)}: {every}")
    for verdict in ("better", "alike", "worse"):
        found = [f"{row['run']} {row['op']}" for row in rows if row["beside_naive"] == verdict]
        names = "" if verdict == "better" or not found else f": {', '.join(found)}"
        print(f"beside the naive baseline, as the repetitions tell: {verdict}: {len(found)}{names}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results/sim"))
    parser.add_argument("--repetitions", type=int, default=5, help="how many to record [default: 5]")
    parser.add_argument(
        "--spans", type=pathlib.Path, help="keep the recordings here, and judge those that are there too"
    )
    parser.add_argument("--quick", action="store_true", help="one repetition")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        print("validation: skipped: shaped links and throttled disks need root and `unshare`")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zv", dir=options.out) as folder:
        root = pathlib.Path(folder)
        spans = options.spans or root / "spans"
        spans.mkdir(parents=True, exist_ok=True)
        first = 1 + max((int(path.suffix[1:]) for path in spans.iterdir()), default=0)
        for repetition in range(first, first + (1 if options.quick else options.repetitions)):
            record(root, spans, repetition)
        recorded = sorted(spans.iterdir())
        training = [path for path in recorded if path.name.startswith("train-")]
        cluster = options.out / "calibrated.toml"
        print(zazen_sim("calibrate", *training, "-o", cluster), flush=True)
        names = sorted({path.stem for path in recorded} - {path.stem for path in training})
        rows = [
            row
            for name in names
            for row in rows_of(cluster, name, [path for path in recorded if path.stem == name])
        ]
    report(rows)
    (options.out / "validation.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(options.out / "validation.json", file=sys.stderr)


if __name__ == "__main__":
    main()
