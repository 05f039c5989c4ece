#!/usr/bin/env python3
"""The namespace's figures (FusionFS, TPDS 2016): creates by the library and through a mount,
passthrough, nodes that share one directory, remote reads, a file that all nodes write, how long a
dead node's part is away, and other file systems beside it: names and bytes, IOR and mdtest ($IOR),
and BLAST.

    make bench-namespace                                    # everything, as root
    make bench-namespace FIGURES="library nodes"            # some
    .venv/bin/python bench/papers/fusionfs/run.py --quick
    .venv/bin/python bench/papers/fusionfs/run.py --page    # the page again, without measuring

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
    figures={
        "library": "library",
        "mount": "mounted",
        "nodes": "nodes",
        "remote": "remote",
        "shared": "shared",
        "death": "death",
        "peers": "beside",
        "io500": "io500",
        "blast": "blast",
    },
    heading=Heading(
        title="The namespace: FusionFS's figures, run again",
        about="The metadata and throughput figures of "
        "“Distributed Metadata and Data Management for FusionFS” "
        "(TPDS 2016) as commands, on one machine ({machine}): all nodes share it, so rates of several nodes "
        "do not add up. Compare ratios, and CPU seconds and messages for each create. Medians; "
        "smallest and largest in brackets.",
        ceiling="what this machine allows",
    ),
    out=ROOT / "bench" / "results" / "namespace",
    needed_bytes=4_000_000_000,
    needs_root="mounts and drop_caches need it",
)

if __name__ == "__main__":
    sys.exit(evaluation.main(EVALUATION))
