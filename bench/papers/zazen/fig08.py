"""Figure 8: what is left of the read bandwidth while writers push into the same caches."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import frames
from cluster import HERE, BenchError, Cluster, binary, say, stop
from measure import in_turns
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "Figure 8: read bandwidth while frames are pushed"
PAPER = (
    "With 8 writers pushing 1 GB/s in all into the caches of 100 nodes (10 MB/s each, 4.5 % of what their "
    "disks read), reading keeps more than 90 % of its bandwidth for pushed files of 64 MB to 1 GB and more "
    "than 80 % for 2-MB files."
)
NODES = 2
RANKS = 4
DISK_BYTES_PER_S = 100_000_000
SEEK_S = 0.008
# The paper's share of the disks' bandwidth, and a much higher one.
SHARE, HIGH_SHARE = 10e6 / 225e6, 0.25
# What is read: frame size and count; each lasts longer than the time between two write-backs.
READ = {"8 MB": (8_000_000, 48), "2 MB": (2_000_000, 144), "430 KB": (432_000, 384)}
QUICK_READ = {name: READ[name] for name in ("2 MB", "430 KB")}
NOBODY, HIGH = "no writer", f"2 MB at {100 * HIGH_SHARE:.0f} % of the disks"
# What is pushed: frame size and share of the disks' bandwidth.
WRITERS = {
    NOBODY: None,
    "8 MB": (8_000_000, SHARE),
    "2 MB": (2_000_000, SHARE),
    "430 KB": (432_000, SHARE),
    HIGH: (2_000_000, HIGH_SHARE),
}
WRITE_BACK_S = 2.0
SYNC_FILE_RANGE_WRITE = 2
# Where and on what it is measured, for the page's first table.
SETTING = f"{NODES} nodes, cold caches, emulated disks with a head; a writer pushes frames meanwhile"


def run(context) -> Figure:
    """Reads every dataset once beside each writer, in turns."""
    read = QUICK_READ if context.quick else READ
    folder = context.scratch / "fig08"
    datasets = {name: folder / "server" / f"read-{count}" for name, (_, count) in read.items()}
    for name, (size, count) in read.items():
        frames.make(datasets[name], count, size)
    spindle = {"size": 12 << 30, "bytes_per_s": DISK_BYTES_PER_S, "seek_s": SEEK_S}
    fast = {"link": "10gbit", "server_link": "10gbit", "backing": folder / "server"}
    pushed: dict[str, list[dict]] = {name: [] for name in WRITERS}
    with Cluster(folder, NODES, disk_bytes_per_s=None, readers=1, spindle=spindle, **fast) as cluster:
        for dataset in datasets.values():
            cluster.push(dataset)
        cells = [
            {"do": "read", "cold": True, "ranks": RANKS, "source": str(dataset)}
            for dataset in datasets.values()
        ]

        def measure(name: str) -> list[dict]:
            say(f"fig8: {name}")
            with writing(cluster, WRITERS[name], pushed[name]):
                return cluster.cells(cells)

        samples = in_turns(list(WRITERS), context.repeats, measure)
    return figure(list(read), samples, pushed)


@contextmanager
def writing(cluster: Cluster, what: tuple[int, float] | None, told: list[dict]):
    """A writer on the simulation's host meanwhile; what it pushed is told and evicted
    afterwards."""
    if what is None:
        yield
        return
    size, share = what
    dataset, log = cluster.server_root / "pushed", cluster.folder / "writer.log"
    log.unlink(missing_ok=True)
    writer = cluster.popen(
        "sim", sys.executable, HERE / "writers.py", dataset, "--nodes", cluster.dir / "nodes.txt",
        "--frame-bytes", size, "--bytes-per-s", share * DISK_BYTES_PER_S * NODES, log=log,
    )  # fmt: skip
    done = threading.Event()
    caches = [cluster.node_dir(node) / "cache" / dataset.name for node in cluster.nodes]
    # Files that were written back.
    written: dict[str, int] = {}
    flusher = threading.Thread(target=write_back, args=(caches, written, done))
    flusher.start()
    try:
        # Until it pushes.
        time.sleep(1.0)
        yield
    finally:
        done.set()
        flusher.join()
        cluster.children.remove(writer)
        stop(writer)
    try:
        told.append(json.loads(log.read_text()))
    except ValueError:
        raise BenchError(f"the writer failed: {log.read_text()[-2000:]}") from None
    if len(written) < told[-1]["pushed"] / 2:
        raise BenchError(f"{told[-1]['pushed']} frames were pushed, {len(written)} files written back")
    cluster.run("sim", binary("zazen"), "evict", dataset, "--nodes", cluster.dir / "nodes.txt", "--json")


def write_back(folders: list[Path], handles: dict[str, int], done: threading.Event) -> None:
    """Has each disk write the frames pushed into `folders` as steadily as they come.

    The kernel does so with pages that are 30 s old. The journal and what it protects are left to
    ext4.

    `handles` are the files' descriptors, kept until the end so that each is looked up once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    while not done.wait(WRITE_BACK_S):
        paths = [f"{at}/{name}" for folder in folders for at, _, names in os.walk(folder) for name in names]
        for path in paths:
            if path not in handles:
                handles[path] = os.open(path, os.O_RDONLY)
            if libc.sync_file_range(handles[path], 0, 0, SYNC_FILE_RANGE_WRITE) != 0:
                raise OSError(ctypes.get_errno(), f"sync_file_range {path}")
    for handle in handles.values():
        os.close(handle)


