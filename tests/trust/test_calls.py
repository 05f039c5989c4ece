"""Whom a client believes, and what one caller can ask of a daemon."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import tempfile
import threading
import tomllib
import urllib.request
import warnings
from pathlib import Path

import pytest
import wire
import zazen
import zazen.testing
from launching import wait_for

from conftest import SECONDS_MAX, read_frames, write_frames

FORGED = b"forged"


def squat(program, folder, path, user, *arguments):
    """`user`'s own daemon at `path`, over a backing store at the same place as the victim's, with
    frames of its own."""
    cache = Path(tempfile.mkdtemp(prefix="zzb-", dir=folder))
    user.own(cache, 0o700)
    daemon = zazen.testing.Daemon(
        cache, folder / "backing", arguments,
        socket=path, zazend=program / "zazend", variables={"HOME": str(cache)}, popen=user.popen,
    )  # fmt: skip
    daemon.start()
    return daemon


def read_and_warnings(dataset, **options):
    """All frames, whether a daemon was used, and the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with zazen.open(str(dataset), **options) as opened:
            frames = {number: bytes(data) for number, data, _ in opened.frames()}
            return frames, opened.has_daemon, [str(warning.message) for warning in told]


EXPECTED = {number: bytes([number + 1]) * 140_000 for number in range(4)}


@pytest.fixture
def shared(ground):
    """A folder that everybody may write to, and nobody may remove others' files from."""
    folder = ground / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_another_users_daemon_is_not_believed(a, b, ground, programs, shared):
    write_frames(ground / "backing" / "sim", a)
    squatter = squat(programs, ground, shared / "s", b)
    try:
        for user in (a, None):
            read = (ground / "backing" / "sim",)
            options = {"socket": str(shared / "s")}
            found = user.run(_read, *read, options) if user else _read(*read, options)
            frames, has_daemon, told = found
            assert frames == EXPECTED and not has_daemon
            assert any(f"user {b.uid}'s" in text and "is not used" in text for text in told), told
        # His own programs believe him.
        frames, has_daemon, _ = b.run(_read, ground / "backing" / "sim", {"socket": str(shared / "s")})
        assert frames == EXPECTED and has_daemon
        # The tools say no.
        refused = a.call(programs / "zazen", "status", "--socket", shared / "s")
        assert refused.returncode != 0 and f"user {b.uid}'s" in refused.stderr, refused
        refused = a.call(programs / "zazen", "run", "--socket", shared / "s", "--forward", "/x", "--", "true")
        assert refused.returncode != 0 and f"user {b.uid}'s" in refused.stderr, refused
    finally:
        squatter.stop()


def _read(dataset, options):
    return read_and_warnings(dataset, **options)


def _read_with(dataset, options, environment):
    os.environ.update(environment)
    return read_and_warnings(dataset, **options)


def test_a_user_can_be_configured_to_be_believed(a, b, ground, programs, shared):
    write_frames(ground / "backing" / "sim", a)
    squatter = squat(programs, ground, shared / "s", b)
    try:
        options = {"socket": str(shared / "s")}
        configured = {"ZAZEN_DAEMON_UID": str(b.uid)}
        # Believed, and asked: B's daemon can act for nobody but him, and says so itself.
        with pytest.raises(zazen.PermissionDeniedError, match="serves only that user"):
            a.run(_read_with, ground / "backing" / "sim", options, configured)
        with pytest.raises(zazen.ConfigError, match="ZAZEN_DAEMON_UID"):
            a.run(_read_with, ground / "backing" / "sim", options, {"ZAZEN_DAEMON_UID": "somebody"})
    finally:
        squatter.stop()


def test_a_default_place_that_others_made_is_not_looked_at(a, b, ground, programs, shared):
    """B makes what would be A's runtime and home folders, with a daemon of his own in each."""
    write_frames(ground / "backing" / "sim", a)
    places = {"XDG_RUNTIME_DIR": shared / "run", "HOME": shared / "home"}
    sockets = [shared / "run/zazen/zazend.sock", shared / f"home/.zazen/zazend-{os.uname().nodename}.sock"]
    squatters = []
    try:
        for path in sockets:
            b.run(lambda path: os.makedirs(path.parent, mode=0o777), path)
            squatters.append(squat(programs, ground, path, b))
        environment = {name: str(folder) for name, folder in places.items()}
        environment["ZAZEN_SOCKET"] = ""
        frames, has_daemon, _ = a.run(_read_with, ground / "backing" / "sim", {}, environment)
        assert frames == EXPECTED and not has_daemon
        # A's own daemon refuses the place, too, and says what to do.
        environment["PATH"] = os.environ["PATH"]
        command = [programs / "zazend", "--cache", "/nowhere", "--backing", ground / "backing"]
        refused = a.call(*command, env=environment)
        assert refused.returncode != 0 and "--socket" in refused.stderr, refused
    finally:
        for squatter in squatters:
            squatter.stop()


