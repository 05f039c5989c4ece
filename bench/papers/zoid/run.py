#!/usr/bin/env python3
"""ZOID's evaluation (PPoPP 2008, §3 and §4: Figures 4–7, Tables 1 and 2), run again on one machine,
and what goes beyond it: carriers, forwarded files against FUSE, the preload library's cost,
fairness, killed clients.

    make bench-calls                                  # everything, in less than 20 minutes
    make bench-calls FIGURES="carriers files"         # some
    .venv/bin/python bench/papers/zoid/run.py fig4 --quick
    .venv/bin/python bench/papers/zoid/run.py --page  # the page again, without measuring

Each figure prints its table and writes OUT/<figure>.json, .svg and .png; OUT/index.html shows all
that have been measured. Most need no privilege. The rows of FUSE and sshfs need root; without it
they are left out, and the page says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import evaluation
from page import Heading
from process import ROOT

EVALUATION = evaluation.Evaluation(
    description=__doc__,
    figures={
        "fig4": "fig04",
        "fig5": "fig05",
        "fig6": "fig06",
        "fig7": "fig07",
        "carriers": "carriers",
        "files": "files",
        "names": "names_figure",
        "preload": "preload",
        "programs": "programs",
        "fairness": "fairness",
        "kills": "kills",
        "streams": "streams_figure",
    },
    heading=Heading(
        title="ZOID's evaluation, run again",
        about="The figures and tables of “ZOID: I/O-Forwarding Infrastructure for Petascale Architectures” "
        "(PPoPP 2008) as commands, on one machine ({machine}): clients, daemon and servers share it, in "
        "place of a Blue Gene/L's compute nodes, I/O node and collective network. Compare ratios, not "
        "megabytes per second. Medians; smallest and largest in brackets.",
        ceiling="what this machine allows",
    ),
    out=ROOT / "bench" / "results" / "calls",
    needed_bytes=3_000_000_000,
)

if __name__ == "__main__":
    sys.exit(evaluation.main(EVALUATION))
