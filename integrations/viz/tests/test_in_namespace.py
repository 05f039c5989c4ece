"""VTK reads a visualization from the namespace, without a mount: the stock reader's blocks."""

import json
import subprocess
from pathlib import Path

import pytest
import zazen.namespace
import zazen.testing

pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
RANK = Path(__file__).parent / "viz_rank.py"


def run(*words):
    command = [zazen.testing.program("zazen"), *map(str, words)]
    environment = zazen.testing.environment()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def sockets(folder):
    bed = folder / "bed"
    run("testbed", "up", "4", "--dir", bed, "--namespace", "--replicas", "1")
    try:
        record = json.loads((bed / "testbed.json").read_text())
        yield [node["socket"] for node in record["nodes"]]
    finally:
        run("testbed", "down", "--dir", bed)


def test_ranks_read_what_their_nodes_hold(launch, ocean, sockets):
    nodes = [zazen.namespace.Namespace(socket) for socket in sockets]
    blocks = sorted(path for path in ocean.parent.rglob("*") if path.is_file())
    for at, path in enumerate(blocks):
        there = Path("/ocean", path.relative_to(ocean.parent))
        nodes[0].makedirs(str(there.parent), exist_ok=True)
        # Block b is written on node b mod 4; the index files lie anywhere.
        number = path.stem.rpartition("_")[2]
        owner = int(number) if path.suffix == ".vti" else at
        nodes[owner % 4].write_bytes(str(there), path.read_bytes())
    words = launch(1, RANK, json.dumps({"stock": str(ocean.parent / "ts_1.vtm")}))
    stock = json.loads(next(line for line in words.splitlines() if line.startswith("{")))
    for ranks in (1, 4):
        job = {"index": f"namespace:/ocean/{ocean.name}", "sockets": sockets, "times": [0.0, 0.1]}
        words = launch(ranks, RANK, json.dumps(job))
        found = json.loads(next(line for line in words.splitlines() if line.startswith("{")))
        assert (found["cells"], found["ranges"]) == (stock["cells"], stock["ranges"])
        if ranks == 4:
            assert found["remote"] == 0 and found["blocks"] == [[at, at + 4] for at in range(4)]
