"""The water analysis: one result on any number of ranks, and the one that waterdynamics finds serially."""

import json
import sys
from pathlib import Path

import pytest

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
def trajectory(tmp_path_factory):
    """One-frame DCD files of atoms that jitter, and waters that come and go."""
    folder = tmp_path_factory.mktemp("w") / "backing" / "water"
    folder.mkdir(parents=True)
    universe = small_system()
    universe.atoms.write(str(folder / "topology.pdb"))
    rng = np.random.default_rng(7)
    positions = universe.atoms.positions.copy()
    for number in range(FRAMES):
        positions += rng.normal(0, 0.3, positions.shape).astype(np.float32)
        universe.atoms.positions = positions
        with mda.Writer(str(folder / f"frame-{number:07d}.dcd"), n_atoms=len(universe.atoms)) as writer:
            writer.write(universe.atoms)
    return folder


def analyse(launch, ranks, trajectory, out, *arguments, **environment):
    topology = trajectory / "topology.pdb"
    common = ["--topology", topology, "--tau-max", TAU_MAX, "--json", out]
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


def test_from_the_caches(launch, trajectory, folder, tmp_path):
    import zazen
    import zazen.testing

    with zazen.testing.Cluster(folder / "c", trajectory.parent, nodes=4) as cluster:
        with zazen.Writer(trajectory, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for path in sorted(trajectory.glob("frame-*.dcd")):
                writer.push(int(path.stem.removeprefix("frame-")), path.read_bytes(), path.name)
        out = tmp_path / "o.json"
        cached, _ = analyse(launch, 4, trajectory, out, ZAZEN_TESTBED=cluster.testbed)
        assert cached["local_share"] == 1.0 and cached["backing_reads"] == 0
        assert (cached["native"], cached["alien"], cached["residue"]) == (FRAMES, 0, 0)
        direct, _ = analyse(launch, 2, trajectory, out, "--direct")
        assert direct["backing_reads"] == FRAMES and direct["local_share"] == 0.0
        assert cached["result_sha256"] == direct["result_sha256"]


def test_dcd_parser_equals_mdanalysis(tmp_path):
    """Every frame of real DCD files of several programs, written out alone, by both byte orders."""
    data = pytest.importorskip("MDAnalysisTests.datafiles")
    sys.path.insert(0, str(SCRIPT.parent))
    import water_residence

    for psf, dcd in [
        (data.PSF, data.DCD),
        (data.PSF_TRICLINIC, data.DCD_TRICLINIC),
        (data.PSF_NAMD_TRICLINIC, data.DCD_NAMD_TRICLINIC),
    ]:
        universe = mda.Universe(psf, dcd)
        for step in universe.trajectory[:5]:
            path = tmp_path / "one.dcd"
            with mda.Writer(str(path), n_atoms=len(universe.atoms)) as writer:
                writer.write(universe.atoms)
            expected = mda.Universe(psf, str(path)).trajectory.ts
            positions, box = water_residence.read_dcd_frame(memoryview(path.read_bytes()))
            assert np.array_equal(positions, expected.positions), (dcd, step.frame)
            if expected.dimensions is None:
                assert box is None
            else:
                assert np.array_equal(np.asarray(box, dtype=np.float32), expected.dimensions), (
                    dcd,
                    step.frame,
                )


def test_damaged_frames_are_told(trajectory):
    sys.path.insert(0, str(SCRIPT.parent))
    import water_residence

    good = (trajectory / "frame-0000000.dcd").read_bytes()
    water_residence.read_dcd_frame(memoryview(good))
    for cut in (0, 3, 4, 87, 92, 200, len(good) // 2, len(good) - 1):
        with pytest.raises(water_residence.FrameError):
            water_residence.read_dcd_frame(memoryview(good[:cut]))
    for at in (0, 4, 88, 92):
        bad = bytearray(good)
        bad[at] ^= 0x40
        with pytest.raises(water_residence.FrameError):
            water_residence.read_dcd_frame(memoryview(bytes(bad)))
    twice = good + good[good.index(b"CORD") - 4 :]
    with pytest.raises(water_residence.FrameError):
        water_residence.read_dcd_frame(memoryview(twice))
