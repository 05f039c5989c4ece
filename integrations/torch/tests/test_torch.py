"""The dataset and the sampler with PyTorch's own loader, sampler and process groups."""

import functools
import itertools
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zazen

pytest.importorskip(
    "torch.utils.data",
    reason="torch is not installed: scripts/test-torch.sh installs it in a place of its own",
)

import torch
import torch_rank
import zazen.torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch_sample import content, numbers
from zazen.torch.positions import Positions


@pytest.fixture
def dataset(images, node):
    with zazen.open(images, socket=str(node.socket)) as opened:
        yield opened


def test_samples_are_frames_by_place(dataset):
    samples = zazen.torch.Dataset(dataset)
    assert len(samples) == len(numbers())
    assert [samples[at] for at in (0, 1, 10, -1)] == [content(numbers()[at]) for at in (0, 1, 10, -1)]
    order = random.Random(1).sample(range(len(samples)), 50)
    assert samples.__getitems__(order) == [content(numbers()[at]) for at in order]
    with pytest.raises(IndexError, match="sample 300 of a dataset of 300"):
        samples[300]


def as_tensor(frame):
    return torch.frombuffer(bytearray(frame.data), dtype=torch.uint8), frame.number


@pytest.mark.parametrize("start", [None, "fork", "forkserver", "spawn"])
def test_loader(dataset, start):
    samples = zazen.torch.Dataset(dataset, as_tensor)
    sampler = zazen.torch.LocalSampler(samples, 32, seed=1)
    workers = {"num_workers": 2, "multiprocessing_context": start} if start else {}
    seen = []
    for data, number in DataLoader(samples, batch_sampler=sampler, **workers):
        assert all(bytes(row.tolist()) == content(int(one)) for row, one in zip(data, number, strict=True))
        seen += number.tolist()
    assert sorted(seen) == numbers()


def test_the_samples_survive_pickling(dataset):
    again = pickle.loads(pickle.dumps(zazen.torch.Dataset(dataset)))
    assert again[3] == content(numbers()[3])


