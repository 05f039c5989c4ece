"""Messages of the call protocol, by hand: for callers who do not keep to what the client library does."""

import socket
import struct

HEADER_BYTES = 64
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
    head = struct.pack("<4sHBBHHIQIHHQIQ", b"ZZNC", 1, 1, 0, service, function, 0, call, payload_bytes, 0, 0, 0,
                       payload_crc, 0)  # fmt: skip
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    return head + struct.pack("<I", crc32c(head))


def connect(path, timeout: float = 60) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(timeout)
    stream.connect(str(path))
    return stream


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
