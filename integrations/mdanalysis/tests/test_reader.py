"""Every Timestep equals that of MDAnalysis's own reader, bit for bit; and what else users do with a
reader."""

import pickle
import shutil
import warnings
from pathlib import Path

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")

import MDAnalysis as mda
import numpy as np
import zazen
import zazen.mdanalysis
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.analysis.rms import RMSD
from MDAnalysisTests import datafiles

TRAJECTORIES = [
    (datafiles.GRO, datafiles.XTC),
    (datafiles.GRO, datafiles.TRR),
    (datafiles.PSF, datafiles.DCD),
    (datafiles.PSF_TRICLINIC, datafiles.DCD_TRICLINIC),
    (datafiles.PSF_NAMD_TRICLINIC, datafiles.DCD_NAMD_TRICLINIC),
    (datafiles.PRMncdf, datafiles.NCDF),
    (datafiles.PFncdf_Top, datafiles.PFncdf_Trj),
    (datafiles.XTC_sub_sol, datafiles.XTC_sub_sol),
    (datafiles.TRR_sub_sol, datafiles.TRR_sub_sol),
]
pytestmark = pytest.mark.filterwarnings("ignore")


def copied(trajectory, folder):
    """A copy, beside which MDAnalysis may write its index."""
    return shutil.copy(trajectory, folder)


def check_equal(mine, expected, what):
    assert (mine.frame, mine.time, mine.n_atoms) == (expected.frame, expected.time, expected.n_atoms), what
    for name in ("positions", "velocities", "forces"):
        assert getattr(mine, f"has_{name}") == getattr(expected, f"has_{name}"), (what, name)
        if getattr(mine, f"has_{name}"):
            found, wanted = getattr(mine, name), getattr(expected, name)
            assert found.dtype == wanted.dtype and np.array_equal(found, wanted), (what, name)
    if expected.dimensions is None:
        assert mine.dimensions is None, what
    else:
        assert np.array_equal(mine.dimensions, expected.dimensions), what
    assert mine.dt == expected.dt, what
    for name in {"step", "lambda"} & set(expected.data):
        assert mine.data[name] == expected.data[name], (what, name)


