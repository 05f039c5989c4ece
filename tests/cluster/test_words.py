"""Words that tell a person what is the matter, and what to do about it."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest
import zazen

from conftest import FRAMES, write_frame


@pytest.fixture
def silent():
    """The address of somebody who accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def nobody():
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def addresses(testbed) -> list[str]:
    return [line for line in testbed.nodes.read_text().splitlines() if line and not line.startswith("#")]


def test_a_key_is_whole_and_secret_wherever_it_goes(tool, tmp_path):
    for mode in ("x", "w"):
        file = tmp_path / "redirected"
        with file.open(mode) as out:
            subprocess.run([tool.program, "key", "new"], stdout=out, check=True, env=tool.environment)
        assert len(file.read_text().strip()) == 64 and file.stat().st_mode & 0o777 == 0o600
    with file.open("a") as out:
        done = subprocess.run(
            [tool.program, "key", "new"], stdout=out, stderr=subprocess.PIPE, text=True, env=tool.environment
        )
    assert done.returncode == 1 and "has contents already" in done.stderr
    assert len(file.read_text().strip()) == 64
    missing = tmp_path / "a" / "b" / "key"
    done = tool("key", "new", missing, status=1)
    assert f"there is no folder {missing.parent}" in done.stderr and "mkdir -p" in done.stderr
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [tool.program, "key", "new"], stdout=full, stderr=subprocess.PIPE, text=True, env=tool.environment
        )
    assert done.returncode == 1 and "standard output: write the key" in done.stderr


def test_advice_about_keys_makes_keys(tool, tmp_path, nobody):
    """Every command that a message about keys quotes works as it stands, and leaves a key."""
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    for file, first in [(tmp_path / "none", "there is none"), (empty, "remove it")]:
        done = tool("status", "--nodes", nobody, "--key", file, status=1)
        assert first in done.stderr and f"`zazen key new {file}`" in done.stderr, done.stderr
        assert ">" not in done.stderr
        file.unlink(missing_ok=True)
        tool("key", "new", file)
        assert "no daemon answers" in tool("status", "--nodes", nobody, "--key", file, status=1).stderr


def test_four_troubles_have_four_words_and_a_remedy_each(pushed, tool, tmp_path, silent, nobody):
    good = addresses(pushed)[0]
    unknown = "no-such-host.invalid:7345"
    nodes = ",".join([good, nobody, silent, unknown])
    done = pushed.tool("status", "--nodes", nodes, "--json", status=3)
    told = {node["target"].removeprefix("daemon at "): node for node in json.loads(done.stdout)["nodes"]}
    assert {name: node["state"] for name, node in told.items()} == {
        good: "up",
        nobody: "dead",
        silent: "hangs",
        unknown: "unknown name",
    }
    bad = [told[name] for name in (nobody, silent, unknown)]
    tool("key", "new", tmp_path / "other")
    done = tool("status", "--nodes", good, "--key", tmp_path / "other", "--json", status=1)
    bad += json.loads(done.stdout)["nodes"]
    assert bad[-1]["state"] == "wrong key"
    assert len({node["remedy"] for node in bad}) == 4 and all(node["error"] for node in bad)
    done = pushed.tool("status", "--nodes", nodes, status=3)
    for node in bad[:3]:
        assert f" {node['state']} " in done.stdout + " ", done.stdout
        assert node["remedy"] in done.stderr


def test_writers_say_the_same_words(pushed, tmp_path, silent, nobody):
    good = addresses(pushed)
    key = pushed.folder / "key"
    other = tmp_path / "other"
    pushed.tool("key", "new", other)
    for nodes, key_file, word in [
        ([nobody], key, "dead"),
        ([silent], key, "hangs"),
        (good, other, "wrong key"),
    ]:
        options = {"key": key_file, "pattern": "frame-{n:05}.bin", "timeout": 0.5}
        with zazen.Writer(pushed.dataset, nodes, **options) as writer:
            writer.push(0, b"x")
        assert any(f": {word}: " in problem for problem in writer.problems), writer.problems
    with pytest.raises(zazen.ConfigError, match=r"no host has the name no-such-host\.invalid"):
        zazen.Writer(pushed.dataset, [*good, "no-such-host.invalid"], key=key)


