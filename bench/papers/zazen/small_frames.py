"""Beyond the paper: frames of 4 KB and 64 KB, which Zazen packs into segments."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import frames
from cluster import Cluster, say
from measure import CPU_BOUND_SHARE, in_turns
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "Small frames: 4 KB and 64 KB"
PAPER = "Not in the paper, whose smallest frames have 430 KB."
# Frame size and count.
DATASETS = {"4 KB": (4_096, 32_768), "64 KB": (65_536, 2_048)}
QUICK_DATASETS = {"4 KB": (4_096, 8_192), "64 KB": (65_536, 512)}
DISK_BYTES_PER_S = 80_000_000
THROTTLED, OPEN = f"disk of {DISK_BYTES_PER_S // 10**6} MB/s", "the machine's own disk"
TRUSTING = "own disk, sources not compared"
# Limits of the disk; whether daemons hand frames out without a look at their sources.
DISKS = {THROTTLED: (DISK_BYTES_PER_S, False), OPEN: (None, False), TRUSTING: (None, True)}
SHORT = {THROTTLED: "throttled", OPEN: "own disk", TRUSTING: "not compared"}
ZAZEN, PLAIN, WHOLE = "Zazen", "plain files", "one sequential file"
THREADS = 8
# Where and on what it is measured, for the page's first table.
SETTING = "one node, one reader, cold cache"


def run(context) -> Figure:
    """One node, one reader; systems in turns."""
    sizes = QUICK_DATASETS if context.quick else DATASETS
    folder = context.scratch / "small"
    datasets = {name: folder / "server" / name.replace(" ", "") for name in sizes}
    for name, (size, count) in sizes.items():
        frames.make(datasets[name], count, size)
    samples: dict[tuple, list] = {}
    for disk, (limit, trust) in DISKS.items():
        fast = {"link": "10gbit", "server_link": "10gbit", "backing": folder / "server"}
        with Cluster(folder, 1, disk_bytes_per_s=limit, trust_copies=trust, **fast) as cluster:
            sources = {name: plain_copies(cluster, name, dataset) for name, dataset in datasets.items()}
            for dataset in datasets.values():
                cluster.push(dataset)

            measure = partial(measure_system, cluster, disk, datasets, sources)
            for system, passes in in_turns([ZAZEN, PLAIN, WHOLE], context.repeats, measure).items():
                for at, name in enumerate(sizes):
                    samples[disk, name, system] = [cells[at] for cells in passes]
    return figure(list(sizes), samples)


def measure_system(cluster: Cluster, disk: str, datasets: dict, sources: dict, system: str) -> list[dict]:
    """All sizes, each cold."""
    say(f"small: {disk}: {system}")
    one = {"cold": True, "ranks": 1}
    if system == ZAZEN:
        return cluster.cells([one | {"do": "read", "source": str(dataset)} for dataset in datasets.values()])
    files = one | {"do": "files", "threads": THREADS if system == PLAIN else 1}
    return cluster.cells([files | {"source": sources[name][system]} for name in datasets])


def plain_copies(cluster: Cluster, name: str, dataset: Path) -> dict[str, str]:
    """The frames as files and as one file, on the node's disk; lists of paths for cells.py."""
    folder = cluster.node_dir("n0") / f"plain-{dataset.name}"
    shutil.copytree(dataset, folder / "files")
    paths = sorted((folder / "files").iterdir())
    whole = folder / "whole"
    with whole.open("wb") as out:
        for path in paths:
            out.write(path.read_bytes())
    frames.write_back(folder)
    lists = {PLAIN: folder / "plain.txt", WHOLE: folder / "whole.txt"}
    lists[PLAIN].write_text("".join(f"{path}\n" for path in paths))
    lists[WHOLE].write_text(f"{whole}\n")
    return {system: str(file) for system, file in lists.items()}


def figure(sizes: list[str], samples: dict[tuple, list[dict]]) -> Figure:
    """Table, bars, goals."""

    def rate(*key: object) -> Value:
        return Value.of([cell["bytes"] / cell["seconds"] / 1e6 for cell in samples[key]])

    def share(disk: str, name: str) -> float:
        return rate(disk, name, ZAZEN).median / rate(disk, name, WHOLE).median

    systems = [ZAZEN, PLAIN, WHOLE]
    rows, goals, bound = [], [], set()
    for disk in DISKS:
        for name in sizes:
            busy = [max(cell["cpu_share"] for cell in samples[disk, name, system]) for system in systems]
            if busy[0] > CPU_BOUND_SHARE:
                bound.add((disk, name))
            values = [rate(disk, name, system) for system in systems]
            marks = ["CPU-bound" if one > CPU_BOUND_SHARE else f"{100 * one:.0f} %" for one in busy]
            rows.append([f"{name}, {disk}", *values, round(100 * share(disk, name)), " / ".join(marks)])
            goals.append(
                Goal(
                    f"{name}, cold, {disk}: Zazen, of one sequential file", "≥ 80 %",
                    f"{100 * share(disk, name):.0f} %", share(disk, name) >= 0.8,
                    "the processor was the limit" if (disk, name) in bound else "",
                )
            )  # fmt: skip
    table = Table(
        "Cold reads by one process on one node",
        ["frames, disk", *systems, "Zazen : sequential", "CPU of each"],
        ["", "MB/s", "MB/s", "MB/s", "%", ""], rows,
        [
            f"Plain files: {THREADS} threads, a file each; sequential: one thread, 8 MB at a time, no "
            "frames handed out.",
        ],
    )  # fmt: skip
    names = [f"{name}, {SHORT[disk]}" for disk in DISKS for name in sizes]
    kinds = {ZAZEN: "ours", PLAIN: "peer", WHOLE: "ceiling"}
    plot = Plot(
        "small", "Small frames, cold, of one sequential file", "", "%",
        [
            Series(system, kinds[system], names, [
                100 * rate(disk, name, system).median / rate(disk, name, WHOLE).median
                for disk in DISKS for name in sizes
            ])
            for system in systems
        ],
        "bars",
    )  # fmt: skip
    first = sizes[0]
    summary = Summary(
        f"{first} frames, cold, of one sequential file", "-",
        f"{100 * share(THROTTLED, first):.0f} % throttled, {100 * share(OPEN, first):.0f} % on the own disk, "
        f"{100 * share(TRUSTING, first):.0f} % without a look at each source "
        f"(plain files {100 * rate(OPEN, first, PLAIN).median / rate(OPEN, first, WHOLE).median:.0f} %)",
        "100 %",
    )  # fmt: skip
    return Figure(
        "small", TITLE, PAPER, "make bench-zazen FIGURES=small", [table], [plot], goals, [summary],
        limits=[
            "On the machine's own disk, of more than 1 GB/s, the daemon's look at the source of each 4-KB "
            "frame (decision 2), not the disk, is the greater part; `make bench BENCH='--only small,checks'` "
            "tells them apart. The throttled rows show the disk's side. “Sources not compared” is the "
            "paper's own behaviour (`validate = \"never\"`)."
        ],
    )  # fmt: skip
