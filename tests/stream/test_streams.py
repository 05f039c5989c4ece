"""Streams in the plug-in: what comes out is what stations sent, and everything else is counted."""

import contextlib
import errno
import socket
import tempfile
import threading
import time

import numpy as np
import pytest
import sky as skies
import streams
import sums
from launching import wait_for
from observation import SKY, check_sums, config

PACKETS = 32 * SKY.block_packets


def udp(stream):
    return ",".join(f"127.0.0.1:{port}" for port in stream.ports())


def expected(sky, block, present):
    """The samples of a block, with zeros where nothing came."""
    tables = [sky.table(station) for station in range(sky.stations)]
    at = (np.arange(sky.block_samples) + block * sky.block_samples) % skies.PERIOD
    whole = np.stack([table[at] for table in tables])
    return whole * np.repeat(present, sky.packet_samples, axis=1)[:, :, None, None]


def look(sky, block):
    """The samples, which must be the sky's."""
    shape = (sky.stations, sky.block_samples, sky.subbands, 2)
    samples = block.samples.view(np.int8).reshape(shape)
    assert np.array_equal(samples, expected(sky, block.number, block.present)), block.number
    assert block.missing == np.count_nonzero(~block.present)
    return samples


@pytest.mark.parametrize("ports", [1, 2])
def test_all_that_is_sent_arrives_where_it_belongs(host, send, ports):
    opened = host.open("clear", config(ports=ports))
    rank = host.attach("clear", 0)
    sending = send("--udp", udp(opened), "--blocks", 32)
    numbers = []
    for block in rank.blocks():
        look(SKY, block)
        assert block.present.all() and block.time == block.number * SKY.block_samples
        numbers.append(block.number)
    assert numbers == list(range(32))
    sending.join()
    counters = opened.counters()
    check_sums(counters, PACKETS)
    assert [station["delivered"] for station in counters["station"]] == [PACKETS] * 2
    assert counters["foreign"] == counters["kernel_drops"] == counters["blocks_incomplete"] == 0


def test_faults_are_flagged_and_counted(host, send):
    opened = host.open("faults", config(slots=4096, deadline_ms=400))
    rank = host.attach("faults", 0)
    faults = ["--lose", 0.03, "--duplicate", 0.05, "--reorder", 0.1, "--late", 0.02, "--late-by", 4]
    sending = send("--udp", udp(opened), "--blocks", 32, *faults)
    present = np.concatenate(
        [look(SKY, block) is not None and block.present for block in rank.blocks()], axis=1
    )
    report = sending.join()
    sent = [count["packets"] + count["duplicated"] - count["lost"] for count in report["stations"]]
    wait_for(lambda: [station["arrived"] for station in opened.counters()["station"]] == sent)
    counters = opened.counters()
    check_sums(counters, PACKETS)
    for number, (station, sent) in enumerate(zip(counters["station"], report["stations"], strict=True)):
        assert sent["lost"] > 0 and sent["late"] > 0 and sent["duplicated"] > 0 and sent["reordered"] > 0
        assert station["missing"] == sent["lost"] + station["late"]
        # On a busy machine others may miss the deadline, too.
        assert station["late"] >= sent["late"]
        assert station["duplicate"] == sent["duplicated"]
        assert station["dropped"] == station["refused"] == station["outside"] == station["strange"] == 0
        # Exactly those that were lost, or late, are flagged.
        gone = set(np.flatnonzero(~present[number]))
        assert gone >= set(report["lost"][number]) and len(gone) == station["missing"]


def test_a_reader_that_is_too_slow_loses_the_oldest(host, send):
    """Overload: the ring is full, nobody reads; then it is read. Nothing is unaccounted for."""
    opened = host.open("slow", config(slots=8))
    rank = host.attach("slow", 0)
    send("--udp", udp(opened), "--blocks", 32).join()
    wait_for(lambda: sum(station["arrived"] for station in opened.counters()["station"]) == 2 * PACKETS)
    blocks = [(block.number, block.is_dropped) for block in rank.blocks()]
    assert blocks == [(number, number < 24) for number in range(32)]
    counters = opened.counters()
    check_sums(counters, PACKETS)
    for station in counters["station"]:
        assert (station["dropped"], station["delivered"]) == (24 * SKY.block_packets, 8 * SKY.block_packets)
    assert (counters["blocks_dropped"], counters["gaps_told"]) == (24, 24)


