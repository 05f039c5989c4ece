import harness
import pytest


@pytest.fixture(scope="session")
def programs():
    return harness.build()


@pytest.fixture(scope="session")
def daemon(programs):
    """The plug-in in the daemon's own process."""
    with harness.Daemon(programs) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def isolated(programs):
    with harness.Daemon(programs, isolated=True) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def node(programs):
    """A daemon that is reached over TCP, as one of another node."""
    with harness.Daemon(programs, isolated=True, listen=True) as daemon:
        yield daemon
