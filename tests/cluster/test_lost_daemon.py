"""One reader whose daemon is killed, hangs, is cut off in the middle of a reply, or comes back.

No frame is lost or doubled, and what was handed out stays good.
"""

import json
import os
import signal
import socket
import time
import warnings

import pytest
import zazen
import zazen.testing
from cutter import Cutter

from conftest import Testbed
from conftest import frame_bytes as file_bytes

FRAMES = 700

pytestmark = pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")


def frame_bytes(number):
    return bytes((number * 29 + at * 3) % 247 for at in range(50)) * (1 + number % 30)


@pytest.fixture
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("z")
    path = folder / "backing" / "sim1"
    path.mkdir(parents=True)
    for number in range(FRAMES):
        (path / f"frame-{number:06}.bin").write_bytes(frame_bytes(number))
    return path


@pytest.fixture
def cluster(dataset):
    """One node that holds all frames but every seventh."""
    with zazen.testing.Cluster(dataset.parent.parent / "c", dataset.parent) as cluster:
        with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for number in range(FRAMES):
                if number % 7:
                    writer.push(number, frame_bytes(number), f"frame-{number:06}.bin")
        assert writer.counters.pushed == FRAMES - FRAMES // 7, writer.problems
        yield cluster


def read_all(dataset, socket, after_frame=lambda count: None, timeout=None, memory=65536):
    """All frames, each once and right; `after_frame` hears how many were read so far."""
    seen, held = set(), []
    with zazen.open(dataset, socket=socket, timeout=timeout) as opened:
        frames = opened.frames(0, FRAMES - 1, memory=memory)
        for frame in frames:
            assert frame.number not in seen, f"frame {frame.number} came twice"
            assert bytes(frame.data) == frame_bytes(frame.number), f"frame {frame.number} has other bytes"
            seen.add(frame.number)
            held.append(frame)
            after_frame(len(seen))
    assert seen == set(range(FRAMES))
    # What was handed out before stays as it was.
    for frame in held:
        assert bytes(frame.data) == frame_bytes(frame.number)
    return frames.stats


def at(moment, act):
    """Calls `act` after the `moment`-th frame."""
    return lambda count: act() if count == moment else None


@pytest.mark.parametrize("moment", [1, 4, 5, 21, 90, 300, FRAMES])
def test_killed_after_a_frame(cluster, dataset, moment):
    stats = read_all(dataset, cluster.sockets[0], at(moment, lambda: cluster.kill(0)))
    assert stats.frames == FRAMES and stats.local_share < 1


def test_killed_between_the_assignment_and_the_reading(cluster, dataset):
    """`frames` assigns, then begins to read: the last collective is the moment between."""

    class Alone:
        rank, size = 0, 1

        def allreduce_sum(self, words):
            cluster.kill(0)

        def allreduce_or(self, words):
            cluster.kill(0)

        allreduce_xor = allreduce_or

        def alltoallv(self, send):
            cluster.kill(0)
            return send

        def allgatherv(self, mine):
            cluster.kill(0)
            return [mine]

        def broadcast(self, mine):
            return mine

    with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
        assert opened.has_daemon
        frames = opened.frames(0, FRAMES - 1, comm=Alone())
        with pytest.raises(RuntimeError):
            cluster.pid(0)
        numbers = [frame.number for frame in frames]
        assert sorted(numbers) == list(range(FRAMES))


@pytest.mark.parametrize("moment", [1, 90])
def test_a_daemon_that_hangs_is_given_up(cluster, dataset, moment):
    """Stopped, it holds its connections and takes new ones; only its silence tells."""
    began = time.monotonic()
    try:
        stats = read_all(dataset, cluster.sockets[0], at(moment, lambda: cluster.pause(0)), timeout=0.5)
    finally:
        cluster.resume(0)
    assert stats.frames == FRAMES
    assert time.monotonic() - began < 60, "the bound is some seconds; without one it is minutes"


