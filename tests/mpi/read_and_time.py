"""A rank that reads a dataset and times itself. Prints the ranks' rows as JSON on rank 0.

usage: read_and_time.py DATASET SLOW_RANK SECONDS   (that rank sleeps so long in all, between
frames)
"""

import json
import sys
import time

import zazen
from mpi4py import MPI

comm = MPI.COMM_WORLD
path, slow_rank, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with zazen.open(path) as dataset:
    comm.Barrier()
    began = time.monotonic()
    frames = dataset.frames(comm=comm)
    count, wall = 0, time.monotonic() - began
    for _number, _data, _path in frames:
        count += 1
        if comm.rank == slow_rank and count <= 20:
            time.sleep(seconds / 20)
        # The record's time ends here, too; then it goes to the daemon, which may be busy.
        wall = time.monotonic() - began
rows = comm.gather({"rank": comm.rank, "wall_s": wall, "frames": count})
if comm.rank == 0:
    print(json.dumps(rows))
