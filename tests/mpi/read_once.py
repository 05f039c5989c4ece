"""Each rank reads its share; rank 0 prints what happened, as JSON.

Arguments: DATASET RULES PROTOCOL CARRIER.
"""

import hashlib
import json
import sys
import warnings

import zazen
from mpi4py import MPI


def main():
    path, rules, protocol, carrier = sys.argv[1:]
    comm = MPI.COMM_WORLD
    warnings.simplefilter("ignore", zazen.ZazenWarning)
    with zazen.open(path) as dataset:
        frames = dataset.frames(comm=comm, rules=rules, protocol=protocol, carrier=carrier)
        mine = {frame.number: hashlib.sha256(frame.data).hexdigest() for frame in frames}
    assignment, stats = frames.assignment, frames.stats
    assert sorted(mine) == list(assignment.set)
    row = {
        "frames": mine,
        "natives": assignment.natives,
        "aliens": assignment.aliens,
        "residue": assignment.residue,
        "totals": [assignment.total_natives, assignment.total_aliens, assignment.total_residue],
        "path": assignment.path,
        "carrier": assignment.carrier,
        "bytes_sent": assignment.bytes_sent,
        "backing_reads": stats.backing_reads,
        "local_share": stats.local_share,
    }
    rows = comm.gather(row)
    if comm.rank == 0:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
