"""The operator's commands against two real daemons."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from conftest import FRAME_BYTES, FRAMES, frame_bytes, frame_name, write_frame


def read(testbed, *command, **options):
    return json.loads(testbed.tool(*command, "--json", **options).stdout)


def test_each_frame_is_native_on_one_node(pushed):
    nodes = read(pushed, "ls", pushed.dataset)["nodes"]
    frames = [
        first + i * step for node in nodes for first, count, step in node["native"] for i in range(count)
    ]
    assert sorted(frames) == list(range(FRAMES))
    assert all(node["native_frames"] == FRAMES // 2 and node["alien_frames"] == 0 for node in nodes)
    (dataset,) = read(pushed, "datasets")["datasets"]
    assert dataset["dataset"] == str(pushed.dataset)
    assert (dataset["native"], dataset["alien"]) == (FRAMES, 0)
    assert dataset["bytes"] >= FRAMES * FRAME_BYTES


def test_long_rows_name_files_with_the_very_bytes(pushed):
    rows = read(pushed, "ls", pushed.dataset, "--long", "--frames", "0-10:5")["rows"]
    assert [row["frame"] for row in rows] == [0, 5, 10]
    for row in rows:
        assert row["source"] == frame_name(row["frame"]) and row["bytes"] == FRAME_BYTES
    table = pushed.tool("ls", pushed.dataset, "--long").stdout.splitlines()
    assert len(table) == FRAMES + 1


def test_stat_knows_current_from_stale(pushed):
    (copy,) = read(pushed, "stat", pushed.dataset, 3)["copies"]
    assert copy["freshness"] == "current" and copy["origin"] == "native"
    assert read(pushed, "stat", pushed.dataset, frame_name(3))["copies"] == [copy]
    os.utime(pushed.dataset / frame_name(3), ns=(0, 1))
    (copy,) = read(pushed, "stat", pushed.dataset, 3)["copies"]
    assert copy["freshness"] == "stale"
    assert "on none of the 2 nodes that answer" in pushed.tool("stat", pushed.dataset, 999).stdout
    assert "frame-{n:05}.bin" in pushed.tool("stat", pushed.dataset, "other.txt", status=1).stderr


def test_evict_and_load_again(pushed):
    assert read(pushed, "evict", pushed.dataset, "--frames", "0-3,8")["frames"] == 5
    report = read(pushed, "load", pushed.dataset)
    assert (report["frames"], report["present"], report["loaded"], report["failed"]) == (FRAMES, 7, 5, 0)
    assert read(pushed, "evict", pushed.dataset)["frames"] == FRAMES
    assert read(pushed, "load", pushed.dataset, "--frames", "0-3", "--nodes", pushed.nodes)["loaded"] == 4


def test_evicting_some_small_frames_says_when_their_room_is_free(pushed):
    done = pushed.tool("evict", pushed.dataset, "--frames", "0-3")
    assert "4 frames evicted, 0 B freed" in done.stdout and "small frames share files" in done.stderr
    done = pushed.tool("evict", pushed.dataset)
    assert f"{FRAMES - 4} frames evicted" in done.stdout and ", 0 B freed" not in done.stdout
    assert done.stderr == ""


def test_load_says_that_there_are_no_frames(pushed):
    folder = pushed.dataset.parent / "classes"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "tom.jpg").write_bytes(b"tom")
    assert "has no frames; if its files have other names" in pushed.tool("load", folder).stderr
    assert read(pushed, "load", folder, "--pattern", "**/*.jpg")["loaded"] == 1


def test_a_pinned_dataset_is_not_evicted(pushed):
    assert read(pushed, "pin", pushed.dataset)["pinned"] is True
    said = pushed.tool("evict", pushed.dataset, status=1).stderr
    assert "pinned" in said and "zazen pin --off" in said
    # The name that the cache has for a series is the cache's own.
    assert f"{pushed.dataset.name} (" in said and ".zazen@" not in said, said
    assert read(pushed, "pin", "--off", pushed.dataset)["pinned"] is False
    pushed.tool("evict", pushed.dataset)


def test_verify_finds_the_one_flipped_bit(pushed):
    assert read(pushed, "verify", pushed.dataset)["checked"] == FRAMES
    copies = list(pushed.folder.glob(f"n*/cache/**/{frame_name(7)}"))
    if not copies:
        # Small frames are packed: the frame's bytes lie somewhere in a segment.
        needle = frame_bytes(7)
        copies = [
            file
            for file in pushed.folder.glob("n*/cache/**/*")
            if file.is_file() and needle in file.read_bytes()
        ]
    (file,) = copies
    content = bytearray(file.read_bytes())
    content[content.index(frame_bytes(7)) + 100] ^= 1
    file.write_bytes(content)
    done = pushed.tool("verify", pushed.dataset, "--json", status=1)
    assert [node["bad"] for node in json.loads(done.stdout)["nodes"] if node["bad"]] == [[7]]
    assert "fetches them anew" in done.stderr
    assert read(pushed, "verify", pushed.dataset)["checked"] == FRAMES - 1


def test_a_dead_node_is_shown_and_costs_nothing_else(pushed):
    pushed.tool("testbed", "kill", "n1")
    states = {node["node"]: node["state"] for node in read(pushed, "status", status=3)["nodes"]}
    assert states == {"n0": "up", "n1": "dead"}
    table = pushed.tool("status", "--nodes", pushed.nodes, status=3).stdout
    assert "dead" in table and "n0" in table
    (dataset,) = read(pushed, "datasets", status=3)["datasets"]
    assert dataset["nodes"] == ["n0"] and dataset["native"] == FRAMES // 2


def test_no_such_dataset_is_named(testbed):
    for command in (["ls"], ["verify"], ["load"]):
        done = testbed.tool(*command, testbed.folder / "server" / "nothing", status=1)
        assert "nothing" in done.stderr
    outside = testbed.tool("ls", "/somewhere/else", status=1)
    assert "/somewhere/else" in outside.stderr


def test_a_wrong_key_is_refused(pushed, tool, tmp_path):
    tool("key", "new", tmp_path / "wrong")
    done = tool("status", "--nodes", pushed.nodes, "--key", tmp_path / "wrong", status=1)
    assert "key" in done.stderr
    push = ["push", pushed.dataset / frame_name(0), "--nodes", pushed.nodes, "--key", tmp_path / "wrong"]
    done = tool(*push, status=1)
    assert "0 pushed" in done.stdout and "1 skipped (no node" in done.stdout
    assert "key" in done.stderr and "none of 1 frames reached a node" in done.stderr


def test_watch_takes_old_and_new_files_and_ends_at_the_mark(testbed):
    testbed.write(4)
    watcher = testbed.tool.start(
        "push", "--watch", testbed.dataset, "--nodes", testbed.nodes, "--until", "done", "--json"
    )
    for number in range(4, 9):
        write_frame(testbed.dataset, number)
    (testbed.dataset / "notes").write_text("not a frame")
    (testbed.dataset / "done").touch()
    out, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, errors
    counters = json.loads(out)
    assert (counters["pushed"], counters["skipped"], counters["refused"]) == (9, 0, 0)
    assert counters["bytes_pushed"] == 9 * FRAME_BYTES
    assert sum(node["native_frames"] for node in read(testbed, "ls", testbed.dataset)["nodes"]) == 9


def nice_values(pid):
    """Of each thread of a process."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [int(stat.rpartition(")")[2].split()[16]) for stat in stats]


