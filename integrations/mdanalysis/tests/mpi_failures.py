"""A rank of test_mpi.py: whatever fails on one rank raises on all of them, and nobody waits for
ever.

mpiexec -n 3 python mpi_failures.py TOPOLOGY TRAJECTORY
"""

import sys
import tempfile
import warnings

import MDAnalysis as mda
import numpy as np
import zazen
import zazen.mdanalysis
from MDAnalysis.analysis import align, rms
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.transformations import NoJump, translate
from mpi4py import MPI

warnings.simplefilter("ignore")
topology, name = sys.argv[1:3]
comm = MPI.COMM_WORLD
universe = mda.Universe(topology, name)
atoms = universe.select_atoms("name CA")


def expect(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"rank {comm.rank}: no {kind.__name__} that says {text!r}")
    comm.Barrier()


def run(analysis, **arguments):
    return analysis.run(backend=zazen.mdanalysis.MPI(), **arguments)


def frame(_atoms):
    if universe.trajectory.frame == 5:
        raise ArithmeticError("frame 5 is bad")
    return universe.trajectory.frame


def of(function):
    return AnalysisFromFunction(function, universe.trajectory, atoms)


found = of(lambda group: group.positions.sum())
assert len(run(found).results.timeseries) == len(universe.trajectory)

try:
    run(of(frame))
except ArithmeticError as error:
    outcome = "own"
    assert "frame 5 is bad" in str(error)
except zazen.MpiError as error:
    outcome = "other"
    assert "ArithmeticError: frame 5 is bad" in str(error) and "on 1 of" in str(error)
outcomes = comm.allgather(outcome)
assert outcomes.count("own") == 1 and outcomes.count("other") == comm.size - 1, outcomes

# A reader that fails on one rank, in an analysis whose ranks send each other positions.
reader = universe.trajectory
read = reader._load


def broken(number, ts=None):
    if number == 7:
        raise zazen.mdanalysis.ReadError("frame 7 is gone")
    return read(number, ts)


reader._load = broken
expect((zazen.mdanalysis.ReadError, zazen.MpiError), "frame 7 is gone", lambda: run(rms.RMSF(atoms)))
del reader._load
assert run(rms.RMSF(atoms)).results.rmsf.shape == (len(atoms),)

# What can't be run, and says so on all ranks.
with tempfile.TemporaryDirectory() as folder:
    aligned = align.AlignTraj(universe, universe, select="name CA", filename=f"{folder}/never-written.xtc")
    expect(ValueError, "AlignTraj needs all frames", lambda: run(aligned))
jumping = mda.Universe(topology, name)
jumping.trajectory.add_transformations(NoJump())
expect(ValueError, "NoJump", lambda: run(rms.RMSD(jumping)))

# Ranks that do not do the same.
if comm.size > 1:
    different = of(lambda group: 0)
    expect(zazen.InvalidArgumentError, "do not run the same", lambda: run(different, stop=4 + comm.rank))

# Transformations of single frames.
moved = mda.Universe(topology, name)
moved.trajectory.add_transformations(translate([100, 0, 0]))
group = moved.select_atoms("name CA")
shift = run(
    AnalysisFromFunction(lambda atoms: atoms.positions.mean(axis=0), moved.trajectory, group)
).results.timeseries
unmoved = run(of(lambda atoms: atoms.positions.mean(axis=0))).results.timeseries
assert np.allclose(shift - unmoved, [100, 0, 0], atol=1e-3)

# Any other trajectory is dealt out in equal parts.
plain = mda.Universe(topology, topology)
assert run(AnalysisFromFunction(lambda group: len(group), plain.trajectory, plain.atoms)).results.timeseries[
    0
] == len(plain.atoms)
print(f"rank {comm.rank} of {comm.size}: all raised")
