#!/usr/bin/env python3
"""What files cost through zazen.fsspec: the store's bytes when cold, time and system calls when
warm.

    .venv/bin/python bench/data/files_cold_warm.py            a table
    .venv/bin/python bench/data/files_cold_warm.py --json     the same for programs

Cold: 8 processes read one file at once, on one node and on four; the file server's own count of
bytes, as a share of the file. Warm: one process reads the file by 1 MiB from front to back, through
the file system and directly (both from the page cache), turn by turn; the ratio of their times, and
CPU time. Small files: 500 of 16 KiB, each by `cat_file`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch_epochs import Testbed

FILE_BYTES, SMALL_BYTES, SMALL_FILES, PROCESSES, TURNS = 64 << 20, 16 << 10, 500, 8, 7
GOAL_ONE_NODE, GOAL_NODES = 1.05, 1.1


def read_all(arguments: tuple[str, str]) -> int:
    """Reads a file through the file system; the number of its bytes that were right."""
    from zazen.fsspec import ZazenFileSystem

    socket, path = arguments
    with ZazenFileSystem(socket=socket, skip_instance_cache=True).open(path) as file:
        return sum(
            piece == bytes([at % 251]) * len(piece)
            for at, piece in enumerate(iter(lambda: file.read(1 << 20), b""))
        )


def clocked(body: Any) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    body()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        from zazen.fsspec import ZazenFileSystem
    except ImportError:
        print("files: not measured, fsspec is not installed (pip install 'zazen[fsspec]')")
        return 0
    row: dict[str, Any] = {"what": f"a file of {FILE_BYTES >> 20} MiB, {PROCESSES} processes"}
    with tempfile.TemporaryDirectory(prefix="zz") as folder, Testbed(Path(folder, "t"), None) as testbed:
        files = Path(folder, "t", "server", "run1")
        files.mkdir(parents=True)
        names = {"one_node": files / "a", "four_nodes": files / "b"}
        for path in names.values():
            path.write_bytes(b"".join(bytes([at % 251]) * (1 << 20) for at in range(FILE_BYTES >> 20)))
        small = [files / f"small{at}" for at in range(SMALL_FILES)]
        for path in small:
            path.write_bytes(os.urandom(SMALL_BYTES))
        time.sleep(0.1)
        hosts = {host["name"]: host for host in testbed.status()["hosts"]}
        sockets = [hosts[f"n{node}"]["socket"] for node in range(4)]
        for (name, path), nodes in zip(names.items(), (1, 4), strict=True):
            before = testbed.status()["server_traffic"]["bytes"]
            with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
                jobs = [(sockets[at % nodes], str(path)) for at in range(PROCESSES)]
                assert pool.map(read_all, jobs, chunksize=1) == [FILE_BYTES >> 20] * PROCESSES
            cost = testbed.status()["server_traffic"]["bytes"] - before
            row[f"cold_{name}_store_share"] = cost / FILE_BYTES
        fs = ZazenFileSystem(socket=sockets[0], skip_instance_cache=True)

        def ours() -> None:
            with fs.open(str(names["one_node"])) as file:
                while file.read(1 << 20):
                    pass

        def direct() -> None:
            with open(names["one_node"], "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass

        def ours_small() -> None:
            for path in small:
                fs.cat_file(str(path))

        def direct_small() -> None:
            for path in small:
                path.read_bytes()

        for name, one, other in (("large", ours, direct), ("small", ours_small, direct_small)):
            one(), other()
            turns = [(clocked(one), clocked(other)) for _ in range(TURNS)]
            ratios = [ours_took[0] / theirs[0] for ours_took, theirs in turns]
            row[f"warm_{name}_time_ratio"] = statistics.median(ratios)
            row[f"warm_{name}_time_ratio_spread"] = [min(ratios), max(ratios)]
            row[f"warm_{name}_cpu_ratio"] = statistics.median(a[1] / max(b[1], 1e-9) for a, b in turns)
            row[f"warm_{name}_seconds"] = statistics.median(a[0] for a, _ in turns)
    row["good"] = (
        row["cold_one_node_store_share"] <= GOAL_ONE_NODE and row["cold_four_nodes_store_share"] <= GOAL_NODES
    )
    if options.json:
        print(json.dumps(row))
        return 0
    print(row["what"])
    print(
        f"  cold, store bytes: {row['cold_one_node_store_share']:.4f} of the file on one node (goal "
        f"{GOAL_ONE_NODE})"
    )
    print(f"                     {row['cold_four_nodes_store_share']:.4f} on four nodes (goal {GOAL_NODES})")
    print(f"  warm, {FILE_BYTES >> 20} MiB by 1 MiB: {row['warm_large_time_ratio']:.2f} times a direct read")
    per_file = row["warm_small_seconds"] / SMALL_FILES * 1e6
    print(
        f"  warm, small files: {row['warm_small_time_ratio']:.1f} times a direct read ({per_file:.0f} µs a "
        "file)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
