"""Waits in MPI programs without spinning. A rank that polls at full speed takes the cores that
others need, and it would count as load."""

from __future__ import annotations

import os
import signal
import sys
import time


def end_job(kind: type, error: BaseException, trace: object) -> None:
    """Say what failed and die by a signal. MPICH's mpiexec does not end the job for a rank that
    exits before MPI_Init: the other ranks would wait for it for ever."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


# Before the import that may fail. Programs import MPI from here for the same reason.
sys.excepthook = end_job

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI", "end_job", "quiet_barrier"]
PAUSE_S = 0.0005


def quiet_barrier(comm: MPI.Comm) -> None:
    """A barrier whose waiters sleep."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(PAUSE_S)
