#!/usr/bin/env python3
"""Stations of a radio telescope that see a known sky, and send what they see as packets with time
stamps.

    # four stations, one datagram after the other to two ports of this machine, in real time
    python stations.py --stations 4 --udp 127.0.0.1:5000,127.0.0.1:5001 --blocks 100 --rate 200000

    # two of them, to the first node of a correlator.py on this machine, as soon as it has written
    # its ports
    python stations.py --stations 4 --only 0-2 --ready ports --node 0

    # as fast as it goes, over one TCP connection for all stations
    python stations.py --tcp 127.0.0.1:5000 --blocks 100

    # some lost, some twice, some in another order, some so late that their block is gone
    python stations.py --udp 127.0.0.1:5000 --lose 0.01 --duplicate 0.01 --reorder 0.05 --late 0.001

    # be the input cluster of plain programs (correlator.py --plain): whole blocks, in turns, to
    # ranks that connect
    python stations.py --serve 127.0.0.1:5000 --ranks 4 --blocks 100

Prints one line of JSON: what was sent and what was not, per station.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import time
from pathlib import Path

import sky as skies

# A block for a plain program: number, bytes of its mask, bytes of its samples.
PLAIN = struct.Struct("<QII")


class Faults:
    """What becomes of each packet on its way, from a seed."""

    def __init__(self, arguments, stations):
        self.chance = random.Random(arguments.fault_seed)
        self.arguments = arguments
        self.counts = [
            {"packets": 0, "lost": 0, "duplicated": 0, "reordered": 0, "late": 0} for _ in range(stations)
        ]
        self.lost = [[] for _ in range(stations)]
        # (after how many packets, packet); in the order of their time.
        self.held = []
        self.at_the_end = []
        self.steps = 0

    def pass_on(self, station, number):
        """The packets that leave now: (station, number)."""
        counts, arguments = self.counts[station], self.arguments
        counts["packets"] += 1
        self.steps += 1
        leaving = []
        if self.chance.random() < arguments.lose:
            counts["lost"] += 1
            self.lost[station].append(number)
        elif self.chance.random() < arguments.late:
            counts["late"] += 1
            self.at_the_end.append((station, number))
        elif self.chance.random() < arguments.reorder:
            counts["reordered"] += 1
            self.held.append((self.steps + self.chance.randint(1, arguments.reorder_by), station, number))
        else:
            leaving.append((station, number))
        if leaving and self.chance.random() < arguments.duplicate:
            counts["duplicated"] += 1
            leaving *= 2
        due = [held for held in self.held if held[0] <= self.steps]
        self.held = [held for held in self.held if held[0] > self.steps]
        return leaving + [(station, number) for _, station, number in due]

    def rest(self):
        held, self.held = self.held, []
        return [(station, number) for _, station, number in held]


class Packets:
    """The packets of all stations, ready to send."""

    def __init__(self, sky, first, last, tag):
        self.sky, self.tag = sky, tag
        self.tables = {station: memoryview(sky.table(station).tobytes()) for station in range(first, last)}
        self.per_period = skies.PERIOD // sky.packet_samples

    def samples(self, station, number):
        at = (number % self.per_period) * self.sky.packet_bytes
        return self.tables[station][at : at + self.sky.packet_bytes]

    def header(self, station, number):
        time_stamp = number * self.sky.packet_samples
        return skies.HEADER.pack(b"ZST1", station, 0, time_stamp, self.sky.packet_bytes, self.tag)

    def end(self, station, number):
        return skies.HEADER.pack(b"ZST1", station, skies.END, number * self.sky.packet_samples, 0, self.tag)


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def connected(target, patience=60):
    """A connection to somebody who may not listen yet."""
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(target, timeout=patience)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def ports_of(path, node, patience=60):
    """The ports of a node on this machine, as soon as correlator.py has written them."""
    until = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > until:
            raise FileNotFoundError(f"{path}: nobody wrote ports there within {patience} s")
        time.sleep(0.05)
    return [("127.0.0.1", port) for port in json.loads(path.read_text())[node]]


def udp_sender(targets):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    return lambda station, parts: sender.sendmsg(parts, [], 0, targets[station % len(targets)])


def tcp_sender(target):
    connection = connected(target)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(_station, parts):
        connection.sendall(b"".join(parts))

    return send


def observe(arguments, sky):
    """All packets of the observation, in the order of their time, with faults."""
    first, last = arguments.only or (0, sky.stations)
    packets = Packets(sky, first, last, arguments.tag)
    faults = Faults(arguments, sky.stations)
    send = udp_sender(arguments.udp) if arguments.udp else tcp_sender(arguments.tcp)
    begin = arguments.first * sky.block_packets
    end = begin + arguments.blocks * sky.block_packets

    def leave(leaving):
        for station, number in leaving:
            send(station, [packets.header(station, number), packets.samples(station, number)])

    began = time.monotonic()
    for number in range(begin, end):
        for station in range(first, last):
            leave(faults.pass_on(station, number))
        if arguments.rate:
            ahead = (number - begin) * sky.packet_samples / arguments.rate - (time.monotonic() - began)
            if ahead > 0.001:
                time.sleep(ahead)
    leave(faults.rest())
    if faults.at_the_end:
        time.sleep(arguments.late_by)
        leave(faults.at_the_end)
    for _ in range(3 if arguments.udp else 1):
        for station in range(first, last):
            send(station, [packets.end(station, end)])
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "bytes": sum(c["packets"] - c["lost"] for c in faults.counts) * sky.packet_bytes,
        "stations": faults.counts[first:last],
        "lost": faults.lost[first:last],
    }


def serve(arguments, sky):
    """The input cluster: block b goes to the rank b mod ranks, over a connection of its own."""
    packets = Packets(sky, 0, sky.stations, arguments.tag)
    listener = socket.create_server(arguments.serve, backlog=arguments.ranks)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    connections = {}
    while len(connections) < arguments.ranks:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))[0]] = connection
    mask = b"\xff" * -(-sky.stations * sky.block_packets // 8)
    began = time.monotonic()
    for block in range(arguments.first, arguments.first + arguments.blocks):
        head = PLAIN.pack(block, len(mask), sky.stations * sky.block_packets * sky.packet_bytes)
        samples = [
            packets.samples(station, block * sky.block_packets + packet)
            for station in range(sky.stations)
            for packet in range(sky.block_packets)
        ]
        connections[block % arguments.ranks].sendall(b"".join([head, mask, *samples]))
        if arguments.rate:
            ahead = (block - arguments.first) * sky.block_samples / arguments.rate
            time.sleep(max(0.0, ahead - (time.monotonic() - began)))
    for connection in connections.values():
        connection.close()
    packets_each = arguments.blocks * sky.block_packets
    return {
        "seconds": time.monotonic() - began,
        "bytes": packets_each * sky.stations * sky.packet_bytes,
        "stations": [{"packets": packets_each} for _ in range(sky.stations)],
    }


def parse(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    skies.add_options(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--udp", metavar="HOST:PORT,…", help="datagrams; station s to the (s mod n)-th of n")
    where.add_argument("--tcp", metavar="HOST:PORT", help="all packets over one connection")
    where.add_argument("--serve", metavar="HOST:PORT", help="whole blocks to plain programs that connect")
    where.add_argument(
        "--ready",
        type=Path,
        metavar="FILE",
        help="datagrams to this machine's ports in correlator.py's --ready FILE",
    )
    parser.add_argument("--node", type=int, default=0, help="--ready: of which node (default 0)")
    parser.add_argument("--only", metavar="A-B", help="these stations, B not included (default all)")
    parser.add_argument("--blocks", type=int, default=32, help="how long (default 32 blocks)")
    parser.add_argument("--first", type=int, default=0, help="number of the first block (default 0)")
    parser.add_argument("--rate", type=float, default=0, help="times per second; 0: as fast as it goes")
    parser.add_argument("--ranks", type=int, default=1, help="--serve: ranks that connect")
    parser.add_argument("--tag", type=int, default=0, help="the observation's number")
    faults = parser.add_argument_group("faults (probabilities of a packet)")
    for name in ("lose", "duplicate", "reorder", "late"):
        faults.add_argument(f"--{name}", type=float, default=0.0, metavar="P")
    faults.add_argument(
        "--reorder-by", type=int, default=8, help="packets that overtake, at most (default 8)"
    )
    faults.add_argument("--late-by", type=float, default=1.0, help="seconds after the last one (default 1)")
    faults.add_argument("--fault-seed", type=int, default=1)
    arguments = parser.parse_args(words)
    if arguments.udp:
        arguments.udp = [address(text) for text in arguments.udp.split(",")]
    if arguments.ready:
        arguments.udp = ports_of(arguments.ready, arguments.node)
    arguments.tcp = arguments.tcp and address(arguments.tcp)
    arguments.serve = arguments.serve and address(arguments.serve)
    if arguments.only:
        arguments.only = tuple(int(number) for number in arguments.only.split("-"))
    return arguments


def main(words=None):
    arguments = parse(words)
    sky = skies.of_options(arguments)
    report = serve(arguments, sky) if arguments.serve else observe(arguments, sky)
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
