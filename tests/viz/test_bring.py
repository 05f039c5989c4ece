"""Frames that another node holds come from that node, and not from the backing store."""

import json
import subprocess

import pytest
import zazen
import zazen.testing
import zazen.viz

PATTERN = "step{t}/block{b}.vtu"
#: The second is asked for in two parts.
SIZES = (1000, 20_000_003, 70_000)


@pytest.fixture
def ocean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("z") / "backing" / "ocean"
    (folder / "step0").mkdir(parents=True)
    for block, size in enumerate(SIZES):
        (folder / f"step0/block{block}.vtu").write_bytes(content(block))
        assert len(content(block)) == size
    rows = "".join(f"0,step0/block{block}.vtu\n" for block in range(len(SIZES)))
    (folder / "ts.csv").write_text("time,file\n" + rows)
    return folder


def content(block):
    return (bytes(range(block + 1, block + 200)) * (SIZES[block] // 199 + 1))[: SIZES[block]]


@pytest.fixture
def cluster(ocean, tmp_path_factory):
    """Three nodes that know each other."""
    folder = tmp_path_factory.mktemp("c")
    peers = folder / "peers"
    with zazen.testing.Cluster(folder, ocean.parent, nodes=3, arguments=["--peers", peers]) as cluster:
        peers.write_text("".join(f"{node}\n" for node in cluster.nodes))
        yield cluster


def command(*words):
    done = subprocess.run(
        [zazen.testing.program("zazen"), *map(str, words)],
        capture_output=True, text=True, timeout=60, check=False, env=zazen.testing.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counters(cluster, node):
    (found,) = json.loads(command("status", "--json", "--socket", cluster.sockets[node]))["nodes"]
    return found["status"]["counters"]


def opened(cluster, ocean, node):
    return zazen.open(ocean, pattern=PATTERN, socket=cluster.sockets[node])


def test_frames_come_from_their_holder_and_stay(cluster, ocean):
    with opened(cluster, ocean, 0) as holder, opened(cluster, ocean, 1) as asker:
        names = [f"step0/block{block}.vtu" for block in range(3)]
        for frame in holder.read_many(names):
            assert frame.source == "backing"
        before = counters(cluster, 1)
        assert asker.bring(names, holder.node) == 3
        after = counters(cluster, 1)
        assert after["fetched"] == before["fetched"] == 0, "nothing came from the backing store"
        assert after["peer_bytes"] - before["peer_bytes"] == sum(SIZES)
        assert counters(cluster, 0)["peer_pieces_given"] == 4
        for block, frame in enumerate(asker.read_many(names)):
            assert frame.source == "alien" and bytes(frame.data) == content(block)
        assert asker.bring(names, holder.node) == 3 and counters(cluster, 1) == counters(cluster, 1)
        _, alien = asker.query(0, 1 << 40)
        assert len(alien) == 3, "they are replicas now"


def test_what_the_holder_cannot_give_comes_from_the_store(cluster, ocean):
    names = [f"step0/block{block}.vtu" for block in range(3)]
    with opened(cluster, ocean, 0) as holder, opened(cluster, ocean, 1) as asker:
        held = holder.read_many(names[1:])
        # The holder's copy of block 1 is damaged where it lies; block 0 it never had.
        copies = [path for path in (cluster.folder / "cache0").rglob("*") if path.is_file()]
        (copy,) = [path for path in copies if path.stat().st_size == SIZES[1]]
        copy.chmod(0o600)
        with copy.open("r+b") as file:
            file.seek(17_000_000)
            file.write(b"damaged")
        del held
        # The source of block 2 changed.
        (ocean / names[2]).write_bytes(content(0))
        assert asker.bring(names, holder.node) == 0
        found = asker.read_many(names)
        assert [bytes(frame.data) for frame in found] == [content(0), content(1), content(0)]


def test_nodes_that_are_dead_or_unknown_are_left_out(cluster, ocean, tmp_path_factory):
    names = [f"step0/block{block}.vtu" for block in range(3)]
    with opened(cluster, ocean, 0) as holder, opened(cluster, ocean, 1) as asker:
        holder.read_many(names)
        assert asker.bring(names[:1], 12345) == 0
        assert asker.bring(names[:1], asker.node) == 0
        assert asker.bring(names[:1], holder.node) == 1
        cluster.kill(0)
        assert asker.bring(names[1:], holder.node) == 0
        assert [bytes(frame.data) for frame in asker.read_many(names)] == [content(at) for at in range(3)]
    folder = tmp_path_factory.mktemp("d")
    with zazen.testing.Cluster(folder, ocean.parent, nodes=1) as alone:
        with zazen.open(ocean, pattern=PATTERN, socket=alone.sockets[0]) as dataset:
            with pytest.raises(zazen.UnsupportedError, match="--peers"):
                dataset.bring(names, 1)


def test_a_rank_reads_a_remote_block_from_its_holder(cluster, ocean):
    """The plan gives node 1's rank a block that node 0 holds."""
    reader = zazen.viz.Visualization(ocean / "ts.csv", socket=cluster.sockets[1])
    with zazen.open(ocean, pattern=reader.template, socket=cluster.sockets[0]) as holder:
        holder.read_many([f"step0/block{block}.vtu" for block in range(3)])
        assert reader.plan(0).is_local == [False] * 3
        # What a job's all-gather would say of node 0.
        reader._node_of_holder = {0: reader.dataset.node, 1: holder.node}
        reader._holders = [[[1], [1], [1]]]
        reader._plans.clear()
        frames = reader.read(0, [0, 1, 2])
        assert [frame.source for frame in frames] == ["alien"] * 3
        assert counters(cluster, 1)["fetched"] == 0
        assert [bytes(frame.data) for frame in frames] == [content(at) for at in range(3)]


def test_a_list_that_is_older_than_the_last_step_is_told(cluster, ocean):
    """Its files are read from where they are, as those of no list at all."""
    for block in range(3):
        # Names without a pattern.
        (ocean / f"step0/block{block}.vtu").rename(ocean / f"step0/{'abc'[block]}.vtu")
    (ocean / "ts.csv").write_text("time,file\n0,step0/a.vtu\n0,step0/b.vtu\n")
    command("number", ocean, "--pattern", "**/*.vtu")
    opened = zazen.viz.Visualization(ocean / "ts.csv", socket=cluster.sockets[1])
    assert opened.dataset is not None and len({*opened.numbers[0]}) == 2
    (ocean / "step0/new.vtu").write_bytes(content(0))
    (ocean / "ts.csv").write_text("time,file\n0,step0/a.vtu\n1,step0/new.vtu\n")
    with pytest.warns(zazen.ZazenWarning, match="read from where they are.*step0/new.vtu"):
        opened = zazen.viz.Visualization(ocean / "ts.csv", socket=cluster.sockets[1])
    assert opened.dataset is None and opened.numbers is None
    assert opened.plan(1).is_local == [False]
