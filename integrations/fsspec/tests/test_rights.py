"""Nobody reads more through the cache than without it: a daemon of root's, and readers of other
users."""

import os
import time

import pytest
import zazen
import zazen.testing
from block_size import BLOCK_BYTES

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")

from zazen.fsspec import ZazenFileSystem  # noqa: E402

OWNER, OTHER = 65533, 65532
DATA = os.urandom(3 * BLOCK_BYTES + 5)


@pytest.fixture
def cluster(folder, backing):
    """Two nodes that give each other blocks; every user may reach their sockets."""
    for place in (folder, *folder.parents):
        if place.stat().st_mode & 0o055 != 0o055 and str(place) != "/":
            place.chmod(place.stat().st_mode | 0o055)
    peers = folder / "nodes.txt"
    with zazen.testing.Cluster(folder / "c", backing, nodes=2, arguments=["--peers", peers]) as cluster:
        peers.write_text("\n".join(cluster.nodes))
        yield cluster


def read_as(uid, socket, path):
    """What user `uid` reads, or the name of the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        fs = ZazenFileSystem(socket=socket, block_bytes=BLOCK_BYTES, skip_instance_cache=True)
        try:
            told = b"ok" if fs.cat_file(path) == DATA else b"other bytes"
        except Exception as error:
            told = type(error).__name__.encode()
        os.write(writing, told)
        os._exit(0)
    os.close(writing)
    told = os.read(reading, 1000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return told


def test_cached_blocks_go_to_those_who_may_read_the_file(cluster, backing):
    path = backing / "secret.h5"
    path.write_bytes(DATA)
    os.chown(path, OWNER, OWNER)
    path.chmod(0o600)
    time.sleep(0.05)
    first, second = cluster.sockets
    assert read_as(OWNER, first, str(path)) == "ok"
    # Node 1 has blocks of it by now, or can get them from node 0. Neither counts for somebody else.
    for socket in cluster.sockets:
        assert read_as(OTHER, socket, str(path)) == "PermissionDeniedError"
    assert read_as(OWNER, second, str(path)) == "ok"
    path.chmod(0o644)
    assert [read_as(OTHER, socket, str(path)) for socket in cluster.sockets] == ["ok", "ok"]
    # A folder that is closed counts, too.
    backing.chmod(0o700)
    assert [read_as(OTHER, socket, str(path)) for socket in cluster.sockets] == ["PermissionError"] * 2
    backing.chmod(0o755)
    path.chmod(0o600)
    assert read_as(OTHER, first, str(path)) == "PermissionDeniedError"
