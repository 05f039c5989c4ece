"""What dies at a bad moment: a writer, a daemon, both; and datasets with nothing in them."""

import json
import random
import socket
import time

import pytest
import zazen

from conftest import frame_bytes, write_frame

ROUNDS = 6


def held(testbed):
    rows = json.loads(testbed.tool("datasets", "--nodes", testbed.nodes, "--json").stdout)["datasets"]
    return sum(row["native"] for row in rows)


def read_all(testbed, count):
    """Every frame through node 0's daemon, compared byte for byte with what was written."""
    state = json.loads((testbed.folder / "testbed.json").read_text())
    seen = set()
    with zazen.open(testbed.dataset, socket=state["nodes"][0]["socket"]) as dataset:
        for number, data, _ in dataset.frames(begin=0, end=count - 1):
            assert bytes(data) == frame_bytes(number), f"frame {number} has other bytes"
            assert number not in seen
            seen.add(number)
    assert len(seen) == count


@pytest.mark.parametrize("victim", ["writer", "daemon"])
def test_kill_9_at_any_moment_loses_nothing(testbed, victim):
    """Rounds of pushing; in each the writer (or a node's daemon) is killed when a seed says so."""
    dice = random.Random(7)
    count = 0
    for round_number in range(ROUNDS):
        for _ in range(40):
            write_frame(testbed.dataset, count)
            count += 1
        command = (
            "push",
            "--watch",
            testbed.dataset,
            "--nodes",
            testbed.nodes,
            "--pattern",
            "frame-{n:05}.bin",
        )
        writer = testbed.tool.start(*command, "--idle-exit", "0.3")
        delay = dice.uniform(0.0, 0.12)
        time.sleep(delay)
        if victim == "writer":
            writer.kill()
            writer.communicate()
        else:
            testbed.tool("testbed", "kill", "n1")
            writer.communicate(timeout=60)
            testbed.tool("testbed", "revive", "n1")
        nodes = json.loads(testbed.tool("status", "--nodes", testbed.nodes, "--json").stdout)["nodes"]
        assert [node["state"] for node in nodes] == ["up", "up"], f"round {round_number}, after {delay:.3f} s"
    verified = testbed.tool("verify", testbed.dataset, "--nodes", testbed.nodes)
    assert " 0 bad" in verified.stdout, verified.stdout
    read_all(testbed, count)
    # A last push that nobody disturbs: what is missing is stored, what is there is left alone.
    testbed.push(sorted(testbed.dataset.glob("frame-*.bin")))
    assert held(testbed) >= count
    read_all(testbed, count)


def test_an_empty_dataset_says_so(testbed):
    with zazen.open(testbed.dataset, direct=True) as dataset:
        assert len(dataset.extent()) == 0
        with pytest.raises(zazen.NotFoundError, match="has no frames"):
            list(dataset.frames())
    told = testbed.tool("load", testbed.dataset, "--nodes", testbed.nodes)
    assert " 0 frames" in told.stdout, told.stdout


def test_a_hanging_up_stranger_disturbs_nobody(pushed):
    """Bytes that are no protocol, at the port of every node."""
    addresses = [line for line in pushed.nodes.read_text().splitlines() if line and not line.startswith("#")]
    for address in addresses:
        host, port = address.rsplit(":", 1)
        for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(junk)
    status = json.loads(pushed.tool("status", "--nodes", pushed.nodes, "--json").stdout)
    assert [node["state"] for node in status["nodes"]] == ["up", "up"]


def test_frames_are_checked_on_the_way_to_the_reader(pushed):
    """A byte that changed on the disk behind the daemon's back never reaches an analysis."""
    cached = sorted(
        path for path in pushed.folder.rglob("cache/sim1/.zazen@*/.zazen/segments/*") if path.is_file()
    )
    cached += [path for path in pushed.folder.rglob("cache/sim1/.zazen@*/frame-*.bin")]
    assert cached, "something to damage"
    for path in cached:
        data = bytearray(path.read_bytes())
        if len(data) > 100:
            data[len(data) // 2] ^= 0x40
            path.chmod(0o600)
            with path.open("r+b") as file:
                file.write(data)
    read_all(pushed, 12)


def test_pushing_into_nothing_is_told(testbed):
    told = testbed.tool("push", "--watch", testbed.folder / "nowhere", "--nodes", testbed.nodes, status=1)
    assert "nowhere" in told.stderr, told.stderr
