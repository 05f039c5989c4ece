"""The MPI back end under a real MPI: results of all ranks equal those of one process without it."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")

import MDAnalysis as mda
from MDAnalysisTests import datafiles

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def protein(tmp_path_factory):
    """A protein with the waters around it: (topology, folder of md.xtc), small enough for many runs."""
    folder = tmp_path_factory.mktemp("p")
    universe = mda.Universe(datafiles.TPR, datafiles.XTC)
    near = universe.select_atoms("protein") | universe.select_atoms(
        "byres (resname SOL and around 3 protein)"
    )
    near.write(str(folder / "top.gro"))
    with mda.Writer(str(folder / "md.xtc"), len(near)) as writer:
        for _ in universe.trajectory:
            writer.write(near)
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_results_equal_serial_ones(launch, protein, tmp_path, ranks):
    plain = shutil.copy(protein / "md.xtc", tmp_path)
    output = launch(
        ranks, HERE / "mpi_analyses.py", protein / "top.gro", plain, f"zazen:{protein / 'md.xtc'}"
    )
    assert output.count(": equal") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_one_rank_fails_all_ranks_raise(launch, protein, ranks):
    output = launch(
        ranks, HERE / "mpi_failures.py", protein / "top.gro", f"zazen:{protein / 'md.xtc'}", seconds=120
    )
    assert output.count(": all raised") == ranks
