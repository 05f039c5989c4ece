"""A rank of an MPI job whose ranks write one file through MPI-IO, each from the mount of another
node.

Blocks are unaligned and interleaved, so neighbours share pages and sectors.
"""

import sys

import numpy
from mpi4py import MPI

BLOCK, ROUNDS = 10_007, 60
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
path = sys.argv[1]


def block(of: int, number: int, salt: int) -> numpy.ndarray:
    return numpy.random.default_rng([of, number, salt]).integers(0, 256, BLOCK, dtype=numpy.uint8)


def expected(salt: int) -> numpy.ndarray:
    return numpy.concatenate([block(at % size, at // size, salt) for at in range(ROUNDS * size)])


def check(name: str, file: MPI.File, salt: int) -> None:
    file.Sync()
    comm.Barrier()
    file.Sync()
    got = numpy.empty(BLOCK * ROUNDS * size, dtype=numpy.uint8)
    file.Read_at_all(0, got)
    wrong = numpy.flatnonzero(got != expected(salt))
    assert file.Get_size() == len(got), (name, rank, file.Get_size())
    assert len(wrong) == 0, (name, rank, len(wrong), int(wrong[0]))
    comm.Barrier()


file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)

# Each rank its own blocks, one call each.
for number in range(ROUNDS):
    file.Write_at((number * size + rank) * BLOCK, block(rank, number, 1))
check("independent", file, 1)

# All ranks together, through a view of every size-th block.
view = MPI.BYTE.Create_vector(ROUNDS, BLOCK, BLOCK * size).Commit()
file.Set_view(rank * BLOCK, MPI.BYTE, view)
file.Write_at_all(0, numpy.concatenate([block(rank, number, 2) for number in range(ROUNDS)]))
file.Set_view(0, MPI.BYTE, MPI.BYTE)
check("collective", file, 2)

# The same without the ranks' help for each other: MPI reads, changes and writes whole pieces under
# locks.
info = MPI.Info.Create()
info.Set("romio_ds_write", "enable")
info.Set("romio_cb_write", "disable")
file.Close()
file = MPI.File.Open(comm, path, MPI.MODE_RDWR, info)
file.Set_view(rank * BLOCK, MPI.BYTE, view, info=info)
file.Write_at(0, numpy.concatenate([block(rank, number, 3) for number in range(ROUNDS)]))
file.Set_view(0, MPI.BYTE, MPI.BYTE)
check("sieved", file, 3)

# Where writes overlap, one of them counts, whole.
file.Set_atomicity(True)
file.Write_at(0, numpy.full(BLOCK, rank, dtype=numpy.uint8))
file.Sync()
comm.Barrier()
got = numpy.empty(BLOCK, dtype=numpy.uint8)
file.Read_at_all(0, got)
assert len(set(got.tolist())) == 1 and got[0] < size, ("overlapping", set(got.tolist()))
file.Close()
if rank == 0:
    print("shared file is right")
