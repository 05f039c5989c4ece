"""A loop over frames gives all of them or raises, whatever breaks meanwhile."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")

import MDAnalysis as mda
import numpy as np
import zazen.mdanalysis
from MDAnalysisTests import datafiles

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def trajectory(backing):
    """XTC on the backing store, and the sums of its frames' positions."""
    path = shutil.copy(datafiles.XTC, backing / "md.xtc")
    sums = [ts.positions.sum() for ts in mda.Universe(datafiles.XTC).trajectory]
    return path, sums


def looped(path):
    """What a loop gave, and how it ended."""
    sums = []
    try:
        for ts in mda.Universe(f"zazen:{path}").trajectory:
            sums.append(ts.positions.sum())
    except zazen.mdanalysis.ReadError as error:
        return sums, error
    return sums, None


@pytest.mark.parametrize("at", [0, 3, 9])
def test_daemon_killed_in_a_loop(node, trajectory, monkeypatch, at):
    path, expected = trajectory
    monkeypatch.setenv("ZAZEN_SOCKET", str(node.socket))
    universe = mda.Universe(f"zazen:{path}")
    sums = []
    try:
        for ts in universe.trajectory:
            sums.append(ts.positions.sum())
            if ts.frame == at:
                node.kill()
    except zazen.mdanalysis.ReadError:
        assert sums == expected[: len(sums)]
    else:
        assert sums == expected


def test_a_file_that_is_cut_off(trajectory):
    path, expected = trajectory
    size = os.path.getsize(path)
    for missing in (1, 5_000, 200_000):
        os.truncate(path, size - missing)
        sums, error = looped(path)
        assert sums == expected[: len(sums)] and 8 <= len(sums) <= 9
        assert error is not None and f"frame {len(sums)}" in str(error) and "md.xtc" in str(error)


def test_garbage_in_the_middle(trajectory):
    """In the header of a frame, and in its compressed positions."""
    path, expected = trajectory
    data = bytearray(open(path, "rb").read())
    begin = data.index(data[:8], 8)
    for at, bad in ((begin + 60, b"\xff" * 30), (begin + 2000, os.urandom(4000))):
        broken = bytearray(data)
        broken[at : at + len(bad)] = bad
        with open(path, "wb") as file:
            file.write(broken)
        sums, error = looped(path)
        assert sums == expected[:1] and "frame 1" in str(error) and "md.xtc" in str(error), error


def test_a_failed_frame_leaves_no_positions(trajectory):
    path, expected = trajectory
    universe = mda.Universe(f"zazen:{path}")
    universe.trajectory[2]
    source = universe.trajectory._opened()
    good = source.read
    source.read = lambda index: good(index)[:-7]
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"frame 3 of zazen:.*cut off"):
        universe.trajectory[3]
    assert np.isnan(universe.atoms.positions).all()
    source.read = good
    assert universe.trajectory[3].positions.sum() == expected[3]


def test_errors_of_the_operating_system_do_not_end_loops(trajectory):
    """MDAnalysis takes an OSError for the end of the trajectory."""
    path, expected = trajectory
    universe = mda.Universe(f"zazen:{path}")
    source = universe.trajectory._opened()
    good = source.read

    def failing(index):
        if index == 4:
            raise zazen.IoError(5, "the disk is gone")
        return good(index)

    source.read = failing
    sums = []
    with pytest.raises(zazen.Error, match=r"frame 4 of .*the disk is gone") as raised:
        for ts in universe.trajectory:
            sums.append(ts.positions.sum())
    assert sums == expected[:4] and isinstance(raised.value.__cause__, OSError)
    assert not isinstance(raised.value, OSError)
    with pytest.raises(zazen.mdanalysis.ReadError):
        for _ in mda.coordinates.chain.ChainReader([universe.trajectory.filename]):
            # The chain has a reader of its own; its source must fail too.
            raise zazen.mdanalysis.ReadError("reached")


def test_no_frames(backing):
    (backing / "empty.xtc").write_bytes(b"")
    with pytest.raises((zazen.Error, OSError, ValueError), match=r"empty\.xtc"):
        mda.Universe(f"zazen:{backing}/empty.xtc")


def test_atoms_that_change(backing):
    path = backing / "two.xtc"
    universe = mda.Universe.empty(20, trajectory=True)
    with mda.Writer(str(path), 20) as writer:
        writer.write(universe.atoms)
    other = backing / "other.xtc"
    with mda.Writer(str(other), 12) as writer:
        writer.write(universe.atoms[:12])
    with open(path, "ab") as file:
        file.write(other.read_bytes())
    sums, error = looped(path)
    assert len(sums) <= 1 and "12 atoms" in str(error), error


def test_a_forked_child_reads_on(trajectory):
    """The thread that reads ahead is not there in a forked child."""
    path, expected = trajectory
    code = f"""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        import MDAnalysis as mda, zazen.mdanalysis
        trajectory = mda.Universe("zazen:{path}").trajectory
        sums = [trajectory[frame].positions.sum() for frame in range(5)]
        child = os.fork()
        sums += [trajectory[frame].positions.sum() for frame in range(5, 10)]
        same = sums == {[float(value) for value in expected]!r}
        if child == 0:
            os._exit(0 if same else 3)
        assert same and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
