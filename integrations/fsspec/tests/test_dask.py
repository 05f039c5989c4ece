"""Dask tasks run where their frames and files lie: two real workers, each beside a node of its
own."""

import os

import pytest
import zazen
import zazen.testing
from block_size import BLOCK_BYTES

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")
distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed: pip install distributed"
)

from zazen.fsspec import BlockReader  # noqa: E402
from zazen.fsspec.dask import map_files, map_frames, owners_of_files, owners_of_frames  # noqa: E402

FRAMES = 20


@pytest.fixture
def frames(backing, settle):
    path = backing / "sim1"
    path.mkdir()
    for number in range(FRAMES):
        (path / f"f-{number:03}.bin").write_bytes(bytes([number]) * 100)
    settle()
    return path


@pytest.fixture
def cluster(folder, backing):
    with zazen.testing.Cluster(folder / "c", backing, nodes=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        distributed.Client(workers) as client,
    ):
        addresses = sorted(client.scheduler_info()["workers"])
        for address, socket in zip(addresses, cluster.sockets, strict=True):
            client.run(beside, socket, workers=[address])
        client.addresses = addresses
        yield client


def beside(socket):
    os.environ["ZAZEN_SOCKET"] = socket


def where(frame):
    return bytes(frame.data), os.environ["ZAZEN_SOCKET"]


def where_file(path):
    return path, os.environ["ZAZEN_SOCKET"]


def test_frames_are_read_where_they_lie(client, cluster, frames):
    halves = [range(0, 9), range(9, 18)]
    for socket, numbers in zip(cluster.sockets, halves, strict=True):
        with zazen.open(frames, socket=socket) as dataset:
            for number in numbers:
                dataset.read(number)
    owners = owners_of_frames(client, frames)
    expected = {number: [client.addresses[number // 9]] for number in range(18)}
    assert owners == expected | {18: [], 19: []}
    results = {}
    for group in client.gather(map_frames(client, where, frames, frames_per_task=4, strict=True)):
        results |= group
    assert {number: data for number, (data, _) in results.items()} == {
        number: bytes([number]) * 100 for number in range(FRAMES)
    }
    assert [results[number][1] for number in range(18)] == [
        cluster.sockets[number // 9] for number in range(18)
    ]
    with pytest.raises(ValueError, match="frames_per_task is 0"):
        map_frames(client, where, frames, frames_per_task=0)
    with pytest.raises(zazen.NotFoundError):
        map_frames(client, where, frames.parent / "none")


def test_files_are_read_where_they_lie(client, cluster, backing, settle):
    paths = [str(backing / f"chunk{at}") for at in range(6)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(os.urandom(3 * BLOCK_BYTES))
    settle()
    for at, path in enumerate(paths[:5]):
        reader = BlockReader(path, BLOCK_BYTES, options={"socket": cluster.sockets[at % 2]})
        reader.read(0, 3 * BLOCK_BYTES)
        # The other node has a block of it, too.
        BlockReader(path, BLOCK_BYTES, options={"socket": cluster.sockets[(at + 1) % 2]}).read(0, 1)
    owners = owners_of_files(client, paths, BLOCK_BYTES)
    assert owners == {path: [client.addresses[at % 2]] for at, path in enumerate(paths[:5])} | {paths[5]: []}
    ran = client.gather(map_files(client, where_file, paths[:5], block_bytes=BLOCK_BYTES, strict=True))
    assert ran == [(path, cluster.sockets[at % 2]) for at, path in enumerate(paths[:5])]
