"""A daemon of `zazen.testing` that is started again."""

import os
import socket
import threading

import pytest
import zazen.testing


@pytest.fixture
def daemon(tmp_path):
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(32))
    (tmp_path / "backing").mkdir()
    (tmp_path / "node").mkdir()
    made = zazen.testing.Daemon(tmp_path / "node", tmp_path / "backing", listen="127.0.0.1:0", key=key)
    made.start()
    yield made
    made.kill()


def test_it_waits_for_the_port_that_it_had(daemon):
    daemon.kill()
    host, port = daemon.address.rsplit(":", 1)
    other = socket.create_server((host, int(port)))
    timer = threading.Timer(1.0, other.close)
    timer.start()
    try:
        daemon.start()
    finally:
        timer.join()
    assert daemon.address == f"{host}:{port}"


def test_a_port_that_somebody_else_has_is_told_at_once(daemon, tmp_path):
    (tmp_path / "second").mkdir()
    key = tmp_path / "key"
    second = zazen.testing.Daemon(tmp_path / "second", tmp_path / "backing", listen=daemon.address, key=key)
    with pytest.raises(RuntimeError, match="is in use by another program"):
        second.start()