def test_a_preloaded_program_does_not_believe_another_users_daemon(a, b, ground, programs, shared):
    write_frames(ground / "backing" / "sim", a)
    posix = programs / "libzazen_posix.so"
    squatter = squat(programs, ground, shared / "s", b, "--plugin", posix)
    try:
        environment = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(programs / "libzazen_preload.so"),
            "ZAZEN_FORWARD": f"/far={ground}/backing",
            "ZAZEN_FORWARD_SOCKET": str(shared / "s"),
        }
        done = a.call("/bin/cat", "/far/sim/f-0.bin", env=environment)
        assert done.returncode != 0 and "Input/output error" in done.stderr, done
    finally:
        squatter.stop()


def test_files_that_name_daemons_must_be_ones_own(a, b, ground, node, shared):
    write_frames(node.backing / "sim", a)
    folder = shared / "testbed"
    b.run(folder.mkdir)
    b.run((folder / "testbed.json").write_text, '{"nodes": [], "backing": "/x=tcp://127.0.0.1:1"}')
    environment = {"ZAZEN_TESTBED": str(folder), "ZAZEN_SOCKET": str(node.socket)}
    frames, has_daemon, told = a.run(_read_with, node.backing / "sim", {}, environment)
    assert frames == EXPECTED and has_daemon
    assert any(f"belongs to user {b.uid}" in text for text in told), told
    key = shared / "key"
    b.run(lambda: (key.write_text("k" * 64), key.chmod(0o640)))
    with pytest.raises(zazen.ConfigError, match=f"belongs to user {b.uid}"):
        zazen.Writer(str(node.backing / "sim"), ["127.0.0.1:1"], key=str(key), pattern="f-{n}.bin")
    key.unlink()
    key.write_text("k" * 64)
    key.chmod(0o620)
    with pytest.raises(zazen.ConfigError, match="may write"):
        zazen.Writer(str(node.backing / "sim"), ["127.0.0.1:1"], key=str(key), pattern="f-{n}.bin")


def test_a_planted_link_beside_the_socket_is_not_followed(a, b, ground, programs, shared, start_node):
    victim = ground / "victim"
    victim.write_text("precious")
    (ground / "s.turn").symlink_to(victim)
    start_node("--readers", "1")
    assert victim.read_text() == "precious"
    assert not (ground / "s.turn").is_symlink()


@contextlib.contextmanager
def own_daemon(folder, *arguments):
    """This user's own daemon."""
    backing = folder / "backing"
    backing.mkdir(exist_ok=True)
    with zazen.testing.Cluster(folder / "c", backing, arguments=arguments) as cluster:
        yield cluster, backing


@pytest.fixture
def folder(tmp_path_factory):
    """A folder with a short path: sockets live in it."""
    return tmp_path_factory.mktemp("z")


def test_the_metrics_page_survives_idle_connections(folder):
    with own_daemon(folder, "--metrics", "127.0.0.1:0") as (cluster, _):
        status = subprocess.run(
            [zazen.testing.program("zazen"), "status", "--socket", cluster.sockets[0], "--dump"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert status.returncode == 0, status
        address = _metrics_address(cluster)
        with contextlib.ExitStack() as idle:
            for _ in range(2050):
                with contextlib.suppress(OSError):
                    idle.enter_context(socket.create_connection(address, timeout=5))
            for _ in range(3):
                page = urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=90).read()
                assert b"\nzazen_uptime_seconds " in page and page.endswith(b"\n"), page
        page = urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=90).read()
        assert b"zazen_" in page


def _metrics_address(cluster):
    """Where the metrics page is."""
    for ready in Path(cluster.folder).rglob("*ready*"):
        with contextlib.suppress(ValueError, OSError):
            told = json.loads(ready.read_text())
            if told.get("metrics"):
                host, port = told["metrics"].rsplit(":", 1)
                return host, int(port)
    raise AssertionError("the daemon does not say where its metrics are")


BOMBS = {
    "interleaved": [(0, 1 << 38, 2), (1, 1 << 37, 4)],
    "shares of no deal": [(0, 1 << 30, 1000), (7, 1 << 30, 1000)],
}


