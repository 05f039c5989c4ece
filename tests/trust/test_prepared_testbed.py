"""Testbeds of root in places where another user has put things: nothing of his is believed,
followed or ended."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import zazen
import zazen.testing

SECRET = "nobody else's"


class Victim:
    """What the attacks are after: a folder, a file, a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "precious"
        self.folder.mkdir()
        (self.folder / "data").write_text(SECRET)
        self.file = folder / "document"
        self.file.write_text(SECRET)
        self.process = subprocess.Popen(["sleep", "600"])

    def is_whole(self) -> bool:
        found = sorted(path.name for path in self.folder.iterdir())
        texts = [self.file.read_text(), (self.folder / "data").read_text()]
        return found == ["data"] and texts == [SECRET] * 2 and self.process.poll() is None


@pytest.fixture
def victim(ground):
    victim = Victim(ground)
    yield victim
    victim.process.kill()
    victim.process.wait()


@pytest.fixture
def tool(programs):
    """Root's `zazen`."""
    if os.geteuid() != 0:
        pytest.skip("a testbed that two users are at needs root")
    environment = zazen.testing.environment()
    environment["ZAZEND"] = str(programs / "zazend")

    def run(*words: object, status: int | None = None, **more: str) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [str(programs / "zazen"), *map(str, words)],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
        )
        assert status is None or done.returncode == status, done
        return done

    return run


@pytest.fixture
def testbed(tool, ground):
    """A running testbed of root's, of one node."""
    folder = ground / "t"
    tool("testbed", "up", 1, "--dir", folder, status=0)
    yield folder
    if (folder / "testbed.json").exists():
        tool("testbed", "down", "--dir", folder, status=0)


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


COMMANDS = [
    ["up", "1"],
    ["down"],
    ["kill", "n0"],
    ["revive", "n0"],
    ["status"],
    ["env"],
    ["run", "--on", "n0", "--", "true"],
    ["exec", "--on", "sim", "--", "true"],
]


def hostile(record: dict, victim: Victim) -> dict:
    """The record with everything in it turned at the victim."""
    record = json.loads(json.dumps(record))
    record["key"] = record["nodes_file"] = str(victim.file)
    record["socket_dir"] = record["backing_root"] = str(victim.folder)
    for host in [*record["nodes"], record["server"], record["sim"]]:
        host["dir"] = str(victim.folder)
        host["socket"] = str(victim.file)
        host["process"] = record["nodes"][0]["process"] | {
            "pid": victim.process.pid,
            "start_ticks": start_ticks(victim.process.pid),
        }
    return record


@pytest.fixture
def record(tool, ground):
    """What a testbed of root's recorded; it is down again."""
    folder = ground / "t"
    tool("testbed", "up", 1, "--dir", folder, status=0)
    record = json.loads((folder / "testbed.json").read_text())
    tool("testbed", "down", "--dir", folder, status=0)
    return record


