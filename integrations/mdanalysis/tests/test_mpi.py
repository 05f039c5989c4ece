"""The MPI back end under a real MPI: results of all ranks equal those of one process without it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")

import MDAnalysis as mda
import numpy as np
import zazen
import zazen.testing
from MDAnalysisTests import datafiles

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def protein(tmp_path_factory):
    """A protein with the waters around it: (topology, folder of md.xtc), small enough for many
    runs."""
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


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_rounds_hold_no_more_frames_of_a_rank_than_they_may(ranks):
    import zazen.mdanalysis._mpi as mpi

    rng = np.random.default_rng(ranks)
    for count, most in [(0, 1), (1, 1), (40, 1), (40, 7), (40, 100)]:
        for shares in (rng.integers(0, ranks, count), np.zeros(count, dtype=np.int64)):
            rounds = list(mpi._rounds(shares, most))
            assert [at for begin, end in rounds for at in range(begin, end)] == list(range(count))
            for begin, end in rounds:
                assert begin < end and np.bincount(shares[begin:end]).max() <= most
                # One frame more would be too many, or there is none.
                assert end == count or np.bincount(shares[begin : end + 1]).max() > most


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_with_other_readers_work_side_by_side_in_every_round(ranks):
    from types import SimpleNamespace

    import zazen.mdanalysis._mpi as mpi

    comm = SimpleNamespace(size=ranks)
    for count, most in [(0, 1), (1, 1), (40, 1), (40, 7), (41, 3), (40, 100)]:
        frames = np.arange(count)
        shares = mpi._shares(None, frames, comm, most)
        assert len(shares) == count and all(0 <= rank < ranks for rank in shares)
        sizes = [np.bincount(shares[begin:end], minlength=ranks) for begin, end in mpi._rounds(shares, most)]
        if count > ranks * most:
            assert all((size == most).all() for size in sizes[:-1]), (count, most, sizes)
        # All others read a rank's stretch as one: that is no more than one round.
        assert count <= ranks * most or len(sizes) == -(-count // (ranks * most))
        assert (np.diff(mpi._shares(None, frames, comm)) >= 0).all(), "one stretch for each rank"


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


def push(cluster, folder):
    """What a simulation's pusher does with the trajectory of a directory."""
    (folder / "done").touch()
    words = ["push", "--watch", folder, "--nodes", ",".join(cluster.nodes), "--key", cluster.key]
    command = [zazen.testing.program("zazen"), *words, "--until", "done", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("nodes", [1, 3])
def test_each_rank_reads_what_its_node_holds(launch, protein, folder, backing, nodes):
    sim = backing / "sim"
    sim.mkdir()
    path = shutil.copy(protein / "md.xtc", sim)
    with zazen.testing.Cluster(folder / "c", backing, nodes=nodes) as cluster:
        assert push(cluster, sim)["pushed"] == 10
        script = (HERE / "mpi_local.py", protein / "top.gro", f"zazen:{path}")
        output = launch(3, *script, ZAZEN_TESTBED=cluster.testbed)
    report = json.loads(output.split("REPORT ")[1].splitlines()[0])
    assert report["sources"] == {"native": 10} and report["rmsf"]
    assert sum(report["shares"].values()) == 10 and len(report["shares"]) > 1, report


def test_a_node_that_dies_costs_time_only(launch, protein, folder, backing):
    path = shutil.copy(protein / "md.xtc", backing)
    with zazen.testing.Cluster(folder / "c", backing, nodes=3) as cluster:
        cluster.kill(1)
        script = (HERE / "mpi_local.py", protein / "top.gro", f"zazen:{path}")
        output = launch(3, *script, ZAZEN_TESTBED=cluster.testbed)
    report = json.loads(output.split("REPORT ")[1].splitlines()[0])
    assert sum(report["sources"].values()) == 10 and report["rmsf"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_h5md_under_mpi(launch, folder, backing, nodes):
    """Chunked and compressed; the second job reads from the nodes' disks, each rank what its node
    holds."""
    pytest.importorskip("h5py", reason="no h5py: pip install 'zazen[mdanalysis]'")
    from h5md_file import write

    protein = mda.Universe(datafiles.TPR, datafiles.XTC).select_atoms("protein")
    protein.write(str(folder / "top.gro"))
    # Several blocks for each node.
    chunks = (3, len(protein) // 2, 3)
    path = write(
        backing / "md.h5md", frames=150, written=150, atoms=len(protein), chunks=chunks, compression="gzip"
    )
    assert path.stat().st_size > 4 << 20
    with zazen.testing.Cluster(folder / "c", backing, nodes=nodes) as cluster:
        script = (HERE / "mpi_local.py", folder / "top.gro", f"zazen:{path}")
        reports = []
        for _ in range(2):
            output = launch(3, *script, ZAZEN_TESTBED=cluster.testbed)
            reports.append(json.loads(output.split("REPORT ")[1].splitlines()[0]))
    for report in reports:
        assert report["rmsf"] and sum(report["shares"].values()) == 150 and len(report["shares"]) == 3, report
    # A frame at the edge of a node's blocks may lack a part there; a block has about six frames.
    assert reports[1]["sources"].get("alien", 0) >= 110, reports
