"""The water analysis: one result on any number of ranks, and the one that waterdynamics finds
serially."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import zazen.testing

SCRIPT = Path(__file__).parents[2] / "examples" / "water_residence.py"
FRAMES = 24
TAU_MAX = "8"

mda = pytest.importorskip("MDAnalysis")
pytest.importorskip("waterdynamics")
np = pytest.importorskip("numpy")


def small_system():
    """A solvated protein out of a package's own test structures, thinned out to stay quick."""
    app = pytest.importorskip("openmm.app")
    universe = mda.Universe(str(Path(app.__file__).parent / "data" / "test.pdb"))
    protein = universe.select_atoms("protein")
    near = universe.select_atoms("byres (resname HOH WAT SOL and around 9 protein)")
    small = mda.Merge(protein, near)
    small.dimensions = universe.dimensions
    return small


@pytest.fixture(scope="module")
def topology(tmp_path_factory):
    """Atoms that jitter, and waters that come and go: in one DCD file, and in one for each
    frame."""
    folder = tmp_path_factory.mktemp("w") / "backing" / "water"
    folder.joinpath("files").mkdir(parents=True)
    universe = small_system()
    universe.atoms.write(str(folder / "topology.pdb"))
    whole = mda.Writer(str(folder / "md.dcd"), n_atoms=len(universe.atoms))
    rng = np.random.default_rng(7)
    positions = universe.atoms.positions.copy()
    for number in range(FRAMES):
        positions += rng.normal(0, 0.3, positions.shape).astype(np.float32)
        universe.atoms.positions = positions
        whole.write(universe.atoms)
        with mda.Writer(str(folder / f"files/frame-{number:07d}.dcd"), n_atoms=len(universe.atoms)) as writer:
            writer.write(universe.atoms)
    whole.close()
    return folder / "topology.pdb"


@pytest.fixture(params=["md.dcd", "files"])
def trajectory(topology, request):
    return topology.with_name(request.param)


def analyse(launch, ranks, trajectory, out, *arguments, **environment):
    common = ["--topology", trajectory.with_name("topology.pdb"), "--tau-max", TAU_MAX, "--json", out]
    output = launch(ranks, sys.executable, SCRIPT, trajectory, *common, *arguments, **environment)
    return json.loads(out.read_text()), output


def test_equals_waterdynamics(launch, trajectory, tmp_path):
    serial, output = analyse(
        launch, 1, trajectory, tmp_path / "o.json", "--direct", "--no-mpi", "--serial-check"
    )
    assert "equal to waterdynamics" in output
    assert serial["frames"] == FRAMES and serial["ranks"] == 1
    assert serial["tau"] == list(range(9)) and serial["survival"][0] == 1
    # The test can fail: waters do leave, and some stay.
    assert 0 < serial["survival"][8] < serial["survival"][1] < 1
    hashes = {serial["result_sha256"]}
    for ranks in (2, 4):
        report, output = analyse(launch, ranks, trajectory, tmp_path / "o.json", "--direct", "--serial-check")
        assert "equal to waterdynamics" in output
        assert report["ranks"] == ranks and report["survival"] == serial["survival"]
        hashes.add(report["result_sha256"])
    assert len(hashes) == 1


def test_from_the_caches(launch, topology, trajectory, folder, tmp_path):
    with zazen.testing.Cluster(folder / "c", topology.parents[1], nodes=4) as cluster:
        pushed = trajectory.parent if trajectory.name == "md.dcd" else trajectory
        (pushed / "done").touch()
        words = ["push", "--watch", pushed, "--nodes", ",".join(cluster.nodes), "--key", cluster.key]
        words = [zazen.testing.program("zazen"), *words, "--until", "done", "--json"]
        output = subprocess.run(list(map(str, words)), capture_output=True, check=True, timeout=120)
        assert json.loads(output.stdout)["pushed"] == FRAMES, output.stderr
        out = tmp_path / "o.json"
        cached, _ = analyse(launch, 4, trajectory, out, ZAZEN_TESTBED=cluster.testbed)
        assert cached["local_share"] == 1.0 and cached["backing_reads"] == 0
        assert (cached["native"], cached["alien"], cached["residue"]) == (FRAMES, 0, 0)
        direct, _ = analyse(launch, 2, trajectory, out, "--direct")
        assert direct["backing_reads"] == FRAMES and direct["local_share"] == 0.0
        assert cached["result_sha256"] == direct["result_sha256"]
        assert cached["bytes"] == direct["bytes"] > 0
