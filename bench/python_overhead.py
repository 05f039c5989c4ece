#!/usr/bin/env python3
"""What a frame costs more in Python than in C: the same warm frames, read by both, turn by turn.

    .venv/bin/python bench/python_overhead.py            a table
    .venv/bin/python bench/python_overhead.py --json     the same for programs

A daemon of its own holds 4 KiB and 64 KiB frames, all in the page cache. Each turn starts a fresh
process per reader, which reads the dataset once to warm up and once on the clock: a C program over
zazen.h, and Python loops that

    bare     take the frame and nothing of it:      for frame in frames: pass
    unpack   take number, bytes and path:           for number, data, path in frames: total += len(data)
    numpy    make an array, without a copy:         numpy.frombuffer(frame.data, numpy.uint8)

Printed per frame: wall and CPU time of the process with all its threads, median and (smallest …
largest) over the turns; and by how much Python's exceeds that of the C run of the same turn. The
goal, 20 µs of CPU and of time, is judged by the medians of those differences. Needs a C compiler
($CC, cc) and an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zazen
import zazen.testing

GOAL_US = 20.0
LOOPS = ("bare", "unpack", "numpy")
#: (bytes of a frame, frames)
SIZES = ((4 << 10, 20_000), (64 << 10, 4_000))

C_READER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "zazen.h"

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(int32_t status) {
    if (status != ZAZEN_OK) {
        fprintf(stderr, "%s: %s\n", zazen_strerror(status), zazen_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    for (int pass = 0; pass < 2; pass++) {
        zazen_dataset_t *dataset;
        zazen_open_options_t options = {.struct_size = sizeof options, .socket = argv[2]};
        zazen_assignment_t assignment = {.struct_size = sizeof assignment};
        zazen_runset_t *mine;
        zazen_frames_t *frames;
        zazen_frame_t *frame;
        unsigned long long count = 0, bytes = 0;
        check(zazen_open(argv[1], &options, &dataset));
        check(zazen_assign(dataset, NULL, NULL, NULL, &assignment, &mine));
        double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        check(zazen_frames(dataset, mine, NULL, &frames));
        for (check(zazen_next(frames, &frame)); frame; check(zazen_next(frames, &frame))) {
            count += 1;
            bytes += zazen_frame_bytes(frame);
            zazen_frame_free(frame);
        }
        wall = now(CLOCK_MONOTONIC) - wall;
        cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        zazen_frames_close(frames);
        zazen_runset_free(mine);
        zazen_close(dataset);
        if (pass == 1)
            printf("{\"frames\": %llu, \"bytes\": %llu, \"wall_s\": %.9f, \"cpu_s\": %.9f}\n",
                   count, bytes, wall, cpu);
    }
    return 0;
}
"""


def read(path: str, socket: str, loop: str) -> dict[str, float]:
    """One pass of a Python loop, timed as the C reader times its own."""
    import numpy

    frombuffer, uint8 = numpy.frombuffer, numpy.uint8
    with zazen.open(path, socket=socket) as dataset:
        extent = dataset.extent()
        first, last = extent.first, extent.last
        # As in C, the extent is known before the clock starts. Here the assignment is
        # a part of frames(), some tens of microseconds in all.
        total = 0
        wall, cpu = time.perf_counter(), time.process_time()
        frames = dataset.frames(first, last)
        if loop == "bare":
            for _frame in frames:
                pass
        elif loop == "unpack":
            for _number, data, _path in frames:
                total += len(data)
        else:
            for frame in frames:
                total += frombuffer(frame.data, uint8).size
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert loop == "bare" or total == frames.stats.bytes
        return {"frames": len(frames), "bytes": frames.stats.bytes, "wall_s": wall, "cpu_s": cpu}


def place(folder: Path, nbytes: int, count: int) -> Path:
    dataset = folder / "backing" / f"frames-{nbytes}"
    dataset.mkdir(parents=True)
    body = os.urandom(nbytes)
    for number in range(count):
        (dataset / f"frame-{number:07}.bin").write_bytes(number.to_bytes(8, "little") + body[8:])
    return dataset


