#!/usr/bin/env python3
"""What the index of a trajectory costs: the pass that makes it, its bytes, and opening it again.

    .venv/bin/python bench/data/index_cost.py               a table
    .venv/bin/python bench/data/index_cost.py --bytes 2e9   a larger trajectory
    .venv/bin/python bench/data/index_cost.py --json        the same for programs

The pass: `zazen index` of an XTC that is not in memory and has no index yet, beside `cat` of the
same file, turn by turn; the file leaves the page cache before each. Opening: an XTC of a million
frames of unequal lengths whose index exists; a new process opens it and reads a frame in its
middle. Printed: time and memory beyond those of a process that does the same with an XTC of 100
frames, and the index's bytes a frame.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zazen.testing
from bench_data import ATOMS, write_xtc

TURNS, OPENINGS = 7, 7
MANY, FEW = 1_000_000, 100
GOAL_PASS, GOAL_BYTES, GOAL_SECONDS, GOAL_MEMORY = 0.9, 3.0, 0.050, 20e6


def without_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clocked(command: list[str], **variables: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, check=True, env=zazen.testing.environment() | variables, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def pass_ratios(path: Path, folder: Path) -> tuple[list[float], list[float]]:
    """The time of reading over that of indexing, by turn; and the seconds of indexing."""
    ratios, seconds = [], []
    index = [zazen.testing.program("zazen"), "index", str(path)]
    for turn in range(TURNS):
        took = {}
        for name in ("cat", "index") if turn % 2 == 0 else ("index", "cat"):
            without_cache(path)
            command = index if name == "index" else ["cat", str(path)]
            state = folder / f"none-{turn}"
            took[name] = clocked(command, XDG_CACHE_HOME=str(state), ZAZEN_SOCKET=str(folder / "nobody"))
        ratios.append(took["cat"] / took["index"])
        seconds.append(took["index"])
    return ratios, seconds


def write_many(path: Path, frames: int) -> None:
    """An XTC of frames of unequal lengths, a few thousand of them again and again."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    rng, kinds = np.random.default_rng(2), 4000
    box = (5 * np.eye(3)).astype(np.float32)
    with XTCFile(str(path), "w") as file:
        for step in range(min(frames, kinds)):
            spread = rng.uniform(0.01, 3)
            file.write(rng.normal(0, spread, (40, 3)).astype(np.float32), box, step, step, 1000.0)
    block = path.read_bytes()
    with path.open("wb") as out:
        for _ in range(max(1, frames // kinds)):
            out.write(block)


#: What a new process does: seconds, bytes of memory, frames.
OPEN = """
import os, sys, time, zazen
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, began = resident(), time.perf_counter()
with zazen.open(sys.argv[1], direct=True) as dataset:
    count = len(dataset)
    assert dataset[count // 2].length > 100
    print(time.perf_counter() - began, resident() - before, count)
"""


def opening(path: Path, cache: Path) -> tuple[float, float, int]:
    command = [sys.executable, "-c", OPEN, str(path)]
    environment = zazen.testing.environment() | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    seconds, memory, count = done.stdout.split()
    return float(seconds), float(memory), int(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bytes", default="1e9", help="size of the trajectory that is indexed (default 1e9)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zz") as name:
        folder = Path(name)
        long, many, few = (folder / f"{name}.xtc" for name in ("long", "many", "few"))
        frames = write_xtc(long, ATOMS, int(float(options.bytes)))
        ratios, seconds = pass_ratios(long, folder)
        long_bytes = long.stat().st_size
        long.unlink()
        write_many(many, MANY)
        write_many(few, FEW)
        cache = folder / "cache"
        assert [opening(path, cache)[2] for path in (few, many)] == [FEW, MANY]
        index_bytes = max(path.stat().st_size for path in cache.rglob("*") if path.is_file())
        turns = [(opening(many, cache), opening(few, cache)) for _ in range(OPENINGS)]
    row = {
        "what": f"an XTC of {long_bytes / 1e9:.2f} GB and {frames} frames; one of {MANY} frames",
        "pass": statistics.median(ratios),
        "pass_spread": [min(ratios), max(ratios)],
        "pass_gb_s": long_bytes / statistics.median(seconds) / 1e9,
        "bytes_a_frame": index_bytes / MANY,
        "open_s": statistics.median(many[0] for many, _ in turns),
        "open_s_spread": [min(many[0] for many, _ in turns), max(many[0] for many, _ in turns)],
        "open_bytes": statistics.median(many[1] - few[1] for many, few in turns),
        "load": os.getloadavg()[0],
    }
    row["good"] = (
        row["pass"] >= GOAL_PASS
        and row["bytes_a_frame"] <= GOAL_BYTES
        and row["open_s"] < GOAL_SECONDS
        and row["open_bytes"] < GOAL_MEMORY
    )
    if options.json:
        print(json.dumps(row))
        return 0
    print(f"{row['what']}; load average {row['load']:.1f}")
    low, high = row["pass_spread"]
    print(
        f"  rate of indexing : reading {row['pass']:.2f} ({low:.2f} … {high:.2f}), {row['pass_gb_s']:.2f} "
        f"GB/s; goal {GOAL_PASS}"
    )
    print(f"  index {row['bytes_a_frame']:.2f} bytes a frame, goal {GOAL_BYTES:.0f}")
    low, high = (1e3 * value for value in row["open_s_spread"])
    print(
        f"  opening a million frames {1e3 * row['open_s']:.1f} ms ({low:.1f} … {high:.1f}), goal "
        f"{1e3 * GOAL_SECONDS:.0f}; memory {row['open_bytes'] / 1e6:.1f} MB, goal {GOAL_MEMORY / 1e6:.0f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