@pytest.mark.parametrize("arguments", [{}, {"convert_units": False}, {"dt": 2.5}])
@pytest.mark.parametrize(("topology", "trajectory"), TRAJECTORIES)
def test_equal_to_the_plain_reader(topology, trajectory, arguments, tmp_path):
    path = copied(trajectory, tmp_path)
    plain, mine = mda.Universe(path, **arguments), mda.Universe(f"zazen:{path}", **arguments)
    assert plain.trajectory.n_frames == mine.trajectory.n_frames
    if "dcd" in path and len(plain.trajectory) == 1:
        # MDAnalysis counts 0 here at first, and 1 when it reads the frame again.
        plain.trajectory[0]
    check_equal(mine.trajectory.ts, plain.trajectory.ts, "at first")
    for expected, found in zip(plain.trajectory, mine.trajectory, strict=True):
        check_equal(found, expected, expected.frame)
    check_equal(mine.trajectory.ts, plain.trajectory.ts, "after the loop")
    last = plain.trajectory.n_frames - 1
    for frame in (last, 0, last // 2, -1, last // 3):
        check_equal(mine.trajectory[frame], plain.trajectory[frame], frame)
    for stride in (slice(None, None, 2), slice(last, None, -1), slice(1, last, 3)):
        frames = [(ts.frame, ts.positions.sum()) for ts in plain.trajectory[stride] if ts.has_positions]
        assert frames == [
            (ts.frame, ts.positions.sum()) for ts in mine.trajectory[stride] if ts.has_positions
        ]


@pytest.mark.parametrize("trajectory", [datafiles.XTC, datafiles.TRR])
def test_atoms_of_a_subsystem(trajectory, tmp_path):
    """Against the whole frame: MDAnalysis 2.11's own readers write beyond their array here."""
    sub = np.array([5, 1, 7, 1000])
    path = copied(trajectory, tmp_path)
    plain, mine = mda.Universe(path).trajectory, zazen.mdanalysis.ZazenReader(f"zazen:{path}", sub=sub)
    assert mine.n_atoms == 4
    for expected, found in zip(plain, mine, strict=True):
        assert found.time == expected.time and np.array_equal(found.positions, expected.positions[sub])
        assert found.has_velocities == expected.has_velocities
        if found.has_velocities:
            assert np.array_equal(found.velocities, expected.velocities[sub])


@pytest.mark.parametrize("ending", ["xtc", "trr", "dcd", "nc", "pdb", "gro"])
def test_a_directory_of_one_frame_files(ending, backing):
    folder = backing / "sim"
    folder.mkdir()
    universe = mda.Universe(datafiles.PSF, datafiles.DCD)
    atoms = universe.select_atoms("resid 1-5")
    for ts in universe.trajectory[:6]:
        ts.dimensions = [20, 21, 22, 90, 90, 90 + ts.frame]
        # From 1 on: the first frame of the trajectory is number 1.
        atoms.write(str(folder / f"frame-{ts.frame + 1:04}.{ending}"))
    mine = mda.Universe(f"zazen:{folder}", to_guess=())
    assert len(mine.trajectory) == 6 and len(mine.atoms) == len(atoms)
    for number in (*range(6), 3, 0, 5):
        expected = mda.Universe(str(folder / f"frame-{number + 1:04}.{ending}"), to_guess=()).trajectory.ts
        found = mine.trajectory[number]
        # PDB and GRO have no time, so it follows from the frame.
        assert found.frame == number and found.time == (number if ending in ("pdb", "gro") else expected.time)
        assert np.array_equal(found.positions, expected.positions)
        assert np.array_equal(found.dimensions, expected.dimensions)


@pytest.mark.parametrize("ending", ["xtc", "trr", "dcd", "nc", "xyz", "pdb", "gro"])
def test_a_directory_of_files_with_several_frames_is_refused(ending, backing):
    """As GROMACS writes them with -noappend. Their first frames would pass for the trajectory."""
    folder = backing / "sim"
    folder.mkdir()
    atoms = mda.Universe(datafiles.PSF, datafiles.DCD).select_atoms("resid 1-5")
    for part in (1, 2, 3):
        path = folder / f"md.part{part:04}.{ending}"
        if ending == "gro":
            atoms.write(str(path))
            path.write_bytes(2 * path.read_bytes())
        else:
            atoms.write(str(path), frames="all")
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"^frame 0 of .*trajectories = ") as raised:
        zazen.mdanalysis.ZazenReader(f"zazen:{folder}")
    assert isinstance(raised.value.__cause__, zazen.CorruptError | zazen.UnsupportedError)
    if ending != "pdb":
        # What the error proposes.
        names = ", ".join(f'"md.part{part:04}.{ending}"' for part in (1, 2, 3))
        (folder / "zazen.toml").write_text(f"trajectories = [{names}]\n")
        frames = 3 * (2 if ending == "gro" else 98)
        assert zazen.mdanalysis.ZazenReader(f"zazen:{folder}").n_frames == frames


@pytest.mark.parametrize("ending", ["pdb", "xtc"])
def test_a_frame_with_other_atoms_is_refused_also_for_a_subsystem(ending, backing):
    folder = backing / "sim"
    folder.mkdir()
    universe = mda.Universe(datafiles.PSF, datafiles.DCD)
    for number, residues in enumerate(["1-5", "1-6"]):
        universe.select_atoms(f"resid {residues}").write(str(folder / f"frame-{number:04}.{ending}"))
    for sub in (None, np.array([3, 1])):
        mine = zazen.mdanalysis.ZazenReader(f"zazen:{folder}", sub=sub)
        with pytest.raises(zazen.mdanalysis.ReadError, match="atoms"):
            mine[1]


