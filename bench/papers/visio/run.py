#!/usr/bin/env python3
"""VisIO's evaluation (IPDPS'11), run again: remote shares, read rates against a file server and a
parallel file system, weak and strong scaling, reading ahead, and two jobs at once.

    make bench-viz                      # everything; HDFS as root, after scripts/install-hadoop.sh
    make bench-viz FIGURES="share"      # some
    .venv/bin/python bench/papers/visio/run.py --page    # the page again, without measuring

Each figure prints its table and writes OUT/<figure>.json; OUT/index.html shows all that have been
measured.
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
    figures={name: name for name in ("share", "bandwidth", "weak", "strong", "ahead", "jobs")},
    heading=Heading(
        title="VisIO's evaluation, run again",
        about="The evaluation of “VisIO: Enabling Interactive Visualization of Ultra-Scale, Time Series Data "
        "via High-Bandwidth Distributed I/O Systems” (IPDPS 2011) as commands, on one machine ({machine}). "
        "Nodes are network namespaces with links of a set rate; they share processors and the disk, so rates "
        "of several nodes do not add up. Compare ratios. Medians; smallest and largest in brackets.",
        ceiling="from each node's own disk",
    ),
    out=ROOT / "bench" / "results" / "visio",
    needed_bytes=2_000_000_000,
)

if __name__ == "__main__":
    sys.exit(evaluation.main(EVALUATION))