def _manifest(pieces):
    each = "[[pieces]]\npath = 'a'\nfirst = {}\ncount = {}\nstep = {}\nframe_bytes = 1\n"
    return "".join(each.format(*piece) for piece in pieces)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_short_manifest_does_not_take_gigabytes(folder, bomb):
    with own_daemon(folder) as (cluster, backing):
        sim = backing / "sim"
        sim.mkdir()
        (sim / "zazen.toml").write_text(_manifest(BOMBS[bomb]))
        before = _peak_bytes(os.getpid())
        for options in ({"direct": True}, {"socket": cluster.sockets[0]}):
            with pytest.raises(zazen.Error, match="interleave"), zazen.open(str(sim), **options) as opened:
                opened.extent()
        assert _peak_bytes(os.getpid()) - before < 200 << 20


def _peak_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def test_a_large_manifest_of_a_real_trajectory_fits(folder):
    sim = folder / "backing" / "sim"
    sim.mkdir(parents=True)
    (sim / "a").write_bytes(b"x" * 4096)
    # A million frames in thousands of files, written in turn by as many ranks.
    text = _manifest([(rank, 250, 4000) for rank in range(4000)])
    tomllib.loads(text[:1000].rsplit("[[", 1)[0])
    (sim / "zazen.toml").write_text(text)
    with zazen.open(str(sim), direct=True) as opened:
        assert len(opened.extent()) == 1_000_000
        assert bytes(opened.read(4000).data) == b"x"


def test_a_frame_that_fits_into_no_memory_is_an_error_of_its_own(folder):
    sizes = {0: 10, 1: 8 << 40, 2: 700 << 30, 3: 20}

    def read(path, options):
        with zazen.open(path, **options) as opened:
            found, failed = {}, {}
            frames = opened.frames()
            while True:
                try:
                    frame = next(frames)
                    found[frame.number] = len(frame.data)
                except StopIteration:
                    break
                except zazen.Error as error:
                    failed[error.kind] = str(error)
            with pytest.raises(zazen.TooLargeError, match="frame 1"):
                opened.read(1)
            return found, failed

    with own_daemon(folder, "--budget", "64M") as (cluster, backing):
        sim = backing / "sim"
        sim.mkdir()
        try:
            for number, size in sizes.items():
                with open(sim / f"f-{number}.bin", "wb") as file:
                    file.truncate(size)
        except OSError as error:
            pytest.skip(f"this file system has no such large files: {error}")
        for options in ({"direct": True}, {"socket": cluster.sockets[0]}):
            found, failed = read(str(sim), options)
            assert found == {0: 10, 3: 20}, (options, found, failed)
            assert failed and any(
                "8796093022208" in text or "751619276800" in text for text in failed.values()
            )


# One caller's demands


BUSY, PROTOCOL = 12, 9


def test_one_users_connections_cost_nobody_else(a, b, ground, start_node):
    node = start_node("--caller-connections-max", "20")
    write_frames(node.backing / "sim", a)
    held, told = os.pipe()
    done, release = os.pipe()

    def attack():
        streams = []
        refused = 0
        for _ in range(60):
            stream = wire.connect(node.socket)
            with contextlib.suppress(BrokenPipeError):
                stream.sendall(wire.header(1, 4, 1, 0))
            status, text = wire.reply(stream)
            if status:
                assert status == BUSY and b"caller_connections_max" in text, (status, text)
                refused += 1
            else:
                streams.append(stream)
        os.write(told, f"{len(streams)} {refused}".encode())
        os.read(done, 1)

    attacker = threading.Thread(target=lambda: b.run(attack))
    attacker.start()
    try:
        assert select.select([held], [], [], SECONDS_MAX)[0], "the attacker did not come to its end"
        assert os.read(held, 100) == b"20 40"
        assert a.run(read_frames, node.backing / "sim", node.socket) == EXPECTED
    finally:
        os.write(release, b"x")
        attacker.join()
    assert b.run(read_frames, node.backing / "sim", node.socket) == EXPECTED


