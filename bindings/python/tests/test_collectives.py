"""Communicators of the user's own: any object with the methods of `zazen.Collectives`."""

import threading

import pytest
import zazen
from sample import FRAMES
from zazen import _zazen


class Threads:
    """Ranks as threads of one process."""

    class Shared:
        def __init__(self, size):
            self.size = size
            self.barrier = threading.Barrier(size, timeout=60)
            self.slots = [None] * size

    def __init__(self, shared, rank):
        self.rank, self.size = rank, shared.size
        self._shared = shared

    def _exchange(self, mine):
        self._shared.slots[self.rank] = mine
        self._shared.barrier.wait()
        everyone = list(self._shared.slots)
        self._shared.barrier.wait()
        return everyone

    def _reduce(self, words, combine):
        everyone = [memoryview(bytes(other)).cast("Q") for other in self._exchange(bytes(words))]
        into = memoryview(words).cast("Q")
        for at in range(len(into)):
            value = 0
            for other in everyone:
                value = combine(value, other[at])
            into[at] = value & (2**64 - 1)

    def allreduce_sum(self, words):
        self._reduce(words, lambda a, b: a + b)

    def allreduce_or(self, words):
        self._reduce(words, lambda a, b: a | b)

    def alltoallv(self, send):
        return [blocks[self.rank] for blocks in self._exchange(send)]

    def allgatherv(self, mine):
        return self._exchange(mine)

    def broadcast(self, mine):
        return self._exchange(mine)[0]


def on_ranks(size, body):
    """What `body(comm)` returns or raises, by rank."""
    shared, results = Threads.Shared(size), [None] * size

    def run(rank):
        try:
            results[rank] = body(Threads(shared, rank))
        except Exception as error:
            results[rank] = error
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_it_is_a_protocol():
    assert isinstance(Threads(Threads.Shared(1), 0), zazen.Collectives)
    assert not isinstance(object(), zazen.Collectives)


class WithXor(Threads):
    """As one who knows the optional operator."""

    def allreduce_xor(self, words):
        self._reduce(words, lambda a, b: a ^ b)


def test_the_optional_operator_gives_what_its_substitute_gives():
    def reduced(kind):
        def body(comm):
            probe = _zazen.CarrierProbe(kind(comm._shared, comm.rank))
            return [probe.allreduce("xor", [(comm.rank + 1) << at for at in range(n)]) for n in (0, 1, 2, 50)]

        return on_ranks(3, body)

    expected = [[(1 ^ 2 ^ 3) << at for at in range(n)] for n in (0, 1, 2, 50)]
    assert reduced(Threads) == reduced(WithXor) == [expected] * 3


@pytest.mark.parametrize("protocol", ["owner", "bitmaps"])
@pytest.mark.parametrize("rules", ["full", "paper"])
def test_every_frame_is_read_once(pushed, dataset, rules, protocol):
    def body(comm):
        opened = zazen.open(dataset, socket=pushed.sockets[comm.rank % 2])
        frames = opened.frames(comm=comm, rules=rules, protocol=protocol)
        return frames.assignment, [frame.number for frame in frames], frames.stats

    results = on_ranks(4, body)
    numbers = sorted(number for _, numbers, _ in results for number in numbers)
    assert numbers == list(range(FRAMES))
    for assignment, numbers, stats in results:
        assert assignment.carrier == "python"
        assert list(assignment.set) == sorted(numbers)
        assert assignment.total_natives == FRAMES and assignment.natives == len(numbers)
        assert assignment.aliens == assignment.total_aliens == assignment.total_residue == 0
        assert assignment.rounds > 0 and stats.local_share == 1.0
    assert {assignment.path for assignment, _, _ in results} <= {"fingerprint", "exchange"}
    assert sum(assignment.bytes_sent for assignment, _, _ in results) > 0


def test_open_bounds_are_rank_zeros(dataset):
    def body(comm):
        opened = zazen.open(dataset, direct=True)
        return [frame.number for frame in opened.frames(stride=3, comm=comm)]

    results = on_ranks(3, body)
    assert sorted(number for numbers in results for number in numbers) == list(range(0, FRAMES, 3))


def test_an_exception_comes_out_as_it_was(dataset):
    class Broken(Threads):
        def allreduce_sum(self, words):
            raise KeyError("mine")

        allreduce_or = alltoallv = allgatherv = broadcast = allreduce_sum

    with pytest.raises(KeyError, match="mine"):
        zazen.open(dataset, direct=True).assign(comm=Broken(Threads.Shared(1), 0))


def test_nonsense_is_refused(dataset):
    opened = zazen.open(dataset, direct=True)
    comm = Threads(Threads.Shared(1), 0)
    comm.rank = 1
    with pytest.raises(zazen.InvalidArgumentError):
        opened.assign(comm=comm)

    class Short(Threads):
        def alltoallv(self, send):
            return []

    probe = _zazen.CarrierProbe(Short(Threads.Shared(1), 0))
    with pytest.raises(ValueError, match="0 blocks"):
        probe.alltoallv([b"x"])
