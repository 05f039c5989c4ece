"""A rank of test_mpi.py: where the frames of an analysis came from.

mpiexec -n 3 python mpi_local.py TOPOLOGY TRAJECTORY
"""

import json
import sys
import warnings
from collections import Counter

import MDAnalysis as mda
import numpy as np
import zazen.mdanalysis
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.analysis.rms import RMSF
from mpi4py import MPI

warnings.simplefilter("ignore")
topology, name = sys.argv[1:3]
comm = MPI.COMM_WORLD
universe = mda.Universe(topology, name)
atoms = universe.select_atoms("name CA")
backend = zazen.mdanalysis.MPI()
found = AnalysisFromFunction(
    lambda _: (universe.trajectory.ts.data["zazen"], comm.rank), universe.trajectory, atoms
).run(backend=backend)
sources = Counter(source for source, _ in found.results.timeseries.tolist())
shares = Counter(int(rank) for _, rank in found.results.timeseries.tolist())
rmsf = RMSF(atoms).run(backend=backend).results.rmsf
if comm.rank == 0:
    serial = RMSF(atoms).run().results.rmsf
    report = {"sources": sources, "shares": shares, "rmsf": bool(np.array_equal(rmsf, serial))}
    print("REPORT " + json.dumps(report))
