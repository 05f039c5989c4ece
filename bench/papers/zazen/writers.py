#!/usr/bin/env python3
"""Pushes frames into the caches at a steady rate until it is told to end (SIGTERM); then prints its
counters.

Like a simulation, it uses `zazen.Writer`, which does not wait. Frames that the caches do not take
in time are skipped and counted.

    writers.py DATASET --nodes nodes.txt --frame-bytes 2000000 --bytes-per-s 9e6
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import zazen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--frame-bytes", type=int, required=True)
    parser.add_argument("--bytes-per-s", type=float, required=True)
    arguments = parser.parse_args()
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    arguments.dataset.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(1).integers(0, 256, size=arguments.frame_bytes, dtype=np.uint8)
    interval = arguments.frame_bytes / arguments.bytes_per_s
    began, number = time.monotonic(), 0
    with zazen.Writer(arguments.dataset, arguments.nodes, pattern="frame{n:09}") as writer:
        while not end.wait(max(0.0, began + number * interval - time.monotonic())):
            data[:8] = np.frombuffer(number.to_bytes(8, "little"), dtype=np.uint8)
            writer.push(number, data)
            number += 1
        seconds = time.monotonic() - began
    counters = writer.counters
    print(
        json.dumps(
            {"seconds": seconds, "frames": number, "pushed": counters.pushed, "bytes": counters.bytes_pushed}
        )
    )


if __name__ == "__main__":
    main()
