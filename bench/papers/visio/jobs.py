"""Two jobs on two data sets at once: how much longer each read takes, beside VTK's split."""

from __future__ import annotations

import statistics

from evaluation import Context
from nodes import LIMITS, LINKS, Nodes, nodes, samples
from result import Figure, Goal, Plot, Series, Table

TITLE = "Two jobs at once"
SETTING = LINKS
SETS = {"many small": (4, (4, 4, 1), 17), "few large": (3, (4, 1, 1), 49)}
SHOWN = ["HDFS, VTK's split", "HDFS, Zazen"]
RANKS = 4


def run(context: Context) -> Figure:
    figure = Figure(
        "jobs",
        TITLE,
        "With two applications at once, VisIO's reads slowed down less than those of the stock reader, and "
        "varied less.",
        "make bench-viz FIGURES=jobs",
        limits=list(LIMITS),
    )
    with nodes(context, figure, SETS) as running:
        if running is not None:
            measure(running, figure, context)
    return figure


def measure(running: Nodes, figure: Figure, context: Context) -> None:
    rows, increases = [], {}
    bars = {what: Series(what, "ours" if what == "alone" else "peer", [], []) for what in ("alone", "beside")}
    for system in SHOWN:
        alone, beside = [], []
        for _ in range(context.repeats):
            alone += waits(running, system)
            # The other one goes on until this one is done.
            other = running.job(RANKS, [running.case("few large", system)], repeats=4)
            beside += waits(running, system)
            samples(other)
        means = [1000 * statistics.mean(own) for own in (alone, beside)]
        deviations = [1000 * statistics.stdev(own) for own in (alone, beside)]
        texts = [f"{mean:.1f} ± {each:.1f}" for mean, each in zip(means, deviations, strict=True)]
        increases[system] = means[1] / means[0]
        rows.append([system, *texts, f"{increases[system]:.2f}", f"{means[1] - means[0]:.1f}"])
        for what, mean in zip(bars, means, strict=True):
            bars[what].x.append(system)
            bars[what].y.append(mean)
    figure.tables.append(
        Table(
            "A rank's wait for a step of the many small files, alone and beside a job on the few large "
            f"ones; {RANKS} ranks each, mean and deviation",
            ["from", "alone", "beside the other", "increase", "more"],
            ["", "ms", "ms", "times", "ms"],
            rows,
        )
    )
    figure.plots.append(Plot("jobs", "Mean wait for a step", "", "ms", list(bars.values()), shape="bars"))
    stock, ours = (float(row[4]) for row in rows)
    figure.goals.append(
        Goal(
            "a second job costs matched reads less than VTK's split",
            "fewer milliseconds a step",
            f"{ours:.1f} ms against {stock:.1f} ms",
            ours < stock,
        )
    )


def waits(running: Nodes, system: str) -> list[float]:
    """Every rank's wait for every step of the many small files."""
    found = samples(running.job(RANKS, [running.case("many small", system)]))
    own = found[f"many small | {system} | 1"]
    return [wait for sample in own for rank in sample["waits"] for wait in rank]
