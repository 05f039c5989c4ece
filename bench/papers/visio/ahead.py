"""Time to picture, with and without the next step being read while one is rendered."""

from __future__ import annotations

import statistics

from evaluation import Context
from nodes import LIMITS, LINKS, Nodes, nodes, samples
from result import Figure, Goal, Plot, Series, Table, Value

TITLE = "Time to picture, with and without reading ahead"
SETTING = LINKS
SETS = {"few large": (6, (4, 1, 1), 49)}
SHOWN = ["HDFS, VTK's split", "HDFS, blind", "HDFS, Zazen"]
RANKS = 2
#: A picture takes so many times as long as the slowest read.
RENDER = 1.5


def run(context: Context) -> Figure:
    figure = Figure(
        "ahead",
        TITLE,
        "VisIO does not read ahead. The goal is Zazen's: at least 90 % of reading is hidden where rendering "
        "takes longer than reading.",
        "make bench-viz FIGURES=ahead",
        limits=list(LIMITS),
    )
    with nodes(context, figure, SETS) as running:
        if running is not None:
            measure(running, figure, context)
    return figure


def waits_of(own: list[dict]) -> list[float]:
    """A step's wait on its slowest rank. Nothing can be read ahead of the first step of a pass."""
    steps = range(1, len(own[0]["waits"][0]))
    return [max(rank[step] for rank in sample["waits"]) for sample in own for step in steps]


def measure(running: Nodes, figure: Figure, context: Context) -> None:
    cases = [running.case("few large", system) for system in SHOWN]
    more = {"render": RENDER, "ahead": [0, 1]}
    found = samples(running.job(RANKS, cases, repeats=min(3, context.repeats), **more))
    rows, bars = [], {0: Series("not read ahead", "peer", [], []), 1: Series("read ahead", "ours", [], [])}
    for system in SHOWN:
        waits = {ahead: waits_of(found[f"few large | {system} | {ahead}"]) for ahead in (0, 1)}
        render_s = found[f"few large | {system} | 0"][0]["render_s"]
        hidden = 1 - statistics.mean(waits[1]) / statistics.mean(waits[0])
        for ahead, line in bars.items():
            value = Value.of([1000 * wait for wait in waits[ahead]])
            picture = Value.of([wait + render_s for wait in waits[ahead]])
            rows.append(
                [system, "yes" if ahead else "no", value, picture, f"{100 * hidden:.1f}" if ahead else ""]
            )
            line.x.append(system)
            line.y.append(value.median)
            line.low.append(value.low)
            line.high.append(value.high)
        figure.goals.append(
            Goal(
                f"{system}: reading ahead hides reading",
                "≥ 90 %, parsing included",
                f"{100 * hidden:.1f} %",
                hidden >= 0.9,
            )
        )
    figure.tables.append(
        Table(
            f"{RANKS} ranks, few large files; a picture takes {render_s:.2f} s, {RENDER} times the slowest "
            "read",
            ["from", "read ahead", "wait for a step", "time to picture", "hidden"],
            ["", "", "ms", "s", "% of the mean wait"],
            rows,
        )
    )
    figure.plots.append(
        Plot("ahead", "Wait for a step", "", "ms", list(bars.values()), shape="bars", y_log=True)
    )