def test_payloads_that_never_end_pin_no_gigabytes(a, b, ground, start_node):
    node = start_node("--caller-bytes-max", "64M")
    write_frames(node.backing / "sim", a)
    each = 32 << 20
    before = _resident_bytes(node.process.pid)

    def attack():
        streams = []
        piece = b"x" * (1 << 20)
        for number in range(12):
            stream = wire.connect(node.socket)
            stream.sendall(wire.header(1, 4, 1, each))
            with contextlib.suppress(TimeoutError):
                for _ in range(each // len(piece) - 1):
                    stream.sendall(piece)
            streams.append(stream)
            assert number or _resident_bytes(node.process.pid)
        resident = _resident_bytes(node.process.pid)
        # The rest of one that found no room: it is told, and its connection goes on.
        stream = streams[-1]
        stream.sendall(piece)
        status, text = wire.reply(stream)
        assert status == BUSY and b"caller_bytes_max" in text, (status, text)
        stream.sendall(wire.header(1, 4, 2, 0))
        assert wire.reply(stream)[0] == 0
        return resident

    resident = b.run(attack)
    assert resident - before < 150 << 20, f"{resident - before} bytes for one user"
    assert a.run(read_frames, node.backing / "sim", node.socket) == EXPECTED


def _resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def test_a_hostile_caller_does_not_fill_the_log(b, node):
    before = node.log.stat().st_size

    def attack():
        for _ in range(3000):
            stream = wire.connect(node.socket)
            stream.sendall(b"GET / HTTP/1.1" + b"x" * 50)
            stream.close()

    b.run(attack)
    b.run(_call_nonsense, node.socket)
    written = node.log.stat().st_size - before
    assert written < 20_000, node.log.read_text()[-3000:]


def _call_nonsense(path):
    stream = wire.connect(path)
    for call in range(1, 2000):
        stream.sendall(wire.header(2, 77, call, 0))
        wire.reply(stream)


def test_idle_strangers_do_not_keep_key_holders_out(folder):
    write_frames(folder / "backing" / "sim", count=3)
    with own_daemon(folder) as (cluster, backing):
        host, port = cluster.nodes[0].rsplit(":", 1)
        strangers = [socket.create_connection((host, int(port)), timeout=90) for _ in range(600)]
        writer = zazen.Writer(
            str(backing / "sim"), cluster.nodes, key=cluster.key, pattern="f-{n}.bin", on_slow="block"
        )
        for number in range(3):
            writer.push(number, bytes([number + 1]) * 140_000)
        assert writer.finish().pushed == 3, writer.problems
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("how", ["leave", "speak", "stay"])
def test_a_flood_of_connections_keeps_no_key_holder_out(b, folder, flood, how):
    write_frames(folder / "backing" / "sim", count=1)
    with own_daemon(folder) as (cluster, backing), contextlib.ExitStack() as stack:
        port = cluster.nodes[0].rsplit(":", 1)[1]
        for _ in range(12):
            attacker = stack.enter_context(b.start(flood, how, port))
            stack.callback(attacker.kill)
        for number in range(8):
            writer = zazen.Writer(
                str(backing / "sim"), cluster.nodes, key=cluster.key, pattern="f-{n}.bin", on_slow="block"
            )
            writer.push(number, b"x" * 1000)
            assert writer.finish().pushed == 1, (number, writer.problems)
        # While it works out its proof, many others come.
        key = Path(cluster.key).read_bytes().strip()
        assert wire.prove_slowly(("127.0.0.1", int(port)), key, seconds=1) == 0
        assert attacker.poll() is None, attacker.communicate()


@pytest.mark.parametrize("how", ["local-leave", "local-speak", "local-stay"])
def test_a_flood_at_the_socket_keeps_nobody_out(a, b, node, flood, how):
    """Each connection of B's takes a thread of the daemon's, for as long as B likes."""
    write_frames(node.backing / "sim", a)
    floods = [b.start(flood, how, node.socket) for _ in range(4)]
    try:
        for _ in range(5):
            options = {"socket": str(node.socket), "timeout": 60}
            frames, has_daemon, told = a.run(_read, node.backing / "sim", options)
            assert frames == EXPECTED and has_daemon, told
        assert all(one.poll() is None for one in floods)
    finally:
        for one in floods:
            one.kill()
            one.communicate()
    assert node.log.stat().st_size < 20_000, node.log.read_text()[-3000:]


def test_descriptors_of_half_a_message_fill_no_table(a, b, start_node):
    """B sends descriptors with the first bytes of messages that never end."""
    node = start_node()
    node.stop()
    limits = ["prlimit", "--nofile=600:600"]
    node.popen = lambda words, **options: subprocess.Popen([*limits, *words], **options)
    node.start()
    write_frames(node.backing / "sim", a)
    open_files = Path(f"/proc/{node.process.pid}/fd")
    before = len(os.listdir(open_files))
    held, told = os.pipe()
    done, release = os.pipe()

    def attack():
        null = os.open("/dev/null", os.O_RDONLY)
        streams = []
        for _ in range(12):
            stream = wire.connect(node.socket)
            socket.send_fds(stream, [wire.header(1, 4, 1, 0)[:30]], [null] * 60)
            streams.append(stream)
        os.write(told, b"x")
        os.read(done, 1)

    attacker = threading.Thread(target=lambda: b.run(attack))
    attacker.start()
    try:
        assert select.select([held], [], [], SECONDS_MAX)[0], "the attacker did not come to its end"
        # Half of the table is one user's at most, and the connections themselves.
        wait_for(lambda: len(os.listdir(open_files)) > before + 240, "the descriptors to come")
        frames, has_daemon, warned = a.run(_read, node.backing / "sim", {"socket": str(node.socket)})
        assert frames == EXPECTED and has_daemon, warned
        assert len(os.listdir(open_files)) < before + 300 + 60
    finally:
        os.write(release, b"x")
        attacker.join()
        for descriptor in (held, told, done, release):
            os.close(descriptor)
    wait_for(lambda: len(os.listdir(open_files)) < before + 60, "the descriptors to be closed")


def test_absurd_sizes_are_refused_before_they_take_the_memory(folder):
    limit = 3 << 30

    def bounded():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def refused(*words, text=None):
        done = subprocess.run(
            [zazen.testing.program("zazen"), *map(str, words)],
            input=text, capture_output=True, text=True, preexec_fn=bounded, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode not in (0, -6, -9, 101), done
        return done.stderr

    header = folder / "a.h"
    header.write_text("x " * (1 << 20))
    assert "the limit is" in refused(
        "plugin", "generate", header, "--out", folder / "out"
    ) or "bytes" in refused("plugin", "generate", header, "--out", folder / "out")
    header.write_text("x @ " * (100 << 10))
    assert len(refused("plugin", "generate", header, "--out", folder / "out")) < 1 << 20
    scenario = {"begin": 0, "end": 1 << 40, "nodes_of_ranks": [0, 1]}
    runs = {"native": [[[0, 1 << 38, 2]], [[1, 1 << 37, 3]]]}
    assert "interleave" in refused("assign", "--scenario", "-", text=json.dumps(scenario | runs))
    bitmaps = {"native": [[], []], "protocol": "bitmaps"}
    assert "bitmaps" in refused("assign", "--scenario", "-", text=json.dumps(scenario | bitmaps))
    with pytest.raises(zazen.TooLargeError, match="interleave"):
        zazen.RunSet.from_runs([(0, 1 << 38, 2), (1, 1 << 37, 3)])


# fork and pickle


def _all(dataset):
    return {number: bytes(data) for number, data, _ in dataset.frames()}


def _in_child(work):
    """Runs `work` in a forked child; fails if it hangs or raises."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS_MAX)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with wait status {status}"


@pytest.fixture(params=["daemon", "direct"])
def opened(folder, request):
    write_frames(folder / "backing" / "sim", count=40, size=5000)
    with own_daemon(folder) as (cluster, backing):
        options = {"direct": True} if request.param == "direct" else {"socket": cluster.sockets[0]}
        with zazen.open(str(backing / "sim"), **options) as dataset:
            yield dataset


CONTENT = {number: bytes([number + 1]) * 5000 for number in range(40)}


def test_parent_and_child_read_on_after_a_fork(opened):
    assert _all(opened) == CONTENT
    begun = opened.frames()
    first = next(begun)

    def in_child():
        assert _all(opened) == CONTENT
        assert bytes(opened.read(7).data) == CONTENT[7]
        opened.query(0, 39)
        with pytest.raises(zazen.InvalidArgumentError, match="forked"):
            next(begun)
        begun.close()
        assert bytes(first.data) == CONTENT[first.number]
        # A grandchild does as well.
        _in_child(lambda: (_all(opened) == CONTENT) or os._exit(3))
        opened.close()

    _in_child(in_child)
    rest = {frame.number: bytes(frame.data) for frame in begun}
    assert rest | {first.number: bytes(first.data)} == CONTENT
    assert _all(opened) == CONTENT


def test_forks_while_other_threads_read(opened):
    stop, failures = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                assert _all(opened) == CONTENT
                opened.read(3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            _in_child(lambda: (_all(opened) == CONTENT) or os._exit(3))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def _worker(dataset, numbers):
    return {number: bytes(dataset.read(number).data) for number in numbers}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing_get_the_dataset(opened, method):
    assert _all(opened) == CONTENT
    context = multiprocessing.get_context(method)
    shares = [(opened, range(rank, 40, 3)) for rank in range(3)]
    with context.Pool(3) as pool:
        found = pool.starmap_async(_worker, shares).get(SECONDS_MAX)
    assert {number: data for share in found for number, data in share.items()} == CONTENT
    assert _all(opened) == CONTENT


def test_a_dataset_pickles_by_its_arguments(folder):
    write_frames(folder / "backing" / "sim", count=3, name="x{}.dat")
    dataset = zazen.open(str(folder / "backing" / "sim"), direct=True, pattern="x{n}.dat", timeout=3.5)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.path == dataset.path and again.layout == "x{n}.dat"
    assert set(_all(again)) == {0, 1, 2}
    dataset.close()
    with pytest.raises(zazen.InvalidArgumentError, match="closed"):
        pickle.dumps(dataset)


def test_a_writer_is_its_own_processes(folder):
    with own_daemon(folder) as (cluster, backing):
        sim = backing / "sim"
        sim.mkdir()
        writer = zazen.Writer(str(sim), cluster.nodes, key=cluster.key, pattern="f-{n}.bin", on_slow="block")
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(writer)
        writer.push(0, b"x" * 100)

        def in_child():
            with pytest.raises(zazen.InvalidArgumentError, match="forked"):
                writer.push(1, b"y")
            with pytest.raises(zazen.InvalidArgumentError, match="forked"):
                writer.finish()

        _in_child(in_child)
        assert writer.finish().pushed == 1


class CInterface:
    """The C library, as a C program calls it."""

    def __init__(self):
        try:
            path = zazen.get_library()
        except zazen.NotFoundError as error:
            pytest.skip(str(error))
        self.library = ctypes.CDLL(str(path))
        for name in ("zazen_frame_data", "zazen_last_error"):
            with contextlib.suppress(AttributeError):
                getattr(self.library, name).restype = ctypes.c_void_p
        self.library.zazen_frame_bytes.restype = ctypes.c_uint64

    def open(self, path):
        dataset = ctypes.c_void_p()
        assert self.library.zazen_open(os.fsencode(path), None, ctypes.byref(dataset)) == 0
        return dataset

    def bytes_of(self, frame):
        length = self.library.zazen_frame_bytes(frame)
        return ctypes.string_at(self.library.zazen_frame_data(frame), length)

    def read(self, dataset, number):
        frame = ctypes.c_void_p()
        assert self.library.zazen_read(dataset, ctypes.c_uint64(number), ctypes.byref(frame)) == 0
        data = self.bytes_of(frame)
        self.library.zazen_frame_free(frame)
        return data

    def frames(self, dataset):
        numbers, frames = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.library.zazen_extent(dataset, ctypes.byref(numbers)) == 0
        assert self.library.zazen_frames(dataset, numbers, None, ctypes.byref(frames)) == 0
        self.library.zazen_runset_free(numbers)
        return frames

    def next(self, frames):
        """(status, bytes); no bytes at the end."""
        frame = ctypes.c_void_p()
        status = self.library.zazen_next(frames, ctypes.byref(frame))
        return status, self.bytes_of(frame) if status == 0 and frame else None


def test_a_forked_c_program_reads_on(folder, monkeypatch):
    c = CInterface()
    write_frames(folder / "backing" / "sim", count=40, size=5000)
    with own_daemon(folder) as (cluster, backing):
        monkeypatch.setenv("ZAZEN_SOCKET", cluster.sockets[0])
        dataset = c.open(backing / "sim")
        assert c.read(dataset, 3) == CONTENT[3]
        frames = c.frames(dataset)
        assert c.next(frames)[0] == 0

        def in_child():
            assert [c.read(dataset, number) for number in range(40)] == [CONTENT[n] for n in range(40)]
            assert c.next(frames)[0] == -1, "the parent's iteration says that it is the parent's"
            own = c.frames(dataset)
            assert sorted(c.next(own)[1] for _ in range(40)) == sorted(CONTENT.values())
            c.library.zazen_frames_close(own)
            c.library.zazen_frames_close(frames)
            c.library.zazen_close(dataset)

        for _ in range(3):
            _in_child(in_child)
        assert sum(c.next(frames)[1] is not None for _ in range(39)) == 39
        assert c.read(dataset, 5) == CONTENT[5]
        c.library.zazen_frames_close(frames)
        c.library.zazen_close(dataset)