def test_a_folder_that_another_user_prepared_is_not_obeyed(tool, ground, victim, record, b):
    """As the issue has it: his record names a folder, files and a process of others."""
    prepared = ground / "t"
    prepared.mkdir(exist_ok=True)
    (prepared / "testbed.json").write_text(json.dumps(hostile(record, victim)))
    b.own(prepared / "testbed.json")
    b.own(prepared)
    for command in COMMANDS:
        done = tool("testbed", "--dir", prepared, *command, status=1)
        assert f"belongs to user {b.uid}" in done.stderr, (command, done)
        assert victim.is_whole(), command
    assert [path.name for path in prepared.iterdir()] == ["testbed.json"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_folder_that_others_can_write_is_not_used(tool, ground, victim, record, b, mode):
    prepared = ground / "t"
    prepared.mkdir(exist_ok=True)
    prepared.chmod(mode)
    os.chown(prepared, 0, b.gid)
    (prepared / "testbed.json").write_text(json.dumps(hostile(record, victim)))
    for command in COMMANDS:
        done = tool("testbed", "--dir", prepared, *command, status=1)
        assert f"{mode:04o}" in done.stderr, (command, done)
        assert victim.is_whole(), command


def test_a_record_of_another_user_is_not_used(tool, ground, victim, record, b):
    """He wrote it while the folder was his; now it is root's."""
    prepared = ground / "t"
    prepared.mkdir(exist_ok=True)
    (prepared / "testbed.json").write_text(json.dumps(hostile(record, victim)))
    b.own(prepared / "testbed.json")
    for command in COMMANDS:
        done = tool("testbed", "--dir", prepared, *command, status=1)
        assert f"belongs to user {b.uid}" in done.stderr, (command, done)
    link = prepared / "testbed.json"
    link.rename(ground / "record")
    link.symlink_to(ground / "record")
    for command in COMMANDS:
        assert "symbolic link" in tool("testbed", "--dir", prepared, *command, status=1).stderr
    link.unlink()
    os.link(ground / "record", link)
    for command in COMMANDS:
        assert "one name" in tool("testbed", "--dir", prepared, *command, status=1).stderr
    assert victim.is_whole()


@pytest.mark.parametrize(
    "field",
    ["dir", "key", "nodes_file", "socket_dir", "tag", "nodes/dir", "nodes/socket", "nodes/name", "disk"],
)
def test_a_record_that_names_anything_else_is_refused_whoever_wrote_it(tool, ground, victim, record, field):
    folder = ground / "t"
    folder.mkdir(exist_ok=True)
    changed = json.loads(json.dumps(record))
    at = changed["nodes"][0] if field.startswith("nodes/") else changed
    group = {"bytes_per_s": None, "group": str(victim.folder), "device": "8:0", "unified": False}
    value = {"tag": "../../x", "nodes/name": "../precious", "disk": group}.get(field, str(victim.folder))
    at[field.removeprefix("nodes/")] = value
    (folder / "testbed.json").write_text(json.dumps(changed))
    for command in COMMANDS:
        done = tool("testbed", "--dir", folder, *command, status=1)
        assert "not a record of this testbed" in done.stderr, (command, done)
    assert victim.is_whole()


def test_planted_links_are_not_followed(tool, ground, victim, b):
    """Root took a folder over in which another user had left links."""
    folder = ground / "t"
    folder.mkdir()
    for name, target in [
        ("key", victim.file),
        ("key.new", victim.file),
        ("nodes.txt", victim.file),
        ("nodes.txt.new", victim.file),
        ("testbed.json.new", victim.file),
    ]:
        (folder / name).symlink_to(target)
    tool("testbed", "up", 1, "--dir", folder, status=0)
    try:
        assert victim.is_whole()
        key = folder / "key"
        assert not key.is_symlink() and key.stat().st_uid == 0 and key.stat().st_mode & 0o777 == 0o600
    finally:
        tool("testbed", "down", "--dir", folder, status=0)
    for name in ("n0", "fs", "sim", "server", ".lock"):
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(victim.file if name == ".lock" else victim.folder)
        done = tool("testbed", "up", 1, "--dir", folder, status=1)
        assert name in done.stderr, done
        assert victim.is_whole(), name
        shutil.rmtree(folder)
    for name in ("log", "address"):
        (folder / "fs").mkdir(parents=True)
        (folder / "fs" / name).symlink_to(victim.file)
        done = tool("testbed", "up", 1, "--dir", folder)
        assert victim.is_whole(), name
        tool("testbed", "down", "--dir", folder)
        shutil.rmtree(folder, ignore_errors=True)


def test_links_put_into_a_running_testbed_are_removed_not_followed(testbed, tool, victim):
    for at in (testbed / "n0" / "cache", testbed / "n0"):
        shutil.rmtree(at / "x", ignore_errors=True)
        (at / "x").symlink_to(victim.folder)
        (at / "y").symlink_to(victim.file)
    tool("testbed", "down", "--dir", testbed, status=0)
    assert victim.is_whole() and not testbed.exists()


def test_what_is_mounted_into_a_testbed_is_not_emptied(testbed, tool, victim):
    inside = testbed / "n0" / "mounted"
    inside.mkdir()
    if subprocess.run(["mount", "--bind", victim.folder, inside], capture_output=True).returncode != 0:
        pytest.skip("this root may not mount")
    try:
        done = tool("testbed", "down", "--dir", testbed, status=0)
        assert "remove it by hand" in done.stderr
        assert victim.is_whole()
    finally:
        subprocess.run(["umount", inside], check=True)


def test_a_folder_that_can_be_swapped_is_not_used(testbed, tool, victim, ground, b):
    """The folder is root's, one above it is the attacker's: between check and use he could put
    another there."""
    above = ground / "his"
    above.mkdir()
    b.own(above)
    testbed.rename(above / "t")
    for command in COMMANDS:
        done = tool("testbed", "--dir", above / "t", *command, status=1)
        assert f"belongs to user {b.uid}" in done.stderr, (command, done)
    # The same by a link of his in a folder where anybody may add names.
    (above / "t").rename(testbed)
    shared = ground / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    b.run(os.symlink, testbed, shared / "t")
    done = tool("testbed", "down", "--dir", shared / "t", status=1)
    assert f"belongs to user {b.uid}" in done.stderr
    assert json.loads(tool("testbed", "status", "--json", "--dir", testbed).stdout)["hosts"][0]["alive"]


def test_a_process_with_a_recorded_number_is_only_ended_if_it_is_ours(testbed, tool, b):
    """The number, and even the start time, of another user's process; and of one of another
    boot."""
    stranger = b.start("sleep", "600")
    own = subprocess.Popen(["sleep", "600"])
    file = testbed / "testbed.json"
    good = json.loads(file.read_text())
    daemon = good["nodes"][0]["process"]
    try:
        for pid, change in [
            (stranger.pid, {}),
            (own.pid, {"boot": daemon["boot"] ^ 1}),
            (own.pid, {"start_ticks": 1}),
        ]:
            changed = json.loads(json.dumps(good))
            process = daemon | {"pid": pid, "start_ticks": start_ticks(pid)} | change
            changed["nodes"][0]["process"] = process
            file.write_text(json.dumps(changed))
            assert not json.loads(tool("testbed", "status", "--json", "--dir", testbed).stdout)["hosts"][0][
                "alive"
            ]
            assert "dead already" in tool("testbed", "kill", "n0", "--dir", testbed, status=1).stderr
            assert stranger.poll() is None and own.poll() is None
        changed["nodes"][0]["process"] = daemon | {
            "pid": stranger.pid,
            "start_ticks": start_ticks(stranger.pid),
        }
        file.write_text(json.dumps(changed))
        tool("testbed", "down", "--dir", testbed, status=0)
        assert stranger.poll() is None
    finally:
        for process in (stranger, own):
            process.kill()
            process.wait()
        os.kill(daemon["pid"], 9)


def test_nobody_else_can_hold_a_testbed_up(testbed, tool, b):
    """He locks the folder, as he may with what he can read."""

    def lock_and_wait(folder: str) -> bool:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(600)
        return True

    child = os.fork()
    if child == 0:
        try:
            b._become()
            lock_and_wait(str(testbed))
        finally:
            os._exit(1)
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            probe = os.open(testbed, os.O_RDONLY)
            try:
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            finally:
                os.close(probe)
        tool("testbed", "kill", "n0", "--dir", testbed, status=0)
        tool("testbed", "revive", "n0", "--dir", testbed, status=0)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_user_has_a_testbed_of_his_own(a, ground, programs):
    """The same rules let everybody work in what is his, below folders that are root's."""
    home = ground / "home"
    home.mkdir()
    a.own(home, 0o700)
    environment = {"ZAZEND": str(programs / "zazend"), "PATH": os.environ["PATH"]}
    for word in (["up", "2"], ["status"], ["kill", "n1"], ["revive", "n1"], ["down"]):
        done = a.call(programs / "zazen", "testbed", *word, "--dir", home / "t", env=environment)
        assert done.returncode == 0, (word, done)
    assert not (home / "t").exists()


def test_tools_and_clients_believe_no_prepared_testbed(tool, ground, victim, record, b, monkeypatch):
    """$ZAZEN_TESTBED leads to a record of his, and from there to a daemon of his."""
    prepared = ground / "t"
    prepared.mkdir(exist_ok=True)
    record["nodes"][0]["socket"] = str(ground / "his")
    (prepared / "testbed.json").write_text(json.dumps(record))
    b.own(prepared / "testbed.json")
    b.own(prepared)
    done = tool("status", status=1, ZAZEN_TESTBED=str(prepared))
    assert f"belongs to user {b.uid}" in done.stderr
    data = ground / "data"
    data.mkdir()
    (data / "f-0.bin").write_bytes(b"truth")
    monkeypatch.setenv("ZAZEN_TESTBED", str(prepared))
    monkeypatch.delenv("ZAZEN_SOCKET", raising=False)
    with pytest.warns(zazen.ZazenWarning, match=f"belongs to user {b.uid}"), zazen.open(str(data)) as dataset:
        assert bytes(dataset.read(0).data) == b"truth"


def test_a_cluster_for_tests_is_made_in_a_folder_of_ones_own(ground, victim, b):
    if os.geteuid() != 0:
        pytest.skip("a folder of another user needs root")
    his = ground / "c"
    his.mkdir()
    b.own(his)
    (his / "key").symlink_to(victim.file)
    with pytest.raises(PermissionError, match=f"belongs to user {b.uid}"):
        zazen.testing.Cluster(his / "below", ground / "backing")
    with pytest.raises(PermissionError, match=f"belongs to user {b.uid}"):
        zazen.testing.Cluster(his, ground / "backing")
    os.chown(his, 0, 0)
    (his / "testbed.json").symlink_to(victim.file)
    (ground / "backing").mkdir(exist_ok=True)
    with zazen.testing.Cluster(his, ground / "backing") as cluster:
        assert Path(cluster.key).stat().st_mode & 0o777 == 0o600
    (his / "node0.log").unlink()
    (his / "node0.log").symlink_to(victim.file)
    with pytest.raises(OSError, match=r"node0\.log"):
        zazen.testing.Cluster(his, ground / "backing").start(0)
    assert victim.is_whole()
