"""Waits in MPI programs without spinning. A rank that polls at full speed takes the cores that others need,
and it would count as load."""

from __future__ import annotations

import time

from mpi4py import MPI

PAUSE_S = 0.0005


def quiet_barrier(comm: MPI.Comm) -> None:
    """A barrier whose waiters sleep."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(PAUSE_S)
