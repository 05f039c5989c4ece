"""A rank that shows a visualization in HDFS, step by step. Prints JSON: by step its cells, and the
bytes that came in over the link and within the node.

python hdfs_rank.py INDEX STRATEGY [FOLDER]

With FOLDER it says `shown-RANK` there after the first step, and waits for `go` before it shows the
next one.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import zazen.viz
from mpi4py import MPI

COMM = MPI.COMM_WORLD


def received():
    """Bytes that came over this node's link, and that its own processes sent each other."""
    return [int(Path(f"/sys/class/net/{link}/statistics/rx_bytes").read_text()) for link in ("eth0", "lo")]


def main():
    warnings.simplefilter("ignore")
    index, strategy = sys.argv[1:3]
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    reader = zazen.viz.Reader(index, strategy=strategy, ahead=0 if folder else 1)
    times, cells = reader.GetTimestepValues(), []
    COMM.barrier()
    before = received()
    for step, moment in enumerate(times):
        data = reader.update(moment)
        own = [data.GetBlock(at) for at in range(data.GetNumberOfBlocks()) if data.GetBlock(at) is not None]
        cells.append(sum(block.GetNumberOfCells() for block in own))
        if folder is not None and step == 0:
            (folder / f"shown-{COMM.rank}").touch()
            deadline = time.monotonic() + 120
            while not (folder / "go").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
    came, within = (now - then for now, then in zip(received(), before, strict=True))
    plans = [reader.visualization.plan(step) for step in range(len(times))]
    near, far = (
        sum(
            reader.visualization.steps[step].bytes[file]
            for step, plan in enumerate(plans)
            for file, (rank, local) in enumerate(zip(plan.rank_of_file, plan.is_local, strict=True))
            if rank == COMM.rank and local == wanted
        )
        for wanted in (True, False)
    )
    every = COMM.gather((cells, came, far, within, near), root=0)
    if COMM.rank == 0:
        print(
            json.dumps(
                {
                    "cells": [sum(step) for step in zip(*(each[0] for each in every), strict=True)],
                    "came": [each[1] for each in every],
                    "remote": [each[2] for each in every],
                    "within": [each[3] for each in every],
                    "local": [each[4] for each in every],
                    "files": sum(plan.remote for plan in plans),
                    "bound": sum(plan.bound for plan in plans),
                }
            )
        )


main()
