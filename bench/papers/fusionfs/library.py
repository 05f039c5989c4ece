"""Operations of the library a second, one client, by durability level and by how many go in a
call."""

from __future__ import annotations

import os
import resource
import subprocess

import space
from evaluation import Context
from result import Figure, Goal, Table, Value

TITLE = "Library: creates and stats a second, one client, one node"
PAPER = "54 thousand creates a second on 1,024 nodes, 53 for each node; HDFS is one to two orders slower."
SETTING = "one client and one daemon share the cores; one node, no replicas"
LEVELS = ("memory", "written", "synced")
GOALS = {
    ("written", "create"): 40_000,
    ("written", "create_many(64)"): 300_000,
    ("synced", "create_many(64)"): 70_000,
}


def run(context: Context) -> Figure:
    count = 1000 if context.quick else 8000
    samples: dict[tuple[str, str], list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for turn in range(context.repeats):
        for level in LEVELS if turn % 2 == 0 else reversed(LEVELS):
            folder = context.scratch / f"{level}{turn}"
            with space.Space(folder, 1, "--namespace-durability", level) as one:
                before = one.cpu_seconds() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                total = 0
                for row in space.rates(one.socket(), "/bench", count if level != "synced" else count // 4):
                    samples.setdefault((level, row["what"]), []).append(row["count"] / row["seconds"])
                    total += row["count"]
                after = one.cpu_seconds() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                cpu.setdefault(level, []).append((after - before) / total * 1e6)
            subprocess.run(["rm", "-rf", folder], check=True)
    whats = list(dict.fromkeys(what for _level, what in samples))
    rows = [[what, *(Value.of(samples[level, what]) for level in LEVELS)] for what in whats]
    rows.append(["CPU for each, client and daemon [µs]", *(Value.of(cpu[level]) for level in LEVELS)])
    goals = []
    for (level, what), wanted in GOALS.items():
        found = Value.of(samples[level, what])
        measured = f"{found.median:,.0f}/s ({found.low:,.0f} … {found.high:,.0f})"
        goals.append(Goal(f"{what}, level {level}", f"≥ {wanted:,}/s", measured, found.median >= wanted))
    return Figure(
        key="library",
        title=TITLE,
        paper=PAPER,
        command="rates SOCKET /bench COUNT, one daemon for each level and repeat",
        tables=[Table("Operations a second", ["operation", *LEVELS], ["", "/s", "/s", "/s"], rows)],
        goals=goals,
        limits=[f"{os.cpu_count()} cores for client and daemon; other work on the machine lowers the rates"],
    )
