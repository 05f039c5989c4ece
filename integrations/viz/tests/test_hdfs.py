"""A real HDFS: a name node and three data nodes, each in a network namespace of its own (root)."""

import json
import os
from pathlib import Path

import pytest
from hdfs_cluster import Hdfs, lacking, until
from launching import mpi_environment, mpiexec
from zazen.viz.generate import write

HERE = Path(__file__).parent
NODES = 3
WHY_NOT = lacking()
pytestmark = [
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.skipif(
        not os.environ.get("ZAZEN_TEST_HDFS"),
        reason="HDFS takes minutes: scripts/test-viz.sh runs this ($ZAZEN_TEST_HDFS)",
    ),
]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    cluster = Hdfs(tmp_path_factory.mktemp("hdfs"), NODES)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def told(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def test_bytes_come_from_the_own_data_node_and_a_dead_one_costs_only_locality(hdfs, folder):
    index = write(folder / "ocean", steps=3, points=33)
    url = "hdfs://node0:9870/ocean"
    said = json.loads(hdfs.zazen("viz", "load", index, url, "--copies", 2, "--json"))
    assert said["files"] == 3 * 8 + 4 and said["copies"] == 2
    hosts = folder / "hosts"
    hosts.write_text("node1\nnode2\nnode3\n")
    plan = json.loads(hdfs.zazen("viz", "plan", f"{url}/ts.vtm.series", "--ranks", hosts, "--json"))
    assert plan["files"] == 24 and plan["remote"] == plan["bound"]
    rank, whole = HERE / "hdfs_rank.py", 8 * 32**3
    # What the name node, MPI and the index cost, and one block of the look at names of arrays.
    slack = 1 << 20
    ours = told(hdfs.ranks(mpiexec(), mpi_environment(), NODES, rank, f"{url}/ts.vtm.series", "optimal"))
    assert ours["cells"] == [whole] * 3 and ours["files"] == ours["bound"] == plan["remote"]
    for came, remote in zip(ours["came"], ours["remote"], strict=True):
        assert remote <= came <= remote + slack, ours
    # Local replicas were opened as files: not even the loopback device carried them.
    assert all(within <= slack for within in ours["within"]) and min(ours["local"]) > 2 * slack, ours
    url_of = f"{url}/ts.vtm.series"
    over_http = told(hdfs.ranks(mpiexec(), mpi_environment(), NODES, rank, url_of, "optimal", as_files=False))
    assert over_http["cells"] == ours["cells"] and over_http["local"] == ours["local"]
    for within, local in zip(over_http["within"], over_http["local"], strict=True):
        assert local <= within, over_http
    # The counters see what is remote: by index, most is.
    blind = told(hdfs.ranks(mpiexec(), mpi_environment(), NODES, rank, f"{url}/ts.vtm.series", "blind"))
    assert blind["cells"] == ours["cells"] and sum(blind["remote"]) > sum(ours["remote"])
    assert all(came >= remote for came, remote in zip(blind["came"], blind["remote"], strict=True)), blind
    # A data node dies in mid-animation. The name node does not know it yet, and names it still.
    running = hdfs.ranks(mpiexec(), mpi_environment(), NODES, rank, f"{url}/ts.vtm.series", "optimal", folder)
    until(lambda: len(list(folder.glob("shown-*"))) == NODES or running.poll() is not None)
    assert running.poll() is None, running.communicate()
    hdfs.processes[2].kill()
    hdfs.processes.pop(2).wait(60)
    (folder / "go").touch()
    after = told(running)
    assert after["cells"] == [whole] * 3
    # A file that nobody has any more is an error that names it.
    hdfs.processes[1].kill()
    hdfs.processes.pop(1).wait(60)
    hdfs.processes[3].kill()
    hdfs.processes.pop(3).wait(60)
    running = hdfs.ranks(mpiexec(), mpi_environment(), NODES, rank, f"{url}/ts.vtm.series", "optimal")
    _, errors = running.communicate(timeout=300)
    assert running.returncode != 0 and "data node node" in errors, errors
