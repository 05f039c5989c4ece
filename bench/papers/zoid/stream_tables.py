#!/usr/bin/env python3
"""ZOID's Tables 1 and 2, telescope data through one node, run again: how many subbands a node
sustains in real time, and at what rates data move. Plain sockets, the same sockets forwarded, the
plug-in fed over TCP, and fed by datagrams.

    python bench/papers/zoid/stream_tables.py --quick
    python bench/papers/zoid/stream_tables.py --out bench/results/zoid

A subband is what it was in the paper: 160 Mbit/s in from 16 stations, 9.5 Mbit/s of results out.
Ranks only read what arrives, because only the transfer is measured. Sender, ranks, daemon and
storage share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "correlator"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import make_library
import result
import streams
import zazen.testing
from host import program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TITLE = "Telescope data in real time (Tables 1 and 2)"
PAPER = (
    "one I/O node sustains 4 subbands of 160 Mbit/s (CIOD: 3); straight from a station 481 Mbit/s come in "
    "and 1.27 Mbit/s leave, integrated over 30 s"
)
STATIONS = 16
SUBBAND_IN = 160e6 / 8
SUBBAND_OUT = 9.5e6 / 8
PACKET_BYTES = 8192
PACKET_SAMPLES = 64
# Per second; in the paper a rank gets a second of data at once.
BLOCKS_PER_S = 20
HEADER_BYTES = 24
# What UDP, IP and Ethernet add to a datagram; TCP, IP and Ethernet to each MSS of 1,448 bytes.
UDP_OVERHEAD, TCP_OVERHEAD = 8 + 20 + 18, (20 + 12 + 20 + 18) / 1448
MODES = {
    "direct": "plain sockets, not forwarded",
    "forwarded": "plain sockets, forwarded (version 1)",
    "tcp": "plug-in, one TCP stream per node (version 2)",
    "tcp-borrow": "the same, blocks read where they lie",
    "udp": "plug-in, datagrams from the stations (version 3)",
    "udp-borrow": "the same, blocks read where they lie",
}
QUICK_STEPS = [1, 4, 10]
STEPS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128]


@dataclass
class Programs:
    """The options of a run."""

    blast: Path
    rank: Path
    library: Path
    plugin: Path
    zazend: str
    zazen: str
    can_forward: bool


@dataclass
class Outcome:
    """One run of one mode."""

    blocks: int
    delivered: int
    seconds: float
    wanted_seconds: float
    # CPU seconds: daemon with plug-in, and ranks.
    daemon_cpu_s: float
    ranks_cpu_s: float
    bytes_in: int
    counters: dict = field(default_factory=dict)
    functions: dict = field(default_factory=dict)

    @property
    def is_sustained(self):
        """All blocks, no slower than they came."""
        return self.delivered == self.blocks and self.seconds <= 1.04 * self.wanted_seconds + 0.1


def compile_programs(folder):
    """The sender, the rank and the library."""
    zazen = program("zazen")
    library = make_library.make(folder, zazen=zazen)
    sdk, generated = folder / "sdk", folder / "generated"
    cc = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11"]
    blast, rank = folder / "blast", folder / "rank"
    subprocess.run([*cc, HERE / "stream_blast.c", "-o", blast], check=True)
    paths = [f"-I{path}" for path in (sdk, generated, make_library.HEADER.parent)]
    link = ["-L", sdk, "-lzazen_stub", f"-Wl,-rpath,{sdk}"]
    subprocess.run(
        [*cc, *paths, HERE / "stream_rank.c", generated / "stream_client.c", *link, "-o", rank], check=True
    )
    probe = subprocess.run([zazen, "run", "--help"], capture_output=True, check=False)
    can_forward = probe.returncode == 0 and b"--sockets" in probe.stdout and posix_plugin() is not None
    return Programs(blast, rank, library, make_library.plugin(), program("zazend"), zazen, can_forward)


def posix_plugin():
    """The plug-in that forwarded sockets need."""
    return make_library.installed("libzazen_posix.so")


class Daemon(zazen.testing.Daemon):
    """A daemon with the plug-ins, and the CPU time of it and its plug-ins' processes."""

    def __init__(self, programs, folder):
        folder = Path(tempfile.mkdtemp(dir=folder))
        (folder / "backing").mkdir()
        plugins = filter(None, (programs.plugin, posix_plugin() if programs.can_forward else None))
        super().__init__(
            folder, folder / "backing", [word for plugin in plugins for word in ("--plugin", plugin)],
            name="bench", zazend=programs.zazend, variables={"ZAZEN_STREAM_BYTES_MAX": str(6 << 30)},
        )  # fmt: skip
        self.start()

    def cpu_s(self):
        pids, ticks = [self.pid], 0
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += [int(child) for child in task.read_text().split()]
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def block_packets(subbands):
    """Packets of each station in a block."""
    return max(1, round(subbands * SUBBAND_IN / BLOCKS_PER_S / STATIONS / PACKET_BYTES))