@pytest.mark.parametrize("words, nice", [([], 10), (["--nice", "3"], 3)])
def test_watch_stands_back_behind_the_simulation(testbed, words, nice):
    testbed.write(4)
    watcher = testbed.tool.start(
        "push", "--watch", testbed.dataset, "--nodes", testbed.nodes, "--until", "done", *words
    )
    ends = time.monotonic() + 60
    # The threads that push have come, too.
    while len(threads := nice_values(watcher.pid)) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    (testbed.dataset / "done").touch()
    _, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, errors
    # It never takes more than what its caller has: these tests may themselves run under nice.
    assert len(threads) > 1 and set(threads) == {max(nice, os.nice(0))}, threads


def test_watch_ends_when_idle_and_leaves_old_files_if_told(testbed):
    testbed.write(4)
    done = testbed.tool(
        "push", "--watch", testbed.dataset, "--nodes", testbed.nodes, "--no-existing", "--idle-exit", "200ms"
    )
    assert "0 frames seen" in done.stdout


def push_watched(testbed, *words):
    words = ["push", "--watch", testbed.dataset, "--nodes", testbed.nodes, "--json", *words]
    done = testbed.tool.start(*words)
    out, errors = done.communicate(timeout=60)
    return json.loads(out), errors


def test_what_is_no_file_is_told_and_waited_for_by_nobody(testbed):
    testbed.write(2)
    os.mkfifo(testbed.dataset / frame_name(2))
    os.symlink(frame_name(2), testbed.dataset / frame_name(3))
    (testbed.dataset / frame_name(4)).mkdir()
    os.symlink("nothing", testbed.dataset / frame_name(5))
    counters, said = push_watched(testbed, "--idle-exit", "1s")
    assert counters["pushed"] == 2
    for number in (2, 3):
        assert f"{frame_name(number)}: " in said and "is not a plain file" in said, said
    counters, _ = push_watched(testbed, "--idle-exit", "200ms", "--no-existing")
    assert counters["pushed"] == 0
    for number in (2, 4):
        push = ["push", testbed.dataset / frame_name(number), "--nodes", testbed.nodes]
        assert "is not a plain file" in testbed.tool(*push, status=1).stderr


