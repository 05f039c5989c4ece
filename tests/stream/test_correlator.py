"""The FX correlator under MPI, in the three versions of the paper: the fringe is where the sky has
it, every packet is accounted for, and sums of whole numbers are exact."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import make_library
import numpy as np
import pytest
import sky as skies
import streams
import sums
import zazen.testing
from launching import wait_for
from observation import EXAMPLE, check_sums, config, wait_for_ports

CORRELATOR = EXAMPLE / "correlator.py"
BLOCKS = 24
SKY = skies.Sky(stations=4)
OBSERVED = ["--stations", 4, "--blocks", BLOCKS]


def finish(job, status=0):
    said = job.communicate(timeout=90)[0].decode()
    assert job.returncode == status, said
    return said


def stations(*words, program="stations.py", **options):
    command = [str(word) for word in (sys.executable, EXAMPLE / program, *words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def counters_of(folder, nodes):
    return [json.loads((folder / f"counters.{node}").read_text()) for node in range(nodes)]


def udp(ports):
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def test_each_rank_a_node_without_a_daemon(mpi, loopback_library, plugin, tmp_path):
    """Two nodes with two stations each, exchanging subbands; a polyphase filter; faults."""
    ready, store = tmp_path / "ready", tmp_path / "sums"
    job = mpi(
        2, CORRELATOR, "--library", loopback_library, "--plugin", plugin, "--nodes", 2, *OBSERVED,
        "--ready", ready, "--store", store, "--counters", tmp_path / "counters", "--taps", 4,
        "--slots", 256, "--copy",
    )  # fmt: skip
    nodes = wait_for_ports(ready, job)
    faults = ["--lose", 0.02, "--duplicate", 0.02, "--reorder", 0.05]
    senders = [
        stations(*OBSERVED, "--udp", udp(ports), "--only", f"{2 * node}-{2 * node + 2}", *faults)
        for node, ports in enumerate(nodes)
    ]
    reports = [json.loads(sender.communicate(timeout=60)[0]) for sender in senders]
    said = finish(job)
    assert f"subband {SKY.tone_subband}, channel {SKY.tone}" in said and said.count("delivered") == 4
    for counters, report in zip(counters_of(tmp_path, 2), reports, strict=True):
        check_sums(counters, BLOCKS * SKY.block_packets)
        assert [station["missing"] - station["late"] for station in counters["station"]] == [
            sent["lost"] for sent in report["stations"]
        ]


def exact(sky, present, first, blocks):
    """Correlations of these blocks with one channel, by the definition: whole numbers."""
    tables = [sky.table(station).astype(np.int64) for station in range(sky.stations)]
    at = np.arange(first * sky.block_samples, (first + blocks) * sky.block_samples)
    there = np.repeat(present, sky.packet_samples, axis=1)[:, at]
    pairs = [(a, b) for a in range(sky.stations) for b in range(a, sky.stations)]
    sums_of = np.empty((sky.subbands, len(pairs)), complex)
    for index, (a, b) in enumerate(pairs):
        x, y = (tables[s][at % skies.PERIOD] * there[s][:, None, None] for s in (a, b))
        real = (x[..., 0] * y[..., 0] + x[..., 1] * y[..., 1]).sum(axis=0)
        imaginary = (x[..., 1] * y[..., 0] - x[..., 0] * y[..., 1]).sum(axis=0)
        sums_of[:, index] = real + 1j * imaginary
    return sums_of, np.array([(there[a] & there[b]).sum() for a, b in pairs])


@pytest.mark.parametrize("receivers", [0, 1])
@pytest.mark.parametrize("daemon", ["isolated"], indirect=True)
def test_a_daemon_and_exact_sums(mpi, daemon, daemon_library, tmp_path, receivers):
    """Two streams in a daemon, four ranks, of which two may only receive; with one channel the
    visibilities are sums of whole numbers."""
    ready, store = tmp_path / "ready", tmp_path / "sums"
    job = mpi(
        4, CORRELATOR, "--library", daemon_library, "--socket", daemon.sockets[0], "--nodes", 2, *OBSERVED,
        "--ready", ready, "--store", store, "--counters", tmp_path / "counters", "--channels", 1, "--tone", 0,
        "--delay", 5, "--element", "f64", "--slots", 256, "--integrate", 4, "--deadline-ms", 6000,
        "--receivers", receivers,
    )  # fmt: skip
    nodes = wait_for_ports(ready, job)
    sky = skies.Sky(stations=4, channels=1, tone=0, delay=5)
    observed = [*OBSERVED, "--channels", 1, "--tone", 0, "--delay", 5, "--lose", 0.03]
    senders = [
        stations(*observed, "--udp", udp(ports), "--only", f"{2 * node}-{2 * node + 2}")
        for node, ports in enumerate(nodes)
    ]
    present = np.ones((4, BLOCKS * sky.block_packets), bool)
    losses = []
    for node, sender in enumerate(senders):
        lost = json.loads(sender.communicate(timeout=60)[0])["lost"]
        losses.append([len(of_station) for of_station in lost])
        for station, of_station in enumerate(lost, 2 * node):
            present[station, of_station] = False
    said = finish(job)
    work = f"blocks received by its ranks: [{BLOCKS}], computed: [{BLOCKS}]"
    assert said.count(work) == 2 * receivers, said
    # Whatever could make a sum differ from the sky has a counter, and each is what was sent.
    for counters, lost in zip(counters_of(tmp_path, 2), losses, strict=True):
        check_sums(counters, BLOCKS * sky.block_packets)
        others = ["late", "dropped", "refused", "outside", "strange", "duplicate"]
        assert [station["missing"] for station in counters["station"]] == lost, counters
        assert sum(station[other] for station in counters["station"] for other in others) == 0, counters
        others = [
            "kernel_drops",
            "foreign",
            "blocks_dropped",
            "groups_incomplete",
            "groups_lost",
            "results_late",
        ]
        assert {other: counters[other] for other in others} == dict.fromkeys(others, 0)
    for node in range(2):
        records = sums.read(f"{store}.{node}")
        assert [record.block for record in records] == list(range(0, BLOCKS, 4))
        for record in records:
            assert record.results == 4, record.block
            values, weights = exact(sky, present, record.block, 4)
            found = record.values[: 2 * 2 * 10].view(complex).reshape(2, 10)
            assert np.array_equal(found, values[2 * node : 2 * node + 2]), record.block
            assert np.array_equal(record.values[40:], weights)
    # The output is cut 4-fold.
    counters = counters_of(tmp_path, 2)[0]
    results, headers = counters["bytes_gathered"], 64 * counters["groups"]
    assert counters["bytes_stored"] - headers == results // 4


@pytest.mark.parametrize("daemon", ["isolated"], indirect=True)
def test_receivers_and_computing_ranks(mpi, daemon, daemon_library, tmp_path):
    """Two ranks only take blocks, in turns, and three only compute; a packet in five is lost."""
    ready, store = tmp_path / "ready", tmp_path / "sums"
    observed = ["--stations", 2, "--blocks", BLOCKS]
    job = mpi(
        5, CORRELATOR, "--library", daemon_library, "--socket", daemon.sockets[0], *observed,
        "--receivers", 2, "--ready", ready, "--store", store, "--counters", tmp_path / "counters",
        "--slots", 256, "--integrate", 5, "--copy",
    )  # fmt: skip
    [ports] = wait_for_ports(ready, job)
    sender = stations(*observed, "--udp", udp(ports), "--lose", 0.2)
    report = json.loads(sender.communicate(timeout=60)[0])
    said = finish(job)
    assert f"subband {SKY.tone_subband}, channel {SKY.tone}" in said
    assert "blocks received by its ranks: [12, 12], computed: [8, 8, 8]" in said, said
    [counters] = counters_of(tmp_path, 1)
    check_sums(counters, BLOCKS * SKY.block_packets)
    assert [station["missing"] - station["late"] for station in counters["station"]] == [
        sent["lost"] for sent in report["stations"]
    ]
    assert [(record.block, record.results) for record in sums.read(store)] == [
        (0, 5), (5, 5), (10, 5), (15, 5), (20, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("daemon", ["isolated"], indirect=True)
def test_receivers_that_leave_nobody_to_compute(mpi, daemon, daemon_library):
    where = ["--library", daemon_library, "--socket", daemon.sockets[0]]
    job = mpi(2, CORRELATOR, *where, "--receivers", 2)
    said = job.communicate(timeout=90)[0].decode()
    assert job.returncode != 0 and "leaves no rank to compute: each node has 2 ranks" in said, said


def test_receivers_need_streams_that_ranks_share(plugin):
    for words in (["--library", "x", "--plugin", plugin], ["--plain", "127.0.0.1:1"]):
        command = [sys.executable, CORRELATOR, *words, "--receivers", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "--receivers needs streams that ranks share" in done.stderr


def test_one_tcp_stream_per_node(mpi, loopback_library, plugin, tmp_path):
    """Version 2: an input cluster sends all over one connection, and waits when the ranks are
    busy."""
    ready, store = tmp_path / "ready", tmp_path / "sums"
    job = mpi(
        1, CORRELATOR, "--library", loopback_library, "--plugin", plugin, *OBSERVED, "--input", "tcp",
        "--ready", ready, "--store", store, "--counters", tmp_path / "counters", "--slots", 4,
    )  # fmt: skip
    [[port]] = wait_for_ports(ready, job)
    sender = stations(*OBSERVED, "--tcp", f"127.0.0.1:{port}")
    assert f"subband {SKY.tone_subband}, channel {SKY.tone}" in finish(job)
    sender.communicate(timeout=60)
    (counters,) = counters_of(tmp_path, 1)
    check_sums(counters, BLOCKS * SKY.block_packets)
    assert [station["delivered"] for station in counters["station"]] == [BLOCKS * SKY.block_packets] * 4


class Cluster:
    """An input cluster and storage for plain programs."""

    def __init__(self, ranks, out):
        self.out = out
        self.serving = stations(*OBSERVED, "--serve", "127.0.0.1:0", "--ranks", ranks)
        words = ["--listen", "127.0.0.1:0", "--ranks", ranks, "--integrate", 8, "--out", out]
        self.storage = stations(*words, program="sums.py")
        port = json.loads(self.serving.stdout.readline())["port"]
        storage_port = self.storage.stdout.readline().split()[-1]
        self.words = [
            "--plain", f"127.0.0.1:{port}", "--store", f"tcp:127.0.0.1:{storage_port}", *OBSERVED,
            "--channels", 1, "--tone", 0, "--element", "f64",
        ]  # fmt: skip

    def check(self):
        """The same sums as a daemon makes, an eighth of what came."""
        self.serving.communicate(timeout=90)
        said = self.storage.communicate(timeout=90)[0].split()
        came, left = (int(word) for word in said if word.isdigit())
        assert came == 8 * left
        records = sums.read(self.out)
        assert [(record.block, record.results) for record in records] == [(0, 8), (8, 8), (16, 8)]
        present = np.ones((4, BLOCKS * SKY.block_packets), bool)
        for record in records:
            values, weights = exact(SKY, present, record.block, 8)
            found = record.values[: 2 * values.size].view(complex).reshape(values.shape)
            assert np.array_equal(found, values)
            assert np.array_equal(record.values[2 * values.size :], weights)


def test_plain_sockets_and_an_adding_storage(mpi, tmp_path):
    """Version 1: a socket in and one out for each rank, and storage that adds."""
    cluster = Cluster(2, tmp_path / "sums")
    finish(mpi(2, CORRELATOR, *cluster.words))
    cluster.check()


def test_forwarded_sockets(tmp_path, tmp_path_factory):
    """Version 1 as it was meant: the same program, unchanged, whose sockets are the daemon's."""
    posix, preload = (
        make_library.installed("libzazen_posix.so"),
        make_library.installed("libzazen_preload.so"),
    )
    if posix is None or preload is None:
        pytest.skip("libzazen_posix.so or libzazen_preload.so is neither installed nor built")
    folder = tmp_path_factory.mktemp("z")
    (folder / "backing").mkdir()
    with zazen.testing.Cluster(folder / "c", folder / "backing", arguments=["--plugin", posix]) as daemons:
        cluster = Cluster(1, tmp_path / "sums")
        forward = [
            "--forward",
            "/no/folder",
            "--sockets",
            "--socket",
            daemons.sockets[0],
            "--library",
            preload,
        ]
        program = [sys.executable, CORRELATOR, *cluster.words]
        command = [zazen.testing.program("zazen"), "run", *forward, "--", *program]
        done = subprocess.run([str(word) for word in command], capture_output=True, timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        cluster.check()
        stats = [
            zazen.testing.program("zazen"),
            "plugin",
            "stats",
            "posix",
            "--socket",
            daemons.sockets[0],
            "--json",
        ]
        (report,) = json.loads(subprocess.run(stats, capture_output=True, check=True).stdout)
        moved = sum(row["bytes_out"] for row in report["functions"])
        assert moved > BLOCKS * 4 * SKY.block_packets * SKY.packet_bytes, "it went past the daemon"


def commands_and_words(body):
    """Of a block of the page: what is typed, and what it says there that is printed."""
    typed, printed = [], []
    for line in body.replace("\\\n", "").splitlines():
        (typed if line.startswith("$ ") else printed).append(line.removeprefix("$ "))
    return typed, printed


def test_the_page_as_typed(mpi, plugin, tmp_path):
    """docs/streams.md: each command in a copy of the example, but for the numbers of ports."""
    if not all(plugin.with_name(f"libzazen_{name}.so").exists() for name in ("posix", "preload")):
        pytest.skip("libzazen_posix.so or libzazen_preload.so is not beside the stream plug-in")
    folder = tmp_path / "examples" / "correlator"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "alone", "build"))
    (tmp_path / "plugins" / "stream").mkdir(parents=True)
    shutil.copy(make_library.HEADER, tmp_path / "plugins" / "stream")
    page = (EXAMPLE.parents[1] / "docs" / "streams.md").read_text().split("## What a stream is")[0]
    blocks = [commands_and_words(body) for body in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)]
    script = "\n".join(["set -e", *(line for typed, _ in blocks for line in typed)])
    for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", script))):
        script = script.replace(port, str(free_port()))
    said = type_in(script, tmp_path, ZAZEN_STREAM_PLUGIN=str(plugin))
    for line in (line for _, printed in blocks for line in printed):
        assert line in said, f"{line!r} not in {said!r}"


