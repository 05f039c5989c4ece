"""Figure 9: the water residence analysis from memory, from Zazen and from the file server."""

from __future__ import annotations

import residence_frames
from cluster import Cluster, say
from measure import CPU_BOUND_SHARE, cores
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "Figure 9: water residence, end to end"
PAPER = (
    "2.5 million 430-KB frames on 100 nodes, 1 to 8 processes each: read from memory and from Zazen the "
    "analysis speeds up with the processes, Zazen close behind memory; from NFS it stays flat. At 8 "
    "processes per node Zazen is 10 times as fast as NFS."
)
NODES = 2
PROCESSES = [1, 2, 4, 8]
DISK_BYTES_PER_S = 40_000_000
# The paper's file server gave a eleventh of what the caches did for these frames.
SERVER_LINK, SERVER_BYTES_PER_S = "60mbit", 7_500_000
MEMORY, ZAZEN, SERVER = "memory", "Zazen", "file server"
# Where and on what it is measured, for the page's first table.
SETTING = f"{NODES} nodes, a water residence analysis of simulated frames; file server's link {SERVER_LINK}"


def run(context) -> Figure:
    """One MPI job for everything: interpreters and libraries start once."""
    count = 48 if context.quick else 96
    processes = [1, 4] if context.quick else PROCESSES
    folder = context.scratch / "fig09"
    dataset = folder / "server" / "water"
    topology = residence_frames.make(dataset, folder / "simulated", count)
    with Cluster(
        folder, NODES, link="1gbit", server_link=SERVER_LINK, disk_bytes_per_s=DISK_BYTES_PER_S,
        backing=folder / "server",
    ) as cluster:  # fmt: skip
        cluster.push(dataset)
        cells, keys = [], []
        for turn in range(context.repeats):
            for each in processes if turn % 2 == 0 else reversed(processes):
                one = {
                    "do": "residence",
                    "source": str(dataset),
                    "topology": str(topology),
                    "ranks": each * NODES,
                }
                # In a row: from cold disks, again, and a third time from memory.
                cells += [one | {"cold": True}, one, one, one | {"cold": True, "direct": True}]
                keys += [(ZAZEN, each), None, (MEMORY, each), (SERVER, each)]
        say(f"fig9: {len(cells)} runs")
        results = cluster.cells(cells)
    samples: dict[tuple, list[dict]] = {}
    for key, result in zip(keys, results, strict=True):
        samples.setdefault(key, []).append(result)
    return figure(count, processes, samples, {result["result"] for result in results})


def figure(count: int, processes: list[int], samples: dict, results: set[str]) -> Figure:
    """Table, lines, goals."""
    seconds = {key: Value.of([one["seconds"] for one in runs]) for key, runs in samples.items() if key}
    rows = []
    for each in processes:
        busy = [max(one["cpu_share"] for one in samples[system, each]) for system in (MEMORY, ZAZEN, SERVER)]
        rows.append([
            each, *(seconds[system, each] for system in (MEMORY, ZAZEN, SERVER)),
            round(seconds[ZAZEN, each].median / seconds[MEMORY, each].median, 2),
            round(seconds[SERVER, each].median / seconds[ZAZEN, each].median, 1),
            " / ".join("CPU-bound" if one > CPU_BOUND_SHARE else f"{100 * one:.0f} %" for one in busy),
        ])  # fmt: skip
    volume = Value.of([one["bytes"] for one in samples[ZAZEN, processes[0]]]).median
    table = Table(
        f"{count} frames, {volume / 1e6:.0f} MB, on {NODES} nodes",
        ["processes per node", MEMORY, ZAZEN, SERVER, "Zazen : memory", "server : Zazen", "CPU of each"],
        ["", "s", "s", "s", "", "", ""], rows,
        [f"By links and disks alone: file server {volume / SERVER_BYTES_PER_S:.1f} s, Zazen "
         f"{volume / DISK_BYTES_PER_S / NODES:.1f} s."],
    )  # fmt: skip
    kinds = {MEMORY: "ceiling", ZAZEN: "ours", SERVER: "peer"}
    series = []
    for system, kind in kinds.items():
        values = [seconds[system, each] for each in processes]
        series.append(
            Series(system, kind, list(processes), [value.median for value in values],
                   [value.low for value in values], [value.high for value in values])
        )  # fmt: skip
    most = processes[-1]
    memory, zazen, server = (seconds[system, most].median for system in (MEMORY, ZAZEN, SERVER))
    limit = volume / SERVER_BYTES_PER_S / max(memory, volume / DISK_BYTES_PER_S / NODES)
    slower, faster = zazen / memory, server / zazen
    goals = [
        Goal(f"{most} processes per node: Zazen : memory", "≤ 1.3", f"{slower:.2f}", slower <= 1.3),
        Goal(f"{most} processes per node: file server : Zazen", "≥ 3", f"{faster:.1f}", faster >= 3),
        Goal("the result is the same from all three", "same", "same" if len(results) == 1 else "different",
             len(results) == 1),
    ]  # fmt: skip
    summaries = [
        Summary(f"water residence, {most} processes per node: file server : Zazen", "10 (8 processes)",
                f"{faster:.1f}", f"{limit:.1f}"),
        Summary(f"water residence, {most} processes per node: Zazen : memory", "close to 1",
                f"{slower:.2f}", "1"),
    ]  # fmt: skip
    return Figure(
        "fig9", TITLE, PAPER, "make bench-zazen FIGURES=fig9", [table],
        [Plot("fig9", "Run time", "processes per node", "s", series, y_log=True)], goals, summaries,
        limits=[
            f"All nodes together have {cores()} cores: from memory the analysis speeds up to {cores()} "
            "processes in all and no further. The paper's nodes had 8 cores each.",
            "Time from opening the dataset to the finished time series; interpreters and libraries are "
            "loaded before, which hours of 2.5 million frames would not show.",
            "Frames are four boxes of a real simulation side by side (426 KB, residence_frames.py). From "
            "memory: through Zazen a third time in a row, from the page cache, as in the paper.",
        ],
    )  # fmt: skip
