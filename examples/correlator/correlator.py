#!/usr/bin/env python3
"""An FX correlator over MPI: the LOFAR pipeline on streams (ZOID, PPoPP'08, section 4 and Figure
9).

Each rank takes blocks in turns from its node's stream, exchanges subbands with the ranks of other
nodes (each node receives some of the stations), filters every subband into channels, correlates all
pairs of stations, and gives the visibilities back to the stream, where those of K blocks are added
before they leave. With --receivers N, the first N ranks of each node only take blocks and pass them
on, and its other ranks only compute.

    # stations straight to the daemons (no input cluster): two nodes, two stations each, 16 ranks
    mpiexec -n 16 python correlator.py --library libstream.so --nodes 2 --stations 4 --port 5000 \\
        --blocks 320 --integrate 16 --store sums.bin
    python stations.py --stations 4 --udp HOST_OF_NODE_0:5000 --only 0-2 --blocks 320 --rate 200000 &
    python stations.py --stations 4 --udp HOST_OF_NODE_1:5001 --only 2-4 --blocks 320 --rate 200000

    # the same, where one rank of each node's eight takes the blocks, and seven compute
    mpiexec -n 16 python correlator.py --library libstream.so --nodes 2 --receivers 1 --stations 4 --port 5000

    # all stations over one TCP connection per node (from an input cluster)
    mpiexec -n 4 python correlator.py --library libstream.so --input tcp --port 5000 --blocks 320
    python stations.py --tcp 127.0.0.1:5000 --blocks 320

    # without a plug-in: a socket for each rank, and another one to storage, which adds; the same
    # with the daemon's sockets in place of its own
    python stations.py --serve 127.0.0.1:5000 --ranks 4 --blocks 320 &
    python sums.py --listen 127.0.0.1:6000 --ranks 4 --integrate 16 --out sums.bin &
    mpiexec -n 4 python correlator.py --plain 127.0.0.1:5000 --store tcp:127.0.0.1:6000 --blocks 320
    mpiexec -n 4 zazen run --forward /data --sockets -- python correlator.py --plain 127.0.0.1:5000 ...

    # one machine, no daemon: each rank is a node with a plug-in of its own
    mpiexec -n 2 python correlator.py --library libstream.so --plugin libzazen_stream.so --nodes 2 --port 5000

Prints what became of every packet, and where the fringe is. Exits with 1 if a packet is not
accounted for, if a result came too late for its sum, or if the fringe is not where the sky has it.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import sky as skies
import stations as senders
import streams
import sums

# How launchers tell a process its rank.
RANK_VARIABLES = ("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Plain:
    """Blocks from a socket, results to another: what programs do that know no streams."""

    def __init__(self, arguments, sky, rank):
        self.sky, self.element = sky, streams.ELEMENTS[arguments.element]
        self.input = senders.connected(senders.address(arguments.plain))
        self.input.sendall(struct.pack("<I", rank))
        self.output = None
        if arguments.store and arguments.store.startswith("tcp:"):
            self.output = senders.connected(senders.address(arguments.store[4:]))
            self.send = self.output.sendall
        elif arguments.store:
            self.output = open(f"{arguments.store}.{rank}", "wb", buffering=0)
            self.send = self.output.write
        self.buffer = bytearray(sky.stations * sky.block_packets * sky.packet_bytes)

    def _read(self, view):
        while view:
            count = self.input.recv_into(view)
            if count == 0:
                return False
            view = view[count:]
        return True

    def blocks(self):
        head = bytearray(senders.PLAIN.size)
        while self._read(memoryview(head)):
            block, mask_bytes, size = senders.PLAIN.unpack(head)
            mask = bytearray(mask_bytes)
            self._read(memoryview(mask))
            self._read(memoryview(self.buffer)[:size])
            shape = (self.sky.stations, self.sky.block_packets)
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            present = bits[: shape[0] * shape[1]].reshape(shape).astype(bool)
            samples = np.frombuffer(self.buffer, np.uint8)
            time = block * self.sky.block_samples
            yield streams.Block(block, block, time, False, 0, samples, present)

    def gather(self, block, part, values, weight):
        if self.output is not None:
            record = sums.Record(self.element, part, block, 0, 1, 1, weight, values)
            self.send(record.pack())

    def close(self):
        self.input.close()
        if self.output is not None:
            self.output.close()


class Exchange:
    """Between the ranks that have the same block: one of each node."""

    def __init__(self, nodes=1, node=0, world=None):
        self.column = world and world.Split(world.rank % (world.size // nodes), node)
        self.nodes, self.node = nodes, node

    def mine(self, subbands):
        """The subbands that this node's ranks correlate."""
        bounds = [subbands * node // self.nodes for node in range(self.nodes + 1)]
        return bounds

    def swap(self, samples, present):
        """Gives each node its subbands of this node's stations; all stations of this node's
        subbands."""
        stations, times, subbands = samples.shape[:3]
        bounds = self.mine(subbands)
        if self.nodes == 1:
            return samples, present
        share = [np.ascontiguousarray(samples[:, :, a:b]) for a, b in itertools.pairwise(bounds)]
        width = bounds[self.node + 1] - bounds[self.node]
        out = np.empty((self.nodes * stations, times, width, 2), np.int8)
        counts = [part.nbytes for part in share]
        each = [out.nbytes // self.nodes] * self.nodes
        self.column.Alltoallv([np.concatenate([part.ravel() for part in share]), counts], [out, each])
        every = np.empty((self.nodes * stations, present.shape[1]), bool)
        self.column.Allgather(np.ascontiguousarray(present), every)
        return out, every


class Receivers:
    """Between the ranks of all nodes that take blocks and those that compute.

    A block goes from one receiver of each node to one computing rank of each node: the one whose
    turn it is. Each computing rank gets its node's subbands of all stations.
    """

    # Of a block: its number, whether its node dropped it. The end: no more from this receiver.
    HEAD = struct.Struct("<QI")
    PART, END = range(2)
    # Blocks that a receiver has passed on and nobody has taken yet, at most. Each is a copy; more
    # of them wait in the node's buffer.
    UNDER_WAY = 4

    def __init__(self, world, nodes, receivers, sky):
        self.world, self.nodes, self.receivers, self.sky = world, nodes, receivers, sky
        self.per_node = world.size // nodes
        self.computing = self.per_node - receivers
        self.node, self.within = divmod(world.rank, self.per_node)
        self.bounds = Exchange(nodes).mine(sky.subbands)

    @property
    def receives(self):
        return self.within < self.receivers

    def computes(self, node, block):
        """The rank of a node that computes a block."""
        return node * self.per_node + self.receivers + block % self.computing

    def pass_on(self, blocks):
        """Takes blocks until the end, and passes each on; how many."""
        sky, under_way, count = self.sky, collections.deque(), 0
        shape = (sky.stations // self.nodes, sky.block_samples, sky.subbands, 2)
        for block in blocks:
            head = self.HEAD.pack(block.number, block.is_dropped)
            parts = [np.frombuffer(head, np.uint8)] * self.nodes
            if not block.is_dropped:
                samples = block.samples.view(np.uint8).reshape(shape)
                shares = [samples[:, :, a:b].ravel() for a, b in itertools.pairwise(self.bounds)]
                present = block.present.ravel().view(np.uint8)
                parts = [np.concatenate([parts[0], present, share]) for share in shares]
            requests = [
                # Until the other side takes it: so it is known how many are under way.
                self.world.Issend(part, self.computes(node, block.number), self.PART)
                for node, part in enumerate(parts)
            ]
            under_way.append((requests, parts))
            count += 1
            while len(under_way) > self.UNDER_WAY:
                self._taken(under_way.popleft())
        while under_way:
            self._taken(under_way.popleft())
        for rank in range(self.world.size):
            if rank % self.per_node >= self.receivers:
                self.world.Send(np.empty(0, np.uint8), rank, self.END)
        return count

    @staticmethod
    def _taken(sent):
        for request in sent[0]:
            request.Wait()

    def blocks(self):
        """The blocks that this rank computes, with this node's subbands of all stations: number,
        samples, present; None for both where no node has anything."""
        from mpi4py import MPI

        waiting, running, status = {}, self.nodes * self.receivers, MPI.Status()
        while running:
            self.world.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            source, tag = status.Get_source(), status.Get_tag()
            message = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.world.Recv(message, source, tag)
            if tag == self.END:
                running -= 1
                continue
            number, is_dropped = self.HEAD.unpack(message[: self.HEAD.size].tobytes())
            parts = waiting.setdefault(number, {})
            parts[source // self.per_node] = None if is_dropped else message[self.HEAD.size :]
            if len(parts) == self.nodes:
                yield number, *self._whole(waiting.pop(number))
        # A node's stream may have ended before another's.
        for number in sorted(waiting):
            yield number, *self._whole(waiting[number])

    def _whole(self, parts):
        sky, stations = self.sky, self.sky.stations // self.nodes
        if all(part is None for part in parts.values()):
            return None, None
        width = self.bounds[self.node + 1] - self.bounds[self.node]
        samples = np.zeros((sky.stations, sky.block_samples, width, 2), np.int8)
        present = np.zeros((sky.stations, sky.block_packets), bool)
        for node, part in parts.items():
            if part is not None:
                mine = slice(node * stations, (node + 1) * stations)
                packets = stations * sky.block_packets
                present[mine] = part[:packets].view(bool).reshape(stations, sky.block_packets)
                samples[mine] = part[packets:].view(np.int8).reshape(samples[mine].shape)
        return samples, present


def spectra(sky, samples, present, taps):
    """Subbands as channels: (stations, subbands, spectra, channels); and which spectra are
    whole."""
    stations, times, subbands = samples.shape[:3]
    count = times // sky.channels
    voltages = samples[..., 0].astype(np.float32) + 1j * samples[..., 1].astype(np.float32)
    voltages = voltages.transpose(0, 2, 1).reshape(stations, subbands, count, sky.channels)
    there = np.repeat(present, sky.packet_samples, axis=1).reshape(stations, count, sky.channels).all(axis=2)
    if taps > 1:
        # A polyphase filter: each spectrum is of `taps` pieces, under a window. A block's first
        # have no past.
        window = np.sinc(np.arange(taps * sky.channels) / sky.channels - taps / 2) * np.hamming(
            taps * sky.channels
        )
        window = window.reshape(taps, sky.channels).astype(np.float32)
        count -= taps - 1
        voltages = sum(voltages[:, :, tap : tap + count] * window[tap] for tap in range(taps))
        there = np.logical_and.reduce([there[:, tap : tap + count] for tap in range(taps)])
    channels = voltages if sky.channels == 1 else np.fft.fft(voltages, axis=3).astype(np.complex64)
    return channels * there[:, None, :, None], there


def correlate(sky, samples, present, taps, dtype):
    """The visibilities of all pairs a <= b: per subband, pair and channel a complex number; then
    per pair the spectra."""
    channels, there = spectra(sky, samples, present, taps)
    exact = np.complex128 if dtype == np.float64 else np.complex64
    products = np.einsum("asnc,bsnc->sabc", channels.astype(exact), channels.astype(exact).conj())
    pairs = np.triu_indices(len(channels))
    visibilities = np.ascontiguousarray(products[:, pairs[0], pairs[1]])
    weights = (there[:, None].astype(np.int64) * there[None]).sum(axis=2)[pairs]
    values = np.concatenate([visibilities.view(dtype).ravel(), weights.astype(dtype)])
    return values, int(weights.sum())


def split(sky, values, subbands):
    """The inverse of how correlate() lays its values out: (subbands, pairs, channels) and
    weights."""
    pairs = sky.stations * (sky.stations + 1) // 2
    visibilities = values[: 2 * subbands * pairs * sky.channels]
    return visibilities.view(np.result_type(values.dtype, np.complex64)).reshape(
        subbands, pairs, sky.channels
    ), values[visibilities.size :]


def fringe(sky, path, bounds):
    """The strongest channel between stations 0 and 1 in a file of sums: subband, channel, phase."""
    total = [0] * (len(bounds) - 1)
    for record in sums.read(path):
        if record.results:
            width = bounds[record.part + 1] - bounds[record.part]
            total[record.part] = total[record.part] + split(sky, record.values, width)[0][:, 1]
    found = [(a, part) for a, part in zip(bounds, total, strict=False) if not np.isscalar(part)]
    best = max(((np.abs(part).max(), a, part) for a, part in found), default=None, key=lambda found: found[0])
    if best is None:
        return None
    subband, channel = np.unravel_index(np.abs(best[2]).argmax(), best[2].shape)
    return int(best[1] + subband), int(channel), float(np.angle(best[2][subband, channel]))


def account(arguments, sky, counters, first_station):
    """Says what became of each station's packets; how many nobody can explain."""
    expected = arguments.blocks * sky.block_packets
    lost_track = 0
    for number, station in enumerate(counters["station"], first_station):
        parts = [station[name] for name in ("delivered", "missing", "dropped")]
        print(
            f"station {number}: {expected} packets: {parts[0]} delivered, {parts[1]} lost (of them "
            f"{station['late']} came too late), {parts[2]} dropped with their block; "
            f"{station['duplicate']} came twice",
            flush=True,
        )
        arrived = sum(station[name] for name in "stored duplicate late refused outside strange".split())
        lost_track += abs(expected - sum(parts)) + abs(station["arrived"] - arrived)
    if counters["results_late"]:
        print(
            f"{counters['results_late']} results came after their sums had left: raise --groups-open",
            flush=True,
        )
    return lost_track + counters["results_late"]


def groups_open(arguments, ranks):
    """Sums under way at most. A rank lags behind the newest block by the blocks in the buffer, at
    most, and by those on their way from receivers to computing ranks; its results must find their
    sums."""
    passed_on = arguments.receivers and arguments.receivers * (Receivers.UNDER_WAY + 1) + ranks
    return arguments.groups_open or min((arguments.slots + passed_on) // arguments.integrate + 2, 1024)


def config(arguments, sky, nodes, node, ranks):
    stations = sky.stations // nodes
    inputs = {"udp": streams.UDP, "tcp": streams.TCP_LISTEN}
    return streams.Config(
        stations=stations,
        station_first=node * stations,
        subbands=sky.subbands,
        sample_bytes=2,
        packet_samples=sky.packet_samples,
        block_packets=sky.block_packets,
        slots=arguments.slots,
        block_first=arguments.first,
        block_count=arguments.blocks,
        ranks=arguments.receivers or ranks,
        deadline_ms=arguments.deadline_ms,
        silence_ms=arguments.silence_ms,
        input=inputs[arguments.input],
        pressure=streams.WAIT if arguments.input == "tcp" else streams.DROP_OLDEST,
        port=arguments.port + node * arguments.ports if arguments.port else 0,
        ports=arguments.ports,
        integrate=arguments.integrate,
        element=streams.ELEMENTS[arguments.element],
        groups_open=groups_open(arguments, ranks),
    )


def with_stream(arguments, sky):
    """Everything through streams; the exit status."""
    # Not before it is needed: plain ranks have nothing to say to each other.
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size % arguments.nodes or sky.stations % arguments.nodes or sky.subbands < arguments.nodes:
        raise SystemExit("ranks and stations must be multiples of --nodes, and subbands at least as many")
    nodes, per_node = arguments.nodes, world.size // arguments.nodes
    if arguments.receivers >= per_node:
        raise SystemExit(
            f"--receivers {arguments.receivers} leaves no rank to compute: each node has {per_node} ranks"
        )
    node, within = divmod(world.rank, per_node)
    local = world.Split(node, within)
    host = streams.Library(arguments.library).connect(
        arguments.socket and arguments.socket.split(",")[node % len(arguments.socket.split(","))],
        arguments.plugin, world.rank, world.size,
    )  # fmt: skip
    name = f"{arguments.name}.{node}"
    path = arguments.store and (arguments.store if nodes == 1 else f"{arguments.store}.{node}")
    leader = None
    if within == 0:
        leader = host.open(name, config(arguments, sky, nodes, node, per_node))
        if path and path.startswith("tcp:"):
            leader.store_at(path)
        elif path:
            with open(path, "wb") as out:
                leader.store(out)
    local.Barrier()
    # A computing rank takes no blocks.
    receiving = within < (arguments.receivers or per_node)
    stream = host.attach(name, within if receiving else -1)
    ports = world.gather((node, leader.ports()) if leader else None)
    if world.rank == 0 and arguments.ready:
        every = dict(port for port in ports if port)
        partial = Path(f"{arguments.ready}.part")
        partial.write_text(json.dumps([every[node] for node in range(nodes)]))
        partial.rename(arguments.ready)
    blocks = stream.blocks() if arguments.copy else stream.borrowed()
    if arguments.receivers:
        counts = local.gather(share(arguments, sky, world, stream, blocks))
    else:
        work(arguments, sky, Exchange(nodes, node, world), stream, blocks)
    local.Barrier()
    status = 0
    if leader:
        leader.flush()
        counters = leader.counters()
        if arguments.counters:
            Path(f"{arguments.counters}.{node}").write_text(json.dumps(counters))
        status = int(account(arguments, sky, counters, node * sky.stations // nodes) > 0)
        print(
            f"node {node}: {counters['bytes_gathered']} bytes of results came, "
            f"{counters['bytes_stored']} left; {counters['groups']} sums, "
            f"{counters['groups_incomplete']} of them incomplete",
            flush=True,
        )
        if arguments.receivers:
            print(
                f"node {node}: blocks received by its ranks: {counts[: arguments.receivers]}, "
                f"computed: {counts[arguments.receivers :]}",
                flush=True,
            )
        leader.close()
    stream.close()
    host.close()
    status = world.allreduce(status, MPI.MAX)
    if world.rank == 0 and path and not path.startswith("tcp:"):
        status |= report(arguments, sky)
    return world.bcast(status)


def report(arguments, sky):
    """Prints where the fringe is; 1 if it is elsewhere than in the sky."""
    bounds = Exchange(arguments.nodes).mine(sky.subbands)
    files = [arguments.store] if arguments.nodes == 1 else [
        f"{arguments.store}.{node}" for node in range(arguments.nodes)
    ]  # fmt: skip
    merged = Path(f"{arguments.store}.all") if arguments.nodes > 1 else Path(arguments.store)
    if arguments.nodes > 1:
        merged.write_bytes(b"".join(Path(file).read_bytes() for file in files))
    found = fringe(sky, merged, bounds)
    if found is None:
        print("no sums, no fringe")
        return 1
    subband, channel, phase = found
    off = abs(np.angle(np.exp(1j * (phase - sky.phase))))
    print(
        f"fringe between stations 0 and 1: subband {subband}, channel {channel}, phase {phase:+.3f} rad; "
        f"the sky has it in subband {sky.tone_subband}, channel {sky.tone}, phase {sky.phase:+.3f} rad",
        flush=True,
    )
    return int((subband, channel) != (sky.tone_subband, sky.tone) or off > 0.05)


def work(arguments, sky, exchange, source, blocks):
    """Block after block: exchange, filter, correlate, give back."""
    dtype = sums.DTYPES[streams.ELEMENTS[arguments.element]]
    stations = sky.stations // exchange.nodes
    shape = (stations, sky.block_samples, sky.subbands, 2)
    blank = np.zeros(shape, np.int8)
    for block in blocks:
        if block.is_dropped and exchange.nodes == 1:
            source.skip(block.number, 0)
            continue
        samples = blank if block.is_dropped else block.samples.view(np.int8).reshape(shape)
        samples, present = exchange.swap(samples, block.present)
        values, weight = correlate(sky, samples, present, arguments.taps, dtype)
        source.gather(block.number, exchange.node, values, weight)


def share(arguments, sky, world, stream, blocks):
    """What a rank does where some receive and the others compute; how many blocks it had."""
    between = Receivers(world, arguments.nodes, arguments.receivers, sky)
    if between.receives:
        return between.pass_on(blocks)
    dtype = sums.DTYPES[streams.ELEMENTS[arguments.element]]
    count = 0
    for number, samples, present in between.blocks():
        count += 1
        if samples is None:
            stream.skip(number, between.node)
            continue
        values, weight = correlate(sky, samples, present, arguments.taps, dtype)
        stream.gather(number, between.node, values, weight)
    return count


def parse(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    skies.add_options(parser)
    where = parser.add_argument_group("where the samples come from")
    where.add_argument("--library", help="the generated stream client with its runtime (docs/streams.md)")
    where.add_argument("--socket", help="the daemons' sockets, one for each node, with commas")
    where.add_argument("--plugin", help="run this plug-in in each rank's own process, without a daemon")
    where.add_argument("--plain", metavar="HOST:PORT", help="no plug-in: a socket to an input cluster")
    where.add_argument("--name", default="correlator", help="of the stream (default: correlator)")
    where.add_argument(
        "--nodes", type=int, default=1, help="parts of the ranks with a stream each (default 1)"
    )
    where.add_argument("--input", choices=["udp", "tcp"], default="udp", help="(default: udp)")
    where.add_argument("--port", type=int, default=0, help="the first node's; each has --ports of them")
    where.add_argument("--ports", type=int, default=1, help="ports of a node, a receiver each (default 1)")
    where.add_argument("--ready", metavar="FILE", help="write the nodes' ports there as soon as they listen")
    how = parser.add_argument_group("how it is done")
    how.add_argument("--blocks", type=int, default=32, help="blocks of the observation (default 32)")
    how.add_argument(
        "--receivers", type=int, default=0, metavar="N",
        help="N ranks of each node take blocks and pass them on, the others compute (default: all do both)",
    )  # fmt: skip
    how.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")
    how.add_argument("--slots", type=int, default=64, help="blocks in the buffer (default 64)")
    how.add_argument("--deadline-ms", type=int, default=500, help="patience with an incomplete block")
    how.add_argument("--silence-ms", type=int, default=10_000, help="so long without any packet is the end")
    how.add_argument("--copy", action="store_true", help="get blocks by stream_scatter(), not where they lie")
    how.add_argument("--taps", type=int, default=1, help="of the polyphase filter; 1: plain FFTs (default 1)")
    how.add_argument("--integrate", type=int, default=8, help="blocks whose results are added (default 8)")
    how.add_argument(
        "--groups-open", type=int, default=0, help="sums under way (default: as the buffer needs)"
    )
    how.add_argument("--element", choices=["f32", "f64"], default="f32", help="of results (default f32)")
    how.add_argument("--store", metavar="FILE|tcp:HOST:PORT", help="where sums go")
    how.add_argument("--counters", metavar="FILE", help="write each node's counters to FILE.NODE")
    arguments = parser.parse_args(words)
    if (arguments.library is None) == (arguments.plain is None):
        parser.error("either --library or --plain")
    if arguments.receivers < 0:
        parser.error("--receivers: a number of ranks, at least 1, or 0 for none")
    if arguments.receivers and (arguments.plain or arguments.plugin):
        parser.error("--receivers needs streams that ranks share: a daemon, and neither --plain nor --plugin")
    return arguments


def main(words=None):
    arguments = parse(words)
    sky = skies.of_options(arguments)
    if arguments.plain:
        source = Plain(arguments, sky, plain_rank())
        work(arguments, sky, Exchange(), source, source.blocks())
        source.close()
        return 0
    return with_stream(arguments, sky)


def plain_rank():
    """The launcher's word; 0 without one."""
    said = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return int(said[0]) if said else 0


if __name__ == "__main__":
    sys.exit(main())
