"""Ranks of an MPI job write one HDF5 file together, each through the mount of another node.

    mpirun -n 4 /usr/bin/python3 tests/namespace/parallel_hdf5.py M/0 M/1 M/2 M/3

needs h5py with MPI (Debian: python3-h5py-mpi). Rank r uses the r-th folder. Then each rank reads
all of it, alone, through its own mount and through the next rank's.
"""

import os
import sys

import h5py
import numpy
from mpi4py import MPI

ROWS, COLUMNS, ROUNDS = 64, 1_003, 5
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
folders = sys.argv[1:]
if len(folders) < size:
    sys.exit(f"{size} ranks need as many folders")


def row(number: int, salt: int) -> numpy.ndarray:
    return numpy.random.default_rng([number, salt]).random(COLUMNS)


def check(path: str, salt: int, fields: int) -> None:
    """The whole file, as one process reads it without MPI."""
    with h5py.File(path, "r") as file:
        for name in ("whole", "chunked"):
            data = file[name][...]
            for number in range(ROWS):
                assert numpy.array_equal(data[number], row(number, salt)), (rank, path, name, number)
        assert file.attrs["salt"] == salt, (rank, path)
        assert sorted(file["groups"]) == sorted(f"g{n}" for n in range(fields)), (rank, path)
        for number in range(fields):
            assert file[f"groups/g{number}"].attrs["made by"] == number


def work(salt: int, collective: bool) -> None:
    path = os.path.join(folders[rank], f"shared-{salt}.h5")
    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        whole = file.create_dataset("whole", (ROWS, COLUMNS), "f8")
        chunked = file.create_dataset("chunked", (ROWS, COLUMNS), "f8", chunks=(3, 97))
        groups = file.create_group("groups")
        # What changes the structure of the file, all ranks do together.
        for number in range(size):
            groups.create_group(f"g{number}").attrs["made by"] = number
        file.attrs["salt"] = salt
        mine = slice(rank, ROWS, size)
        rows = numpy.stack([row(number, salt) for number in range(rank, ROWS, size)])
        if collective:
            for data in (whole, chunked):
                with data.collective:
                    data[mine] = rows
        else:
            # Rows of different ranks share chunks here: each rank writes whole ones.
            for at, number in enumerate(range(rank, ROWS, size)):
                whole[number] = rows[at]
            with chunked.collective:
                chunked[mine] = rows
        comm.Barrier()
        # Another rank's row, through MPI.
        other = (rank + 1) % size
        assert numpy.array_equal(whole[other], row(other, salt)), (rank, "through MPI")
    comm.Barrier()
    check(path, salt, size)
    check(os.path.join(folders[(rank + 1) % size], f"shared-{salt}.h5"), salt, size)
    comm.Barrier()


for salt in range(ROUNDS):
    work(salt, salt % 2 == 0)
if rank == 0:
    print(f"{ROUNDS} files by {size} ranks of {h5py.version.hdf5_version}: as expected")
