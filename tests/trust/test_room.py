"""What one user can take of the cache's room from others."""

import json
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import wire
from conftest import read_frames, write_frames

FRAMES, OPEN, SCAN_OPEN, PUSH, EVICT, PIN = 2, 1, 3, 6, 9, 10
MIB = 1 << 20


def text(words) -> bytes:
    words = str(words).encode()
    return struct.pack("<I", len(words)) + words


def record(inner: bytes) -> bytes:
    return struct.pack("<I", len(inner)) + inner


class Refused(Exception):
    """The daemon's answer is an error."""


class Raw:
    """A caller that sends what it likes."""

    def __init__(self, socket_path):
        self.stream = wire.connect(socket_path)
        self.calls = 0

    def send(self, service, function, payload, bulk_bytes=0):
        self.calls += 1
        head = bytearray(wire.header(service, function, self.calls, len(payload), wire.crc32c(payload)))
        struct.pack_into("<Q", head, 32, bulk_bytes)
        struct.pack_into("<I", head, 60, wire.crc32c(bytes(head[:60])))
        self.stream.sendall(bytes(head) + payload)

    def reply(self):
        status, payload = wire.reply(self.stream)
        if status:
            raise Refused(payload[4:].decode(errors="replace"))
        return payload

    def announce(self, dataset, file, number, length, uid, checksum=1):
        """Announces a frame of series f-{n}.bin; its bytes are to follow."""
        meta = struct.pack("<QQQB", number, length, checksum, 0) + struct.pack("<III", uid, uid, 0o644)
        meta += struct.pack("<qQ?", 0, 0, False)
        source = text(file) + struct.pack("<QB", 0, 0)
        payload = text(dataset) + record(source) + record(meta) + record(b"\0" + text("f-{n}.bin"))
        self.send(FRAMES, PUSH, payload, length)

    def open(self, dataset):
        self.send(FRAMES, OPEN, text(dataset) + bytes(3))
        return struct.unpack_from("<I", self.reply())[0]

    def status(self):
        self.send(1, 2, b"")
        return json.loads(self.reply())


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
