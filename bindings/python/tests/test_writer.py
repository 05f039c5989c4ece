import array
import socket

import pytest
import zazen
from sample import PATTERN, frame_bytes


def test_fates_are_counted(cluster, dataset):
    with zazen.Writer(str(dataset), ",".join(cluster.nodes), key=cluster.key, on_slow="block") as writer:
        for number in range(10):
            writer.push(number, memoryview(frame_bytes(number)), name=f"frame-{number:07}.bin")
        writer.push(10, array.array("d", [1.5, 2.5]), f"frame-{10:07}.bin")
    counters = writer.finish()
    assert counters == writer.counters and counters.submitted == counters.pushed == 11
    assert counters.bytes_pushed == sum(len(frame_bytes(n)) for n in range(10)) + 16
    settled = counters.already_there + counters.skipped_slow + counters.skipped_no_node + counters.refused
    assert settled == counters.resent == counters.node_deaths == 0 and writer.problems == []
    assert "pushed=11" in repr(counters)
    with pytest.raises(zazen.InvalidArgumentError, match="finished"):
        writer.push(11, b"x", "frame-0000011.bin")


def test_pushing_again_finds_it_there(cluster, dataset):
    for expected in ("pushed", "already_there"):
        with zazen.Writer(dataset, cluster.nodes[:1], key=cluster.key, pattern=PATTERN) as writer:
            writer.push(1, frame_bytes(1))
        assert getattr(writer.counters, expected) == 1, writer.problems


def test_nobody_there(dataset, cluster):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        node = f"127.0.0.1:{nobody.getsockname()[1]}"
        with zazen.Writer(dataset, [node], key=cluster.key, pattern=PATTERN, timeout=0.5) as writer:
            writer.push(1, frame_bytes(1))
    counters = writer.counters
    assert counters.skipped_no_node == 1 and counters.node_deaths >= 1 and counters.pushed == 0
    assert writer.problems and node in writer.problems[0]


def test_nodes_from_a_file_and_key_from_the_environment(cluster, dataset, folder, monkeypatch):
    nodes = folder / "nodes.txt"
    nodes.write_text("# all nodes\n" + "\n".join(cluster.nodes) + "\n")
    monkeypatch.setenv("ZAZEN_KEY", cluster.key)
    with zazen.Writer(dataset, nodes, pattern=PATTERN, window_frames=1, window_bytes=1) as writer:
        writer.push(0, frame_bytes(0))
    assert writer.counters.pushed == 1


def test_wrong_key(cluster, dataset, folder):
    other = folder / "other.key"
    other.touch(mode=0o600)
    other.write_text("0" * 64)
    with zazen.Writer(dataset, cluster.nodes, key=other, pattern=PATTERN, timeout=2) as writer:
        writer.push(0, frame_bytes(0))
    assert writer.counters.pushed == 0 and writer.problems


def test_bad_arguments(cluster, dataset, folder):
    for error, arguments in [
        (zazen.ConfigError, {"key": None}),
        (zazen.InvalidArgumentError, {"on_slow": "sometimes"}),
        (zazen.InvalidArgumentError, {"timeout": 0.0}),
        (zazen.InvalidArgumentError, {"timeout": float("nan")}),
        (zazen.InvalidArgumentError, {"pattern": "no place"}),
        (zazen.ConfigError, {"key": folder / "no.key"}),
    ]:
        with pytest.raises(error):
            zazen.Writer(dataset, cluster.nodes, **({"key": cluster.key} | arguments))
    with pytest.raises(zazen.Error):
        zazen.Writer(dataset, [], key=cluster.key)
    with zazen.Writer(dataset, cluster.nodes, key=cluster.key, pattern=PATTERN) as writer:
        with pytest.raises(zazen.TooLargeError):
            writer.push(2**40 + 1, b"x")
        with pytest.raises(zazen.InvalidArgumentError, match="numbered from 0 on"):
            writer.push(-1, b"x")
        with pytest.raises(zazen.InvalidArgumentError):
            writer.push(1, b"x", "../outside")
        with pytest.raises(TypeError):
            writer.push(1, "text")
    assert writer.counters.pushed == 0
