"""What the evaluation's analysis takes from a frame, against MDAnalysis reading the same file."""

import sys
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "papers" / "zazen"))

from extraction import Extraction, read_dcd_frame


@pytest.fixture
def universe(tmp_path):
    """Atoms on a line from a protein's atom, with a box that is not a cube."""
    names = ["CA", *["O"] * 9]
    universe = MDAnalysis.Universe.empty(10, n_residues=10, atom_resindex=range(10), trajectory=True)
    universe.add_TopologyAttr("name", names)
    universe.add_TopologyAttr("resname", ["ALA", *["HOH"] * 9])
    universe.add_TopologyAttr("id", range(1, 11))
    universe.atoms.positions = [[2 * at, 0, 0] for at in range(10)]
    universe.dimensions = [40, 50, 60, 80, 90, 100]
    return universe


def test_a_frame_is_decoded_as_mdanalysis_decodes_it(universe, tmp_path):
    file = tmp_path / "frame.dcd"
    with MDAnalysis.Writer(str(file), 10) as writer:
        writer.write(universe.atoms)
    positions, box = read_dcd_frame(memoryview(file.read_bytes()))
    read = MDAnalysis.Universe.empty(10, trajectory=True).load_new(str(file), format="DCD")
    assert np.array_equal(positions, read.atoms.positions)
    assert box == pytest.approx(read.dimensions, abs=1e-3)


def test_waters_near_the_protein_are_found_and_other_files_refused(universe, tmp_path, recwarn):
    topology, file = tmp_path / "topology.pdb", tmp_path / "frame.dcd"
    universe.atoms.write(str(topology))
    universe.atoms.positions = [[0, 0, 0], *([30, 20, 20] for _ in range(7)), [0, 3, 0], [3, 0, 0]]
    with MDAnalysis.Writer(str(file), 10) as writer:
        writer.write(universe.atoms)
    extraction = Extraction(str(topology), "name O and around 3.5 (protein)")
    data = memoryview(file.read_bytes())
    assert extraction.ids(data).tolist() == [9, 10]
    for wrong in (data[:-100], data[:300], memoryview(b"x" * 400), memoryview(bytes(400)), memoryview(b"")):
        with pytest.raises(ValueError, match="no DCD file of one frame"):
            read_dcd_frame(wrong)
