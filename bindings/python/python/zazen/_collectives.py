"""The methods that an object needs to serve as ``comm``: the collectives of the assignment
protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Collectives(Protocol):
    """A communicator of your own, for programs whose ranks do not talk MPI.

    All methods are collective over the same ranks in the same order, and blocking. Words are
    unsigned, 64 bits, in the machine's byte order; sums wrap. An exception ends the call on this
    rank and is raised where Zazen was called. The other ranks are then out of step, so end the job.

    One more method is optional, on all ranks or on none: ``allreduce_xor(words)``, which replaces
    the words by their bitwise exclusive or over all ranks, in place. Without it ``alltoallv`` and
    ``allgatherv`` do its work, in two messages more.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def allreduce_sum(self, words: bytearray) -> None:
        """Replace the words by their element-wise sums over all ranks, in place; lengths are
        equal."""
        ...

    def allreduce_or(self, words: bytearray) -> None:
        """Replace the words by their bitwise or over all ranks, in place; lengths are equal."""
        ...

    def alltoallv(self, send: Sequence[bytes]) -> Sequence[bytes]:
        """Send ``send[j]`` to rank j; return what each rank sent here, by rank."""
        ...

    def allgatherv(self, mine: bytes) -> Sequence[bytes]:
        """Return the ``mine`` of each rank, by rank."""
        ...

    def broadcast(self, mine: bytes) -> bytes:
        """Return rank 0's ``mine``."""
        ...
