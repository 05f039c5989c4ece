"""Chunks equal those of mdtraj's own iterload."""

import shutil
import textwrap

import pytest

pytest.importorskip("mdtraj.core", reason="no mdtraj: pip install 'zazen[mdtraj]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")

import mdtraj
import numpy as np
import zazen
import zazen.mdtraj
from MDAnalysisTests import datafiles

pytestmark = pytest.mark.filterwarnings("ignore")
TRAJECTORIES = [
    (datafiles.GRO, datafiles.XTC),
    (datafiles.GRO, datafiles.TRR),
    (datafiles.PSF, datafiles.DCD),
    (datafiles.PRMncdf, datafiles.NCDF),
]


def topology(path):
    """mdtraj reads Amber's topologies under other endings only."""
    return mdtraj.load_prmtop(path) if path == datafiles.PRMncdf else mdtraj.load_topology(path)


def check_equal(mine, expected):
    assert np.array_equal(mine.xyz, expected.xyz)
    assert np.allclose(mine.time, expected.time, atol=0, rtol=1e-7)
    if expected.unitcell_vectors is None:
        assert mine.unitcell_vectors is None
    else:
        assert np.allclose(mine.unitcell_vectors, expected.unitcell_vectors, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arguments", [{}, {"chunk": 3}, {"chunk": 4, "stride": 2}, {"chunk": 3, "skip": 2}])
@pytest.mark.parametrize(("top", "path"), TRAJECTORIES)
def test_equal_to_iterload(top, path, arguments, tmp_path):
    copied, top = shutil.copy(path, tmp_path), topology(top)
    expected = list(mdtraj.iterload(copied, top=top, **arguments))
    chunks = list(zazen.mdtraj.iterload(copied, top=top, **arguments))
    assert sum(map(len, chunks)) == sum(map(len, expected))
    check_equal(mdtraj.join(chunks), mdtraj.join(expected))


def test_some_atoms(tmp_path):
    path, atoms = shutil.copy(datafiles.XTC, tmp_path), np.array([3, 7, 100])
    (mine,) = zazen.mdtraj.iterload(path, 0, top=datafiles.GRO, atom_indices=atoms)
    check_equal(mine, mdtraj.load(path, top=datafiles.GRO, atom_indices=atoms))
    assert mine.topology.n_atoms == 3


def test_shares_of_ranks(tmp_path, launch):
    path = shutil.copy(datafiles.XTC, tmp_path)
    code = f"""
        import numpy as np, mdtraj, zazen.mdtraj
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        top = mdtraj.load_topology({datafiles.GRO!r})
        mine = [(f, part.xyz) for frames, part in zazen.mdtraj.share({str(path)!r}, 2, top=top, comm=comm)
                for f, part in zip(frames, part)]
        everything = sorted(sum(comm.allgather(mine), []), key=lambda item: item[0])
        assert [f for f, _ in everything] == list(range(10))
        whole = mdtraj.load({str(path)!r}, top=top)
        assert np.array_equal(np.concatenate([xyz for _, xyz in everything]), whole.xyz)
        print("all there")
    """
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(code))
    assert launch(3, script).count("all there") == 3


def test_errors(tmp_path):
    path = shutil.copy(datafiles.XTC, tmp_path)
    with pytest.raises(zazen.InvalidArgumentError, match="47681 atoms, the topology"):
        list(zazen.mdtraj.iterload(path, top=datafiles.PSF))
    with open(path, "r+b") as file:
        file.truncate(1_600_000)
    frames = []
    with pytest.raises(zazen.CorruptError, match=r"adk_oplsaa\.xtc"):
        for chunk in zazen.mdtraj.iterload(path, 1, top=datafiles.GRO):
            frames.append(chunk.xyz)
    assert len(frames) == 9
