"""Figure 5: the time of an assignment by number of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import assigning
from assigning import Run, assign, shaped
from cluster import say
from result import Figure, Goal, Plot, Series, Summary, Table

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 5: time to assign against the number of frames"
PAPER = (
    "On 100 nodes the time grows sub-linearly from 1,000 to 1,000,000,000 frames, where it is below 15 s. "
    "The curve's other points cannot be read off the printed figure exactly."
)
PAPERS = ["--placement", "aliens", "--rules", "paper", "--protocol", "both"]
NODES = 8
# Where and on what it is measured, for the page's first table.
SETTING = f"{NODES} nodes (network namespaces) with links of 1 Gbit/s, one rank each; no frames are read"


def run(context: Context) -> Figure:
    """Measure and draw."""
    nodes = 4 if context.quick else NODES
    sizes = [10**power for power in range(3, 8 if context.quick else 10)]
    few = min(3, context.repeats)
    figure = Figure("fig5", TITLE, PAPER, "make bench-zazen FIGURES=fig5", limits=list(assigning.LIMITS))
    figure.limits.append(f"{nodes} nodes where the paper had 100.")
    papers: list[Run] = []
    regular: list[Run] = []
    random: list[Run] = []
    with shaped(context.scratch, nodes) as cluster:
        for frames in sizes:
            say(f"fig5: {frames:,} frames")
            repeats = few if frames > 10**7 else context.repeats
            papers.append(assign(cluster, frames, repeats, *PAPERS))
            regular.append(assign(cluster, frames, context.repeats))
            random.append(assign(cluster, frames, repeats, "--placement", "random"))
    lines = {
        "the paper's protocol, its set-up": ("peer", [one.total("bitmaps") for one in papers]),
        "Zazen, the same set-up": ("ours", [one.total("owner") for one in papers]),
        "Zazen, round robin": ("ours", [one.total("owner") for one in regular]),
        "Zazen, random": ("ours", [one.total("owner") for one in random]),
    }
    model = [one.model_s() for one in papers]
    columns = ["frames", *lines, "model + local work", "paper's / Zazen, its set-up"]
    rows = [
        [f"{frames:,}", *(values[at] for _, values in lines.values()), model[at], papers[at].ratio()]
        for at, frames in enumerate(sizes)
    ]
    notes = [
        "Below a million frames all of it is latency: rounds, and ranks waiting for a core.",
        f"At {sizes[-1]:,} frames: {papers[-1].rates_text()}.",
    ]
    figure.tables.append(Table(f"Seconds at {nodes} nodes", columns, ["", *["s"] * 5, ""], rows, notes))
    series = [
        Series(
            name, kind, [float(frames) for frames in sizes], [value.median for value in values],
            [value.low for value in values], [value.high for value in values],
        )
        for name, (kind, values) in lines.items()
    ]  # fmt: skip
    series.append(Series("model + local work", "model", [float(frames) for frames in sizes], list(model)))
    figure.plots.append(
        Plot("fig5", f"Time to assign at {nodes} nodes", "frames", "seconds", series, x_log=True, y_log=True)
    )
    last = {name: values[-1].median for name, (_, values) in lines.items()}
    grown = sizes[-1] / sizes[0]
    for name in ("Zazen, round robin", "Zazen, random"):
        values = lines[name][1]
        times = values[-1].median / values[0].median
        figure.goals.append(
            Goal(
                f"{name}: time to assign {sizes[-1]:,} frames : time to assign {sizes[0]:,}",
                    f"< {grown:.0e}",
                f"{times:.2g} ({values[-1].median:.2g} s : {values[0].median:.2g} s)", times < grown,
            )
        )  # fmt: skip
    figure.summaries.append(
        Summary(
            f"time from {sizes[0]:,} to {sizes[-1]:,} frames",
            "sub-linear",
            "; ".join(
                f"{name}: {values[-1].median / values[0].median:.1f}x" for name, (_, values) in lines.items()
            ),
            f"frames: {grown:.0e}x; random {last['Zazen, random']:.2f} s",
        )
    )
    return figure
