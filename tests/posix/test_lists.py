"""Lists of reads and writes (lio_listio), and vectors of parts (readv and its kin): what they do is
what they do directly, and a list or a vector takes the messages of one call."""

import os
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX, calls
from wire import Wire

HERE = Path(__file__).parent
COUNT, BYTES, PLACE = 100, 512, 0x2A5A5A0000
# On their way at once, at most: crates/zazen-preload/src/transport.rs.
AT_ONCE = 32


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("lists") / "lists"
    subprocess.run(["cc", "-O1", "-Wall", "-o", program, HERE / "lists.c"], check=True)
    return program


def directly(daemon, program, mode):
    done = subprocess.run([program, mode, daemon.direct], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same_files(daemon):
    names = [sorted(os.listdir(folder)) for folder in (daemon.far, daemon.direct)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name


@pytest.mark.parametrize("where", ["daemon", "isolated", "node"])
@pytest.mark.parametrize("mode", ["all", "vectors"])
def test_results_are_those_of_a_program_that_runs_directly(request, program, where, mode):
    daemon = request.getfixturevalue(where)
    daemon.empty()
    expected = directly(daemon, program, mode)
    done = daemon.run(program, mode, PREFIX)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    same_files(daemon)


@pytest.mark.parametrize("mode", ["reads", "writes"])
def test_a_list_is_on_its_way_at_once(node, program, mode):
    """No answer comes before all requests that go together are there: who waited for one would wait
    for ever."""
    node.empty()
    for folder in (node.far, node.direct):
        with (folder / "file").open("wb") as file:
            file.truncate(PLACE + COUNT * BYTES // 2)
    expected = directly(node, program, mode)
    wire = Wire(node.node)
    try:
        words = node.command()
        words[words.index("--node") + 1] = wire.address
        sent = wire.count(PLACE.to_bytes(8, "little")[2:])
        wire.hold_while(lambda: 0 < sent() < COUNT and sent() % AT_ONCE != 0)
        done = subprocess.run([*words, program, mode, PREFIX], capture_output=True, text=True, timeout=60)
    finally:
        wire.close()
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert sent() == COUNT


@pytest.mark.parametrize("where", ["daemon", "node"])
def test_a_vector_is_one_call(request, program, where):
    daemon = request.getfixturevalue(where)
    daemon.empty()
    before = calls(daemon)
    done = daemon.run(program, "vectors", PREFIX)
    assert done.returncode == 0, done.stderr
    after = calls(daemon)
    assert [after[name] - before[name] for name in ("px_read", "px_write")] == [2, 2]
