"""`zazen viz plan` and `--copies`, over real daemons and files; no VTK."""

import json
import subprocess

import pytest
import zazen
import zazen.testing
import zazen.viz

STEPS, BLOCKS, NODES = 3, 6, 4
PATTERN = "step{t}/block{b}.vtu"


@pytest.fixture
def ocean(tmp_path_factory):
    """A series whose steps have blocks of unlike lengths; the reader of plans looks at names
    only."""
    folder = tmp_path_factory.mktemp("z") / "backing" / "ocean"
    listed = []
    for step in range(STEPS):
        (folder / f"step{step}").mkdir(parents=True)
        lines = []
        for block in range(BLOCKS):
            name = f"step{step}/block{block}.vtu"
            (folder / name).write_bytes(bytes([step, block]) * (1000 + 100 * block))
            lines.append(f'<DataSet index="{block}" file="{name}"/>')
        body = "".join(lines)
        (folder / f"step{step}.vtm").write_text(
            f'<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet>{body}'
            "</vtkMultiBlockDataSet></VTKFile>"
        )
        listed.append({"name": f"step{step}.vtm", "time": step / 10})
    (folder / "ts.vtm.series").write_text(json.dumps({"files": listed}))
    return folder


@pytest.fixture
def cluster(ocean, tmp_path_factory):
    with zazen.testing.Cluster(tmp_path_factory.mktemp("c"), ocean.parent, nodes=NODES) as cluster:
        yield cluster


