"""The dealing of global batches, against brute force and an independent largest flow. It needs no
torch, so it runs where torch is not installed, too."""

import random

import numpy as np
import pytest
from deal_alone import Homes, deal


def make(chance, nodes, samples, copies):
    """Each sample on `copies` nodes; -1: on any number, also none."""
    held = np.zeros((nodes, samples), dtype=bool)
    for sample in range(samples):
        count = chance.randint(0, nodes) if copies < 0 else copies
        held[chance.sample(range(nodes), count), sample] = True
    return held


def largest(batch, held, room):
    """The most samples that can be read where they lie: augmenting paths, one sample at a time."""
    at = {}

    def place(sample, seen):
        for node in np.flatnonzero(held[:, sample]):
            if node in seen:
                continue
            seen.add(node)
            here = [one for one, where in at.items() if where == node]
            if len(here) < room[node] or any(place(one, seen) for one in here):
                at[sample] = node
                return True
        return False

    return sum(place(sample, set()) for sample in batch)


@pytest.mark.parametrize("seed", range(60))
def test_every_sample_once_equal_shares_and_as_many_local_as_possible(seed):
    chance = random.Random(seed)
    nodes, share = chance.randint(1, 5), chance.randint(1, 6)
    node_of_rank = list(range(nodes)) + [chance.randrange(nodes) for _ in range(chance.randint(0, 5))]
    chance.shuffle(node_of_rank)
    held = make(chance, nodes, 80, chance.choice([-1, 0, 1, 2]) if nodes > 1 else 1)
    batch = np.array(chance.sample(range(80), share * len(node_of_rank)))
    dealt = deal(batch, Homes(list(held)), node_of_rank, share)
    assert [len(part) for part in dealt] == [share] * len(node_of_rank)
    assert sorted(np.concatenate(dealt)) == sorted(batch)
    local = sum(held[node, sample] for node, part in zip(node_of_rank, dealt, strict=True) for sample in part)
    room = np.bincount(node_of_rank) * share
    assert local == largest(batch.tolist(), held, room)
    again = deal(batch, Homes(list(held)), node_of_rank, share)
    assert all(np.array_equal(one, other) for one, other in zip(dealt, again, strict=True))


@pytest.mark.parametrize(
    ("ranks", "a_node", "copies", "least"), [(16, 1, 1, 0.92), (16, 1, 2, 0.999), (32, 8, 1, 0.97)]
)
def test_local_share(ranks, a_node, copies, least):
    samples, share = 40_000, 32
    nodes = ranks // a_node
    held = make(random.Random(1), nodes, samples, copies)
    homes, node_of_rank = Homes(list(held)), [rank // a_node for rank in range(ranks)]
    order = np.random.default_rng(2).permutation(samples)
    local = total = 0
    for first in range(0, samples - ranks * share + 1, ranks * share):
        for node, part in zip(
            node_of_rank, deal(order[first : first + ranks * share], homes, node_of_rank, share), strict=True
        ):
            local += int(held[node, part].sum())
            total += len(part)
    print(f"{ranks} ranks, {a_node} a node, {copies} copies: local share {local / total:.4f}")
    assert local / total >= least


def test_wrong_sizes_are_refused():
    homes = Homes([np.ones(8, dtype=bool)])
    with pytest.raises(ValueError, match="8 samples for 2 ranks with 3 each"):
        deal(np.arange(8), homes, [0, 0], 3)
