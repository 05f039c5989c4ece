"""What needs no daemon: help, usage, scenarios, keys, and what is said when nobody answers."""

import json
import os
import stat
import subprocess

import pytest

COMMANDS = [
    "status",
    "datasets",
    "ls",
    "stat",
    "push",
    "load",
    "evict",
    "pin",
    "verify",
    "assign",
    "testbed",
    "bench",
    "plugin",
    "job",
    "key",
]
SCENARIO = {
    "nodes_of_ranks": [0, 0, 1, 1],
    "begin": 0,
    "end": 99,
    "stride": 1,
    "native": [[[0, 50, 1]], [[50, 40, 1]]],
    "alien": [[[90, 5, 1]], []],
    "rules": "full",
    "protocol": "owner",
}


def error_of(done) -> str:
    """The one line of an error."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("zazen: "), done.stderr
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(tool, command):
    said = tool(command, "--help").stdout
    assert "EXAMPLES:" in said and f"zazen {command}" in said
    assert command in tool("--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["push"],
        ["push", "--watch", "d", "f"],
        ["ls"],
        ["evict", "d", "--frames", "9-0"],
        ["evict", "d", "--frames", "0-9:0"],
        ["ls", "d", "--frames", "0-99999999999999"],
        ["testbed", "up", "0"],
        ["testbed", "up", "1000"],
        ["testbed", "up", "2", "--server-rate", "fast"],
        ["testbed", "up", "2", "--link", "1gbit"],
        ["testbed", "run", "--", "true"],
        ["status", "--socket", "s", "--nodes", "n"],
    ],
)
def test_wrong_usage_is_exit_code_2(tool, arguments):
    done = tool(*arguments, status=2)
    assert "--help" in done.stderr and not done.stdout


@pytest.mark.parametrize("protocol", ["owner", "bitmaps"])
def test_assign_prints_exactly_the_promised_json(tool, protocol):
    done = tool("assign", "--scenario", "-", "--json", text=json.dumps(SCENARIO | {"protocol": protocol}))
    outcome = json.loads(done.stdout)
    assert list(outcome) and set(outcome) == {
        "assigned", "native", "alien", "residue", "path", "bytes_sent", "rounds",
    }  # fmt: skip
    assert (outcome["native"], outcome["alien"], outcome["residue"]) == (90, 5, 5)
    frames = sorted(
        first + i * step for runs in outcome["assigned"] for first, count, step in runs for i in range(count)
    )
    assert frames == list(range(100))
    assert len(outcome["bytes_sent"]) == 4


def test_assign_reads_a_file_and_prints_a_table(tool, tmp_path):
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SCENARIO))
    said = tool("assign", "--scenario", file).stdout
    assert "native 90, alien 5, residue 5" in said and said.startswith("rank")


@pytest.mark.parametrize(
    ("scenario", "named"),
    [
        ("{", "not JSON"),
        (json.dumps(SCENARIO | {"end": -1}), "end"),
        (json.dumps(SCENARIO | {"begin": 100}), "begin"),
        (json.dumps(SCENARIO | {"stride": 0}), "stride"),
        (json.dumps(SCENARIO | {"nodes_of_ranks": []}), "nodes_of_ranks"),
        (json.dumps(SCENARIO | {"rules": "none"}), "rules"),
        (json.dumps(SCENARIO | {"native": [[[0, 0, 1]], []]}), "native"),
    ],
)
def test_a_bad_scenario_is_named(tool, scenario, named):
    assert named in error_of(tool("assign", "--scenario", "-", text=scenario, status=1))


@pytest.mark.parametrize("words", [("assign", "--scenario"), ("viz", "match", "--scenario")])
def test_a_fifo_is_not_waited_for_and_a_pipe_is_read(tool, tmp_path, words):
    os.mkfifo(tmp_path / "fifo")
    said = error_of(tool(*words, tmp_path / "fifo", status=1))
    assert "is a FIFO" in said and "<(COMMAND)" in said
    (tmp_path / "bad").write_text("{")
    shell = 'exec "$@" <(sleep 0.2; cat bad)'
    ran = subprocess.run(
        ["bash", "-c", shell, "bash", tool.program, *words],
        cwd=tmp_path, env=tool.environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1 and "EOF while parsing" in ran.stderr, ran


def test_a_missing_scenario_is_named(tool):
    assert "nowhere.json" in error_of(tool("assign", "--scenario", "nowhere.json", status=1))


def test_a_key_is_private_and_never_overwritten(tool, tmp_path):
    file = tmp_path / "key"
    tool("key", "new", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = file.read_text()
    assert len(key.strip()) >= 16
    assert "exists already" in error_of(tool("key", "new", file, status=1))
    assert file.read_text() == key
    assert key.strip() not in tool("key", "new", tmp_path / "other").stdout


@pytest.mark.parametrize(
    "command",
    [["status"], ["datasets"], ["ls", "/d"], ["stat", "/d", "1"], ["evict", "/d"], ["verify", "/d"]],
)
def test_nobody_answers(tool, command):
    done = tool(*command, status=1)
    assert "zazend" in error_of(done), "the next step is named"


def test_a_dead_node_is_shown_in_json(tool):
    done = tool("status", "--json", status=1)
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["state"] == "dead" and node["error"]


def test_push_says_what_it_lacks(tool, tmp_path):
    frame = tmp_path / "f-1"
    frame.write_bytes(b"x")
    assert "--nodes" in error_of(tool("push", frame, status=1))
    assert "zazen key new" in error_of(tool("push", frame, "--nodes", "localhost", status=1))


def test_a_node_list_names_its_bad_line(tool, tmp_path):
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("good:1\nbad line\n")
    assert "line 2" in error_of(tool("status", "--nodes", nodes, status=1))


def test_no_testbed_no_rank(tool, tmp_path):
    for command in (["status"], ["env"], ["kill", "n0"], ["revive", "n0"], ["run", "-n", "1", "--", "true"]):
        assert "zazen testbed up" in error_of(tool("testbed", "--dir", tmp_path / "t", *command, status=1))
    assert "there is none" in tool("testbed", "--dir", tmp_path / "t", "down").stdout
