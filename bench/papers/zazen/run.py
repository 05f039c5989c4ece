#!/usr/bin/env python3
"""The Zazen paper's evaluation (§5, Figures 4–10), run again on one machine, and what goes beyond
it.

    make bench-zazen                                   # everything, in less than 40 minutes
    make bench-zazen FIGURES="fig7 fig8"               # some
    .venv/bin/python bench/papers/zazen/run.py fig4 --quick
    .venv/bin/python bench/papers/zazen/run.py --page  # the page again, without measuring

Each figure prints its table and writes OUT/<figure>.json, .svg and .png; OUT/index.html shows all
that have been measured. Needs root: network namespaces, I/O control groups, dropping caches.
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
        "fig8": "fig08",
        "fig9": "fig09",
        "fig10": "fig10",
        "small": "small_frames",
        "scan": "scan_twice",
        "death": "node_death",
    },
    heading=Heading(
        title="Zazen: the paper's evaluation, run again",
        about="The figures of “Accelerating Parallel Analysis of Scientific Simulation Data via Zazen” (FAST "
        "2010, §5) as commands, on one machine ({machine}): nodes are network namespaces with shaped links "
        "and throttled disks. Compare ratios, not megabytes per second. Medians; smallest and largest in "
        "brackets.",
        ceiling="what links and disks allow here",
    ),
    out=ROOT / "bench" / "results" / "zazen",
    # With a copy of its datasets in each system.
    needed_bytes=25_000_000_000,
    needs_root="no namespaces, no throttled disks, no dropped caches; run `sudo make bench-zazen`",
)

if __name__ == "__main__":
    sys.exit(evaluation.main(EVALUATION))