def start(*command, **options):
    words = [str(word) for word in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)


def end(process, timeout):
    """Its output as JSON. Kills it if there is none in time."""
    try:
        said = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    lines = said.strip().splitlines()
    return json.loads(lines[-1]) if process.returncode == 0 and lines else None


def feeding(programs, kind, port, subbands, blocks, ranks, joined=1, stations=STATIONS):
    packets = block_packets(subbands)
    rate = packets * STATIONS * PACKET_BYTES * BLOCKS_PER_S
    return start(
        programs.blast, kind, "127.0.0.1", port, "--stations", stations, "--packet-bytes", PACKET_BYTES,
        "--packets", packets * STATIONS // stations, "--blocks", blocks, "--rate", rate, "--ranks", ranks,
        "--joined", joined, "--samples", PACKET_SAMPLES,
    )  # fmt: skip


def run_plain(programs, daemon, mode, subbands, seconds, ranks):
    """Version 1: each rank has a socket to the input cluster and one to storage."""
    blocks, packets = int(seconds * BLOCKS_PER_S), block_packets(subbands)
    sink = start(programs.blast, "sink", "127.0.0.1", 0)
    feed = feeding(programs, "serve", 0, subbands, blocks, ranks)
    ports = [json.loads(process.stdout.readline())["port"] for process in (feed, sink)]
    result_bytes = int(subbands * SUBBAND_OUT / BLOCKS_PER_S) // 8 * 8
    wrap = []
    if mode == "forwarded":
        # The folder is not there, and nobody asks for it: sockets are what is forwarded.
        wrap = [
            programs.zazen,
            "run",
            "--forward",
            "/no/folder",
            "--sockets",
            "--socket",
            daemon.socket,
            "--",
        ]
    cpu = daemon.cpu_s()
    computing = [
        start(*wrap, programs.rank, "plain", "127.0.0.1", ports[0], rank, "127.0.0.1", ports[1], result_bytes)
        for rank in range(ranks)
    ]
    limit = 5 * seconds + 10
    done = [end(process, limit) for process in computing]
    fed = end(feed, 1 if None in done else limit)
    end(sink, 1 if None in done else limit)
    cpu = daemon.cpu_s() - cpu
    got = [rank for rank in done if rank]
    return Outcome(
        blocks, sum(rank["blocks"] for rank in got), fed["seconds"] if fed else limit, seconds, cpu,
        sum(rank["cpu_s"] for rank in got), blocks * packets * STATIONS * PACKET_BYTES,
    )  # fmt: skip