def test_a_busy_daemon_is_waited_for(cluster, dataset, tmp_path):
    """Silence on a call while pings are answered is no reason to give up."""

    class Slow(Cutter):
        delays = 2

        def _pass_some(self, source, target, answers):
            # Batches of frames are large; what answers a ping is not.
            if answers and self.delays and len(source.recv(2000, socket.MSG_PEEK)) == 2000:
                self.delays -= 1
                time.sleep(2.2)
            return super()._pass_some(source, target, answers)

    with Slow(tmp_path / "s", cluster.sockets[0]) as slow:
        stats = read_all(dataset, slow.path, timeout=1)
    assert slow.delays == 0, "nothing was held back"
    assert stats.native == FRAMES - FRAMES // 7, stats


def test_cut_off_at_any_byte(cluster, dataset, tmp_path):
    """All connections end at a byte of the daemon's answers: in a header, in a payload, between
    two.

    Answers that carry no descriptor may come by shared memory, which ends with its connection.
    """
    with Cutter(tmp_path / "whole", cluster.sockets[0]) as whole:
        read_all(dataset, whole.path)
        total = whole.passed
    assert total > 10_000, total
    cuts = [0, 1, 63, 64, 65, 200, 400, 401]
    cuts += [total * part // 19 + part for part in range(1, 19)] + [total - 65, total - 1]
    for number, after in enumerate(cuts):
        with Cutter(tmp_path / f"c{number}", cluster.sockets[0], after) as cutter:
            stats = read_all(dataset, cutter.path)
            assert stats.frames == FRAMES, after
            # How the scan is cut into batches varies, and with it the last bytes.
            assert cutter.has_cut or after > total // 2, after


def test_the_warning_names_node_socket_and_what_happens(cluster, dataset, tmp_path):
    """Once in a process, however often."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", zazen.ZazenWarning)
        for moment in (3, 40):
            read_all(dataset, cluster.sockets[0], at(moment, lambda: cluster.kill(0)))
            cluster.start(0)
    texts = [str(one.message) for one in told]
    assert len(texts) == 1, texts
    for word in ("node0", cluster.sockets[0], "from the backing store", "restart it"):
        assert word in texts[0], texts[0]


def test_a_daemon_that_comes_back_is_used_again(cluster, dataset):
    """Killed and started again in mid-scan; the reader, which takes its time, finds it."""

    def act(count):
        if count == 2:
            cluster.kill(0)
            cluster.start(0)
        elif count > 2:
            time.sleep(0.01)

    stats = read_all(dataset, cluster.sockets[0], act, timeout=0.2)
    # Batches of 4, 16 and 64 frames were asked for before; the rest would all have been "direct".
    # How soon the reader finds it depends on the machine.
    assert stats.native + stats.alien > 4 + 16 + 64, stats
    assert stats.frames == FRAMES


def test_a_dataset_that_lost_its_daemon_finds_it_again(cluster, dataset):
    with zazen.open(dataset, socket=cluster.sockets[0], timeout=0.1) as opened:
        cluster.kill(0)
        assert opened.query(0, FRAMES - 1) == (zazen.RunSet(), zazen.RunSet())
        cluster.start(0)
        deadline = time.monotonic() + 30
        while not len(opened.query(0, FRAMES - 1)[0]):
            assert time.monotonic() < deadline, "the daemon is back and not found"
            time.sleep(0.02)
        assert opened.frames(0, FRAMES - 1).assignment.natives == FRAMES - FRAMES // 7


def test_killed_while_a_miss_is_fetched(tmp_path, tool):
    """The file server gives some twenty frames a second: after the third of forty, others are under
    way."""
    slow = Testbed(tmp_path / "t", tool, "--server-rate", "64K")
    try:
        slow.write(40)
        state = json.loads((slow.folder / "testbed.json").read_text())
        daemon = state["nodes"][0]
        read = {}
        with zazen.open(slow.dataset, socket=daemon["socket"], backing=state["backing"]) as opened:
            for frame in opened.frames():
                assert bytes(frame.data) == file_bytes(frame.number) and frame.number not in read
                read[frame.number] = frame.source
                if len(read) == 3:
                    os.kill(daemon["process"]["pid"], signal.SIGKILL)
        assert sorted(read) == list(range(40))
        assert set(read.values()) == {"backing", "direct"}, read
    finally:
        tool("testbed", "down", "--dir", slow.folder)
