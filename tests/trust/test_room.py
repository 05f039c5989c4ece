"""What one user can take of the cache's room from others."""

import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from wire import EVICT, FRAMES, PIN, SCAN_OPEN, Raw, Refused, record

from conftest import read_frames, write_frames

MIB = 1 << 20


@pytest.fixture
def homes(a, b, start_node):
    """A node of 64 MiB, and a folder of each user."""
    node = start_node("--budget", "64M")
    folders = []
    for user in (a, b):
        folder = node.backing / user.name
        folder.mkdir()
        folders.append(user.own(folder))
    return node, *folders


def wait_for_room(caller, node):
    """The room that an unfinished push has, once it has some."""
    while not (reserved := Raw(node.socket).status()["space"]["reserved"]):
        time.sleep(0.01)
    assert caller.stream
    return reserved


def load(dataset, node):
    return len(read_frames(dataset, node.socket))


def natives(node, dataset):
    listed = Raw(node.socket).status()["datasets"]
    return sum(one["natives"] + one["aliens"] for one in listed if one["path"] == str(dataset))


def test_an_announced_push_takes_no_room(a, b, homes):
    node, of_a, of_b = homes
    write_frames(of_a, a, count=7, size=8 * MIB)
    assert a.run(load, of_a, node) == 7
    assert natives(node, of_a) == 7

    def begin():
        caller = Raw(node.socket)
        caller.announce(of_b, "f-0.bin", 0, 15_000_000, b.uid)
        caller.stream.sendall(bytes(MIB))
        return wait_for_room(caller, node)

    # 7 of 64 MiB are free: the whole of it would have room in the place of A's only.
    assert b.run(begin) < 6 * MIB
    assert natives(node, of_a) == 7


def test_a_users_unfinished_pushes_take_a_quarter(b, homes):
    node, _, of_b = homes

    def push():
        first, second = Raw(node.socket), Raw(node.socket)
        first.announce(of_b, "f-0.bin", 0, 10_000_000, b.uid)
        first.stream.sendall(bytes(MIB))
        wait_for_room(first, node)
        second.announce(of_b, "f-1.bin", 1, 10_000_000, b.uid)
        # A refused call's bytes are read all the same: the answer comes after them.
        second.stream.sendall(bytes(10_000_000))
        with pytest.raises(Refused, match="a quarter of the budget"):
            second.reply()
        first.stream.sendall(bytes(10_000_000 - MIB))
        with pytest.raises(Refused, match="checksum"):
            first.reply()
        second.announce(of_b, "f-1.bin", 1, 10_000_000, b.uid)
        second.stream.sendall(bytes(10_000_000))
        with pytest.raises(Refused, match="checksum"):
            second.reply()

    b.run(push)


def test_a_pin_is_the_operators(a, homes):
    node, of_a, _ = homes
    write_frames(of_a, a)
    assert a.run(load, of_a, node) == 4

    def pin(pinned):
        caller = Raw(node.socket)
        caller.send(FRAMES, PIN, struct.pack("<IB", caller.open(of_a), pinned))
        caller.reply()

    with pytest.raises(Refused, match="cluster key may pin"):
        a.run(pin, True)
    pin(True)
    a.run(pin, False)


def test_an_idle_scan_does_not_hinder_the_owner(a, b, homes):
    node, of_a, _ = homes
    write_frames(of_a, a)
    assert a.run(load, of_a, node) == 4

    scans, done = os.pipe(), os.pipe()

    def scan():
        caller = Raw(node.socket)
        everything = record(bytes([1, 1, 0, 3, 0, 4]))
        caller.send(FRAMES, SCAN_OPEN, struct.pack("<I", caller.open(of_a)) + everything)
        caller.reply()
        os.write(scans[1], b"x")
        os.read(done[0], 1)

    def evict():
        caller = Raw(node.socket)
        caller.send(FRAMES, EVICT, struct.pack("<IB", caller.open(of_a), 0))
        return struct.unpack_from("<Q", caller.reply())[0]

    with ThreadPoolExecutor(1) as side:
        idle = side.submit(b.run, scan)
        try:
            os.read(scans[0], 1)
            assert a.run(evict) == 4
        finally:
            os.write(done[1], b"x")
        idle.result()
    for end in (*scans, *done):
        os.close(end)


def test_who_pushed_first_does_not_keep_the_owner_out(a, b, homes):
    node, *_ = homes
    scratch = node.backing / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)

    def push(dataset, file, uid, byte):
        caller, data, told = Raw(node.socket), byte * 10, None
        for checksum in (1, None):
            if checksum is None:
                checksum = int(str(told).split("have checksum ")[1][:16], 16)
            caller.announce(dataset, file, 0, 10, uid, checksum)
            caller.stream.sendall(data)
            try:
                return caller.reply()
            except Refused as error:
                told = error
                if "have checksum" not in str(error):
                    raise
        raise AssertionError(told)

    def make(folder):
        folder.mkdir()
        (folder / "f-0.bin").write_bytes(b"A" * 10)

    for name, squatted in (("other", "f-000.bin"), ("same", "f-0.bin")):
        folder = scratch / name
        b.run(push, folder, squatted, b.uid, b"B")
        a.run(make, folder)
        a.run(push, folder, "f-0.bin", a.uid, b"A")
        assert a.run(read_frames, folder, node.socket) == {0: b"A" * 10}
    box = scratch / "box"
    a.run(make, box)
    box.chmod(0o733)
    a.run(push, box, "f-0.bin", a.uid, b"A")
    with pytest.raises(Refused, match="number is that of another user's file"):
        b.run(push, box, "f-00.bin", b.uid, b"B")