def free_port():
    """A port that nobody has, and that the kernel gives to nobody who asks for any port: those of
    its own range are soon another program's."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(lowest, 20_000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def type_in(script, folder, **environment):
    """What the script prints; nothing of what it began is left."""
    beside = [Path(zazen.testing.program("zazen")).parent, Path(sys.executable).parent]
    clean = zazen.testing.environment()
    clean["PATH"] = ":".join([*map(str, beside), os.environ["PATH"]])
    # To a file: what the script began and left has a pipe open for ever.
    out = folder / "said"
    with out.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, stdout=sink, stderr=subprocess.STDOUT,
            env={**clean, **environment}, start_new_session=True,
        )  # fmt: skip
    try:
        status = shell.wait(timeout=400)
        assert status == 0, out.read_text()
        return out.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_the_programs_say_how_they_are_used():
    for program in ("stations.py", "sums.py", "make_library.py", "correlator.py"):
        done = subprocess.run(
            [sys.executable, EXAMPLE / program, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "python " in done.stdout, done.stderr


RANK = """
import sys
import streams

with streams.Library(sys.argv[1]).connect(sys.argv[2]) as host:
    stream = host.attach("killed", int(sys.argv[3]))
    for block in stream.blocks():
        print(block.number, flush=True)
        if sys.argv[3] == "0":
            sys.stdin.read()
