"""The carrier contract on a library of the standard ABI, which the wheels of mpi4py do not use."""

import ctypes
import sys
import types

from carrier_contract import check
from zazen import _mpi4py, _zazen

COMM_WORLD = 0x101


def main():
    mpi = ctypes.CDLL(sys.argv[1])
    assert mpi.MPI_Init(None, None) == 0
    # There is no communicator object to take the handle from.
    _mpi4py.resolve = lambda comm, carrier: COMM_WORLD
    probe = _zazen.CarrierProbe(object())
    rank, size = probe.rank_and_size()
    check(probe, types.SimpleNamespace(rank=rank, size=size))
    file, abi = _zazen.mpi_library()
    assert abi == "Standard" and "libmpi_abi" in file, (file, abi)
    print("contract holds\n", end="", flush=True)
    mpi.MPI_Finalize()
    try:
        probe.rank_and_size()
    except _zazen.MpiError as error:
        assert "finalised" in str(error)
    else:
        raise SystemExit("MPI was called after MPI_Finalize")


if __name__ == "__main__":
    main()
