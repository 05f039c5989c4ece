"""A rank that shows a visualization in HDFS, step by step. Prints JSON: by step its cells, and the
bytes that came in.

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
    """Bytes that came over this node's link."""
    return int(Path("/sys/class/net/eth0/statistics/rx_bytes").read_text())


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
    came = received() - before
    plans = [reader.visualization.plan(step) for step in range(len(times))]
    remote = [
        sum(
            reader.visualization.steps[step].bytes[file]
            for file, (rank, local) in enumerate(zip(plan.rank_of_file, plan.is_local, strict=True))
            if rank == COMM.rank and not local
        )
        for step, plan in enumerate(plans)
    ]
    every = COMM.gather((cells, came, sum(remote)), root=0)
    if COMM.rank == 0:
        print(
            json.dumps(
                {
                    "cells": [sum(step) for step in zip(*(each[0] for each in every), strict=True)],
                    "came": [each[1] for each in every],
                    "remote": [each[2] for each in every],
                    "files": sum(plan.remote for plan in plans),
                    "bound": sum(plan.bound for plan in plans),
                }
            )
        )


main()
