"""A batch sampler that keeps PyTorch's global shuffle and reads samples where they lie."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.utils.data
import zazen
from zazen.torch.dataset import Dataset
from zazen.torch.deal import Homes, deal
from zazen.torch.positions import Positions

__all__ = ["LocalSampler"]

_VERSION = 2
#: The node of each rank, and what each node holds, packed.
_Held = tuple[list[int], bytes]


class LocalSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of this rank, for ``DataLoader(batch_sampler=...)``.

    The permutation of an epoch is that of ``DistributedSampler(seed=seed, drop_last=True)``. It is
    cut into global batches of ``batch_size`` times ranks. Each global batch is dealt to the ranks,
    ``batch_size`` samples each, so that as many samples as possible are read on a node that holds
    them. So the k-th batches of all ranks together are, as a set, the k-th batches of all ranks
    with ``DistributedSampler``. Which rank reads which of them differs, and with it what belongs to
    a rank alone: batch normalisation without synchronisation, random numbers of augmentation.

    ``dataset``: a ``zazen.Dataset``, or a ``zazen.torch.Dataset`` over one. ``drop_last``: leave
    out a last batch that is smaller. ``comm``: an mpi4py communicator; without it, the default
    process group of ``torch.distributed``, or this process alone if there is none.

    Beginning an epoch is collective, because ranks tell each other what their nodes hold: all ranks
    begin to iterate, in the same order as other collective calls of the program. ``set_epoch`` is
    to be called before each epoch, with the same number on all ranks. ``state_dict`` is the same on
    all ranks; with it, an epoch continues with exactly the batches that were left, on as many
    ranks. Not for several threads.

    Ranks that see different frames, or differ in the arguments, the epoch or the batch to begin
    with, would deal from different permutations. So when an epoch begins, all ranks raise
    ValueError instead: for instance because the dataset grew between the ranks' calls of
    ``zazen.open``.
    """

    def __init__(
        self,
        dataset: zazen.Dataset | Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        comm: Any = None,
    ) -> None:
        if isinstance(dataset, Dataset):
            self._dataset, self._positions = dataset.frames, dataset.positions
        else:
            self._dataset, self._positions = dataset, Positions.of(dataset)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give at least 1")
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self._group = _group(comm)
        #: This rank, and how many there are.
        self.rank, self.ranks = self._group.rank, self._group.ranks
        self.epoch = 0
        self._yielded = 0
        #: Of the frame numbers, once it is needed.
        self._digest: str | None = None
        self._resume: tuple[int, _Held | None] | None = None
        #: Who holds what, as it was when the epoch began.
        self._held: _Held | None = None
        #: Samples of this rank so far in this epoch, and how many of them its node held.
        self.samples, self.local_samples = 0, 0

    @property
    def samples_per_rank(self) -> int:
        """Samples of each rank in an epoch, as in DistributedSampler with drop_last."""
        return len(self._positions) // self.ranks

    def __len__(self) -> int:
        full, rest = divmod(self.samples_per_rank, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def local_share(self) -> float:
        """The share of this rank's samples of this epoch so far that its node held when the epoch
        began; 1 if none."""
        return self.local_samples / self.samples if self.samples else 1.0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutation of the next epoch."""
        if epoch != self.epoch:
            self.epoch, self._yielded, self._resume = epoch, 0, None

    def __iter__(self) -> Iterator[list[int]]:
        resume, self._resume = self._resume, None
        start, held = resume or (0, None)
        if start >= len(self):
            # What was finished begins anew.
            start, held = 0, None
        nodes = self._agree(start, held)
        order = {node: at for at, node in enumerate(dict.fromkeys(nodes))}
        node_of_rank = [order[node] for node in nodes]
        # Every rank takes part, whatever it would resume with: it is collective.
        now = node_of_rank, self._gather(nodes)
        self._held = held if held is not None else now
        node_of_rank, packed = self._held
        homes = _unpack(packed, len(self._positions))
        self._yielded, self.samples, self.local_samples = start, 0, 0
        mine = node_of_rank[self.rank]
        for at in range(start, len(self)):
            batch, share = self._global_batch(at)
            dealt = deal(batch, homes, node_of_rank, share)[self.rank]
            self._yielded = at + 1
            self.samples += len(dealt)
            self.local_samples += sum(mine in homes.nodes[kind] for kind in homes.class_of[dealt].tolist())
            yield dealt.tolist()

    def global_batch(self, index: int) -> list[int]:
        """All ranks' samples of batch `index` of this epoch."""
        return self._global_batch(index)[0].tolist()

    def _global_batch(self, index: int) -> tuple[np.ndarray, int]:
        share = min(self.batch_size, self.samples_per_rank - index * self.batch_size)
        first = index * self.batch_size * self.ranks
        return self._permutation()[first : first + share * self.ranks], share

    def _permutation(self) -> np.ndarray:
        key = (self.seed + self.epoch, self.shuffle)
        if getattr(self, "_permuted", (None, None))[0] != key:
            count = len(self._positions)
            if self.shuffle:
                # The very calls of torch.utils.data.DistributedSampler.
                generator = torch.Generator()
                generator.manual_seed(self.seed + self.epoch)
                order = np.array(torch.randperm(count, generator=generator).tolist(), dtype=np.int64)
            else:
                order = np.arange(count)
            self._permuted = (key, order)
        return self._permuted[1]

    def _agree(self, start: int, held: _Held | None) -> list[int]:
        """The node of each rank; ValueError on all ranks unless all begin the same epoch of the
        same samples."""
        mine = {
            "samples": len(self._positions),
            "frame numbers": self._extent(),
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "first batch": start,
            "state": None
            if held is None
            else hashlib.blake2b(repr(held).encode(), digest_size=16).hexdigest(),
        }
        told = self._group.all((self._dataset.node, mine))
        for rank, (_, other) in enumerate(told):
            for name, value in told[0][1].items():
                if other[name] != value:
                    raise ValueError(
                        f"the ranks do not iterate over the same samples: rank 0 has {name} {value}, rank "
                        f"{rank} has {other[name]}; give all ranks the same arguments, and open the dataset "
                        "when it is complete"
                    )
        return [node for node, _ in told]

    def _extent(self) -> str:
        if self._digest is None:
            self._digest = self._positions.digest()
        return self._digest

    def _gather(self, nodes: list[int]) -> bytes:
        """What all nodes hold, told by the first rank of each."""
        mine = None
        if nodes.index(self._dataset.node) == self.rank:
            native, alien = self._dataset.query(0, 1 << 40)
            mine = zlib.compress(np.packbits(self._positions.mask(native | alien)).tobytes(), 1)
        told = [one for one in self._group.all(mine) if one is not None]
        count = len(self._positions)
        held = [np.unpackbits(np.frombuffer(zlib.decompress(one), np.uint8))[:count] for one in told]
        return _pack(held)

    def state_dict(self) -> dict[str, Any]:
        """What continues this epoch after the batches that were yielded."""
        return {
            "version": _VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "yielded": self._yielded if self._resume is None else self._resume[0],
            "held": self._held if self._resume is None else self._resume[1],
            "samples": len(self._positions),
            "frame numbers": self._extent(),
            "ranks": self.ranks,
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues as `state` says. Raises ValueError if it is of another dataset, job size, batch
        size or seed."""
        if state.get("version") != _VERSION:
            raise ValueError(f"a state of version {state.get('version')}; this is version {_VERSION}")
        here = {
            "samples": len(self._positions),
            "frame numbers": self._extent(),
            "ranks": self.ranks,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        for name, value in here.items():
            if state[name] != value:
                raise ValueError(
                    f"the state is of {name} {state[name]}, this sampler has {value}; begin the epoch anew"
                )
        self.epoch = state["epoch"]
        self._resume = (state["yielded"], state["held"])
        self._yielded = state["yielded"]


def _pack(held: list[np.ndarray]) -> bytes:
    bits = np.packbits(np.array(held, dtype=bool), axis=1) if held else np.empty((0, 0), np.uint8)
    return len(held).to_bytes(4, "little") + zlib.compress(bits.tobytes(), 1)


def _unpack(packed: bytes, samples: int) -> Homes:
    nodes = int.from_bytes(packed[:4], "little")
    bits = np.frombuffer(zlib.decompress(packed[4:]), np.uint8).reshape(nodes, -1)
    return Homes(list(np.unpackbits(bits, axis=1)[:, :samples].astype(bool)))


class _Alone:
    rank, ranks = 0, 1

    def all(self, value: Any) -> list[Any]:
        return [value]


class _Distributed:
    def __init__(self) -> None:
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def all(self, value: Any) -> list[Any]:
        found = [None] * self.ranks
        torch.distributed.all_gather_object(found, value)
        return found


class _Mpi:
    def __init__(self, comm: Any) -> None:
        self._comm, self.rank, self.ranks = comm, comm.Get_rank(), comm.Get_size()

    def all(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)


def _group(comm: Any) -> _Alone | _Distributed | _Mpi:
    if comm is not None:
        return _Mpi(comm)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return _Distributed()
    return _Alone()
