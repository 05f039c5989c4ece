"""Tables 1 and 2: telescope data in real time (stream_tables.py, as a figure of this evaluation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import stream_tables
from process import say

if TYPE_CHECKING:
    from evaluation import Context
    from result import Figure

TITLE = stream_tables.TITLE
PAPER = stream_tables.PAPER


def run(context: Context) -> Figure:
    figure = stream_tables.measure(context.quick, say=lambda line: say(f"streams: {line}"))
    figure.command = "run.py streams"
    return figure
