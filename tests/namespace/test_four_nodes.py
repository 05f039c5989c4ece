"""`zazen testbed up --namespace --mounts`, `zazen namespace status` and `zazen locate`, as the page
shows them."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import zazen.namespace
import zazen.testing

NODES = 4


def zazen_command(*words: object, status: int = 0, variables: dict[str, str] | None = None) -> str:
    """Runs `zazen`; its standard output."""
    command = [zazen.testing.program("zazen"), *map(str, words)]
    environment = zazen.testing.environment() | (variables or {})
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=100, check=False)
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stdout + done.stderr


def within(seconds: float, work):
    """What `work` returns; it may fail for so long with an error of the system."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except OSError as error:
            assert time.monotonic() < until, f"not within {seconds} s: {error}"
            time.sleep(0.2)


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(folder).encode() in words and entry.name != str(os.getpid()):
            found.append(words.replace(b"\0", b" ").decode())
    return found


def test_four_nodes_share_one_tree_lose_one_and_go_down_without_a_trace(folder, alone):
    bed, mounts = folder / "bed", folder / "m"

    def test():
        tool = zazen_command
        up = ["--namespace", "--mounts", mounts, "--replicas", 2, "--durability", "written"]
        tool("testbed", "up", NODES, "--dir", bed, *up)
        m = [mounts / str(number) for number in range(NODES)]
        assert len(mounts_below(mounts)) == NODES
        record = json.loads((bed / "testbed.json").read_text())
        sockets = [node["socket"] for node in record["nodes"]]

        # Bytes are the same on all nodes, whoever wrote them.
        for writer in range(NODES):
            data = random.Random(writer).randbytes(1_000_003)
            (m[writer] / f"from{writer}").write_bytes(data)
            for reader in range(NODES):
                got = within(60, (m[reader] / f"from{writer}").read_bytes)
                assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()

        # Names: other nodes see them within the second that kernels keep.
        (m[0] / "d").mkdir()
        within(60, (m[1] / "d").stat)
        (m[1] / "from0").rename(m[1] / "d/moved")
        time.sleep(1.2)
        for place in m:
            assert sorted(os.listdir(place)) == ["d", "from1", "from2", "from3"]
            assert os.listdir(place / "d") == ["moved"]

        # Who holds what: a write goes to the writer's own disk.
        for number, path in enumerate(["/d/moved", "/from1", "/from2", "/from3"]):
            (found,) = json.loads(tool("locate", "--json", "--socket", sockets[0], path))
            assert (found["path"], found["name"], found["bytes"]) == (path, f"n{number}", 1_000_003)
        hosts = tool("locate", "--hosts", "--socket", sockets[3], "/from1", "/from3", "/from1")
        assert hosts.split() == ["n1", "n3"]
        assert "/nothing" in tool("locate", "--socket", sockets[0], "/nothing", status=1)
        assert "not a file" in tool("locate", "--socket", sockets[0], "/d", status=1)
        status = json.loads(tool("namespace", "status", "--json", "--socket", sockets[1]))
        assert [node["name"] for node in status["nodes"]] == ["n0", "n1", "n2", "n3"]
        assert sum(node["primary_of"] for node in status["nodes"]) == status["partitions"]
        shown = tool("namespace", "status", "--socket", sockets[1])
        assert all(f"n{number}" in shown for number in range(NODES))

        # What talks to one daemon takes the testbed's first node, or that of $ZAZEN_SOCKET.
        (folder / "source").mkdir()
        (folder / "source/one").write_text("one")
        on_testbed = {"ZAZEN_TESTBED": str(bed)}
        tool("stage-in", folder / "source", "/staged", variables=on_testbed)
        tool("stage-out", "/staged/one", folder / "back", variables=on_testbed)
        assert (folder / "back").read_text() == "one"
        tool("stage-in", folder / "source", "/on3", variables=on_testbed | {"ZAZEN_SOCKET": sockets[3]})
        holders = json.loads(tool("locate", "--json", "--socket", sockets[0], "/staged/one", "/on3/one"))
        assert [found["name"] for found in holders] == ["n0", "n3"]
        (folder / "more").mkdir()
        tool("mount", folder / "more", variables=on_testbed)
        assert (folder / "more/staged/one").read_text() == "one"
        tool("unmount", folder / "more")
        (folder / "nobody").mkdir()
        no_testbed = {"ZAZEN_TESTBED": str(folder / "nobody")}
        said = tool("stage-in", folder / "source", "/x", status=1, variables=no_testbed)
        assert "there is none" in said
        os.environ["ZAZEN_TESTBED"] = str(bed)
        try:
            assert zazen.namespace.Namespace().read_bytes("/staged/one") == b"one"
        finally:
            del os.environ["ZAZEN_TESTBED"]
        for place in ("staged", "on3"):
            shutil.rmtree(m[1] / place)

        # A node dies: its part of the metadata comes back, the files that it holds do not.
        tool("testbed", "kill", 2, "--dir", bed)
        within(60, lambda: [(m[0] / f"after{number}").write_bytes(b"after") for number in range(20)])
        within(60, lambda: [(m[3] / f"after{number}").read_bytes() for number in range(20)])
        assert within(60, lambda: (m[3] / "from1").read_bytes()) == random.Random(1).randbytes(1_000_003)
        within(60, lambda: os.rename(m[1] / "from3", m[1] / "renamed"))
        with pytest.raises(OSError, match=r"timed out|Input/output"):
            (m[0] / "from2").read_bytes()

        # It comes back with its disk.
        tool("testbed", "revive", 2, "--dir", bed)
        assert within(60, (m[0] / "from2").read_bytes) == random.Random(2).randbytes(1_000_003)
        assert within(60, (m[2] / "after7").read_bytes) == b"after"
        within(60, lambda: (m[2] / "again").write_bytes(b"again"))
        assert within(60, (m[1] / "again").read_bytes) == b"again"

        tool("testbed", "down", "--dir", bed)
        assert mounts_below(folder) == [] and processes_of(folder) == [] and not bed.exists()
        assert not mounts.exists()

    alone(test)


def test_mounts_need_a_namespace_and_a_failure_leaves_nothing(folder, alone):
    def test():
        tool = zazen_command
        assert "--namespace" in tool("testbed", "up", 1, "--mounts", folder / "m", status=2)
        assert "0" in tool("testbed", "up", 1, "--namespace", "--replicas", 0, status=2)
        # The folder of the mounts is a file.
        (folder / "file").write_text("")
        wrong = ["--namespace", "--mounts", folder / "file"]
        assert "file" in tool("testbed", "up", 1, "--dir", folder / "bed", *wrong, status=1)
        assert processes_of(folder) == [] and list((folder / "bed").glob("*")) == []
        # A folder that was there before stays, and so does what is in one that was made.
        (folder / "own").mkdir()
        for place in ("own/deep/mounts", "made/mounts"):
            tool("testbed", "up", 1, "--dir", folder / "bed", "--namespace", "--mounts", folder / place)
            if place == "made/mounts":
                (folder / "made/note").write_text("mine")
            tool("testbed", "down", "--dir", folder / "bed")
        assert list((folder / "own").iterdir()) == []
        assert [path.name for path in (folder / "made").iterdir()] == ["note"]

    alone(test)
