"""Messages of the call protocol, by hand: for callers who do not keep to what the client library
does."""

import hmac
import json
import os
import socket
import struct
import time

HEADER_BYTES = 64
# The service of frames, and some of its functions.
FRAMES = 2
OPEN, SCAN_OPEN, PUSH, EVICT, PIN, PLACES = 1, 3, 6, 9, 10, 24
_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE.append(_crc)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def header(service: int, function: int, call: int, payload_bytes: int, payload_crc: int = 0) -> bytes:
    """A request's header."""
    head = struct.pack("<4sHBBHHIQIHHQIQ", b"ZZNC", 1, 1, 0, service, function, 0,
                           call, payload_bytes, 0, 0, 0,
                       payload_crc, 0)  # fmt: skip
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    return head + struct.pack("<I", crc32c(head))


def connect(path, timeout: float = 60) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(timeout)
    stream.connect(str(path))
    return stream


def prove_slowly(address, key: bytes, seconds: float) -> int:
    """A key holder's handshake over TCP that pauses before its proof; the status of the daemon's
    answer."""
    with socket.create_connection(address, timeout=90) as stream:
        hello = struct.pack("<HH32sIIII", 1, 1, os.urandom(32), 0, 0, 0, os.getpid()) + text("slow")
        stream.sendall(header(0, 1, 1, len(hello), crc32c(hello)) + hello)
        status, answer = reply(stream)
        assert status == 0, answer
        time.sleep(seconds)
        parts = (b"zazen handshake 1 client", hello, answer)
        proof = hmac.digest(key, b"".join(struct.pack("<I", len(part)) + part for part in parts), "sha256")
        stream.sendall(header(0, 2, 2, len(proof), crc32c(proof)) + proof)
        return reply(stream)[0]


def receive(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError(f"{len(data)} of {count} bytes came")
        data += more
    return data


def reply(stream: socket.socket) -> tuple[int, bytes]:
    """A reply's status and payload."""
    head = receive(stream, HEADER_BYTES)
    status, payload_bytes = struct.unpack_from("<I", head, 12)[0], struct.unpack_from("<I", head, 24)[0]
    return status, receive(stream, payload_bytes)


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
        self.stream = connect(socket_path)
        self.calls = 0

    def send(self, service, function, payload, bulk_bytes=0):
        self.calls += 1
        head = bytearray(header(service, function, self.calls, len(payload), crc32c(payload)))
        struct.pack_into("<Q", head, 32, bulk_bytes)
        struct.pack_into("<I", head, 60, crc32c(bytes(head[:60])))
        self.stream.sendall(bytes(head) + payload)

    def reply(self):
        status, payload = reply(self.stream)
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