def test_one_rank_is_pytorchs_own_order_as_sets(dataset):
    samples = zazen.torch.Dataset(dataset)
    sampler = zazen.torch.LocalSampler(dataset, 32, seed=1)
    theirs = DistributedSampler(samples, 1, 0, seed=1, drop_last=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        theirs.set_epoch(epoch)
        expected = [set(batch) for batch in BatchSampler(theirs, 32, drop_last=False)]
        assert [set(batch) for batch in sampler] == expected
        assert len(sampler) == len(expected) == 10
    shorter = zazen.torch.LocalSampler(dataset, 32, seed=1, drop_last=True)
    assert len(list(shorter)) == len(shorter) == 9


def expected_batches(count, ranks, batch_size, seed, epoch):
    """The k-th batches of all ranks together, from PyTorch's own sampler."""
    parts = []
    for rank in range(ranks):
        theirs = DistributedSampler(range(count), ranks, rank, seed=seed, drop_last=True)
        theirs.set_epoch(epoch)
        parts.append(list(BatchSampler(theirs, batch_size, drop_last=False)))
    return [sorted(itertools.chain.from_iterable(batches)) for batches in zip(*parts, strict=True)]


@pytest.mark.parametrize("carrier", ["torch", "mpi"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_all_ranks_together(cluster, images, folder, carrier, ranks):
    """Real processes over gloo or MPI, each at a node; the union of their batches is PyTorch's."""
    found = torch_rank.launch(carrier, ranks, images, cluster.sockets, folder, epochs=3, batch_size=16)
    for epoch in range(3):
        batches = [
            sorted(itertools.chain.from_iterable(parts))
            for parts in zip(*(rank[epoch]["batches"] for rank in found), strict=True)
        ]
        assert batches == expected_batches(len(numbers()), ranks, 16, 5, epoch)
        for rank in found:
            assert rank[epoch]["good"], "the bytes of every sample are its file's"
            assert {len(batch) for batch in rank[epoch]["batches"][:-1]} <= {16}
    nodes = min(ranks, len(cluster.sockets))
    # What a node read in the first epoch it holds in the second. With as few as 16 samples a rank
    # chance moves some.
    shares = [sum(rank[1]["local"] for rank in found) / len(found)]
    assert shares[0] > (0.99 if nodes == 1 else 0.8), shares


@pytest.mark.parametrize("carrier", ["torch"])
def test_resuming_in_mid_epoch(cluster, images, folder, carrier):
    run = functools.partial(
        torch_rank.launch, carrier, 3, images, cluster.sockets, folder, epochs=2, batch_size=16
    )
    run()
    whole = run()
    stopped = run(stop=(1, 3))
    resumed = run(resume=True)
    for rank in range(3):
        before, after = stopped[rank][1]["batches"], resumed[rank][1]["batches"]
        assert len(before) == 3 and len(before) + len(after) == len(whole[rank][1]["batches"])
        # To the batch, although the caches have changed since.
        assert stopped[rank][1]["rest"] == after


def test_states_of_another_job_are_refused(dataset):
    sampler = zazen.torch.LocalSampler(dataset, 32, seed=1)
    state = sampler.state_dict()
    for name, value in {"ranks": 2, "samples": 5, "frame numbers": "ab", "batch_size": 16, "seed": 2}.items():
        with pytest.raises(ValueError, match=f"the state is of {name}"):
            sampler.load_state_dict({**state, name: value})
    with pytest.raises(ValueError, match="version 9"):
        sampler.load_state_dict({**state, "version": 9})
    with pytest.raises(ValueError, match="batch_size is 0"):
        zazen.torch.LocalSampler(dataset, 0)


class Ranks:
    """Ranks that are threads of this process."""

    def __init__(self, rank, told, barrier):
        self.rank, self.ranks, self._told, self._barrier = rank, len(told), told, barrier

    def all(self, value):
        self._told[self.rank] = value
        self._barrier.wait(60)
        return list(self._told)


@pytest.mark.parametrize(
    ("differs", "options"),
    [
        ("seed", {"seed": 2}),
        ("shuffle", {"shuffle": False}),
        ("batch_size", {"batch_size": 16}),
        ("drop_last", {"drop_last": True}),
        ("samples", {"fewer": 1}),
        ("frame numbers", {"others": True}),
        ("epoch", {"epoch": 3}),
        ("first batch", {"start": 1}),
    ],
)
def test_ranks_that_would_deal_differently_raise(dataset, differs, options):
    """All of them, and before the first batch: otherwise samples would be read twice, and others
    never."""

    def begin(rank, batch_size=32, seed=1, fewer=0, others=False, epoch=0, start=0, **more):
        made = zazen.torch.LocalSampler(dataset, batch_size, seed=seed, **more)
        have = [made._positions.number(at) for at in range(len(made._positions) - fewer)]
        if others:
            have[-1] += 1
        made._positions = Positions([(number, 1, 1) for number in have])
        made.set_epoch(epoch)
        if start:
            made.load_state_dict({**made.state_dict(), "yielded": start})
        made._group = Ranks(rank, told, barrier)
        made.rank, made.ranks = rank, len(told)
        with pytest.raises(ValueError, match=f"rank 0 has {differs} .*, rank 1 has"):
            next(iter(made))

    told, barrier = [None] * 2, threading.Barrier(2)
    with ThreadPoolExecutor(2) as ranks:
        for done in [ranks.submit(begin, 0), ranks.submit(begin, 1, **options)]:
            done.result()


def test_digests_are_of_the_numbers_and_not_of_how_they_are_told():
    assert Positions([(0, 4, 2)]).digest() == Positions([(0, 1, 1), (2, 3, 2)]).digest()
    assert Positions([(0, 1, 9)]).digest() == Positions([(0, 1, 1)]).digest()
    assert Positions([(0, 4, 2)]).digest() != Positions([(0, 4, 3)]).digest()
    assert Positions([]).digest() != Positions([(0, 1, 1)]).digest()
    many = Positions([(0, 1 << 17, 1)])
    assert many.digest() == Positions([(0, 1 << 16, 1), (1 << 16, 1 << 16, 1)]).digest()


def test_a_finished_epoch_begins_anew(dataset):
    sampler = zazen.torch.LocalSampler(dataset, 64, seed=3)
    first = list(sampler)
    sampler.load_state_dict(sampler.state_dict())
    assert list(sampler) == first


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_loader(dataset, workers):
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def make():
        samples = zazen.torch.Dataset(dataset)
        sampler = zazen.torch.LocalSampler(dataset, 32, seed=1)
        return loaders.StatefulDataLoader(samples, batch_sampler=sampler, num_workers=workers)

    whole = list(make())
    loader = make()
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(4)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    again = make()
    again.load_state_dict(state)
    assert begun + list(again) == whole
    # The next epoch is whole.
    assert list(again) == whole


def test_empty_and_tiny(backing, node):
    (backing / "one").mkdir()
    (backing / "one" / "s-3.bin").write_bytes(b"x")
    with zazen.open(backing / "one", socket=str(node.socket)) as one:
        assert list(zazen.torch.LocalSampler(one, 8)) == [[0]]
        assert list(zazen.torch.LocalSampler(one, 8, drop_last=True)) == []
        assert zazen.torch.Dataset(one)[0] == b"x"


def test_importing_zazen_imports_no_torch():
    subprocess.run([sys.executable, "-c", "import zazen, sys; assert 'torch' not in sys.modules"], check=True)