@pytest.mark.parametrize("spec", ["missing.txt", "./missing", "nowhere/nodes"])
def test_a_missing_node_file_is_no_host(testbed, tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    (frame,) = testbed.write(1)
    for command in (["status"], ["datasets"], ["ls", testbed.dataset], ["load", testbed.dataset],
                    ["pin", testbed.dataset], ["push", frame]):  # fmt: skip
        done = testbed.tool(*command, "--nodes", spec, status=1)
        assert f"node file {spec}: there is none" in done.stderr, done.stderr
    with pytest.raises(zazen.ConfigError, match="there is none"):
        zazen.Writer(testbed.dataset, spec, key=testbed.folder / "key")
    # A name that could be a host's and is nobody's: the error says that it is no file either.
    with pytest.raises(zazen.ConfigError, match=r"no host has the name nodes-of-mine.*no file nodes-of-mine"):
        zazen.Writer(testbed.dataset, "nodes-of-mine", key=testbed.folder / "key")


def test_numbers_below_zero_are_told_as_such(pushed):
    with zazen.open(pushed.dataset, direct=True) as dataset:
        for call in (
            lambda: dataset.frames(-1, 9),
            lambda: dataset.frames(0, -1),
            lambda: dataset.frames(0, 9, -1),
            lambda: dataset.assign(-1),
            lambda: dataset.query(-3, 4),
            lambda: dataset.read(-1),
        ):
            with pytest.raises(
                zazen.InvalidArgumentError, match=r"numbered from 0 on.*does not count from the end"
            ):
                call()
        with pytest.raises(zazen.InvalidArgumentError, match=r"-1 is negative"):
            dataset.frames(memory=-1)
    with zazen.Writer(pushed.dataset, addresses(pushed), key=pushed.folder / "key") as writer:
        with pytest.raises(zazen.InvalidArgumentError, match="numbered from 0 on"):
            writer.push(-1, b"x")


def test_what_misses_a_node_says_so_and_how_to_make_up_for_it(pushed):
    """Each command that goes to all nodes names the one that is dead, and ends with status 3."""
    pushed.tool("testbed", "kill", "n1")
    dead = addresses(pushed)[1]
    with_nodes = ("--nodes", pushed.nodes)
    pin = pushed.tool("pin", pushed.dataset, *with_nodes, status=3)
    assert f"node {dead}: dead: " in pin.stderr
    assert f"`zazen pin {pushed.dataset} --nodes {dead}`" in pin.stderr
    for command in (["status"], ["datasets"], ["ls", pushed.dataset], ["stat", pushed.dataset, "3"],
                    ["verify", pushed.dataset], ["pin", "--off", pushed.dataset],
                    ["evict", pushed.dataset, "--frames", "0"], ["load", pushed.dataset],
                    ["plugin", "list"]):  # fmt: skip
        done = pushed.tool(*command, *with_nodes, status=3)
        assert f"{dead}: dead" in done.stderr, command
        if command[0] != "plugin":
            done = json.loads(pushed.tool(*command, *with_nodes, "--json", status=3).stdout)
            missed = done.get("missed") or [node for node in done["nodes"] if node["state"] != "up"]
            assert [(node["node"], node["state"]) for node in missed] == [(dead, "dead")], command
    # The advice, taken when the node is there again, does the rest.
    pushed.tool("testbed", "revive", "n1")
    pushed.tool("pin", pushed.dataset, "--nodes", dead)
    pushed.tool("testbed", "kill", "n1")
    pushed.tool("testbed", "revive", "n1")
    rows = json.loads(pushed.tool("status", *with_nodes, "--json").stdout)["nodes"]
    pinned = {row["target"]: row["status"]["datasets"][0]["pinned"] for row in rows}
    assert pinned[f"daemon at {dead}"] is True, "a pin survives its daemon"


def test_a_node_that_refuses_is_named_and_the_others_do_their_part(pushed):
    pushed.tool("pin", pushed.dataset, "--nodes", addresses(pushed)[0])
    done = pushed.tool("evict", pushed.dataset, "--nodes", pushed.nodes, status=1)
    assert f"node {addresses(pushed)[0]}: " in done.stderr and "pinned" in done.stderr
    assert f"{FRAMES // 2} frames evicted" in done.stdout, "the other one's are gone, and that is said"


def test_ctrl_c_ends_a_load_and_says_what_goes_on(testbed, tmp_path):
    """What is loaded stays; the same command goes on from there."""
    for number in range(3000):
        write_frame(testbed.dataset, number)
    load = testbed.tool.start("load", testbed.dataset, "--nodes", testbed.nodes)
    held = 0
    until = time.monotonic() + 60
    while held == 0 and load.poll() is None and time.monotonic() < until:
        rows = json.loads(testbed.tool("datasets", "--json").stdout)["datasets"]
        held = sum(row["native"] + row["alien"] for row in rows)
    load.send_signal(signal.SIGINT)
    out, errors = load.communicate(timeout=60)
    if load.returncode == 0:
        pytest.skip("this machine loaded 3000 frames before Ctrl-C came")
    assert load.returncode == 128 + signal.SIGINT, errors
    assert "load ended by a signal" in errors and "nothing else goes on" in errors and not out
    done = json.loads(testbed.tool("load", testbed.dataset, "--json").stdout)
    assert done["failed"] == 0 and done["present"] > 0 and done["present"] + done["loaded"] == 3000


def test_sighup_is_told_in_the_log(pushed):
    state = json.loads((pushed.folder / "testbed.json").read_text())
    os.kill(state["nodes"][0]["process"]["pid"], signal.SIGHUP)
    log = pushed.folder / "n0" / "log"
    until = time.monotonic() + 30
    while "SIGHUP: no setting changed" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    assert "SIGHUP: no setting changed" in log.read_text()
    assert [node["state"] for node in json.loads(pushed.tool("status", "--json").stdout)["nodes"]] == [
        "up",
        "up",
    ]
