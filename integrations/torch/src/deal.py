"""Who of the nodes reads which sample of a global batch. No I/O, no randomness, no torch.

Every rank deals for itself and must come to the same result: the same arguments give the same
result on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

__all__ = ["Homes", "deal"]


class Homes:
    """Which nodes hold which sample.

    ``held[node]``: for each sample, whether the node holds it. Samples that the same nodes hold
    form a class.
    """

    def __init__(self, held: Sequence[np.ndarray]) -> None:
        samples = len(held[0]) if held else 0
        self.bits = np.packbits(np.array(held, dtype=bool).reshape(len(held), samples), axis=0)
        #: For each sample, its class.
        self.class_of: np.ndarray
        classes, self.class_of = np.unique(self.bits, axis=1, return_inverse=True)
        self.class_of = self.class_of.reshape(-1).astype(np.int32)
        #: For each class, the nodes that hold its samples.
        self.nodes: list[tuple[int, ...]] = [
            tuple(np.flatnonzero(np.unpackbits(column)[: len(held)]).tolist()) for column in classes.T
        ]


def deal(batch: np.ndarray, homes: Homes, node_of_rank: Sequence[int], share: int) -> list[np.ndarray]:
    """Deals `batch` to the ranks: for each rank, `share` samples; as many as possible go to a node
    that holds them.

    ``batch``: distinct samples, as many as ranks times `share`. ``node_of_rank``: the node of each
    rank, from 0 on.
    """
    ranks = len(node_of_rank)
    if len(batch) != ranks * share:
        raise ValueError(f"{len(batch)} samples for {ranks} ranks with {share} each")
    room = np.bincount(np.asarray(node_of_rank), minlength=max(node_of_rank) + 1) * share
    classes = homes.class_of[batch]
    places = {int(kind): np.flatnonzero(classes == kind) for kind in np.unique(classes)}
    placed = _place({kind: len(at) for kind, at in places.items()}, homes.nodes, room.tolist())
    local: list[list[np.ndarray]] = [[] for _ in room]
    left = []
    for kind, at in places.items():
        taken = 0
        for node, count in sorted(placed[kind].items()):
            local[node].append(at[taken : taken + count])
            taken += count
        left.append(at[taken:])
    # In the order of the batch, as what nobody holds and what a node cannot take in.
    rest = np.sort(np.concatenate(left)) if left else np.empty(0, dtype=np.intp)
    dealt: list[np.ndarray] = [np.empty(0, dtype=batch.dtype)] * ranks
    used = 0
    for node, most in enumerate(room.tolist()):
        own = np.sort(np.concatenate(local[node])) if local[node] else np.empty(0, dtype=np.intp)
        filled = np.concatenate([own, rest[used : used + most - len(own)]])
        used += most - len(own)
        mine = [rank for rank in range(ranks) if node_of_rank[rank] == node]
        for at, rank in enumerate(mine):
            dealt[rank] = batch[filled[at * share : (at + 1) * share]]
    return dealt


def _place(
    counts: dict[int, int], nodes: Sequence[tuple[int, ...]], room: list[int]
) -> dict[int, dict[int, int]]:
    """How many samples of each class each node reads: a largest flow from classes to nodes with
    this room."""
    free = list(room)
    placed: dict[int, dict[int, int]] = {kind: {} for kind in counts}
    waiting = dict(counts)
    # Classes with the fewest holders first: the others have a choice.
    for kind in sorted(counts, key=lambda kind: (len(nodes[kind]), kind)):
        for node in sorted(nodes[kind], key=lambda node: (-free[node], node)):
            count = min(waiting[kind], free[node])
            if count:
                _move(placed[kind], free, node, count)
                waiting[kind] -= count
    for kind in sorted(counts):
        while waiting[kind] and nodes[kind]:
            path = _way(kind, placed, nodes, free)
            if path is None:
                break
            # path: node, class that moves on, node, ..., a node with room.
            movers, stops = path
            count = min(
                [waiting[kind], free[stops[-1]]]
                + [placed[by][at] for by, at in zip(movers, stops, strict=False)]
            )
            _move(placed[kind], free, stops[0], count)
            for by, origin, target in zip(movers, stops, stops[1:], strict=False):
                _move(placed[by], free, origin, -count)
                _move(placed[by], free, target, count)
            waiting[kind] -= count
    return placed


def _move(of_class: dict[int, int], free: list[int], node: int, count: int) -> None:
    of_class[node] = of_class.get(node, 0) + count
    free[node] -= count


def _way(
    kind: int, placed: dict[int, dict[int, int]], nodes: Sequence[tuple[int, ...]], free: list[int]
) -> tuple[list[int], list[int]] | None:
    """The shortest chain of moves that makes room at a holder of class `kind`: classes that move
    on, and the nodes."""
    before: dict[int, tuple[int, int] | None] = {node: None for node in nodes[kind]}
    queue = deque(nodes[kind])
    while queue:
        node = queue.popleft()
        if free[node] > 0:
            movers, stops = [], [node]
            while (step := before[stops[-1]]) is not None:
                movers.append(step[0])
                stops.append(step[1])
            return movers[::-1], stops[::-1]
        for by, where in placed.items():
            if where.get(node, 0) > 0:
                for target in nodes[by]:
                    if target not in before:
                        before[target] = (by, node)
                        queue.append(target)
    return None