"""


def test_a_killed_ranks_blocks_go_to_the_next_one(daemon, daemon_library):
    """kill -9 in the middle of an observation; nothing is lost but what the rank had, nothing
    remains."""
    sky = skies.Sky()
    with streams.Library(daemon_library).connect(daemon.sockets[0]) as host:
        opened = host.open("killed", config(ranks=2, slots=256))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", RANK, daemon_library, daemon.sockets[0]]
        ranks = [
            subprocess.Popen([*command, str(rank)], text=True, cwd=EXAMPLE, **pipes) for rank in range(2)
        ]
        sender = stations("--udp", udp(opened.ports()), "--blocks", 32)
        assert ranks[0].stdout.readline() == "0\n"
        ranks[0].kill()
        ranks[0].communicate()
        said = ranks[1].communicate(timeout=60)[0].split()
        assert sorted(int(number) for number in said) == list(range(1, 32))
        sender.communicate(timeout=60)
        counters = opened.counters()
        check_sums(counters, 32 * sky.block_packets)
        assert counters["blocks_delivered"] == 32
        opened.close()
        # The last handle is closed, or its client seen to be gone: the name is free again.
        wait_for(lambda: is_gone(host, "killed"))


def test_another_client_looks_at_a_stream(daemon, daemon_library):
    """A stream is there as long as somebody has a handle on it, whoever opened it."""
    library = streams.Library(daemon_library)
    with library.connect(daemon.sockets[0]) as first:
        first.open("shared", config())
        with library.connect(daemon.sockets[0]) as second:
            watcher = second.attach("shared")
            assert watcher.counters()["stations"] == 2
            first.c.zazen_disconnect(streams.c_void_p(first.connection))
            first.connection = None
            assert watcher.counters()["stations"] == 2
            watcher.close()
            wait_for(lambda: is_gone(second, "shared"))


def is_gone(host, name):
    try:
        host.attach(name).close()
    except FileNotFoundError:
        return True
    return False