def compile_reader(folder: Path) -> Path:
    source, program = folder / "reader.c", folder / "reader"
    source.write_text(C_READER)
    library = zazen.get_library()
    command = [
        os.environ.get("CC", "cc"),
        "-O2",
        "-std=gnu11",
        f"-I{zazen.get_include()}",
        str(source),
        library,
    ]
    command += [f"-Wl,-rpath,{Path(library).parent}", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def turn(command: list[str], nbytes: int, count: int) -> dict[str, float]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert (row["frames"], row["bytes"]) == (count, nbytes * count), (row, done.stderr)
    return {"wall_us": row["wall_s"] / count * 1e6, "cpu_us": row["cpu_s"] / count * 1e6}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(folder: Path, repeats: int, scale: float) -> list[dict[str, Any]]:
    program = compile_reader(folder)
    rows: list[dict[str, Any]] = []
    sizes = [(nbytes, max(100, int(count * scale))) for nbytes, count in SIZES]
    datasets = [place(folder, nbytes, count) for nbytes, count in sizes]
    with zazen.testing.Cluster(folder / "c", folder / "backing") as cluster:
        socket = cluster.sockets[0]
        for (nbytes, count), dataset in zip(sizes, datasets, strict=True):
            # A first reading brings the frames into the cache.
            with zazen.open(dataset, socket=socket) as opened:
                assert sum(1 for _ in opened.frames()) == count
            readers = {"c": [str(program), str(dataset), socket]}
            for loop in LOOPS:
                readers[loop] = [sys.executable, __file__, "--reader", loop, str(dataset), socket]
            turns: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
            for number in range(repeats):
                # Every other turn in reverse order, against drift.
                for name in list(readers)[:: 1 if number % 2 == 0 else -1]:
                    turns[name].append(turn(readers[name], nbytes, count))
            for name in readers:
                row: dict[str, Any] = {"reader": name, "frame_bytes": nbytes, "frames": count}
                for unit in ("wall_us", "cpu_us"):
                    row[unit] = spread([one[unit] for one in turns[name]])
                    more = [one[unit] - c[unit] for one, c in zip(turns[name], turns["c"], strict=True)]
                    row[f"above_c_{unit}"] = None if name == "c" else spread(more)
                rows.append(row)
    return rows


def above_c(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the slowest loop takes above C, over all sizes."""
    worst = {"cpu_us": 0.0, "wall_us": 0.0}
    for nbytes, _ in SIZES:
        _, *loops = (row for row in rows if row["frame_bytes"] == nbytes)
        for row in loops:
            for unit in worst:
                worst[unit] = max(worst[unit], row[f"above_c_{unit}"]["median"])
    return worst


def table(rows: list[dict[str, Any]]) -> str:
    def show(cell: object) -> str:
        if not isinstance(cell, dict):
            return f"{'':24}"
        return f"{cell['median']:7.2f} ({cell['min']:6.2f} … {cell['max']:6.2f})"

    lines = ["µs a frame, median (smallest … largest)"]
    head = ("wall", "CPU", "wall above C", "CPU above C")
    lines.append(f"{'bytes':>6} {'reader':7} " + " ".join(f"{name:>24}" for name in head))
    for row in rows:
        cells = (row["wall_us"], row["cpu_us"], row["above_c_wall_us"], row["above_c_cpu_us"])
        lines.append(f"{row['frame_bytes']:>6} {row['reader']:7} " + " ".join(map(show, cells)))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=7, help="turns per reader (default 7; below 5 it says little)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the frames (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--dir", type=Path, help="where to put frames and cache (default: a temporary folder)"
    )
    parser.add_argument("--reader", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.reader:
        loop, path, socket = asked.reader
        read(path, socket, loop)
        print(json.dumps(read(path, socket, loop)))
        return 0
    with tempfile.TemporaryDirectory(prefix="z", dir=asked.dir) as folder:
        rows = measure(Path(folder), max(1, asked.repeats), asked.scale)
    above = above_c(rows)
    held = max(above.values()) <= GOAL_US
    if asked.json:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
        print(
            json.dumps(
                {"goal_us": GOAL_US, "held": held, **above, "machine": machine, "rows": rows}, indent=1
            )
        )
    else:
        print(table(rows))
        told = f"at most {above['cpu_us']:.1f} µs of CPU and {above['wall_us']:.1f} µs of time above C"
        print(f"{told} (goal: {GOAL_US:.0f}): {'held' if held else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
