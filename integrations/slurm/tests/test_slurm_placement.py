"""What a job shall prefer, decided by zazen_placement.lua in each Lua that Slurm is built with, and
by hand here."""

import importlib.util
import random
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

lupa = pytest.importorskip("lupa", reason="no lupa: pip install -r requirements/test.txt")

KIT = Path(__file__).resolve().parents[1]
SEED = 18


@pytest.fixture(scope="module")
def agent():
    """zazen-slurm-features as a module."""
    loader = SourceFileLoader("zazen_slurm_features", str(KIT / "zazen-slurm-features"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    # No bytecode beside the program.
    exec(compile((KIT / "zazen-slurm-features").read_text(), "zazen-slurm-features", "exec"), module.__dict__)
    return module


@pytest.fixture(params=["lua51", "lua53", "lua54"])
def lua(request):
    module = pytest.importorskip(f"lupa.{request.param}")
    return module.LuaRuntime(unpack_returned_tuples=True, encoding="latin-1")


@pytest.fixture
def placement(lua):
    return lua.execute((KIT / "zazen_placement.lua").read_text())


def table(tmp_path, rows, age=0):
    """A table of nodes: name, partitions, CPUs, MiB, MiB of disk, gres, features."""
    path = tmp_path / "warm"
    lines = [f"zazen-slurm 1 {int(time.time()) - age}", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_both_languages_know_a_dataset_by_one_feature(placement, agent):
    draw = random.Random(SEED)
    paths = ["/", "/lustre/sim1", "/lustre/größe/ü"] + [
        "/" + "".join(chr(draw.randrange(33, 255)) for _ in range(draw.randrange(1, 200))) for _ in range(200)
    ]
    for path in paths:
        found = placement.feature(path.encode().decode("latin-1"))
        assert found == agent.feature_of(path), path
        assert len(found) == 19 and found.startswith("zz_")
    assert len({agent.feature_of(path) for path in paths}) == len(set(paths))
    # Nodes keep the features over an upgrade.
    assert agent.feature_of("/lustre/sim1") == "zz_c6897ae60fb4111d"


@pytest.mark.parametrize(
    ("comment", "script", "expected"),
    [
        ("zazen:/lustre/sim1", None, "/lustre/sim1"),
        ("mine zazen:/lustre/./a//b/../sim1/ other", None, "/lustre/a/sim1"),
        ("notzazen:/lustre/sim1", None, None),
        (None, "#!/bin/sh\n#SBATCH -N2\n\n#ZAZEN dataset=/a load\ntrue\n#ZAZEN dataset=/b\n", "/a"),
        ("zazen:/c", "#!/bin/sh\n#ZAZEN dataset=/a\n", "/c"),
        (None, "#!/bin/sh\ntrue\n#ZAZEN dataset=/a\n", None),
        (None, "#!/bin/sh\n#ZAZEN stage_in source=/a destination=/b\n", None),
        (None, None, None),
        ("zazen:/../..", None, "/"),
    ],
)
def test_a_job_names_its_dataset(placement, comment, script, expected):
    found = placement.dataset(comment, script)
    assert (found if not isinstance(found, tuple) else found[0]) == expected


@pytest.mark.parametrize("word", ["sim1", "", "/a\x01b"])
def test_what_is_no_absolute_path_is_refused(placement, word):
    found, wrong = placement.dataset(f"zazen:{word}", None)
    assert found is None and "give its absolute path" in wrong


NONE32 = 4294967294


@pytest.mark.parametrize(
    ("job", "warm", "expected"),
    [
        # Nodes of the partition `p`: a (4 CPUs, 1000 MiB, gpu=2, ssd), b (4 CPUs, 1000 MiB, ssd),
        # c (8 CPUs, 9000 MiB).
        ({"min_nodes": 1}, "abc", "F"),
        ({"min_nodes": 3}, "abc", "F"),
        ({"min_nodes": 4}, "abc", "F*3"),
        ({"min_nodes": 2}, "a", "F*1"),
        ({"min_nodes": 2}, "", None),
        ({"min_nodes": NONE32, "num_tasks": NONE32}, "ab", "F"),
        ({"min_nodes": NONE32, "num_tasks": 17}, "abc", "F*3"),
        ({"min_nodes": NONE32, "num_tasks": 8, "ntasks_per_node": 4}, "abc", "F"),
        ({"min_nodes": NONE32, "num_tasks": 8, "ntasks_per_node": 8}, "abc", "F"),
        ({"min_nodes": NONE32, "num_tasks": 8, "ntasks_per_node": 8}, "ab", None),
        ({"min_nodes": 1, "num_tasks": 5}, "ab", None),
        ({"min_nodes": 1, "num_tasks": 2, "cpus_per_task": 4}, "abc", "F"),
        ({"min_nodes": 1, "cpus_per_task": 65534, "ntasks_per_node": 65534}, "a", "F"),
        ({"min_nodes": 1, "min_mem_per_node": 5000}, "ab", None),
        ({"min_nodes": 2, "min_mem_per_node": 5000}, "abc", "F*1"),
        ({"min_nodes": 1, "min_mem_per_cpu": 500, "cpus_per_task": 4}, "ab", None),
        ({"min_nodes": 1, "pn_min_tmp_disk": 100}, "abc", None),
        ({"min_nodes": 1, "tres_per_node": "gres:gpu:2"}, "abc", "F"),
        ({"min_nodes": 1, "tres_per_node": "gres/gpu:4"}, "abc", None),
        ({"min_nodes": 1, "tres_per_job": "gres:gpu"}, "bc", None),
        ({"min_nodes": 1, "features": "ssd"}, "abc", "ssd&F"),
        ({"min_nodes": 1, "features": "ssd"}, "c", None),
        # With a count, Slurm would not keep to the constraint.
        ({"min_nodes": 2, "features": "ssd"}, "ac", None),
        ({"min_nodes": 2, "features": "ssd"}, "ab", "ssd&F"),
        ({"min_nodes": 1, "prefer": "x"}, "abc", None),
        ({"min_nodes": 1, "req_nodes": "a"}, "abc", None),
        ({"min_nodes": 1, "exc_nodes": "a"}, "abc", None),
        ({"min_nodes": 1, "reservation": "r"}, "abc", None),
        ({"min_nodes": 1, "partition": "q"}, "abc", None),
        ({"min_nodes": 1, "partition": "p,q"}, "abc", None),
    ],
)
def test_what_a_job_prefers(lua, placement, tmp_path, job, warm, expected):
    path = "/lustre/sim1"
    feature = placement.feature(path)

    def row(name, cpus, memory, gres, *features):
        return (name, "p,all", cpus, memory, 0, gres, ",".join([*features, *[feature][: name in warm]]))

    rows = [row("a", 4, 1000, "gpu=2", "ssd"), row("b", 4, 1000, "", "ssd"), row("c", 8, 9000, "")]
    nodes = placement.read(table(tmp_path, rows), time.time())
    partitions = lua.table_from(job.get("partition", "p").split(","))
    found = placement.preference(lua.table_from(job), path, nodes, partitions)
    found = found[0] if isinstance(found, tuple) else found
    assert found == (expected.replace("F", feature) if expected else None)


def test_a_dataset_that_no_node_holds_is_said_to_the_user(lua, placement, tmp_path):
    # Such as /lustre/my for `--comment="zazen:/lustre/my sim"`.
    rows = [("a", "p", 4, 1000, 0, "", placement.feature("/lustre/my sim")), ("b", "q", 4, 1000, 0, "", "")]
    nodes = placement.read(table(tmp_path, rows), time.time())
    said = {}
    for path, partitions in (("/lustre/my", "p"), ("/lustre/my sim", "p,q"), ("/lustre/my sim", "p")):
        found = placement.preference(
            lua.table_from({"min_nodes": 1}), path, nodes, lua.table_from(partitions.split(","))
        )
        said[path, partitions] = found[1] if isinstance(found, tuple) else None
    assert said == {
        ("/lustre/my", "p"): "zazen: no node that the job can use holds /lustre/my now",
        ("/lustre/my sim", "p,q"): "zazen: no node that the job can use holds /lustre/my sim now in each of "
        "its partitions",
        ("/lustre/my sim", "p"): None,
    }


def test_a_constraint_that_is_more_than_names_is_said_to_the_user(lua, placement):
    job = lua.table_from({"min_nodes": 1, "features": "a|b"})
    found, message = placement.preference(job, "/sim1", lua.table(), lua.table_from(["p"]))
    assert found is None and "--constraint=a|b" in message


def test_a_table_that_is_old_or_none_is_not_believed(placement, tmp_path):
    now = time.time()
    assert placement.read(table(tmp_path, [], age=300), now) is not None
    found, why = placement.read(table(tmp_path, [], age=900), now)
    assert found is None and "does zazen-slurm-features run?" in why
    found, why = placement.read(str(tmp_path / "none"), now)
    assert found is None and "none" in why
    (tmp_path / "warm").write_text("something else\n")
    found, why = placement.read(str(tmp_path / "warm"), now)
    assert found is None and "no table" in why


def test_lines_that_are_no_node_are_left_out(placement, tmp_path):
    rows = [("n1", "p", 4, 100, 0, "", "f"), ("n2", "p"), ("n3", "p", "x", 1, 1, "", "")]
    nodes = placement.read(table(tmp_path, rows), time.time())
    assert len(nodes) == 1


def test_a_node_is_warm_if_it_holds_enough(agent):
    nodes = {"n1": {"/a": 100, "/b": 10}, "n2": {"/a": 25}, "n3": {"/a": 24, "/b": 9, "/c": 1}}
    names = {agent.feature_of(path): path for path in ("/a", "/b", "/c")}

    def told(*options):
        return {node: {names[one] for one in given} for node, given in agent.warm(nodes, *options).items()}

    assert told(0.25, 64) == {"n1": {"/a", "/b"}, "n2": {"/a"}, "n3": {"/b", "/c"}}
    assert told(0.0, 64)["n3"] == {"/a", "/b", "/c"}
    # Of too many, those with most bytes.
    assert told(0.25, 1) == {"n1": {"/a"}, "n2": {"/a"}, "n3": {"/b"}}


def test_what_slurm_says_of_a_node(agent):
    line = (
        "NodeName=n1 Arch=x86_64 CPUTot=64 AvailableFeatures=ssd,zz_old ActiveFeatures=ssd,zz_old "
        "Gres=gpu:a100:4(S:0-1),gpu:t4:2,nvme NodeHostName=n1.site RealMemory=1000 State=IDLE+DRAIN "
        "TmpDisk=7 Partitions=a,b  Reason=x State=UP"
    )
    node = agent.Node(line)
    assert (node.name, node.host, node.usable) == ("n1", "n1.site", False)
    assert node.line({"zz_new"}) == "n1\ta,b\t64\t1000\t7\tgpu=6,nvme=1\tssd,zz_new"
    assert agent.by_slurm_name({"n1": node}, {"n1.other": {"zz_new"}, "?": {"x"}}) == {"n1": {"zz_new"}}
