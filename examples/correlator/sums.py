#!/usr/bin/env python3
"""Sums that left the daemon (or a plain correlator): read from a file, or received as storage does.

python sums.py sums.bin                                    # what is in a file
python sums.py --listen 127.0.0.1:6000 --out sums.bin      # take what comes over TCP
# and add 8 each, which plain correlators don't; two of them connect
python sums.py --listen 127.0.0.1:6000 --ranks 2 --integrate 8 --out sums.bin
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys
from dataclasses import dataclass

import numpy as np

# plugins/stream/src/store.rs: magic, version, element, part, block, time, blocks, results, weight,
# bytes, 0.
RECORD = struct.Struct("<4sIIIQQIIQQQ")
DTYPES = [np.float32, np.float64, np.int32, np.int64]


@dataclass
class Record:
    """A sum."""

    element: int
    part: int
    block: int
    time: int
    # Blocks of a group, and results that are in the sum.
    blocks: int
    results: int
    weight: int
    values: np.ndarray

    def pack(self):
        head = (b"ZSUM", 1, self.element, self.part, self.block, self.time, self.blocks, self.results)
        return RECORD.pack(*head, self.weight, self.values.nbytes, 0) + self.values.tobytes()


def take(data):
    """The first record of these bytes and what is left of them; None if it is not whole."""
    if len(data) < RECORD.size:
        return None, data
    magic, version, element, part, block, time, blocks, results, weight, size, _ = RECORD.unpack_from(data)
    if magic != b"ZSUM" or version != 1 or element >= len(DTYPES):
        raise ValueError("this is no record of sums")
    end = RECORD.size + size
    if len(data) < end:
        return None, data
    values = np.frombuffer(data[RECORD.size : end], DTYPES[element]).copy()
    return Record(element, part, block, time, blocks, results, weight, values), data[end:]


def read(path):
    """All records of a file, by block and part."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    records = []
    while len(data) > 0:
        record, data = take(data)
        if record is None:
            raise ValueError(f"{path}: the last record is cut")
        records.append(record)
    return sorted(records, key=lambda record: (record.block, record.part))


class Adder:
    """Adds `blocks` records of each part: what the daemon does for ranks that use streams."""

    def __init__(self, blocks, emit):
        self.blocks, self.emit, self.open = blocks, emit, {}

    def add(self, record):
        if self.blocks == 1:
            self.emit(record)
            return
        key = (record.block // self.blocks, record.part)
        known = self.open.get(key)
        if known is None:
            known = self.open[key] = record
            known.block, known.blocks = key[0] * self.blocks, self.blocks
        else:
            known.values += record.values
            known.results += record.results
            known.weight += record.weight
        if known.results == self.blocks:
            self.emit(self.open.pop(key))

    def flush(self):
        for key in sorted(self.open):
            self.emit(self.open.pop(key))


def listen(address, ranks, blocks, out):
    """Takes records until so many ranks have connected and all of them are gone again; how many
    bytes came, and how many left."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server((host, int(port)))
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    came = left = connected = 0

    def emit(record):
        nonlocal left
        left += out.write(record.pack())

    adder, rest = Adder(blocks, emit), {}
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connected += 1
                    rest[connection] = b""
                    ready.register(connection, selectors.EVENT_READ)
                    continue
                more = key.fileobj.recv(1 << 20)
                came += len(more)
                data = rest[key.fileobj] + more
                while True:
                    record, data = take(data)
                    if record is None:
                        break
                    adder.add(record)
                rest[key.fileobj] = bytes(data)
                if not more:
                    ready.unregister(key.fileobj)
                    del rest[key.fileobj]
                    key.fileobj.close()
                    if not rest and connected >= ranks:
                        adder.flush()
                        return came, left


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="a file of sums")
    parser.add_argument("--listen", metavar="HOST:PORT", help="take them from there; port 0: any")
    parser.add_argument("--ranks", type=int, default=1, help="end when so many have connected and are gone")
    parser.add_argument("--integrate", type=int, default=1, help="add so many of each part")
    parser.add_argument("--out", help="write them to this file")
    arguments = parser.parse_args(words)
    if arguments.listen:
        with open(arguments.out or "/dev/null", "wb") as out:
            came, left = listen(arguments.listen, arguments.ranks, arguments.integrate, out)
        print(f"{came} bytes came, {left} bytes left")
        return 0
    if not arguments.file:
        parser.error("a file, or --listen")
    for record in read(arguments.file):
        print(
            f"block {record.block} part {record.part}: {record.results} of {record.blocks} results, "
            f"weight {record.weight}, {record.values.nbytes} bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
