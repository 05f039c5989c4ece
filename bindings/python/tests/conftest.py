"""Datasets and daemons that the tests share."""

import pytest
import zazen
import zazen.testing
from sample import FRAMES, PATTERN, frame_bytes


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
        (path / PATTERN.replace("{n:07}", f"{number:07}")).write_bytes(frame_bytes(number))
    return path


@pytest.fixture
def cluster(folder, dataset):
    """Two daemons over the dataset's backing store."""
    with zazen.testing.Cluster(folder / "c", dataset.parent, nodes=2) as cluster:
        yield cluster


@pytest.fixture
def pushed(cluster, dataset):
    """The same, with all frames pushed: every other one is on node 0."""
    with zazen.Writer(dataset, cluster.nodes, key=cluster.key, pattern=PATTERN, on_slow="block") as writer:
        for number in range(FRAMES):
            writer.push(number, frame_bytes(number))
    assert writer.counters.pushed == FRAMES, writer.problems
    return cluster


@pytest.fixture(autouse=True)
def no_daemon_of_the_machine(monkeypatch, folder):
    """Nothing here meets a daemon or a launcher that happens to run on this machine."""
    for name in ("ZAZEN_TESTBED", "ZAZEN_KEY", "ZAZEN_BACKING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ZAZEN_SOCKET", str(folder / "nobody.sock"))
