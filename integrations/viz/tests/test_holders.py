"""Ranks read blocks that other nodes of the job hold from those nodes, not from the backing
store."""

import json
import subprocess
from pathlib import Path

import pytest
import zazen.testing

pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
RANK = Path(__file__).parent / "viz_rank.py"


@pytest.fixture
def friends(folder, backing):
    """Four nodes that know each other."""
    peers = folder / "peers"
    with zazen.testing.Cluster(folder / "c", backing, nodes=4, arguments=["--peers", peers]) as cluster:
        peers.write_text("".join(f"{node}\n" for node in cluster.nodes))
        yield cluster


def counters(cluster, node):
    words = [zazen.testing.program("zazen"), "status", "--json", "--socket", cluster.sockets[node]]
    environment = zazen.testing.environment()
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=environment)
    return json.loads(done.stdout)["nodes"][0]["status"]["counters"]


def test_nothing_comes_from_the_store_that_a_node_holds(launch, ocean, friends, load, folder):
    load(ocean, friends.nodes[:2], friends.key)
    loaded = [counters(friends, node)["fetched"] for node in range(4)]
    assert sum(loaded) == 3 * 8 and loaded[2:] == [0, 0]
    job = {"index": str(ocean), "sockets": friends.sockets, "times": [0.0, 0.1], "ahead": 0}
    words = launch(4, RANK, json.dumps(job | {"record": str(folder / "run")}))
    found = json.loads(next(line for line in words.splitlines() if line.startswith("{")))
    assert found["remote"] == found["bound"] == 4 and found["cells"] == 8 * 8**3
    assert [counters(friends, node)["fetched"] for node in range(4)] == loaded
    given = [counters(friends, node)["peer_blocks"] for node in range(4)]
    lines = [
        json.loads(line)
        for record in (folder / "run").glob("rank-*.jsonl")
        for line in record.read_text().splitlines()
    ]
    assert len(lines) == 8 and sum(line["store_bytes"] for line in lines) == 0
    assert sum(given) == sum(line["remote_files"] for line in lines) >= 2 * 4
    assert sum(line["remote_bytes"] for line in lines) > 0 < sum(line["local_bytes"] for line in lines)
    # A holder dies: the store has its blocks.
    friends.kill(0)
    words = launch(4, RANK, json.dumps(job | {"times": [0.2]}))
    found = json.loads(next(line for line in words.splitlines() if line.startswith("{")))
    assert found["cells"] == 8 * 8**3
