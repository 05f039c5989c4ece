"""Beyond the paper: a dataset larger than the cache, scanned again and again, against LRU."""

from __future__ import annotations

from collections import OrderedDict

import frames
from cluster import Cluster, say
from measure import CPU_BOUND_SHARE
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "A dataset larger than the cache, scanned again and again"
PAPER = "Not in the paper, whose caches hold all that is analysed."
NODES = 2
SCANS = 3
FRAME_BYTES = 432_000
# Of the dataset that fits into all caches together.
BUDGET_SHARE = 0.6
SERVER_LINK = "400mbit"
# Where and on what it is measured, for the page's first table.
SETTING = f"{NODES} nodes whose caches together hold {100 * BUDGET_SHARE:.0f} % of the dataset"


def run(context) -> Figure:
    """Fresh, empty caches in each repeat; the scans within it follow each other."""
    count = 160 if context.quick else 320
    folder = context.scratch / "scan"
    dataset = folder / "server" / "frames"
    frames.make(dataset, count, FRAME_BYTES)
    budget = round(BUDGET_SHARE * count * FRAME_BYTES / NODES)
    scans = []
    for repeat in range(context.repeats):
        say(f"scan: repeat {repeat + 1}")
        with Cluster(
            folder,
            NODES,
            link="1gbit",
            server_link=SERVER_LINK,
            backing=folder / "server",
            budget=str(budget),
        ) as cluster:
            cell = {"do": "read", "cold": True, "ranks": NODES, "source": str(dataset), "numbers": True}
            scans.append(cluster.cells([cell] * SCANS))
    return figure(count, budget, scans)


def lru_hits(scans: list[list[list[int]]], capacity: int) -> list[float]:
    """Hit share of each scan, on caches of `capacity` frames each; `scans[scan][node]`: frame
    numbers."""
    caches: list[OrderedDict] = [OrderedDict() for _ in scans[0]]
    shares = []
    for scan in scans:
        hits = 0
        for cache, numbers in zip(caches, scan, strict=True):
            for number in numbers:
                if number in cache:
                    cache.move_to_end(number)
                    hits += 1
                    continue
                cache[number] = True
                if len(cache) > capacity:
                    cache.popitem(last=False)
        shares.append(hits / sum(map(len, scan)))
    return shares


def figure(count: int, budget: int, repeats: list[list[dict]]) -> Figure:
    """Hit shares by scan."""
    capacity = budget // FRAME_BYTES
    ours = [Value.of([one[at]["local"] / one[at]["frames"] for one in repeats]) for at in range(SCANS)]
    in_order = [list(range(node, count, NODES)) for node in range(NODES)]
    cyclic = lru_hits([in_order] * SCANS, capacity)
    same = [lru_hits([scan["numbers"] for scan in one], capacity) for one in repeats]
    kind = Value.of([one[-1] for one in same])
    best = capacity * NODES / count
    rows = []
    for at in range(SCANS):
        cells = [one[at] for one in repeats]
        busy = max(cell["cpu_share"] for cell in cells)
        rows.append([
            f"scan {at + 1}", percent(ours[at]), round(100 * cyclic[at], 1),
            percent(Value.of([one[at] for one in same])), round(100 * best if at else 0, 1),
            Value.of([cell["seconds"] for cell in cells]), round(100 * busy),
        ])  # fmt: skip
    table = Table(
        f"{count} frames, caches for {capacity * NODES} of them",
        ["", "Zazen", "LRU, frames in order", "LRU, Zazen's order", "best possible", "Zazen's time", "CPU"],
        ["", "% hits", "% hits", "% hits", "% hits", "s", "%"], rows,
        [
            "LRU is simulated: on frames dealt out in order and scanned in that order, as a file system's "
            "cache would see it, and on the frames that each node got from Zazen, in that order (hits "
            "first).",
            f"CPU above {100 * CPU_BOUND_SHARE:.0f} %: the time, not the hit share, says more about the "
            "processor.",
        ],
    )  # fmt: skip
    x = [f"scan {at + 1}" for at in range(SCANS)]
    plot = Plot(
        "scan", "Frames found in the caches", "", "%",
        [
            Series("Zazen", "ours", x, [100 * value.median for value in ours]),
            Series("LRU, frames in order (simulated)", "model", x, [100 * share for share in cyclic]),
            Series("LRU, in Zazen's order (simulated)", "peer", x,
                   [100 * Value.of([one[at] for one in same]).median for at in range(SCANS)]),
            Series("best possible", "ceiling", x, [0.0, *[100 * best] * (SCANS - 1)]),
        ],
        "bars",
    )  # fmt: skip
    last = ours[-1].median
    goals = [
        Goal("hits in the last scan, of the share that the caches can hold", "≥ 90 %",
             f"{100 * last / best:.0f} %", last >= 0.9 * best),
        Goal("hits in the last scan, above LRU on frames in order", f"> {100 * cyclic[-1]:.0f} %",
             f"{100 * last:.0f} %", last > cyclic[-1]),
    ]  # fmt: skip
    summary = Summary(
        f"cache for {100 * best:.0f} % of the dataset, scanned again: hits", "-",
        f"{100 * last:.0f} % (LRU {100 * cyclic[-1]:.0f} %; in Zazen's order {100 * kind.median:.0f} %)",
        f"{100 * best:.0f} %",
    )  # fmt: skip
    return Figure(
        "scan", TITLE, PAPER, "make bench-zazen FIGURES=scan", [table], [plot], goals, [summary],
        limits=[f"{NODES} nodes; the caches are empty before each repeat and are filled by the first scan."],
    )  # fmt: skip


def percent(value: Value) -> Value:
    """A share as percents."""
    return Value(*(round(100 * one, 1) for one in (value.median, value.low, value.high)), value.repeats)
