"""Strong scaling: more nodes for the same data; both HDFS variants, and each node's own disk."""

from __future__ import annotations

from evaluation import Context
from nodes import LIMITS, LINKS, nodes
from result import Figure
from weak import COUNTS, scale

TITLE = "Strong scaling: sixteen blocks in each step"
SETTING = LINKS
SETS = {"sixteen": (3, (4, 4, 1), 33)}


def run(context: Context) -> Figure:
    figure = Figure(
        "strong",
        TITLE,
        "Figure 5: from 16 to 128 nodes, VisIO's read times fell with each doubling, and Lustre's stayed.",
        "make bench-viz FIGURES=strong",
        limits=list(LIMITS),
    )
    with nodes(context, figure, SETS) as running:
        if running is not None:
            title = "Sixteen blocks of 33³ points a step, for all ranks together"
            scale(running, figure, context, dict.fromkeys(COUNTS, "sixteen"), title)
    return figure
