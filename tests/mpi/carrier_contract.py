"""What every carrier must do, as a program for each rank: `mpiexec -n N python carrier_contract.py
CARRIER`.

The expected values follow from the ranks' numbers alone, so each rank checks its own result.
"""

import functools
import operator
import sys

from zazen import _mpi4py, _zazen

MASK = (1 << 64) - 1


def noise(rank, at):
    """A reproducible 64-bit word."""
    word = (rank + 1) * 0x9E3779B97F4A7C15 + at * 0xBF58476D1CE4E5B9
    return (word ^ (word >> 29)) & MASK


def two_bit_words(rank, count):
    """Entries 00, 01 or 10, never 11."""
    words = []
    for at in range(count):
        high = noise(rank, at) & 0xAAAAAAAAAAAAAAAA
        words.append(high | (noise(rank + 100, at) & 0x5555555555555555 & ~(high >> 1)))
    return words


def two_bit_oracle(per_rank):
    """The paper's table, entry by entry."""
    combined = []
    for words in zip(*per_rank, strict=True):
        result = 0
        for entry in range(32):
            values = [(word >> (2 * entry)) & 3 for word in words]
            ones = values.count(1)
            result |= (2 if 2 in values or ones > 1 else ones) << (2 * entry)
        combined.append(result)
    return combined


def check(probe, comm):
    rank, size = comm.rank, comm.size
    assert probe.rank_and_size() == (rank, size)
    ranks = range(size)
    for count in (0, 1, 5, 3000):
        per_rank = [[noise(r, at) for at in range(count)] for r in ranks]
        sums = [sum(words) & MASK for words in zip(*per_rank, strict=True)]
        assert probe.allreduce("sum", per_rank[rank]) == sums, f"sum of {count}"
        for name, combine in (("or", operator.or_), ("xor", operator.xor)):
            expected = [functools.reduce(combine, words) for words in zip(*per_rank, strict=True)]
            assert probe.allreduce(name, per_rank[rank]) == expected, f"{name} of {count}"
        two_bits = [two_bit_words(r, min(count, 200)) for r in ranks]
        assert probe.allreduce("two_bit", two_bits[rank]) == two_bit_oracle(two_bits), f"two-bit of {count}"

    def block(source, to):
        """Of very different lengths, some empty."""
        return bytes([source * 16 + to]) * ((source * 7919 + to * 104729) % 5 * 100_003)

    got = probe.alltoallv([block(rank, to) for to in ranks])
    assert got == [block(source, rank) for source in ranks], "all-to-all"
    assert probe.alltoallv([b""] * size) == [b""] * size, "empty all-to-all"
    mine = [bytes([r]) * (r * 70_001) for r in ranks]
    assert probe.allgatherv(mine[rank]) == mine, "all-gather"
    long = [bytes([r]) * (r * 1_000_001) for r in ranks]
    assert probe.allgatherv(long[rank]) == long, "all-gather of long blocks"
    assert probe.allgatherv(b"") == [b""] * size, "all-gather of nothing"
    for length in (0, 1, 1_000_003):
        assert probe.broadcast(bytes([rank + 1]) * (length if rank == 0 else 3)) == b"\x01" * length, (
            "broadcast"
        )


def main():
    from mpi4py import MPI

    carrier = sys.argv[1]
    comm = MPI.COMM_WORLD
    probe = _zazen.CarrierProbe(comm, carrier)
    assert probe.name() == {"auto": "mpi", "mpi": "mpi", "mpi4py": "python"}[carrier], probe.name()
    check(probe, comm)
    # A sub-communicator with reversed ranks is as good as the world.
    half = comm.Split(color=comm.rank % 2, key=-comm.rank)
    check(_zazen.CarrierProbe(half, carrier), half)
    half.Free()
    # Blocks beyond a message's limit arrive whole: here it is so low that most are cut, elsewhere 1
    # GiB.
    if carrier == "mpi4py":
        _mpi4py._CHUNK_BYTES = 4096
    check(_zazen.CarrierProbe(comm, carrier, chunk_bytes=4096), comm)
    # As among many ranks: only blocks that are not empty travel, whole and in pieces.
    for chunk_bytes in (None, 4096, 100_003):
        probe = _zazen.CarrierProbe(comm, carrier, chunk_bytes=chunk_bytes, sparse=True)
        for _ in range(20):
            to = (comm.rank + 1) % comm.size
            sent = [bytes([comm.rank]) * 100_003 * (rank == to) for rank in range(comm.size)]
            got = probe.alltoallv(sent)
            source = (comm.rank - 1) % comm.size
            assert got == [bytes([rank]) * 100_003 * (rank == source) for rank in range(comm.size)]
        check(probe, comm)
    # Many duplicates come and go without running out of context ids.
    for _ in range(3000 if carrier != "mpi4py" else 1):
        probe.rank_and_size()
    if comm.rank == 0:
        print("contract holds", carrier, comm.size, _zazen.mpi_library())


if __name__ == "__main__":
    main()
