"""Tables 1 and 2: telescope data in real time (stream_tables.py, as a figure of this
evaluation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import stream_tables
from process import say

if TYPE_CHECKING:
    from evaluation import Context
    from result import Figure

TITLE = stream_tables.TITLE
# Where and on what it is measured, for the page's first table.
SETTING = "stations that send samples, a daemon and ranks, all on one machine"
PAPER = stream_tables.PAPER


# Coarser steps than in stream_tables.py, so that the whole evaluation takes twenty minutes.
STEPS = [1, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128]


def run(context: Context) -> Figure:
    stream_tables.STEPS = STEPS
    figure = stream_tables.measure(context.quick, say=lambda line: say(f"streams: {line}"))
    figure.command = "run.py streams"
    return figure