def figure(sizes: list[str], samples: dict[str, list[list[dict]]], pushed: dict[str, list[dict]]) -> Figure:
    """Table, bars and goals."""

    def rates(writer: str, at: int) -> Value:
        return Value.of([cells[at]["bytes"] / cells[at]["seconds"] / 1e6 for cells in samples[writer]])

    def share(writer: str, at: int) -> float:
        return rates(writer, at).median / rates(NOBODY, at).median

    rows = []
    for writer in samples:
        told = pushed[writer]
        rate = Value.of([one["bytes"] / one["seconds"] / 1e6 for one in told]) if told else None
        busy = max(cell["cpu_share"] for cells in samples[writer] for cell in cells)
        values = [
            value for at in range(len(sizes)) for value in (rates(writer, at), round(100 * share(writer, at)))
        ]
        rows.append([writer, rate, *values, round(100 * busy)])
    columns = [
        "pushed",
        "push rate",
        *(word for name in sizes for word in (f"read {name}", "kept")),
        "busiest CPU",
    ]
    units = ["", "MB/s", *["MB/s", "%"] * len(sizes), "%"]
    series = [
        Series(
            writer,
            "ours",
            [f"read {name}" for name in sizes],
            [100 * share(writer, at) for at in range(len(sizes))],
        )
        for writer in samples
    ]
    proportional = [writer for writer in samples if writer not in (NOBODY, HIGH)]
    goals = []
    for writer in proportional:
        worst = min(share(writer, at) for at in range(len(sizes)))
        goals.append(
            Goal(
                f"read bandwidth kept, whatever is read, while {writer} frames are pushed", "≥ 90 %",
                f"{100 * worst:.0f} %", worst >= 0.9,
            )
        )  # fmt: skip
    summaries = []
    for writer, theirs in (("8 MB", "> 90 %"), ("2 MB", "> 80 %")):
        worst = min(share(writer, at) for at in range(len(sizes)))
        what = f"reading while {'large' if writer == '8 MB' else '2-MB'} frames are pushed: bandwidth kept"
        summaries.append(Summary(what, theirs, f"{100 * worst:.0f} %", f"{100 * (1 - SHARE):.0f} %"))
    return Figure(
        "fig8", TITLE, PAPER, "make bench-zazen FIGURES=fig8",
        [Table(f"{NODES} nodes, {RANKS} readers", columns, units, rows)],
        [Plot("fig8", "Share of the bandwidth without a writer", "", "%", series, "bars")],
        goals, summaries,
        limits=[
            f"{NODES} nodes instead of 100, {DISK_BYTES_PER_S / 1e6:.0f} MB/s each; frames are pushed at "
            f"the paper's share of it ({100 * SHARE:.1f} %), in one row at {100 * HIGH_SHARE:.0f} %. 8 MB "
            "stands for 64 MB to 1 GB.",
            "The kernel's limits on disks (control groups, version 1) leave buffered writes out, so that "
            "pushing would cost nothing here. The disks are therefore modelled (spindle.py): written-back "
            f"pages wait for the same arm as reads, with {SEEK_S * 1000:.0f} ms a seek. Frames are written "
            f"back every {WRITE_BACK_S} s, since a run of seconds would end before the kernel begins to; "
            "when the journal and what it protects are written is ext4's own affair (every 5 s and 30 s).",
        ],
    )  # fmt: skip
