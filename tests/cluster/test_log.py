"""The daemon's log: what machines read of it."""

import json
import os
import signal

import pytest
import zazen
import zazen.testing


@pytest.fixture
def backing(tmp_path):
    """A store with a dataset whose name would begin a line."""
    dataset = tmp_path / "backing/x\nERROR forged"
    dataset.mkdir(parents=True)
    (dataset / "f-0.bin").write_bytes(b"x" * 1000)
    return tmp_path / "backing"


def provoke(daemon, backing):
    """Makes the daemon log a message with the dataset's name, and one of many lines."""
    (dataset,) = backing.iterdir()
    with zazen.open(dataset, socket=daemon.socket) as opened:
        assert [bytes(data) for _, data, _ in opened.frames()] == [b"x" * 1000]
    os.kill(daemon.pid, signal.SIGUSR1)
    daemon.stop()
    return daemon.log.read_text().splitlines()


def test_each_message_is_one_json_object(tmp_path, backing):
    with zazen.testing.Daemon(tmp_path, backing, ["--log", "json,debug"]) as daemon:
        lines = provoke(daemon, backing)
    messages = [json.loads(line) for line in lines]
    assert all({"time", "level", "part", "message"} <= set(message) for message in messages)
    assert {message["level"] for message in messages} <= {"ERROR", "WARN", "INFO", "DEBUG"}
    assert any("serves" in message["message"] for message in messages)
    assert any("\n" in message["message"] for message in messages), "the state dump has many lines"


def test_the_journal_gets_levels(tmp_path, backing):
    log = tmp_path / "log"
    log.touch()
    at = log.stat()
    variables = {"JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}"}
    with zazen.testing.Daemon(tmp_path, backing, variables=variables) as daemon:
        lines = provoke(daemon, backing)
    assert len(lines) > 5
    assert all(line[:3] in ("<3>", "<4>", "<6>", "<7>") for line in lines), lines
    assert any(line.startswith("<6>zazend ") for line in lines)


def test_another_stream_is_no_journal(tmp_path, backing):
    with zazen.testing.Daemon(tmp_path, backing, variables={"JOURNAL_STREAM": "1:1"}) as daemon:
        lines = provoke(daemon, backing)
    assert any(" INFO zazend " in line for line in lines)
    assert not any(line.startswith("<") for line in lines), lines


def test_a_form_that_is_none_is_refused(tmp_path, backing):
    with pytest.raises(RuntimeError, match="json makes it JSON lines"):
        zazen.testing.Daemon(tmp_path, backing, ["--log", "xml"]).start()
