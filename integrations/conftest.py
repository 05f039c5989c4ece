"""What the tests of all integrations share."""

import subprocess
import sys

import pytest
import zazen.testing
from launching import mpi_environment, mpiexec


@pytest.fixture
def folder(tmp_path_factory):
    """A folder with a short path: sockets live in it."""
    return tmp_path_factory.mktemp("z")


@pytest.fixture
def backing(folder):
    """The backing store: an empty directory."""
    path = folder / "backing"
    path.mkdir()
    return path


@pytest.fixture
def node(folder, backing):
    """One daemon over the backing store."""
    with zazen.testing.Daemon(folder, backing) as daemon:
        yield daemon


@pytest.fixture
def launch():
    """Runs a Python file on so many ranks and returns what it printed; fails the test if it
    fails."""
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
    launcher = mpiexec()

    def run(ranks, *command, seconds=900, **environment):
        words = [launcher, "-n", str(ranks), sys.executable, *map(str, command)]
        variables = mpi_environment() | {name: str(value) for name, value in environment.items()}
        variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, env=variables, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(autouse=True)
def no_daemon_of_the_machine(monkeypatch, folder):
    """Nothing here meets a daemon or a launcher that happens to run on this machine."""
    for name in ("ZAZEN_TESTBED", "ZAZEN_KEY", "ZAZEN_BACKING", "ZAZEN_NODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ZAZEN_SOCKET", str(folder / "nobody.sock"))
