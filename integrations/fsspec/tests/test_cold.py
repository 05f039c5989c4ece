"""What cold reads cost the backing store: counted by the testbed's file server, not by the
daemons."""

import itertools
import json
import multiprocessing
import os
import random
import subprocess
import time

import pytest
import zazen.testing

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")

FILE_BYTES = 12 << 20
BLOCK_BYTES = 256 << 10


class Testbed:
    """Nodes over a file server that counts the bytes that it gives."""

    __test__ = False

    def __init__(self, folder, nodes, *options):
        self.folder = folder
        self.environment = zazen.testing.environment() | {"ZAZEND": zazen.testing.program("zazend")}
        self.zazen("up", nodes, "--dir", folder, *options)
        self.files = folder / "server" / "run1"
        self.files.mkdir(parents=True)

    def zazen(self, *words):
        command = [zazen.testing.program("zazen"), "testbed", *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def explain(self, path):
        command = [zazen.testing.program("zazen"), "explain", "--json", path]
        environment = self.environment | {"ZAZEN_TESTBED": str(self.folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def status(self):
        return json.loads(self.zazen("status", "--json", "--dir", self.folder))

    def store_bytes(self):
        return self.status()["server_traffic"]["bytes"]

    def node(self, index):
        return next(host for host in self.status()["hosts"] if host["name"] == f"n{index}")

    def close(self):
        self.zazen("down", "--dir", self.folder)


@pytest.fixture
def testbed(folder, request):
    nodes, *options = getattr(request, "param", (4,))
    made = Testbed(folder / "t", nodes, *options)
    yield made
    made.close()


@pytest.fixture
def file(testbed):
    path = testbed.files / "field.bin"
    path.write_bytes(random.Random(3).randbytes(FILE_BYTES))
    time.sleep(0.1)
    return path


def read_it(socket, path, seed):
    """Reads the whole file in pieces of any size, in an order of its own; the bytes it got, in
    place."""
    from zazen.fsspec import ZazenFileSystem

    fs = ZazenFileSystem(socket=socket, block_bytes=BLOCK_BYTES, skip_instance_cache=True)
    chance = random.Random(seed)
    cuts = sorted({0, FILE_BYTES, *(chance.randrange(FILE_BYTES) for _ in range(60))})
    pieces = list(itertools.pairwise(cuts))
    chance.shuffle(pieces)
    read = bytearray(FILE_BYTES)
    for at in range(0, len(pieces), 7):
        some = pieces[at : at + 7]
        starts, ends = [start for start, _ in some], [end for _, end in some]
        for (start, end), data in zip(some, fs.cat_ranges([path] * len(some), starts, ends), strict=True):
            if isinstance(data, Exception):
                raise data
            read[start:end] = data
    return bytes(read)


def _worker(arguments):
    socket, path, seed = arguments
    with open(path, "rb") as file:
        return read_it(socket, path, seed) == file.read()


def read_at_once(readers):
    """Each of `readers`, (socket, path, seed), in a process of its own, all at once; whether all
    got the file."""
    # The directory is the file server's own, so reading it here costs the server nothing.
    with multiprocessing.get_context("spawn").Pool(len(readers)) as pool:
        return all(pool.map(_worker, readers, chunksize=1))


@pytest.mark.parametrize("testbed", [(1,)], indirect=True)
def test_eight_processes_cost_the_store_the_file_once(testbed, file):
    before = testbed.store_bytes()
    assert read_at_once([(testbed.node(0)["socket"], str(file), seed) for seed in range(8)])
    cost = testbed.store_bytes() - before
    print(f"8 processes, 1 node: {cost / FILE_BYTES:.4f} x the file")
    assert FILE_BYTES <= cost <= 1.05 * FILE_BYTES


def test_four_nodes_cost_the_store_the_file_once(testbed, file):
    before = testbed.store_bytes()
    sockets = [testbed.node(index)["socket"] for index in range(4)]
    assert read_at_once([(sockets[seed % 4], str(file), seed) for seed in range(8)])
    cost = testbed.store_bytes() - before
    print(f"8 processes, 4 nodes: {cost / FILE_BYTES:.4f} x the file")
    assert FILE_BYTES <= cost <= 1.1 * FILE_BYTES
    # Now every node has all of it.
    again = testbed.store_bytes()
    assert read_at_once([(socket, str(file), 99) for socket in sockets])
    assert testbed.store_bytes() == again


def test_a_dead_node_and_one_that_hangs_cost_time_only(testbed, file):
    sockets = [testbed.node(index)["socket"] for index in range(4)]
    os.kill(testbed.node(2)["pid"], 9)
    hung = testbed.node(3)["pid"]
    os.kill(hung, 19)
    try:
        begun = time.monotonic()
        assert read_it(sockets[0], str(file), 5) == file.read_bytes()
        took = time.monotonic() - begun
    finally:
        os.kill(hung, 18)
    # A connection that does not answer is given up once, not for each of the blocks.
    assert took < 60, f"{took:.1f} s"


def test_a_file_that_changes_is_never_mixed_across_nodes(testbed, file):
    """Node 1 has the old version in its cache; node 0 must not get a byte of it."""
    sockets = [testbed.node(index)["socket"] for index in range(4)]
    assert read_it(sockets[1], str(file), 1) == file.read_bytes()
    new = random.Random(4).randbytes(FILE_BYTES)
    for rewrite in (lambda: file.write_bytes(new), lambda: swap(file, new[::-1])):
        rewrite()
        time.sleep(0.1)
        for socket in (sockets[0], sockets[1]):
            assert read_it(socket, str(file), 2) == file.read_bytes()


def swap(path, data):
    beside = path.with_name("beside")
    beside.write_bytes(data)
    beside.rename(path)


@pytest.mark.parametrize("testbed", [(1, "--server-rate", "20MB/s")], indirect=True)
def test_explain_tells_where_the_reading_of_a_file_is_on_record(testbed, file):
    """Blocks are frames of the file's folder, but a user knows the file."""
    from zazen.fsspec import ZazenFileSystem

    socket = testbed.node(0)["socket"]
    fs = ZazenFileSystem(socket=socket, block_bytes=BLOCK_BYTES, skip_instance_cache=True)
    assert fs.cat_file(str(file)) == file.read_bytes()
    assert f"`zazen explain {file.parent}`" in testbed.explain(file)
    explained = testbed.explain(file.parent)
    assert isinstance(explained, dict), explained
    (cause,) = explained["causes"]
    assert (cause["cause"], cause["frames"]) == ("never pushed", FILE_BYTES // BLOCK_BYTES), explained
