"""Turns an mpi4py communicator into collectives for the assignment protocol.

If the MPI library can be identified, MPI is bound at run time by the communicator's handle.
Otherwise the messages go through mpi4py itself.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from typing import Any

from zazen import _zazen
from zazen._collectives import Collectives

_CHUNK_BYTES = 1 << 30
# Up to this many bytes in all, an all-gather is left to the library, which needs few messages.
_GATHER_BYTES_MAX = 1 << 20
_CHOICES = ("auto", "mpi", "mpi4py")


def resolve(comm: Any, carrier: str) -> Any:
    """The MPI handle (an int) to bind, or an object with the methods of Collectives. Collective
    over ``comm``."""
    if carrier not in _CHOICES:
        raise _zazen.InvalidArgumentError(
            f"carrier is {carrier!r}; give one of {', '.join(map(repr, _CHOICES))}"
        )
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm, mpi.Comm):
        if isinstance(comm, Collectives):
            return comm
        raise TypeError(
            f"comm is a {type(comm).__name__}; give an mpi4py communicator, an object with the methods of "
            "zazen.Collectives, or None for this process alone"
        )
    if comm == mpi.COMM_NULL:
        raise _zazen.InvalidArgumentError(
            "comm is MPI.COMM_NULL; only ranks of the communicator may take part"
        )
    if comm.is_inter:
        raise _zazen.InvalidArgumentError("comm is an intercommunicator; merge it first (comm.Merge())")
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise _zazen.MpiError(
            "MPI is not initialised, or finalised already; keep it up while Zazen uses comm"
        )
    _zazen.check_launcher(mpi.COMM_WORLD.size)
    if carrier == "mpi4py":
        return Mpi4pyCarrier(comm)
    try:
        _zazen.check_world(_handle(mpi, mpi.COMM_WORLD))
        bound = 1
    except _zazen.MpiError:
        if carrier == "mpi":
            raise
        bound = 0
    if carrier == "mpi" or comm.allreduce(bound, op=mpi.MIN):
        return _handle(mpi, comm)
    return Mpi4pyCarrier(comm)


def _handle(mpi: Any, comm: Any) -> int:
    handle: int = comm.handle if hasattr(comm, "handle") else mpi._handleof(comm)
    # An int handle may be negative. The core needs it zero-extended.
    return handle & (sys.maxsize * 2 + 1) if handle >= 0 else handle & 0xFFFFFFFF


class Mpi4pyCarrier:
    """Collectives over an mpi4py communicator; 64-bit lengths whatever the library's counts are."""

    def __init__(self, comm: Any) -> None:
        self._mpi = sys.modules["mpi4py.MPI"]
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size

    def allreduce_sum(self, words: bytearray) -> None:
        self._allreduce(words, self._mpi.SUM)

    def allreduce_xor(self, words: bytearray) -> None:
        self._allreduce(words, self._mpi.BXOR)

    def allreduce_or(self, words: bytearray) -> None:
        self._allreduce(words, self._mpi.BOR)

    def _allreduce(self, words: bytearray, op: Any) -> None:
        view = memoryview(words)
        for at in range(0, len(view), _CHUNK_BYTES):
            self._comm.Allreduce(
                self._mpi.IN_PLACE, [view[at : at + _CHUNK_BYTES], self._mpi.UINT64_T], op=op
            )

    def alltoallv(self, send: list[bytes]) -> list[bytes | bytearray]:
        outgoing = array("Q", [len(block) for block in send])
        incoming = array("Q", bytes(8 * self.size))
        self._comm.Alltoall([outgoing, self._mpi.UINT64_T], [incoming, self._mpi.UINT64_T])
        received: list[bytes | bytearray] = [b""] * self.size
        received[self.rank] = send[self.rank]
        for shift in range(1, self.size):
            to, source = (self.rank + shift) % self.size, (self.rank - shift) % self.size
            room = bytearray(incoming[source])
            self._exchange(memoryview(send[to]), to, memoryview(room), source)
            received[source] = room
        return received

    def _exchange(self, send: memoryview, to: int, room: memoryview, source: int) -> None:
        null, byte = self._mpi.PROC_NULL, self._mpi.BYTE
        for at in range(0, max(len(send), len(room)), _CHUNK_BYTES):
            out, into = send[at : at + _CHUNK_BYTES], room[at : at + _CHUNK_BYTES]
            self._comm.Sendrecv(
                [out, byte],
                dest=to if len(out) else null,
                recvbuf=[into, byte],
                source=source if len(into) else null,
            )

    def allgatherv(self, mine: bytes) -> list[bytes | bytearray]:
        word, byte = self._mpi.UINT64_T, self._mpi.BYTE
        lengths = array("Q", bytes(8 * self.size))
        self._comm.Allgather([array("Q", [len(mine)]), word], [lengths, word])
        ends = list(itertools.accumulate(lengths, initial=0))
        if ends[-1] > _GATHER_BYTES_MAX:
            return self.alltoallv([mine] * self.size)
        room = bytearray(ends[-1])
        self._comm.Allgatherv([mine, byte], [room, (list(lengths), ends[:-1]), byte])
        return [room[start:end] for start, end in itertools.pairwise(ends)]

    def broadcast(self, mine: bytes) -> bytes | bytearray:
        length = array("Q", [len(mine)])
        self._comm.Bcast([length, self._mpi.UINT64_T])
        room = bytearray(mine) if self.rank == 0 else bytearray(length[0])
        view = memoryview(room)
        for at in range(0, len(view), _CHUNK_BYTES):
            self._comm.Bcast([view[at : at + _CHUNK_BYTES], self._mpi.BYTE])
        return room
