"""A rank of test_mpi.py: runs analyses with the MPI back end and compares them with serial runs of
plain readers.

mpiexec -n 3 python mpi_analyses.py TOPOLOGY TRAJECTORY NAME
"""

import sys
import warnings

import MDAnalysis as mda
import numpy as np
import zazen.mdanalysis
from MDAnalysis.analysis import contacts, dihedrals, lineardensity, rdf, rms
from MDAnalysis.analysis.base import AnalysisBase, AnalysisFromFunction
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis
from MDAnalysis.analysis.results import ResultsGroup
from mpi4py import MPI

warnings.simplefilter("ignore")
topology, plain, name = sys.argv[1:4]
comm = MPI.COMM_WORLD


class Centres(AnalysisBase):
    """What users write: a subclass that can be parallelized. It looks at the Timestep where the run
    began."""

    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atoms):
        super().__init__(atoms.universe.trajectory)
        self.atoms = atoms

    def _prepare(self):
        self.began = self.atoms.center_of_geometry()
        self.results.centres = np.zeros((self.n_frames, 3))
        # As long as some runs have frames: a histogram must not be taken for what is there per
        # frame.
        self.results.histogram = np.zeros(10)

    def _single_frame(self):
        self.results.centres[self._frame_index] = self.atoms.center_of_geometry() - self.began
        self.results.histogram[int(self._ts.frame) % 10] += 1

    def _get_aggregator(self):
        return ResultsGroup({"centres": ResultsGroup.ndarray_vstack, "histogram": ResultsGroup.ndarray_sum})


class Means(AnalysisBase):
    """Means over the frames, each updated frame by frame."""

    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atoms):
        super().__init__(atoms.universe.trajectory)
        self.atoms = atoms

    def _prepare(self):
        self.results.centre, self.results.radius = np.zeros(3), 0.0

    def _single_frame(self):
        seen = self._frame_index
        self.results.centre += (self.atoms.center_of_geometry() - self.results.centre) / (seen + 1)
        self.results.radius += (self.atoms.radius_of_gyration() - self.results.radius) / (seen + 1)

    def _get_aggregator(self):
        return ResultsGroup({"centre": ResultsGroup.ndarray_mean, "radius": ResultsGroup.float_mean})


def radii(atoms):
    return atoms.radius_of_gyration()


def opened(trajectory):
    """A universe with charges, and the groups of it that are analysed."""
    universe = mda.Universe(topology, trajectory)
    universe.add_TopologyAttr("charges", np.linspace(-1, 1, len(universe.atoms)))
    protein, ca = universe.select_atoms("protein"), universe.select_atoms("name CA")
    return universe, protein, ca


def of_contacts(universe, _protein, _ca):
    pairs = ("resname ASP and name OD*", "resname ARG and name NH*")
    return contacts.Contacts(universe, pairs, tuple(universe.select_atoms(of) for of in pairs))


def of_waters(universe, _protein, _ca):
    water = universe.select_atoms("resname SOL and name OW")[:200]
    return rdf.InterRDF(water, water, nbins=40)


def of_bonds(universe, _protein, _ca):
    return HydrogenBondAnalysis(
        universe,
        hydrogens_sel="protein and name H",
        acceptors_sel="protein and name O",
        donors_sel="protein and name N",
    )


#: Name -> what makes a new analysis, what of its results to compare, and the relative error that is
#: allowed.
ANALYSES = {
    "rmsf": (lambda universe, protein, ca: rms.RMSF(ca), lambda r: r.rmsf, 0),
    # Some ranks have no atom of it.
    "rmsf of two atoms": (lambda universe, protein, ca: rms.RMSF(ca[:2]), lambda r: r.rmsf, 0),
    "rmsd": (lambda universe, protein, ca: rms.RMSD(protein, select="backbone"), lambda r: r.rmsd, 0),
    "function": (
        lambda universe, protein, ca: AnalysisFromFunction(radii, universe.trajectory, protein),
        lambda r: (r.timeseries, r.times),
        0,
    ),
    "subclass": (lambda universe, protein, ca: Centres(ca), lambda r: (r.centres, r.histogram), 0),
    "means": (lambda universe, protein, ca: Means(ca), lambda r: (r.centre, r.radius), 1e-12),
    "dihedrals": (lambda universe, protein, ca: dihedrals.Ramachandran(protein), lambda r: r.angles, 0),
    "contacts": (of_contacts, lambda r: r.timeseries, 0),
    "rdf": (of_waters, lambda r: (r.rdf, r.bins, r.count), 1e-12),
    "density": (
        lambda universe, protein, ca: lineardensity.LinearDensity(ca),
        lambda r: r.z.mass_density,
        1e-12,
    ),
    "hbonds": (of_bonds, lambda r: r.hbonds, 0),
}


def results(found):
    return [np.asarray(value) for value in (found if isinstance(found, tuple) else (found,))]


def compare(what, range_of, of_plain, of_zazen):
    make, of, allowed = ANALYSES[what]
    for universe, *_ in (of_plain, of_zazen):
        universe.trajectory[0]
    serial, parallel = make(*of_plain), make(*of_zazen)
    serial.run(**range_of)
    back_end = zazen.mdanalysis.MPI()
    parallel.run(backend=back_end, **range_of)
    assert np.array_equal(serial.frames, parallel.frames) and np.array_equal(serial.times, parallel.times)
    assert parallel._trajectory.ts.frame == serial._trajectory.ts.frame
    for mine, expected in zip(results(of(parallel.results)), results(of(serial.results)), strict=True):
        assert mine.shape == expected.shape and mine.dtype == expected.dtype, (
            what,
            mine.shape,
            expected.shape,
        )
        if allowed:
            scale = max(1.0, float(np.abs(expected).max()))
            assert np.allclose(mine, expected, rtol=allowed, atol=allowed * scale), (what, range_of)
        else:
            assert np.array_equal(mine, expected, equal_nan=True), (what, range_of)


frames = len(mda.Universe(topology, plain).trajectory)
RANGES = [{}, {"step": 3}, {"start": 1, "stop": 3}, {"start": 5, "stop": 5}]
if comm.size > 2:
    RANGES += [
        {"frames": [4, 0, 7, 7, 2]},
        {"start": frames - 1},
        {"start": frames - 1, "stop": 0, "step": -2},
    ]


# Reading the topology takes longer than all runs over this short trajectory.
both = opened(plain), opened(name)


def compare_all(names):
    for what in names:
        for range_of in RANGES:
            empty = range_of.get("start") == range_of.get("stop") is not None
            if not empty or what in ("function", "subclass"):
                compare(what, range_of, *both)


compare_all(ANALYSES)
# The ranks exchange what RMSF needs after each frame.
zazen.mdanalysis._mpi._ROUND_BYTES = 1
compare_all(["rmsf", "rmsf of two atoms"])
print(f"rank {comm.rank} of {comm.size}: equal")
