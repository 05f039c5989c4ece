"""Ranks of real MPI jobs over daemons of their own."""

import pytest
import zazen
import zazen.testing
from launching import mpi_environment, mpiexec, run_ranks
from mpi_sample import FRAMES, frame_bytes


@pytest.fixture
def launch():
    """Runs a command on so many ranks and returns what it printed; fails the test if it fails."""
    pytest.importorskip("mpi4py")
    launcher = mpiexec()

    def run(ranks, *command, expect=0, **environment):
        variables = {name: str(value) for name, value in environment.items()}
        done = run_ranks([launcher, "-n", ranks, *command], mpi_environment() | variables)
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == (expect == 0), output
        return output

    return run


@pytest.fixture
def folder(tmp_path_factory):
    """A folder with a short path: sockets live in it."""
    return tmp_path_factory.mktemp("z")


@pytest.fixture
def dataset(folder):
    """A dataset on the backing store."""
    path = folder / "backing" / "sim1"
    path.mkdir(parents=True)
    for number in range(FRAMES):
        (path / f"frame-{number:07}.bin").write_bytes(frame_bytes(number))
    return path


@pytest.fixture
def cluster(folder, dataset):
    """Four daemons; every frame is pushed, but for the last ten, which are nobody's."""
    with zazen.testing.Cluster(folder / "c", dataset.parent, nodes=4) as cluster:
        with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for number in range(FRAMES - 10):
                writer.push(number, frame_bytes(number), f"frame-{number:07}.bin")
        assert writer.counters.pushed == FRAMES - 10, writer.problems
        yield cluster