def run_stream(
    programs,
    daemon,
    mode,
    subbands,
    seconds,
    ranks,
    integrate=1,
    joined=1,
    stations=STATIONS,
    correlated=None,
):
    """Versions 2 and 3: through the plug-in. Results are those of `correlated` subbands, if not of
    all."""
    blocks, packets = int(seconds * BLOCKS_PER_S), block_packets(subbands)
    mode, _, borrow = mode.partition("-")
    block_bytes = packets * STATIONS * PACKET_BYTES
    slots = max(4, min((2 << 30) // block_bytes, 5 * BLOCKS_PER_S))
    sink = start(programs.blast, "sink", "127.0.0.1", 0)
    storage = json.loads(sink.stdout.readline())["port"]
    with streams.Library(programs.library).connect(daemon.socket) as host:
        opened = host.open("bench", streams.Config(
            stations=stations, subbands=32, sample_bytes=4, packet_samples=PACKET_SAMPLES,
            block_packets=packets * STATIONS // stations, slots=slots, block_first=0, block_count=blocks,
            ranks=ranks, deadline_ms=500, silence_ms=3000, integrate=integrate,
            input=streams.UDP if mode == "udp" else streams.TCP_LISTEN,
            pressure=streams.DROP_OLDEST if mode == "udp" else streams.WAIT,
        ))  # fmt: skip
        opened.store_at(f"tcp:127.0.0.1:{storage}")
        result_bytes = int((correlated or subbands) * SUBBAND_OUT / BLOCKS_PER_S) // 8 * 8
        environment = {**os.environ, "ZAZEN_SOCKET": str(daemon.socket)}
        before = functions(programs, daemon)
        computing = [
            start(programs.rank, borrow or "stream", "bench", rank, result_bytes, env=environment)
            for rank in range(ranks)
        ]
        wait_for_ranks(programs, daemon, ranks)
        cpu = daemon.cpu_s()
        feed = feeding(programs, mode, opened.ports()[0], subbands, blocks, ranks, joined, stations)
        limit = 5 * seconds + 20
        done = [end(process, limit) for process in computing]
        fed = end(feed, limit)
        opened.flush()
        cpu = daemon.cpu_s() - cpu
        counters = opened.counters()
        after = functions(programs, daemon)
        opened.close()
    end(sink, limit)
    got = [rank for rank in done if rank]
    whole = sum(rank["blocks"] for rank in got) - counters["blocks_incomplete"]
    took = max([fed["seconds"] if fed else limit, *(rank["seconds"] for rank in got)])
    spent = {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in after}
    return Outcome(
        blocks, whole, took, seconds, cpu, sum(rank["cpu_s"] for rank in got), blocks * block_bytes,
        counters, spent,
    )  # fmt: skip


def wait_for_ranks(programs, daemon, ranks):
    """Until all of them wait for their first block."""
    for _ in range(100):
        if plugin_report(programs, daemon)["running"] >= ranks:
            return
        time.sleep(0.02)


def plugin_report(programs, daemon):
    said = subprocess.run(
        [programs.zazen, "plugin", "stats", "stream", "--socket", daemon.socket, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(said.stdout)[0]


def functions(programs, daemon):
    """Bytes in and out of each function, heads included, as the host counts them."""
    rows = plugin_report(programs, daemon)["functions"]
    return {row["name"]: [row["bytes_in"], row["bytes_out"]] for row in rows}


def run(programs, daemon, mode, subbands, seconds, ranks):
    if mode in ("direct", "forwarded"):
        return run_plain(programs, daemon, mode, subbands, seconds, ranks)
    return run_stream(programs, daemon, mode, subbands, seconds, ranks)


def table_one(programs, daemon, modes, quick, ranks, say):
    """The most subbands that are sustained, by mode, trying ever more; each step in all modes
    before the next one."""
    best, failed, costs = dict.fromkeys(modes, 0), {}, {mode: [] for mode in modes}
    seconds = 1.0 if quick else 3.0
    for subbands in QUICK_STEPS if quick else STEPS:
        for mode in [mode for mode in modes if mode not in failed]:
            outcomes = [run(programs, daemon, mode, subbands, seconds, ranks)]
            if not outcomes[0].is_sustained:
                # One success may be chance.
                outcomes.append(run(programs, daemon, mode, subbands, seconds, ranks))
            if outcomes[-1].is_sustained:
                best[mode] = subbands
                cpu = outcomes[-1].daemon_cpu_s + outcomes[-1].ranks_cpu_s
                costs[mode].append((subbands, cpu / (outcomes[-1].bytes_in / 1e9)))
            else:
                failed[mode] = subbands
            say(
                f"{mode}: {subbands} subbands {'sustained' if outcomes[-1].is_sustained else 'not sustained'}"
            )
        if len(failed) == len(modes):
            break
    rows = []
    for mode in modes:
        cost = result.Value.of([seconds for _, seconds in costs[mode]]) if costs[mode] else None
        rate = best[mode] * SUBBAND_IN * 8 / 1e6
        more = f"< {failed[mode]}" if mode in failed else "not reached"
        rows.append([MODES[mode], best[mode], more, rate, best[mode] * SUBBAND_OUT * 8 / 1e6, cost])
    table = result.Table(
        "Table 1: subbands per node, in real time",
        ["way", "sustained", "limit", "in", "out", "CPU of node and ranks per GB in"],
        ["", "subbands", "subbands", "Mbit/s", "Mbit/s", "s"],
        [["paper: CIOD", 3, "< 4", 480, 28.5, None], ["paper: ZOID", 4, "< 5", 640, 38.0, None], *rows],
        [f"{ranks} ranks; results are not integrated, as in the paper's table."],
    )
    return table, best, failed


def table_two(programs, daemon, quick, ranks):
    """The rates of one station's 48 subbands at 481 Mbit/s. Results are of four of them, as in the
    paper (those of all stations, exchanged between nodes), and are added 30 to 1."""
    subbands, seconds = 481e6 / 8 / SUBBAND_IN, 3.0 if quick else 12.0
    outcome = run_stream(
        programs, daemon, "udp", subbands, seconds, ranks, integrate=30, stations=1, correlated=4
    )
    mbit = lambda count: count * 8 / 1e6 / seconds  # noqa: E731
    counters, spent = outcome.counters, outcome.functions
    station = counters["station"][0]
    payload = station["stored"] * PACKET_BYTES
    frames = station["arrived"] * (PACKET_BYTES + HEADER_BYTES + UDP_OVERHEAD)
    down, up = counters["bytes_scattered"], counters["bytes_gathered"]
    out = counters["bytes_stored"] - 64 * counters["groups"]
    rows = [
        ["network in", 481, 485, mbit(payload), mbit(frames)],
        ["daemon → ranks", 492, 533, mbit(down), mbit(sum(spent["stream_scatter"]))],
        ["ranks → daemon", 38.0, 41.2, mbit(up), mbit(sum(spent["stream_gather"]))],
        ["network out", 1.27, 1.37, mbit(out), mbit(counters["bytes_stored"] * (1 + TCP_OVERHEAD))],
    ]
    names = ["", "paper, payload", "paper, with overhead", "payload", "with overhead"]
    table = result.Table(
        "Table 2: data rates of a node, 48 subbands of a station", names, ["", *["Mbit/s"] * 4], rows,
        [
            f"{outcome.delivered} of {outcome.blocks} blocks whole; kernel drops {counters['kernel_drops']}; "
            f"results of 30 blocks are added: {counters['bytes_gathered'] / max(1, out):.1f}-fold less goes.",
            "Overhead in and out is computed (headers of Ethernet, IP, UDP or TCP, and ours); between daemon "
            "and ranks it is what the host counted: calls' heads, bitmaps, descriptions of blocks.",
        ],
    )  # fmt: skip
    return table, outcome


def per_core(programs, daemon, quick, ranks):
    """UDP in, by the CPU time of the receiving thread, and of the daemon with plug-in, hand-out and
    sums."""
    rows, rates = [], []
    for joined, what in ((1, "datagrams one by one"), (7, "sender and kernel join 7 (GSO, GRO)")):
        receiver, daemons = [], []
        for _ in range(2 if quick else 5):
            outcome = run_stream(programs, daemon, "udp", 24, 1.0 if quick else 2.0, ranks, joined=joined)
            c = outcome.counters
            receiver.append(c["bytes_in"] * 8 / max(1, c["receiver_cpu_ns"]))
            daemons.append(c["bytes_in"] * 8e-9 / max(0.01, outcome.daemon_cpu_s))
        arrived = sum(station["arrived"] for station in c["station"])
        values = [result.Value.of(receiver), result.Value.of(daemons)]
        rows.append([what, *values, arrived / max(1, c["receives"])])
        rates.append(values[1].median)
    return result.Table(
        "UDP in, 8,192-byte packets of 16 stations to one port",
        ["", "per core of the receiver", "per core of the daemon", "packets of a system call, last run"],
        ["", "Gbit/s", "Gbit/s", ""], rows,
        [
            "By the CPU time of the receiving thread, and of the daemon with all it does for the stream: "
            "receiving, handing out, adding, sending sums. "
            "On loopback, part of the kernel's work is the sender's."
        ],
    ), rates[0]  # fmt: skip


def measure(quick=False, ranks=4, say=print):
    """Everything; a result.Figure."""
    figure = result.Figure("streams", TITLE, PAPER, "python bench/papers/zoid/stream_tables.py")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zs") as folder:
        programs = compile_programs(Path(folder))
        daemon = Daemon(programs, folder)
        try:
            modes = [mode for mode in MODES if mode != "forwarded" or programs.can_forward]
            if not programs.can_forward:
                figure.skipped.append(
                    "forwarded sockets: `zazen run --forward` or libzazen_posix.so is not there"
                )
            one, best, failed = table_one(programs, daemon, modes, quick, ranks, say)
            two, outcome = table_two(programs, daemon, quick, ranks)
            three, rate = per_core(programs, daemon, quick, ranks)
        finally:
            daemon.stop()
    figure.tables += [one, two, three]
    figure.goals.append(
        result.Goal(
            "UDP in per core", "≥ 3 Gbit/s", f"{rate:.1f} Gbit/s", rate >= 3, "by the daemon's CPU time"
        )
    )
    station = outcome.counters["station"][0]
    total = station["delivered"] + station["missing"] + station["dropped"]
    expected = outcome.blocks * block_packets(481e6 / 8 / SUBBAND_IN) * STATIONS
    figure.goals.append(result.Goal("packets unaccounted for", "0", str(expected - total), expected == total))
    if "forwarded" in best:
        known = {"tcp", "forwarded"} & set(failed)
        figure.goals.append(
            result.Goal(
                "subbands: plug-in, TCP from an input cluster, against forwarded sockets",
                "more, as 4 > 3 in the paper",
                f"{best['tcp']} against {best['forwarded']}; datagrams from the stations: {best['udp']}",
                best["tcp"] > best["forwarded"] if known else None,
                "" if known else "neither's limit was reached",
            )
        )
    figure.limits.append(
        f"{os.cpu_count()} cores carry stations, daemon, {ranks} ranks and storage; the network is loopback"
    )
    figure.quick, figure.seconds = quick, round(time.monotonic() - began, 1)
    return figure


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short runs, few subbands: does it work?")
    parser.add_argument("--ranks", type=int, default=4, help="compute ranks (default 4)")
    parser.add_argument("--out", type=Path, help="write streams.json there")
    arguments = parser.parse_args()
    note = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    figure = measure(arguments.quick, arguments.ranks, note)
    print(result.as_text(figure))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result.save(figure, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
