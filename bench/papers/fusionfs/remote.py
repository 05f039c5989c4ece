"""Reads of whole files that another node holds, against files that this node holds, 1 to 256 MB."""

from __future__ import annotations

import os
import time
from pathlib import Path

import space
from evaluation import Context
from result import Figure, Table, Value

TITLE = "Remote reads: all-local against all-remote"
PAPER = "Remote reads are slower than local ones by a factor that shrinks as files grow."
SETTING = "two nodes on one machine; loopback, page cache warm"


def read(path: Path, size: int) -> float:
    began = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    buffer, got = bytearray(1 << 20), 0
    while count := os.readv(descriptor, [buffer]):
        got += count
    os.close(descriptor)
    if got != size:
        raise ValueError(f"{path}: read {got} of {size} bytes")
    return size / (time.perf_counter() - began) / 1e6


def run(context: Context) -> Figure:
    sizes = [1, 16] if context.quick else [1, 4, 16, 64, 256]
    rows = []
    with space.Space(context.scratch / "two", 2) as two, two.mounted(0) as here, two.mounted(1) as there:
        for megabytes in sizes:
            size = megabytes * 1_000_000
            (here / f"f{megabytes}").write_bytes(os.urandom(size))
            samples: dict[str, list[float]] = {"local": [], "remote": []}
            for turn in range(context.repeats):
                places = [("local", here), ("remote", there)]
                for name, place in places if turn % 2 == 0 else reversed(places):
                    samples[name].append(read(place / f"f{megabytes}", size))
            ratio = [r / l for r, l in zip(samples["remote"], samples["local"], strict=True)]  # noqa: E741
            rows.append([megabytes, Value.of(samples["local"]), Value.of(samples["remote"]), Value.of(ratio)])
            (here / f"f{megabytes}").unlink()
    columns = ["file", "local", "remote", "remote / local"]
    return Figure(
        key="remote",
        title=TITLE,
        paper=PAPER,
        command="open, read in calls of 1 MiB, close; page cache warm; loopback between the nodes",
        tables=[Table("One process", columns, ["MB", "MB/s", "MB/s", ""], rows)],
        limits=["The network is the loopback: both daemons' work counts, the wire does not"],
    )