def test_tcp_makes_the_sender_wait(host, send):
    changes = {"input": streams.TCP_LISTEN, "pressure": streams.WAIT, "slots": 4}
    opened = host.open("tcp", config(**changes))
    rank = host.attach("tcp", 0)
    sending = send("--tcp", f"127.0.0.1:{opened.ports()[0]}", "--blocks", 32)
    for number, block in enumerate(rank.blocks()):
        if number % 8 == 0:
            time.sleep(0.05)
        look(SKY, block)
        assert block.present.all()
    sending.join()
    counters = opened.counters()
    check_sums(counters, PACKETS)
    assert [station["delivered"] for station in counters["station"]] == [PACKETS] * 2


def test_the_plug_in_fetches_from_an_input_cluster(host, send):
    """STREAM_TCP_CONNECT: the other end listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {"input": streams.TCP_CONNECT, "port": listener.getsockname()[1], "block_count": 2}
        opened = host.open("fetch", config(**settings))
        rank = host.attach("fetch", 0)
        connection, _ = listener.accept()
    with connection:
        for number in range(2 * SKY.block_packets):
            for station in range(2):
                at = (number * SKY.packet_samples) % skies.PERIOD
                samples = SKY.table(station)[at : at + SKY.packet_samples].tobytes()
                head = skies.HEADER.pack(b"ZST1", station, 0, number * SKY.packet_samples, len(samples), 0)
                # In pieces, as sockets may.
                connection.sendall(head[:7])
                connection.sendall(head[7:] + samples)
        assert [look(SKY, block) is not None for block in rank.blocks()] == [True, True]
    check_sums(opened.counters(), 2 * SKY.block_packets)


def test_results_of_k_blocks_leave_as_one_exact_sum(host, send, tmp_path):
    """Sums of whole numbers, compared with sums of the sky's; two parts; the last group
    unfinished."""
    opened = host.open("sums", config(block_count=30, deadline_ms=300))
    rank = host.attach("sums", 0)
    with open(tmp_path / "sums", "wb") as out:
        opened.store(out)
    sending = send("--udp", udp(opened), "--blocks", 30, "--lose", 0.05)
    wanted = np.zeros((8, 2, 2), np.int64)
    for block in rank.blocks():
        samples = look(SKY, block).astype(np.int64)
        for part in range(2):
            result = samples[:, :, 2 * part : 2 * part + 2].sum(axis=(0, 1, 3))
            wanted[block.number // 4, part] += result
            assert rank.gather(block.number, part, result, weight=np.count_nonzero(block.present))
            assert not rank.gather(block.number, part, result), "added twice"
    sending.join()
    opened.flush()
    records = sums.read(tmp_path / "sums")
    assert [(record.block, record.part) for record in records] == [
        (4 * g, p) for g in range(8) for p in range(2)
    ]
    for record in records:
        assert np.array_equal(record.values, wanted[record.block // 4, record.part]), record
        assert (record.results, record.blocks) == (4 if record.block < 28 else 2, 4)
        assert record.time == record.block * SKY.block_samples
    delivered = sum(station["delivered"] for station in opened.counters()["station"])
    assert sum(record.weight for record in records) == 2 * delivered
    counters = opened.counters()
    check_sums(counters, 30 * SKY.block_packets)
    # The second copy of a group's last result comes when the group has left.
    results = [counters[f"results_{what}"] for what in ("added", "duplicate", "late")]
    assert results == [60, 46, 14]
    assert (counters["groups"], counters["groups_incomplete"]) == (16, 2)
    assert counters["bytes_stored"] == (tmp_path / "sums").stat().st_size


def test_a_result_that_is_too_late_for_its_sum_is_refused_and_counted(host, tmp_path):
    opened = host.open("late", config(block_count=4, integrate=2, groups_open=1))
    rank = host.attach("late", 0)
    with open(tmp_path / "sums", "wb") as out:
        opened.store(out)
    values = np.ones(2, np.int64)
    # The second sum begins before the first has the result of block 1.
    assert [rank.gather(block, 0, values) for block in (0, 2, 1, 3)] == [True, True, False, True]
    opened.flush()
    assert [(record.block, record.results) for record in sums.read(tmp_path / "sums")] == [(0, 1), (2, 2)]
    counters = opened.counters()
    assert (counters["results_late"], counters["groups_incomplete"]) == (1, 1)


def test_every_element_is_added_exactly(host):
    for name, values in {
        "f32": np.array([0.5, -3], np.float32),
        "f64": np.array([2.0**40, 0.25]),
        "i32": np.array([7, -8], np.int32),
        "i64": np.array([2**50, -1]),
    }.items():
        with tempfile.NamedTemporaryFile() as out:
            opened = host.open(name, config(element=streams.ELEMENTS[name], integrate=3))
            opened.store(out)
            for block in range(3):
                opened.gather(block, 0, values)
            opened.flush()
            (record,) = sums.read(out.name)
            assert record.values.dtype == values.dtype and np.array_equal(record.values, 3 * values)
            opened.close()


def test_several_ranks_take_turns(host, send):
    opened = host.open("turns", config(ranks=3))
    got = {rank: [] for rank in range(3)}

    def work(rank):
        stream = host.attach("turns", rank)
        for block in stream.blocks():
            look(SKY, block)
            got[rank].append(block.number)
        stream.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in got]
    for thread in threads:
        thread.start()
    send("--udp", udp(opened), "--blocks", 32).join()
    for thread in threads:
        thread.join(30)
    assert got == {rank: list(range(rank, 32, 3)) for rank in range(3)}
    check_sums(opened.counters(), PACKETS)


def test_blocks_of_a_rank_that_died_go_to_the_next_one(host, send):
    opened = host.open("death", config(ranks=2))
    client = host.another()
    doomed = host.attach("death", 0)
    host.use(host.connections[0])
    alive = host.attach("death", 1)
    sending = send("--udp", udp(opened), "--blocks", 32)
    host.use(client)
    assert [doomed.scatter().number for _ in range(3)] == [0, 2, 4]
    host.use(host.connections[0])
    host.disconnect(client)
    assert [block.number for block in alive.blocks()] == [1, 3, 5, *range(6, 32)]
    sending.join()
    check_sums(opened.counters(), PACKETS)


def test_borrowed_blocks_are_read_where_they_lie(host, send):
    """No copy: the samples are the plug-in's own memory, which can't be written to, and stays as it
    is until given back."""
    opened = host.open("borrow", config(slots=4, deadline_ms=300))
    rank = host.attach("borrow", 0)
    reports = [send("--udp", udp(opened), "--blocks", 3, "--lose", 0.1).join()]
    first, second = rank.borrow(), rank.borrow()
    look(SKY, first)
    look(SKY, second)
    with pytest.raises((ValueError, TypeError)):
        first.samples[0] = 1
    with pytest.raises(OSError) as raised:
        rank._call("return", streams.c_uint64(7))
    assert raised.value.errno == errno.EINVAL
    # What would lie where the borrowed ones do is dropped before it begins; nothing that is read
    # changes.
    reports.append(send("--udp", udp(opened), "--first", 3, "--blocks", 29).join())
    sent = sum(count["packets"] - count["lost"] for report in reports for count in report["stations"])
    wait_for(lambda: sum(station["arrived"] for station in opened.counters()["station"]) == sent)
    look(SKY, first)
    look(SKY, second)
    rank.give_back(second)
    rank.give_back(first)
    with pytest.raises(OSError):
        rank.give_back(first)
    rest = []
    for block in rank.borrowed():
        rest.append((block.number, block.is_dropped))
        if not block.is_dropped:
            look(SKY, block)
    # Slots 0 and 1 were taken all the time.
    assert rest == [(number, number not in (30, 31)) for number in range(2, 32)]
    counters = opened.counters()
    check_sums(counters, PACKETS)
    assert (counters["blocks_delivered"], counters["blocks_dropped"]) == (4, 28)
    for station in counters["station"]:
        assert station["refused"] > 0 and station["strange"] == station["outside"] == 0


def test_what_a_dead_rank_had_borrowed_is_dealt_again(host, send):
    opened = host.open("lend", config(ranks=2, block_count=4))
    client = host.another()
    doomed = host.attach("lend", 0)
    host.use(host.connections[0])
    alive = host.attach("lend", 1)
    send("--udp", udp(opened), "--blocks", 4).join()
    host.use(client)
    assert [doomed.borrow().number for _ in range(2)] == [0, 2]
    host.use(host.connections[0])
    host.disconnect(client)
    numbers = [look(SKY, block) is not None and block.number for block in alive.borrowed()]
    assert numbers == [0, 1, 2, 3]
    counters = opened.counters()
    check_sums(counters, 4 * SKY.block_packets)
    assert (counters["blocks_redealt"], counters["blocks_delivered"]) == (2, 4)


def test_a_rank_that_comes_late_or_again_gets_its_turns(host, send):
    opened = host.open("again", config(ranks=2, slots=64))
    one = host.attach("again", 1)
    send("--udp", udp(opened), "--blocks", 32).join()
    assert one.scatter().number == 1
    zero = host.attach("again", 0)
    assert zero.scatter().number == 0
    zero.close()
    assert [one.scatter().number for _ in range(2)] == [2, 3]
    zero = host.attach("again", 0)
    assert zero.scatter().number == 4


def test_free_dealing_gives_the_oldest_to_whoever_asks(host, send):
    opened = host.open("free", config(deal=streams.FREE))
    send("--udp", udp(opened), "--blocks", 32).join()
    a, b = host.attach("free"), host.attach("free")
    numbers = [(a if step % 3 else b).scatter().number for step in range(32)]
    assert numbers == list(range(32))
    assert a.scatter() is None and b.scatter() is None


def test_nonsense_costs_nobody_anything(host, send):
    opened = host.open("noise", config())
    rank = host.attach("noise", 0)
    noise = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    noise.connect(("127.0.0.1", opened.ports()[0]))
    samples = SKY.table(0)[: SKY.packet_samples].tobytes()
    size = len(samples)
    header = skies.HEADER.pack
    for junk in (
        b"",
        b"ZST",
        header(b"ZST1", 0, 0, 0, size, 0),
        header(b"zst1", 0, 0, 0, size, 0) + samples,
        header(b"ZST1", 2, 0, 0, size, 0) + samples,
        header(b"ZST1", 0, 0, 1, size, 0) + samples,
        header(b"ZST1", 0, 0, 0, size, 9) + samples,
        header(b"ZST1", 0, 0, 0, size - 1, 0) + samples[1:],
        header(b"ZST1", 0, 2, 0, size, 0) + samples,
    ):
        noise.send(junk)
    # Of the right form, but of no time that can be.
    noise.send(header(b"ZST1", 1, 0, 2**62, size, 0) + samples)
    sending = send("--udp", udp(opened), "--blocks", 32)
    assert [block.number for block in rank.blocks() if block.present.all()] == list(range(32))
    sending.join()
    counters = opened.counters()
    check_sums(counters, PACKETS)
    assert counters["foreign"] == 9 and counters["station"][1]["outside"] == 1


def test_broken_clocks_cost_nobody_anything(host, send):
    """Times beyond what a buffer can hold: no end of the observation is known that would exclude
    them."""
    opened = host.open("clock", config(block_count=streams.UNBOUNDED, slots=8))
    rank = host.attach("clock", 0)
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    samples = bytes(SKY.packet_bytes)
    for when in (2**40, 2**61, 2**63, 2**64 - SKY.packet_samples):
        header = skies.HEADER.pack(b"ZST1", 0, 0, when, len(samples), 0)
        out.sendto(header + samples, ("127.0.0.1", opened.ports()[0]))
    wait_for(lambda: opened.counters()["foreign"] == 2)
    sending = send("--udp", udp(opened), "--blocks", 8)
    assert [look(SKY, block) is not None and block.number for block in rank.blocks()] == list(range(8))
    sending.join()
    counters = opened.counters()
    check_sums(counters, 8 * SKY.block_packets)
    assert [station["strange"] for station in counters["station"]] == [2, 0]


def test_strangers_at_a_tcp_port_are_sent_away(host, send):
    """More of them than there may be connections at once."""
    opened = host.open("strangers", config(input=streams.TCP_LISTEN, pressure=streams.WAIT))
    rank = host.attach("strangers", 0)
    port = opened.ports()[0]
    too_much = skies.HEADER.pack(b"ZST1", 0, 0, 0, 2**31, 0)
    for junk in (b"GET / HTTP/1.1\r\nHost: telescope\r\n\r\n", too_much) * 35:
        with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
            connection.sendall(junk)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    sending = send("--tcp", f"127.0.0.1:{port}", "--blocks", 32)
    assert [block.number for block in rank.blocks() if block.present.all()] == list(range(32))
    sending.join()
    counters = opened.counters()
    check_sums(counters, PACKETS)
    assert counters["foreign"] == 70


def test_silence_and_the_stations_word_end_a_stream(host, send):
    opened = host.open("ends", config(block_count=streams.UNBOUNDED, silence_ms=300, deadline_ms=100))
    rank = host.attach("ends", 0)
    header = skies.HEADER.pack(b"ZST1", 0, 0, 5 * SKY.block_samples, SKY.packet_bytes, 0)
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.sendto(header + bytes(SKY.packet_bytes), ("127.0.0.1", opened.ports()[0]))
    blocks = list(rank.blocks())
    assert [(block.number, block.missing) for block in blocks[5:]] == [(5, 2 * SKY.block_packets - 1)]
    assert all(block.missing == 2 * SKY.block_packets for block in blocks[:5])
    rank.close()
    opened.close()

    opened = host.open("ends", config(block_count=streams.UNBOUNDED))
    rank = host.attach("ends", 0)
    sending = send("--udp", udp(opened), "--blocks", 7)
    assert [block.number for block in rank.blocks()] == list(range(7))
    sending.join()
    assert [station["ended"] for station in opened.counters()["station"]] == [1, 1]
    rank.close()
    opened.close()

    opened = host.open("ends", config(deadline_ms=100))
    rank = host.attach("ends", 0)
    with pytest.raises(TimeoutError):
        rank.scatter(timeout=0.05)
    opened.end()
    # Nothing ever came: the observation is over before it began.
    assert all(block.missing == 2 * SKY.block_packets for block in rank.blocks())


def test_storage_that_fails_is_counted(host):
    here, there = socket.socketpair()
    opened = host.open("broken", config(integrate=1))
    opened.store(here)
    opened.gather(0, 0, np.array([1]))
    opened.flush()
    assert sums.take(there.recv(1000))[0].values.tolist() == [1]
    there.close()
    opened.gather(1, 0, np.array([1]))
    with pytest.raises(OSError) as raised:
        opened.flush()
    assert raised.value.errno == errno.EIO
    opened.gather(2, 0, np.array([1]))
    with pytest.raises(OSError):
        opened.flush()
    counters = opened.counters()
    assert (counters["groups"], counters["groups_lost"]) == (3, 2)
    here.close()


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"stations": 0}, errno.EINVAL),
        ({"stations": 2000}, errno.EINVAL),
        ({"slots": 1}, errno.EINVAL),
        ({"slots": 0, "buffer_ms": 1000}, errno.EINVAL),
        ({"packet_samples": 1 << 20}, errno.EINVAL),
        ({"subbands": 1 << 31, "packet_samples": 1 << 31}, errno.EINVAL),
        ({"pressure": streams.WAIT}, errno.EINVAL),
        ({"element": 9}, errno.EINVAL),
        ({"deal": 2}, errno.EINVAL),
        ({"input": 3}, errno.EINVAL),
        ({"ranks": 0}, errno.EINVAL),
        ({"address": b"no address"}, errno.EINVAL),
        ({"block_first": 1 << 63}, errno.EINVAL),
        ({"slots": 65_536, "block_packets": 8192}, errno.ENOMEM),
    ],
)
def test_measures_that_cannot_be_are_refused(host, changes, number):
    with pytest.raises(OSError) as raised:
        host.open("bad", config(**changes))
    assert raised.value.errno == number
    # The name is free again.
    host.open("bad", config()).close()


def test_names_handles_and_sizes_are_checked(host):
    opened = host.open("one", config())
    for wrong, number in (
        (lambda: host.open("one", config()), errno.EEXIST),
        (lambda: host.attach("two"), errno.ENOENT),
        (lambda: host.attach("one", 5), errno.EINVAL),
        (lambda: host.attach("one", -2), errno.EINVAL),
        (lambda: opened.scatter(), errno.EINVAL),
        (lambda: opened.gather(0, 0, np.zeros(3, np.int8)), errno.EINVAL),
        (lambda: opened.gather(0, 1 << 20, np.zeros(1, np.int64)), errno.EINVAL),
        (lambda: opened.gather(0, 0, np.zeros(0, np.int64)), errno.EINVAL),
        (lambda: opened.store_at("tcp:nobody:1"), errno.EINVAL),
    ):
        with pytest.raises(OSError) as raised:
            wrong()
        assert raised.value.errno == number
    assert opened.gather(0, 0, np.zeros(2, np.int64))
    with pytest.raises(OSError):
        opened.gather(1, 0, np.zeros(3, np.int64))
    opened._samples = (streams.c_uint8 * 8)()
    rank = host.attach("one", 0)
    rank._samples = (streams.c_uint8 * 8)()
    with pytest.raises(OSError) as raised:
        rank.scatter()
    assert raised.value.errno == errno.ENOBUFS
    opened.close()
    rank.close()
    with pytest.raises(OSError):
        host.attach("one")


def test_buffer_seconds_make_slots(host):
    stream = host.open("five", config(slots=0, buffer_ms=5000, sample_rate=20_480.0))
    assert stream.config.slots == 100
