#!/usr/bin/env python3
"""Cold frames from several disks of one node, against what these disks give together.

    .venv/bin/python bench/data/several_disks.py            a table
    .venv/bin/python bench/data/several_disks.py --json     the same for programs

Root only. Each disk is a model: a block device in memory that gives so many bytes per second, with
ext4 on it (`bench/papers/zazen/spindle.py`). The disks are slow, so that neither this machine's own
disk nor its cores are what is measured. In turn, with cold page caches: one plain reader for each
disk, all at once, reads the cached files front to back; and one reader of the dataset, through the
daemon, reads all frames. The goal is 95 % of the plain readers' sum.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import zazen
import zazen.testing

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench/papers/zazen"), str(ROOT / "bench/papers/common")]
from measure import drop_caches  # noqa: E402
from spindle import Spindle  # noqa: E402

BYTES_PER_S, TURNS, GOAL = 40e6, 7, 0.95
#: What is read: bytes of a frame, and frames on each disk.
ROWS = {"8 MB": (8 << 20, 10), "430 KB": (430_000, 150)}
PIECE = 1 << 20


def plain(disks: list[Path]) -> float:
    """The sum of the rates of one reader for each disk, all at once, in bytes/s."""
    rates = [0.0] * len(disks)

    def read(at: int) -> None:
        files = [file for file in sorted(disks[at].rglob("*.bin")) if file.is_file()]
        count, begin = 0, time.perf_counter()
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while data := opened.read(PIECE):
                    count += len(data)
        rates[at] = count / (time.perf_counter() - begin)

    readers = [threading.Thread(target=read, args=(at,)) for at in range(len(disks))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return sum(rates)


def through_zazen(dataset: Path, socket: Path, total: int) -> float:
    """The rate of one reader of all frames, in bytes/s."""
    begin = time.perf_counter()
    with zazen.open(str(dataset), socket=str(socket)) as opened:
        frames = opened.frames()
        assert sum(frame.length for frame in frames) == total
        took = time.perf_counter() - begin
        assert frames.stats.backing_reads == 0, frames.stats
    return total / took


def measure(name: str, count: int, folder: Path) -> dict[str, object]:
    frame_bytes, each = ROWS[name]
    frames = each * count
    sources = folder / "sources/run"
    sources.mkdir(parents=True)
    data = os.urandom(frame_bytes)
    for number in range(frames):
        (sources / f"f{number:05}.bin").write_bytes(data)
    # Sources of a moment ago could still change without a sign.
    time.sleep(0.1)
    ratios, sums = [], []
    with contextlib.ExitStack() as stack:
        caches = []
        for at in range(count):
            size = frame_bytes * each * 2 + (64 << 20)
            disk = Spindle(
                folder / f"disk{at}", folder / f"mount{at}", size=size, bytes_per_s=BYTES_PER_S, seek_s=0
            )
            caches.append(stack.enter_context(disk).mountpoint / "cache")
        told = [word for cache in caches[1:] for word in ("--cache", cache)]
        node = zazen.testing.Daemon(folder, folder / "sources", told, cache=caches[0])
        stack.enter_context(node)
        with zazen.open(str(sources), socket=str(node.socket)) as opened:
            assert sum(1 for _ in opened.frames()) == frames
        os.sync()
        for turn in range(TURNS):
            both = [lambda: plain(caches), lambda: through_zazen(sources, node.socket, frames * frame_bytes)]
            rates = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                drop_caches()
                rates[which] = both[which]()
            ratios.append(rates[1] / rates[0])
            sums.append(rates[0])
    ratios.sort()
    return {
        "what": f"{frames} frames of {name} on {count} disks",
        "sum_mb_per_s": statistics.median(sums) / 1e6,
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--disks", type=int, default=3)
    parser.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("modelled disks need root")
    rows = []
    for name in options.rows:
        with tempfile.TemporaryDirectory(prefix="zd-", dir="/dev/shm") as folder:
            rows.append(measure(name, options.disks, Path(folder)))
    if options.json:
        print(json.dumps({"rows": rows, "load": os.getloadavg()[0]}))
        return 0
    print(f"load average {os.getloadavg()[0]:.1f}; {TURNS} turns each")
    for row in rows:
        low, high = row["spread"]
        print(
            f"{row['what']}: the disks give {row['sum_mb_per_s']:.0f} MB/s; through Zazen "
            f"{row['ratio']:.2f} of it ({low:.2f} .. {high:.2f}); goal {GOAL}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