def test_a_planted_link_gives_nothing_away(testbed):
    """Of others who may write into a watched directory."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    other = 64_721
    secret = testbed.folder / "secret"
    secret.write_bytes(b"secret" * 500)
    secret.chmod(0o600)
    os.symlink(secret, testbed.dataset / frame_name(0))
    theirs = testbed.dataset / "theirs"
    theirs.write_bytes(frame_bytes(1))
    os.symlink("theirs", testbed.dataset / frame_name(1))
    os.symlink(secret, testbed.dataset / frame_name(2))
    for path in (theirs, testbed.dataset / frame_name(1), testbed.dataset / frame_name(2)):
        os.chown(path, other, other, follow_symlinks=False)
    counters, said = push_watched(testbed, "--idle-exit", "1s")
    # Root's own link and a link of theirs to what is theirs.
    assert counters["pushed"] == 2
    assert f"{frame_name(2)}: is a symbolic link that user {other} made" in said, said


def test_ctrl_c_finishes_and_counts(testbed):
    testbed.write(4)
    watcher = testbed.tool.start("push", "--watch", testbed.dataset, "--nodes", testbed.nodes, "--json")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        held = testbed.tool("status", "--json").stdout
        if sum(d["natives"] for n in json.loads(held)["nodes"] for d in n["status"]["datasets"]) == 4:
            break
    watcher.send_signal(signal.SIGINT)
    out, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, errors
    assert json.loads(out)["pushed"] == 4


def test_push_of_the_same_files_again(pushed):
    files = sorted(pushed.dataset.iterdir())
    again = json.loads(pushed.tool("push", *files, "--nodes", pushed.nodes, "--json").stdout)
    assert again["pushed"] + again["already_there"] == FRAMES and again["refused"] == 0


def test_push_refuses_files_of_two_datasets_and_names_without_numbers(testbed, tmp_path):
    (frame,) = testbed.write(1)
    other = write_frame(tmp_path, 1)
    done = testbed.tool("push", frame, other, "--nodes", testbed.nodes, status=1)
    assert "one push goes to one dataset" in done.stderr
    notes = testbed.dataset / "notes"
    notes.write_text("x")
    assert "--pattern" in testbed.tool("push", notes, "--nodes", testbed.nodes, status=1).stderr


def test_dump_is_the_whole_state_as_text(pushed):
    told = pushed.tool("status", "--nodes", pushed.nodes, "--dump").stdout
    assert told.count("node ") >= 2 and "sim1" in told, told


def test_doctor_finds_nothing_wrong_with_a_good_cluster(pushed):
    found = read(pushed, "doctor", "--nodes", pushed.nodes)
    assert found["problems"] == 0 and [node["state"] for node in found["nodes"]] == ["up", "up"]
    for node in found["nodes"]:
        facts = node["facts"]
        (cache,) = facts["caches"]
        assert cache["measured"]["read_bytes_per_s"] > 0 and cache["ok"], facts
        assert abs(node["clock_offset_s"]) <= node["round_trip_s"] + 0.05, node
        assert not list((Path(cache["root"]) / ".zazen" / "tmp").glob("measured-*"))
    table = pushed.tool("doctor", "--no-disk").stdout
    assert "MTU" in table and "problem:" not in table


def test_doctor_names_dead_nodes_and_wrong_keys(pushed, tool, tmp_path):
    pushed.tool("testbed", "kill", "n1")
    report = pushed.tool("doctor", "--no-disk", status=1)
    assert "problem: n1: daemon: dead" in report.stdout and "start `zazend` on that node" in report.stdout
    assert "1 problem" in report.stderr
    wrong = tmp_path / "wrong"
    tool("key", "new", wrong)
    report = pushed.tool("doctor", "--json", "--nodes", pushed.nodes, "--key", wrong, status=1)
    states = sorted(node["state"] for node in json.loads(report.stdout)["nodes"])
    assert states == ["dead", "wrong key"]


def test_doctor_names_what_is_planted_on_real_nodes(pushed):
    """A cache that others can write to, a key that all can read, a store that is not mounted, and a
    daemon that hangs: each is named with its node, and looking changes nothing."""
    well = {node["node"]: node for node in read(pushed, "doctor", "--no-disk")["nodes"]}
    cache = Path(well["n0"]["facts"]["caches"][0]["root"])
    (_, other) = read(pushed, "status")["nodes"]
    store, away = pushed.folder / "server", pushed.folder / "away"
    cache.chmod(0o777)
    (pushed.folder / "key").chmod(0o644)
    store.rename(away)
    os.kill(other["status"]["pid"], signal.SIGSTOP)
    try:
        told = read(pushed, "doctor", status=1)
    finally:
        os.kill(other["status"]["pid"], signal.SIGCONT)
        away.rename(store)
    assert {node["node"]: node["state"] for node in told["nodes"]}["n0"] == "up"
    problems = {(one["node"], one["check"]) for one in told["findings"] if one["level"] == "problem"}
    for check in ("permissions", "key", "backing store"):
        assert ("n0", check) in problems, told["findings"]
    hangs = [one for one in told["findings"] if one["check"] == "daemon"]
    assert len(hangs) == 1 and "hangs" in hangs[0]["what"], told["findings"]
    assert all(one["remedy"] for one in told["findings"])
    cache.chmod(0o700)
    (pushed.folder / "key").chmod(0o600)
    assert read(pushed, "doctor", "--no-disk")["problems"] == 0
    assert read(pushed, "verify", pushed.dataset)["checked"] == FRAMES
