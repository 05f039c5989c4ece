"""Every rank opens a dataset whose daemon is not there, and reads it."""

import sys

import zazen
from mpi4py import MPI

with zazen.open(sys.argv[1]) as dataset:
    count = sum(1 for _ in dataset.frames(comm=MPI.COMM_WORLD))
print(f"<{count}>")