def test_names(tmp_path, monkeypatch):
    path = copied(datafiles.XTC_sub_sol, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in (f"zazen:{path}", f"zazen://{path}", "zazen:" + path.rpartition("/")[2]):
        assert len(mda.Universe(name, to_guess=()).trajectory) == 3
    with pytest.raises(ValueError, match="names the host"):
        mda.Universe("zazen://server/lustre/md.xtc")
    with pytest.raises(ValueError, match="no trajectory of Zazen"):
        mda.Universe("zazen:")
    with pytest.raises(FileNotFoundError):
        mda.Universe(f"zazen:{tmp_path}/absent.xtc")


def test_nothing_is_written_beside_the_data(tmp_path):
    path = copied(datafiles.XTC_sub_sol, tmp_path)
    before = sorted(tmp_path.iterdir())
    tmp_path.chmod(0o555)
    assert len(list(mda.Universe(f"zazen:{path}").trajectory)) == 3
    tmp_path.chmod(0o755)
    assert sorted(tmp_path.iterdir()) == before


def test_pickled_at_a_frame(tmp_path):
    universe = mda.Universe(datafiles.GRO, f"zazen:{copied(datafiles.XTC, tmp_path)}")
    universe.trajectory[4]
    universe.atoms.positions += 1
    other = pickle.loads(pickle.dumps(universe))
    assert other.trajectory.ts == universe.trajectory.ts
    assert next(other.trajectory).frame == 5
    again = universe.trajectory.copy()
    assert again.ts == universe.trajectory.ts and next(again).frame == 5


def test_another_process_never_reads_another_trajectory(tmp_path):
    """A pickled reader, and one that was closed, go on with the file that they began with, or not
    at all."""
    path = tmp_path / "md.xtc"
    shutil.copy(datafiles.XTC, path)
    universe = mda.Universe(datafiles.GRO, f"zazen:{path}", open_options={"direct": True})
    expected = universe.trajectory[3].positions.copy()
    pickled = pickle.dumps(universe)
    # More frames are no other trajectory.
    with path.open("ab") as file:
        file.write(Path(datafiles.XTC).read_bytes())
    again = pickle.loads(pickled)
    assert len(again.trajectory) == 10 and np.array_equal(again.trajectory[3].positions, expected)
    shutil.copy(datafiles.XTC, tmp_path / "new")
    (tmp_path / "new").rename(path)
    universe.trajectory.close()
    for opened in (lambda: universe, lambda: pickle.loads(pickled)):
        with pytest.raises(zazen.mdanalysis.ReadError, match=r"md\.xtc.*open it again"):
            opened().trajectory[3]


@pytest.mark.parametrize("back_end", ["multiprocessing", "dask"])
def test_parallel_back_ends_of_mdanalysis(back_end, tmp_path):
    if back_end == "dask":
        pytest.importorskip("dask", reason="no dask: pip install dask")
    path = copied(datafiles.XTC, tmp_path)
    runs = []
    for trajectory in (path, f"zazen:{path}"):
        universe = mda.Universe(datafiles.GRO, trajectory)
        # The loop starts the thread that reads ahead, which forked workers do not have.
        for _ in universe.trajectory:
            pass
        arguments = {"backend": back_end, "n_workers": 2} if "zazen" in trajectory else {}
        runs.append(RMSD(universe, select="name CA").run(**arguments).results.rmsd)
    assert np.array_equal(*runs)


def radius(atoms):
    return atoms.radius_of_gyration()


def test_serial_analysis_of_chosen_frames(tmp_path):
    path = copied(datafiles.XTC, tmp_path)
    frames = [7, 2, 2, 9]
    results = []
    for trajectory in (path, f"zazen:{path}"):
        universe = mda.Universe(datafiles.GRO, trajectory)
        atoms = universe.select_atoms("protein")
        run = AnalysisFromFunction(radius, universe.trajectory, atoms).run(frames=frames)
        results.append(run.results.timeseries)
    assert np.array_equal(*results)


def test_several_trajectories_in_a_row(tmp_path):
    path = copied(datafiles.XTC_sub_sol, tmp_path)
    plain = mda.Universe(path, [path, path])
    mine = mda.Universe(path, [f"zazen:{path}", f"zazen:{path}"])
    assert len(mine.trajectory) == 6
    for expected, found in zip(plain.trajectory, mine.trajectory, strict=True):
        assert np.array_equal(found.positions, expected.positions)


def test_import_registers_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mda.coordinates.core.get_reader_for("zazen:/x.xtc") is zazen.mdanalysis.ZazenReader
        assert mda.coordinates.core.get_reader_for("/x.xtc") is mda.coordinates.XTC.XTCReader
