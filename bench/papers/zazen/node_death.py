"""Beyond the paper: a node's daemon is killed in the middle of an analysis."""

from __future__ import annotations

import residence_frames
from cluster import Cluster, say
from measure import CPU_BOUND_SHARE, in_turns
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "A node dies in mid-analysis"
PAPER = "Not in the paper, where nodes failed before the job began."
NODES = 2
VICTIM = 1
DISK_BYTES_PER_S = 40_000_000
SERVER_BYTES_PER_S = 20_000_000
UNDISTURBED, DEATH = "undisturbed", "one daemon killed"
# Of its frames, after which the victim's rank kills its daemon.
KILLED_AFTER = 0.25
# Little read-ahead; otherwise all frames would be in memory by then.
MEMORY_BYTES = 2 << 20
# The time that is allowed for detecting that a daemon is gone and using the file server.
PATIENCE_S = 1.0
# Where and on what it is measured, for the page's first table.
SETTING = f"{NODES} nodes, a water residence analysis; one daemon is killed in the middle"


def run(context) -> Figure:
    """The rank on the victim kills its own daemon after a part of its frames."""
    count = 600
    folder = context.scratch / "death"
    dataset = folder / "server" / "water"
    topology = residence_frames.make(dataset, folder / "simulated", count, boxes=1)
    node = f"n{VICTIM}"
    with Cluster(
        folder, NODES, link="1gbit", server_link="160mbit", disk_bytes_per_s=DISK_BYTES_PER_S,
        backing=folder / "server",
    ) as cluster:  # fmt: skip
        cluster.push(dataset)
        cell = {
            "do": "residence", "cold": True, "source": str(dataset), "topology": str(topology),
            "ranks": NODES, "memory": MEMORY_BYTES,
        }  # fmt: skip

        def measure(how: str) -> dict:
            say(f"death: {how}")
            if how == UNDISTURBED:
                return cluster.cells([cell])[0]
            pid = cluster.state()["nodes"][VICTIM]["process"]["pid"]
            kill = {"rank": VICTIM, "pid": pid, "after": round(KILLED_AFTER * count / NODES)}
            try:
                return cluster.cells([cell | {"kill": kill}])[0]
            finally:
                cluster.revive(node)

        samples = in_turns([UNDISTURBED, DEATH], context.repeats, measure)
    return figure(count, samples)


def figure(count: int, samples: dict[str, list[dict]]) -> Figure:
    """Table, bars, goals."""
    seconds = {how: Value.of([one["seconds"] for one in runs]) for how, runs in samples.items()}
    asked = {
        how: Value.of([100 * one["backing_reads"] / one["frames"] for one in runs])
        for how, runs in samples.items()
    }
    results = {how: {one["result"] for one in runs} for how, runs in samples.items()}
    rows = []
    for how, runs in samples.items():
        busy = max(one["cpu_share"] for one in runs)
        mark = "CPU-bound" if busy > CPU_BOUND_SHARE else f"{100 * busy:.0f} %"
        rows.append([how, seconds[how], asked[how], len(results[how]), mark])
    table = Table(
        f"Water residence of {count} frames on {NODES} nodes",
        ["", "run time", "from the file server", "different results", "CPU"],
        ["", "s", "% of frames", "", ""], rows,
    )  # fmt: skip
    extra = seconds[DEATH].median - seconds[UNDISTURBED].median
    volume = samples[DEATH][0]["bytes"]
    from_server = asked[DEATH].median / 100 * volume / SERVER_BYTES_PER_S
    same = len(results[UNDISTURBED] | results[DEATH]) == 1
    goals = [
        Goal("the job ends with the same result", "same", "same" if same else "different", same),
        Goal("extra time, beside that of fetching the dead node's frames from the file server "
             f"({from_server:.2f} s)", f"≤ {from_server + PATIENCE_S:.2f} s", f"{extra:.2f} s",
             extra <= from_server + PATIENCE_S),
    ]  # fmt: skip
    plot = Plot(
        "death", "Run time", "", "s",
        [Series("Zazen", "ours", list(samples), [seconds[how].median for how in samples],
                [seconds[how].low for how in samples], [seconds[how].high for how in samples])],
        "bars",
    )  # fmt: skip
    summary = Summary(
        "a daemon killed in mid-analysis: extra run time", "-",
        f"{extra:.2f} s of {seconds[UNDISTURBED].median:.2f} s, same result" if same else "another result",
        f"{from_server:.2f} s (its frames through the file server's link)",
    )  # fmt: skip
    return Figure(
        "death", TITLE, PAPER, "make bench-zazen FIGURES=death", [table], [plot], goals, [summary],
        limits=[
            "The daemon is killed (SIGKILL), not the machine: the rank beside it lives on. A lost rank is "
            "MPI's affair.",
            "A daemon hands out some hundred open files ahead of use, and an open file survives it: only "
            "the frames after those come from the file server. It is therefore killed after "
            f"{100 * KILLED_AFTER:.0f} % of its rank's {count // NODES} frames (107 KB, one simulated box), "
            f"and the read-ahead gets {MEMORY_BYTES >> 20} MB.",
        ],
    )  # fmt: skip
