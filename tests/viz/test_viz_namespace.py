"""A visualization in the namespace, without a mount: plans, places and bytes; no VTK."""

import json
import subprocess
import time
import warnings
from pathlib import Path

import pytest
import zazen
import zazen.namespace
import zazen.testing
import zazen.viz

NODES = 3


def command(*words, code=0):
    done = subprocess.run(
        [zazen.testing.program("zazen"), *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False, env=zazen.testing.environment(),
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def sockets(tmp_path_factory):
    """The daemons of a namespace, each by its socket."""
    bed = tmp_path_factory.mktemp("n") / "bed"
    command("testbed", "up", NODES, "--dir", bed, "--namespace", "--replicas", 2)
    try:
        record = json.loads((bed / "testbed.json").read_text())
        yield [node["socket"] for node in record["nodes"]]
    finally:
        command("testbed", "down", "--dir", bed)


def content(step, block):
    return bytes([step, block]) * (1000 + 100 * block)


@pytest.fixture
def ocean(sockets):
    """Two steps of four blocks: node b mod NODES writes block b, and so holds it."""
    nodes = [zazen.namespace.Namespace(socket) for socket in sockets]
    nodes[0].makedirs("/ocean/s")
    lines = []
    for step in range(2):
        names = [f"s/{step}_{block}.vtu" for block in range(4)]
        for block, name in enumerate(names):
            nodes[block % NODES].write_bytes(f"/ocean/{name}", content(step, block))
        sets = "".join(f'<DataSet index="{at}" file="{name}"/>' for at, name in enumerate(names))
        text = '<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet>'
        nodes[1].write_bytes(f"/ocean/{step}.vtm", f"{text}{sets}</vtkMultiBlockDataSet></VTKFile>".encode())
        lines.append({"name": f"{step}.vtm", "time": step / 10})
    nodes[0].write_bytes("/ocean/ts.vtm.series", json.dumps({"files": lines}).encode())
    return "namespace:/ocean/ts.vtm.series"


def test_a_plan_gives_each_node_what_it_holds(sockets, ocean, tmp_path):
    ranks = tmp_path / "hosts.txt"
    ranks.write_text("".join(f"n{node}\n" for node in range(NODES)))
    for strategy, remote in (("optimal", 0), ("bytes", 0)):
        words = ["--ranks", ranks, "--strategy", strategy, "--socket", sockets[0], "--json"]
        planned = json.loads(command("viz", "plan", ocean, *words).stdout)
        assert (planned["files"], planned["remote"]) == (8, remote)
        for step, found in enumerate(planned["steps"]):
            assert found["bytes"] == sum(len(content(step, block)) for block in range(4))
            for node, own in enumerate(found["assigned"]):
                assert own == [f"s/{step}_{block}.vtu" for block in range(node, 4, NODES)]
    # Another host than the nodes' reads all of it remotely.
    ranks.write_text("elsewhere\n")
    words = ["--ranks", ranks, "--socket", sockets[2], "--json"]
    assert json.loads(command("viz", "plan", ocean, *words).stdout)["remote"] == 8


def test_a_rank_knows_its_node_and_gets_the_bytes(sockets, ocean):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for node, socket in enumerate(sockets):
            opened = zazen.viz.Visualization(ocean, socket=socket)
            assert opened.times == [0.0, 0.1] and opened.directory == "namespace:/ocean"
            for step in range(2):
                assert opened.plan(step).is_local == [block % NODES == node for block in range(4)]
                for block in range(4):
                    with opened.fetch(step, block) as memory:
                        assert Path(memory.path).read_bytes() == content(step, block)


def test_what_is_missing_or_dead_is_named(sockets, ocean):
    namespace = zazen.namespace.Namespace(sockets[0])
    namespace.unlink("/ocean/s/1_3.vtu")
    opened = zazen.viz.Visualization(ocean, socket=sockets[0])
    assert opened.steps[0].trouble is None and "s/1_3.vtu" in opened.steps[1].trouble
    with pytest.raises(zazen.Error, match=r"gone\.pvd"):
        zazen.viz.Visualization("namespace:/ocean/gone.pvd", socket=sockets[0])
    with pytest.raises(zazen.Error, match="namespace's root"):
        zazen.viz.Visualization("namespace:ts.pvd", socket=sockets[0])
    with pytest.raises(zazen.Error, match="no mount of the namespace"):
        opened._locate_by_host("namespace")
    # The holder of block 2 dies. Its place is known all the same: a remote read, which fails.
    bed = Path(sockets[0]).parents[1]
    while not (bed / "testbed.json").exists():
        bed = bed.parent
    command("testbed", "kill", 2, "--dir", bed)
    until = time.monotonic() + 120
    while True:
        try:
            found = zazen.viz.Visualization(ocean, socket=sockets[0]).plan(0)
            break
        except (OSError, zazen.Error):
            # The nodes agree on who keeps the metadata of the dead one.
            assert time.monotonic() < until
            time.sleep(0.2)
    assert found.is_local == [True, False, False, True]