def command(*words, code=0):
    done = subprocess.run(
        [zazen.testing.program("zazen"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=zazen.testing.environment(),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def loaded(cluster, ocean, *flags):
    nodes = ["--nodes", ",".join(cluster.nodes), "--key", cluster.key]
    return json.loads(command("load", ocean, "--pattern", PATTERN, *flags, *nodes, "--json").stdout)


def held(cluster, ocean):
    """By node, the frames that it says it holds."""
    sets = []
    for socket in cluster.sockets:
        with zazen.open(ocean, pattern=PATTERN, socket=socket) as dataset:
            native, alien = dataset.query(0, 1 << 40)
            sets.append({*native, *alien})
    return sets


def test_copies_lie_on_different_nodes(cluster, ocean):
    report = loaded(cluster, ocean, "--copies", 3)
    assert (report["frames"], report["loaded"], report["copies_missing"]) == (18, 54, 0)
    sets = held(cluster, ocean)
    for step in range(STEPS):
        for block in range(BLOCKS):
            number = step * zazen.viz.PARTS_PER_STEP + block
            assert sum(number in own for own in sets) == 3
    again = loaded(cluster, ocean, "--copies", 3)
    assert (again["loaded"], again["present"]) == (0, 54)
    assert "need as many nodes" in command(
        "load", ocean, "--pattern", PATTERN, "--copies", 5, "--nodes", ",".join(cluster.nodes), "--key",
        cluster.key, code=1,
    ).stderr  # fmt: skip


def test_an_index_is_loaded_as_it_is(cluster, ocean):
    nodes = ["--nodes", ",".join(cluster.nodes), "--key", cluster.key]
    report = json.loads(command("load", ocean / "ts.vtm.series", "--copies", 2, *nodes, "--json").stdout)
    assert (report["frames"], report["loaded"]) == (18, 36)
    assert sum(map(len, held(cluster, ocean))) == 36
    odd = '<VTKFile type="vtkPartitionedDataSet"><vtkPartitionedDataSet><DataSet file="a.vtu"/>'
    odd += "</vtkPartitionedDataSet>"
    (ocean / "odd.vtpd").write_text(odd + "</VTKFile>")
    assert "zazen number" in command("load", ocean / "odd.vtpd", *nodes, code=1).stderr


def test_racks_hold_copies_as_hdfs_does(cluster, ocean, tmp_path):
    racks = tmp_path / "racks"
    racks.write_text("".join(f"{node} rack{at // 2}\n" for at, node in enumerate(cluster.nodes)))
    loaded(cluster, ocean, "--copies", 3, "--layout", "rack", "--racks", racks)
    sets = held(cluster, ocean)
    for number in set().union(*sets):
        nodes = [node for node, own in enumerate(sets) if number in own]
        assert len(nodes) == 3 and {node // 2 for node in nodes} == {0, 1}


def plan(cluster, index, ranks, *flags, code=0):
    nodes = ["--nodes", ",".join(cluster.nodes), "--key", cluster.key]
    return command("viz", "plan", index, "--ranks", ranks, *nodes, *flags, code=code)


def test_a_plan_says_what_the_caches_hold(cluster, ocean, tmp_path):
    loaded(cluster, ocean, "--copies", 2)
    # All daemons of this test are on one host, so its name says nothing; a table stands for it.
    sets = held(cluster, ocean)
    table, ranks = tmp_path / "table", tmp_path / "hosts.txt"
    lines = []
    for step in range(STEPS):
        for block in range(BLOCKS):
            number = step * zazen.viz.PARTS_PER_STEP + block
            hosts = [f"node{node}" for node, own in enumerate(sets) if number in own]
            lines.append(f"step{step}/block{block}.vtu {' '.join(hosts)}\n")
    table.write_text("".join(lines))
    ranks.write_text("".join(f"node{node}.cluster\n" for node in range(NODES)))
    for index in (ocean / "ts.vtm.series", ocean / PATTERN):
        found = json.loads(command("viz", "plan", index, "--ranks", ranks, "--hosts", table, "--json").stdout)
        assert found["pattern"] == PATTERN and found["directory"] == str(ocean)
        for step, planned in enumerate(found["steps"]):
            files = [
                (1000 + 100 * block, [node for node in range(NODES)
                 if step * zazen.viz.PARTS_PER_STEP + block in sets[node]])
                for block in range(BLOCKS)
            ]  # fmt: skip
            best = zazen.viz.match(list(range(NODES)), [(2 * size, nodes) for size, nodes in files])
            assert (planned["remote"], planned["bound"]) == (best.remote, best.bound)
            assert planned["bytes"] == sum(2 * size for size, _ in files)
            own = [[f"step{step}/block{block}.vtu" for block in blocks] for blocks in best.assigned]
            assert planned["assigned"] == own
    text = command("viz", "plan", ocean / "ts.vtm.series", "--ranks", ranks, "--hosts", table, "--step", 1)
    assert "read remotely by 4 ranks" in text.stdout and "node3.cluster" in text.stdout
    # The caches themselves: one host has all nodes, so nothing is remote there.
    here = cluster.nodes[0].rpartition(":")[0]
    ranks.write_text(f"{here} slots=3\n")
    found = json.loads(plan(cluster, ocean / "ts.vtm.series", ranks, "--json").stdout)
    assert (found["files"], found["remote"]) == (18, 0)
    cluster.kill(2)
    done = plan(cluster, ocean / "ts.vtm.series", ranks, "--json")
    assert json.loads(done.stdout)["files"] == 18 and "does not answer" in done.stderr


def test_what_is_wrong_is_named(cluster, ocean, tmp_path):
    ranks = tmp_path / "hosts.txt"
    ranks.write_text("node0\nnode1:x\n")
    assert "line 2" in plan(cluster, ocean / "ts.vtm.series", ranks, code=1).stderr
    ranks.write_text("node0:2\n")
    (ocean / "step1.vtm").write_text("<VTKFile")
    done = plan(cluster, ocean / "ts.vtm.series", ranks)
    assert "step1.vtm" in done.stderr and "no complete XML" in done.stderr
    assert "on no node" in done.stderr
    for index, words in (("gone.pvd", "gone.pvd"), ("step0/block0.png", "neither an index")):
        assert words in plan(cluster, ocean / index, ranks, code=1).stderr
    assert "strategy" in plan(cluster, ocean / "ts.vtm.series", ranks, "--strategy", "best", code=1).stderr
    assert "has 3 steps" in plan(cluster, ocean / "ts.vtm.series", ranks, "--step", 3, code=1).stderr


def block_ranks(assigned):
    """By block of a step, the rank that a plan gives it."""
    return {name.partition("/")[2]: rank for rank, own in enumerate(assigned) for name in own}


def vtm(step, blocks):
    """An index that lists these blocks, in this order."""
    body = "".join(f'<DataSet index="{block}" file="step{step}/block{block}.vtu"/>' for block in blocks)
    kind = "vtkMultiBlockDataSet"
    return f'<VTKFile type="{kind}"><{kind}>{body}</{kind}></VTKFile>'


class Ranks:
    """Three ranks of a job on this host, of which this is the first."""

    rank, size = 0, 3

    def bcast(self, value, root=0):
        return value

    def allgather(self, value):
        return [value] * self.size


@pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")
def test_a_sticky_map_keeps_blocks_and_not_places_in_a_list(ocean, tmp_path):
    (ocean / "step1.vtm").write_text(vtm(1, reversed(range(BLOCKS))))
    ranks, table = tmp_path / "hosts.txt", tmp_path / "table"
    ranks.write_text("a\nb:2\n")
    table.write_text("step0/block0.vtu a\nstep1/block0.vtu a\nstep2/block0.vtu a\n")
    index = ocean / "ts.vtm.series"
    words = ["viz", "plan", index, "--ranks", ranks, "--hosts", table, "--strategy", "sticky", "--json"]
    planned = json.loads(command(*words).stdout)
    first, *others = (block_ranks(step["assigned"]) for step in planned["steps"])
    assert first["block0.vtu"] == 0 and others == [first, first]
    # The map is that of all steps, also where one of them is shown.
    table.write_text("step0/block5.vtu a\nstep1/ a\nstep2/block5.vtu b\n")
    whole = json.loads(command(*words).stdout)["steps"]
    assert json.loads(command(*words, "--step", 2).stdout)["steps"] == whole[2:]
    reader = zazen.viz.Visualization(index, Ranks(), strategy="sticky", locator="none")
    kept = []
    for step in range(STEPS):
        files = [name.partition("/")[2] for name in reader.steps[step].files]
        kept.append(dict(zip(files, reader.plan(step).rank_of_file, strict=True)))
    assert kept[1:] == [kept[0]] * 2
    # As many blocks, but others: no block may pass for another one.
    (ocean / "step1.vtm").write_text(vtm(1, [0, 1, 2, 3, 4, 7]))
    (ocean / "step1/block7.vtu").write_bytes(b"x")
    assert "has other blocks" in command(*words, code=1).stderr
    reader = zazen.viz.Visualization(index, Ranks(), strategy="sticky", locator="none")
    with pytest.raises(zazen.InvalidArgumentError, match="has other blocks"):
        reader.plan(0)


class TwoHosts(Ranks):
    """The same on the hosts a, b and b."""

    def allgather(self, value):
        return ["a", "b", "b"] if isinstance(value, str) else super().allgather(value)


@pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")
def test_a_sticky_map_is_that_of_the_steps_that_can_be_shown(ocean, tmp_path):
    """Of steps whose files are missing nobody reads anything: the plan is the reader's."""
    for step in (1, 2):
        (ocean / f"step{step}/block2.vtu").unlink()
    ranks, table = tmp_path / "hosts.txt", tmp_path / "table"
    ranks.write_text("a\nb:2\n")
    table.write_text("step0/block1.vtu a\nstep1/block1.vtu b\nstep2/block1.vtu b\n")
    index = ocean / "ts.vtm.series"
    reader = zazen.viz.Visualization(index, TwoHosts(), strategy="sticky", locator=f"table:{table}")
    assert reader.plan(0).rank_of_file[1] == 0
    words = ["viz", "plan", index, "--ranks", ranks, "--hosts", table, "--strategy", "sticky", "--json"]
    for step, planned in enumerate(json.loads(command(*words).stdout)["steps"]):
        by_name = {name: rank for rank, own in enumerate(planned["assigned"]) for name in own}
        assert [by_name[name] for name in reader.steps[step].files] == reader.plan(step).rank_of_file


def test_what_is_missing_gets_a_word(ocean, tmp_path):
    ranks, table = tmp_path / "hosts.txt", tmp_path / "table"
    ranks.write_text("a\nb\n")
    table.write_text("* a\n")
    (ocean / "step1/block2.vtu").unlink()
    words = ["--ranks", ranks, "--hosts", table]
    said = command("viz", "plan", ocean / "ts.vtm.series", *words).stderr
    assert "step1/block2.vtu: there is no such file" in said and "load them" not in said
    # Of a pattern, the other steps alone tell that a block is missing.
    said = command("viz", "plan", ocean / PATTERN, *words).stderr
    assert "1 of 3 time steps lack blocks" in said and "step 1 block 2" in said
    with pytest.warns(zazen.ZazenWarning, match="step 1 block 2"):
        opened = zazen.viz.Visualization(ocean / PATTERN, locator="none")
    tree = opened.steps[1].tree["blocks"]
    assert tree[2] == ["block 2", "empty"] and tree[3] == ["block 3", {"file": 2}]
