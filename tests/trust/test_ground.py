"""The suite's own ground: users are what they should be, and root's daemon serves them."""

import os

import pytest

from conftest import read_frames, write_frames


def test_a_user_is_nobody_else(a, b, ground):
    secret = ground / "secret"
    secret.write_text("x")
    a.own(secret, 0o600)
    assert a.run(secret.read_text) == "x"
    with pytest.raises(PermissionError):
        b.run(secret.read_text)
    assert a.run(os.getgroups) == [*a.groups]
    assert a.run(os.getresuid) == (a.uid,) * 3


def test_both_read_public_frames(a, b, node):
    write_frames(node.backing / "sim", a)
    expected = {number: bytes([number + 1]) * 140_000 for number in range(4)}
    assert a.run(read_frames, node.backing / "sim", node.socket) == expected
    assert b.run(read_frames, node.backing / "sim", node.socket) == expected
