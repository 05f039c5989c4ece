"""Weak scaling: as many nodes, so much more data; both HDFS variants, and each node's own disk."""

from __future__ import annotations

from evaluation import Context
from nodes import LIMITS, LINKS, NODES, SYSTEMS, Nodes, nodes, rate, samples
from result import Figure, Plot, Series, Table, Value

TITLE = "Weak scaling: four blocks a node in each step"
SETTING = LINKS
COUNTS = [1, 2, NODES]
SETS = {f"for {ranks}": (3, (ranks, 4, 1), 33) for ranks in COUNTS}
SHOWN = ["HDFS, VTK's split", "HDFS, blind", "HDFS, Zazen", "bare program", "own disk"]


def run(context: Context) -> Figure:
    figure = Figure(
        "weak",
        TITLE,
        "VisIO's read rate grew linearly to 128 nodes, close to that of the disks; that of HDFS read by "
        "index did not.",
        "make bench-viz FIGURES=weak",
        limits=list(LIMITS),
    )
    with nodes(context, figure, SETS) as running:
        if running is not None:
            measure(running, figure, context)
    return figure


def measure(running: Nodes, figure: Figure, context: Context) -> None:
    sets = dict(zip(COUNTS, SETS, strict=True))
    scale(running, figure, context, sets, "Each node brings four blocks of 33³ points a step")


def scale(running: Nodes, figure: Figure, context: Context, sets: dict[int, str], title: str) -> None:
    """Read rates of each number of ranks, on its data set."""
    rows = []
    lines = {system: Series(system, SYSTEMS[system][0], [], []) for system in SHOWN}
    for ranks, data in sets.items():
        cases = [running.case(data, system) for system in SHOWN]
        found = samples(running.job(ranks, cases, repeats=context.repeats, ahead=[1]))
        for system in SHOWN:
            own = found[f"{data} | {system} | 1"]
            value = Value.of([rate(sample) for sample in own])
            share = 100 * own[0]["remote"] / own[0]["bytes"]
            each = Value.of([rate(sample) / ranks for sample in own])
            rows.append([system, ranks, f"{own[0]['bytes'] / 1e6:.1f}", value, each, f"{share:.0f}"])
            lines[system].x.append(ranks)
            lines[system].y.append(value.median)
            lines[system].low.append(value.low)
            lines[system].high.append(value.high)
    rows.sort(key=lambda row: SHOWN.index(row[0]))
    figure.tables.append(
        Table(
            title,
            ["from", "ranks", "data", "read rate", "for each rank", "over links"],
            ["", "", "MB", "MB/s", "MB/s", "% of bytes"],
            rows,
        )
    )
    figure.plots.append(
        Plot(figure.key, figure.title, "ranks, one on each node", "MB/s of all ranks", list(lines.values()))
    )
