"""What the tests of all integrations share."""

import pytest
import zazen.testing


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


@pytest.fixture(autouse=True)
def no_daemon_of_the_machine(monkeypatch, folder):
    """Nothing here meets a daemon or a launcher that happens to run on this machine."""
    for name in ("ZAZEN_TESTBED", "ZAZEN_KEY", "ZAZEN_BACKING", "ZAZEN_NODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ZAZEN_SOCKET", str(folder / "nobody.sock"))
