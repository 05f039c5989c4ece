"""Creates through a mount, and reads and writes of local files against the file system below."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from pathlib import Path

import space
from evaluation import Context
from result import Figure, Goal, Table, Value

TITLE = "Mount: creates a second, and passthrough against the local file system"
PAPER = "FusionFS's client is FUSE; its throughput is that of the local disk less FUSE's cost."
SETTING = "one process, one node; the disk's own file system is the peer"
BLOCK = 1 << 20


def creates(folder: Path, count: int) -> float:
    folder.mkdir()
    paths = [str(folder / f"f{number}") for number in range(count)]
    began = time.perf_counter()
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    rate = count / (time.perf_counter() - began)
    shutil.rmtree(folder)
    return rate


def throughput(folder: Path, size: int) -> tuple[float, float]:
    """Bytes a second that are rewritten and read, in the page cache."""
    block, path = mmap.mmap(-1, BLOCK), folder / "data"
    block.write(os.urandom(BLOCK))
    view = memoryview(block)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    for _ in range(size // BLOCK):
        os.write(descriptor, view)
    best = []
    for call in (lambda at: os.pwrite(descriptor, view, at), lambda at: os.preadv(descriptor, [view], at)):
        began = time.perf_counter()
        for at in range(0, size, BLOCK):
            call(at)
        best.append(size / (time.perf_counter() - began))
    os.close(descriptor)
    path.unlink()
    return best[0], best[1]


def run(context: Context) -> Figure:
    count, size = (500, 64 << 20) if context.quick else (4000, 512 << 20)
    samples: dict[tuple[str, str], list[float]] = {}
    with space.Space(context.scratch / "one") as one, one.mounted() as mount:
        plain = context.scratch / "plain"
        plain.mkdir()
        places = {"mount": mount, "plain directory": plain}
        for turn in range(context.repeats):
            for name in places if turn % 2 == 0 else reversed(places):
                samples.setdefault((name, "creates"), []).append(creates(places[name] / "many", count))
                write, read = throughput(places[name], size)
                samples.setdefault((name, "write"), []).append(write / 1e6)
                samples.setdefault((name, "read"), []).append(read / 1e6)
    whats = [("creates", "/s"), ("write", "MB/s"), ("read", "MB/s")]
    rows = []
    ratios = {}
    for what, unit in whats:
        ours, theirs = samples["mount", what], samples["plain directory", what]
        ratios[what] = Value.of([our / their for our, their in zip(ours, theirs, strict=True)])
        rows.append([f"{what} [{unit}]", Value.of(ours), Value.of(theirs), ratios[what]])
    made = Value.of(samples["mount", "creates"])
    goals = [
        Goal("creates through the mount", "≥ 15,000/s", f"{made.median:,.0f}/s", made.median >= 15_000),
        *(
            Goal(f"passthrough {what}", "≥ 90 %", f"{ratios[what].median:.0%}", ratios[what].median >= 0.9)
            for what in ("write", "read")
        ),
    ]
    columns = ["", "mount", "plain directory", "ratio"]
    return Figure(
        key="mount",
        title=TITLE,
        paper=PAPER,
        command="open(O_CREAT|O_EXCL) and close in one directory; "
        "pwrite and preadv of 1 MiB, in the page cache",
        tables=[Table("One process", columns, ["", "", "", ""], rows)],
        goals=goals,
        skipped=["NFS, GlusterFS, MooseFS, OrangeFS, BeeGFS, HDFS, JuiceFS: not yet measured here"],
    )
