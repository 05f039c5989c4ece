"""Lists of reads and writes (lio_listio), and vectors of parts (readv and its kin): what they do is
what they do directly, and a list or a vector takes the messages of one call."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import PREFIX, calls
from held_back import Wire

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


STRIDED = """
    import sys
    import numpy as np
    from mpi4py import MPI
    info = MPI.Info.Create()
    info.Set("romio_ds_read", sys.argv[2])
    file = MPI.File.Open(MPI.COMM_SELF, sys.argv[1], MPI.MODE_RDONLY, info)
    parts = MPI.BYTE.Create_vector(100, 8, 64)
    parts.Commit()
    file.Set_view(0, MPI.BYTE, parts)
    data = np.empty(800, np.uint8)
    file.Read(data)
    file.Close()
    print(data.sum())
"""


@pytest.mark.parametrize(("sieving", "reads"), [("enable", 1), ("disable", 100)])
def test_romio_joins_the_parts_of_a_strided_read(node, sieving, reads):
    """As docs/forwarding.md says."""
    pytest.importorskip("mpi4py")
    # Not in this process: that would begin MPI.
    asked = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    if not subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.startswith("MPICH"):
        pytest.skip("another MPI may read files by something else than ROMIO")
    data = bytes(range(256)) * 100
    node.empty()
    (node.far / "file").write_bytes(data)
    before = calls(node)["px_read"]
    done = node.run(sys.executable, "-c", textwrap.dedent(STRIDED), f"{PREFIX}/file", sieving)
    expected = sum(sum(data[at : at + 8]) for at in range(0, 6400, 64))
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
    assert calls(node)["px_read"] - before == reads
