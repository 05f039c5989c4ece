#!/usr/bin/env python3
"""What the records of `zazen explain` cost: time of a scan with and without them, and bytes of a
record.

    .venv/bin/python bench/data/explain_cost.py            a table
    .venv/bin/python bench/data/explain_cost.py --json     the same for programs

A warm dataset of small frames is scanned turn by turn with records and without
(`ZAZEN_RECORDS=off`), in alternating order; the ratio of the times. A scan takes longer than 50 ms:
a shorter one leaves no record. So there are as many frames as this machine needs for that. Single
turns differ by more than the goal, because threads share few cores. So there are many (four
minutes), and printed are the median of their ratios, the quarters, and the range that holds the
true median in 95 of 100 runs (from the ratios' order, without further assumptions).
The same is printed for the time that the process had on its cores (user and system, all threads):
records are made by the reading process alone, and others on the machine disturb that time less. The
goal holds if its whole range is below it.
Bytes: the record that a scan without a daemon leaves, over the frames that it read: once of all
frames, and once of frames whose numbers follow no rule, which is the longest record.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import zazen
import zazen.testing

FRAMES, FRAME_BYTES, TURNS, SECONDS_MIN = 16_000, 4096, 1501, 0.06
GOAL_TIME, GOAL_BYTES = 1.01, 64.0


def scan(dataset: zazen.Dataset, frames: int, records: bool) -> tuple[float, float]:
    """Seconds of a scan, and those on cores."""
    os.environ["ZAZEN_RECORDS"] = "on" if records else "off"
    began, on_cores = time.perf_counter(), time.process_time()
    assert sum(frame.length for frame in dataset.frames()) == frames * FRAME_BYTES
    return time.perf_counter() - began, time.process_time() - on_cores


def summary(ratios: list[float]) -> dict[str, object]:
    """The median, the quarters, and the range of the true median."""
    ratios = sorted(ratios)
    count = len(ratios)
    # Of the sorted ratios, those between which the true median lies in 95 of 100 runs.
    beside = math.ceil(0.98 * math.sqrt(count))
    return {
        "median": statistics.median(ratios),
        "quarters": [ratios[count // 4], ratios[count - 1 - count // 4]],
        "median_within": [ratios[count // 2 - beside], ratios[count // 2 + beside]],
    }


def record_bytes(folder: Path, frames: Path) -> float:
    """Bytes of a record over the frames of its scan."""
    os.environ |= {"XDG_STATE_HOME": str(folder / "state"), "ZAZEN_RECORDS": "on"}
    with zazen.open(frames, direct=True) as dataset:
        read = 0
        for _ in dataset.frames(memory=1 << 20):
            read += 1
            # A quick scan of one process leaves no record.
            if read == 1:
                time.sleep(0.06)
    (record,) = (folder / "state/zazen/scans").iterdir()
    size = record.stat().st_size
    record.unlink()
    return size / read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zz") as name:
        folder = Path(name)
        frames = folder / "b" / "sim"
        frames.mkdir(parents=True)
        count = 0
        with zazen.testing.Daemon(folder, frames.parent) as node:
            while True:
                for number in range(count, max(FRAMES, 2 * count)):
                    (frames / f"f-{number}.bin").write_bytes(bytes([number % 251]) * FRAME_BYTES)
                count = max(FRAMES, 2 * count)
                with zazen.open(frames, socket=str(node.socket)) as dataset:
                    warm = [scan(dataset, count, False)[0] for _ in range(10)][1:]
                    if statistics.median(warm) < SECONDS_MIN:
                        continue
                    ratios, of_cores, seconds = [], [], []
                    # Its turns would fall on one scan or the other.
                    gc.disable()
                    for turn in range(TURNS):
                        order = (True, False) if turn % 2 == 0 else (False, True)
                        took = {records: scan(dataset, count, records) for records in order}
                        ratios.append(took[True][0] / took[False][0])
                        of_cores.append(took[True][1] / took[False][1])
                        seconds.append(took[True][0])
                    gc.enable()
                    break
        bytes_of = {"all": record_bytes(folder, frames)}
        for number in random.Random(1).sample(range(count), count // 2):
            (frames / f"f-{number}.bin").unlink()
        bytes_of["irregular"] = record_bytes(folder, frames)
    row = {
        "what": f"{count} warm frames of {FRAME_BYTES} bytes a scan, {TURNS} turns",
        "seconds": statistics.median(seconds),
        "time_ratio": summary(ratios),
        "core_time_ratio": summary(of_cores),
        "bytes_a_frame": bytes_of,
        "load": os.getloadavg()[0],
    }
    row["good"] = (
        row["core_time_ratio"]["median_within"][1] <= GOAL_TIME and max(bytes_of.values()) <= GOAL_BYTES
    )
    if options.json:
        print(json.dumps(row))
        return 0
    print(f"{row['what']}, {1e3 * row['seconds']:.0f} ms each; load average {row['load']:.1f}")
    for what, name in (("time", "time_ratio"), ("time on cores", "core_time_ratio")):
        (low, high), (first, last) = row[name]["median_within"], row[name]["quarters"]
        print(
            f"  {what} with records : without: {row[name]['median']:.4f} (median within {low:.4f} … "
            f"{high:.4f}, quarters {first:.3f} … {last:.3f}), goal {GOAL_TIME}"
        )
    for name, value in bytes_of.items():
        print(f"  record, {name} frames: {value:.2f} bytes a frame, goal {GOAL_BYTES:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
