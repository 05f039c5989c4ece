"""Plots of the figures, as SVG and PNG.

Ours, peers, paper, model and ceiling differ in marker and dash or hatch, not in colour alone.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from result import Plot, Series

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "zazen"
import matplotlib.pyplot as plt  # noqa: E402

# Colours that differ for colour-blind readers too (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
STYLES = {
    "ours": {"marker": "o", "linestyle": "-", "linewidth": 2.2},
    "peer": {"marker": "s", "linestyle": "-", "linewidth": 1.4},
    "paper": {"marker": "x", "linestyle": "--", "linewidth": 1.4},
    "model": {"marker": "", "linestyle": ":", "linewidth": 1.8},
    "ceiling": {"marker": "", "linestyle": "-.", "linewidth": 1.2},
}
HATCHES = {"ours": "", "peer": "//", "paper": "xx", "model": "..", "ceiling": ""}
# For series of one kind beside each other.
MARKERS = ["o", "^", "D", "v", "P", "X", "*"]
# So many values of x, below this, are each named at the axis.
TICKS_MAX, LARGE_COUNT = 8, 1000
OWN_HATCHES = ["", "\\\\", "--", "++", "oo", "**"]


def _error_bars(series: Series) -> list[list[float]] | None:
    if not series.low:
        return None
    pairs = [
        (max(0.0, middle - low), max(0.0, high - middle))
        for middle, low, high in zip(series.y, series.low, series.high, strict=True)
        if middle is not None
    ]
    return [[below for below, _ in pairs], [above for _, above in pairs]]


def _lines(axes: plt.Axes, plot: Plot) -> None:
    for at, series in enumerate(plot.series):
        points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        style = dict(STYLES[series.kind])
        if style["marker"] and [other.kind for other in plot.series].count(series.kind) > 1:
            style["marker"] = MARKERS[at % len(MARKERS)]
        axes.errorbar(
            [x for x, _ in points], [y for _, y in points], yerr=_error_bars(series), label=series.name,
            color=COLOURS[at % len(COLOURS)], capsize=3, **style,
        )  # fmt: skip


def _name_ticks(axes: plt.Axes, plot: Plot) -> None:
    """Counts of nodes or readers are read off as themselves, not as powers of ten."""
    values = sorted({x for series in plot.series for x in series.x})
    if len(values) <= TICKS_MAX and values[-1] < LARGE_COUNT:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.minorticks_off()


def _bars(axes: plt.Axes, plot: Plot) -> None:
    names = [str(name) for name in plot.series[0].x]
    width = 0.8 / len(plot.series)
    for at, series in enumerate(plot.series):
        places = [group - 0.4 + width * (at + 0.5) for group in range(len(names))]
        earlier = [other.kind for other in plot.series[:at]].count(series.kind)
        hatch = OWN_HATCHES[earlier % len(OWN_HATCHES)] if series.kind == "ours" else HATCHES[series.kind]
        there = [place for place, y in zip(places, series.y, strict=True) if y is not None]
        heights = [y for y in series.y if y is not None]
        axes.bar(
            there, heights, width, yerr=_error_bars(series), label=series.name, capsize=2,
            color=COLOURS[at % len(COLOURS)], edgecolor="white", hatch=hatch,
        )  # fmt: skip
    axes.set_xticks(range(len(names)), names)
    # Room for the legend above the bars.
    axes.margins(y=0.25)


def draw(plot: Plot, out: Path) -> None:
    """Write `out/<name>.svg` and `.png`."""
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    (_bars if plot.shape == "bars" else _lines)(axes, plot)
    axes.set_title(plot.title, fontsize=11)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.x_log:
        axes.set_xscale("log")
    if plot.y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if plot.shape == "lines":
        _name_ticks(axes, plot)
    axes.grid(True, which="major", axis="both" if plot.shape == "lines" else "y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, ncols=2 if plot.shape == "bars" else 1)
    for suffix, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 130})):
        figure.savefig(out / f"{plot.name}.{suffix}", **options)
    plt.close(figure)
