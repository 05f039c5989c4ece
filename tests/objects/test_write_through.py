"""`zazen push --write-through`: files become objects, then frames; and the frames are current."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import zazen
import zazen.testing
from hostile import Hostile
from launching import wait_for

from conftest import KEYS, daemon, location, read

sys.path.insert(0, str(Path(__file__).parents[1] / "trust"))
from wire import Raw, Refused

pytestmark = pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")

FRAMES = {
    number: bytes((number + at) % 251 for at in range(size)) for number, size in enumerate((5000, 0, 1))
}
#: More than two parts of an object.
LARGE = bytes(at * 7 % 251 for at in range(1 << 16)) * 290


class Node:
    """A daemon that takes frames of a bucket, and a folder in which a simulation writes."""

    def __init__(self, folder: Path, helper: str, where: str, **settings: object) -> None:
        self.folder, self.helper = folder, helper
        plain, _, told = where.partition("?")
        self.location, self.target = f"{plain}?{told}", f"{plain}/run1?{told}"
        self.dataset = f"{plain}/run1"
        self.key = folder / "key"
        self.key.write_text("5a" * 32)
        self.key.chmod(0o600)
        self.written = folder / "written"
        self.written.mkdir()
        served = self.location + "".join(f"&{name}={value}" for name, value in settings.items())
        self.daemon = daemon(folder, helper, served, listen="127.0.0.1:0", key=self.key)

    def __enter__(self) -> "Node":
        self.running = self.daemon.__enter__()
        return self

    def __exit__(self, *what: object) -> None:
        self.daemon.__exit__(*what)

    def write(self, frames: dict[int, bytes]) -> None:
        for number, data in frames.items():
            (self.written / f"frame{number:03}.bin").write_bytes(data)

    def command(self, *words: object) -> list[str]:
        command = [zazen.testing.program("zazen"), "push", "--write-through", self.target, "--json"]
        return [*command, "--nodes", self.running.address, "--key", str(self.key), *map(str, words)]

    def environment(self) -> dict[str, str]:
        return zazen.testing.environment() | KEYS | {"ZAZEN_OBJECTS": self.helper}

    def push(self, *words: object, status: int = 0) -> dict:
        words = words or sorted(self.written.iterdir())
        told = subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environment(), timeout=600
        )
        assert told.returncode == status, (told.stdout, told.stderr)
        self.said = told.stderr
        return json.loads(told.stdout) if told.stdout else {}

    def read(self) -> dict[int, bytes]:
        return read(self.dataset, self.running.socket)


def reads_of(server, name="frame"):
    """Requests for bytes of objects."""
    return [told for told in server.requests if told[0] == "GET" and f"/{name}" in told[1]]


def test_files_become_objects_and_current_frames(helper, tmp_path):
    frames = FRAMES | {7: LARGE}
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        node.write(frames)
        report = node.push()
        assert report["pushed"] == len(frames) and report["write_through"] == {
            "written": len(frames),
            "written_bytes": sum(map(len, frames.values())),
            "there": 0,
            "failed": 0,
        }
        assert server.objects == {f"p/run1/frame{number:03}.bin": data for number, data in frames.items()}
        server.requests.clear()
        assert node.read() == frames
        # No frame was taken for stale, and fetched.
        assert not reads_of(server), server.requests
        # A second run writes only what changed: one file, whose length and time are the same.
        path = node.written / "frame000.bin"
        before = path.stat()
        frames[0] = frames[0][::-1]
        path.write_bytes(frames[0])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        report = node.push()
        assert (report["write_through"]["written"], report["write_through"]["there"]) == (1, len(frames) - 1)
        assert server.objects["p/run1/frame000.bin"] == frames[0]
        server.requests.clear()
        assert node.read() == frames and not reads_of(server)


def test_an_object_that_is_replaced_makes_its_pushed_frame_stale(store, helper, tmp_path):
    with Node(tmp_path, helper, location(store)) as node:
        for turn in range(20):
            node.write({0: b"%04d" % turn})
            assert node.push()["pushed"] == 1
            # Within the same second, of the same length.
            store.put(f"{store.prefix}/run1/frame000.bin", b"%04d" % (turn + 5000))
            assert node.read() == {0: b"%04d" % (turn + 5000)}, f"turn {turn}"


def test_the_daemon_says_who_may_read_and_not_who_pushes(helper, tmp_path):
    # The pusher's files are for all to read (0644), and belong to another group than the objects.
    with (
        Hostile({}) as server,
        Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}", group=64_900, mode="0440") as node,
    ):
        node.write(FRAMES)
        node.push()
        server.requests.clear()
        assert node.read() == FRAMES and not reads_of(server)


def test_a_watched_simulation_is_written_and_pushed(helper, tmp_path):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        (node.written / "zazen.toml").write_text('pattern = "frame{n:03}.bin"\n')
        node.write({0: FRAMES[0]})
        run = subprocess.Popen(
            node.command("--watch", node.written, "--until", "done"),
            env=node.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, data in FRAMES.items():
            node.write({number: data})
        (node.written / "done").touch()
        told, _ = run.communicate(timeout=300)
        assert run.returncode == 0, told
        report = json.loads(told)
        assert report["write_through"]["failed"] == 0 and report["refused"] == 0
        server.requests.clear()
        assert node.read() == FRAMES and not reads_of(server)
        assert server.objects["p/run1/zazen.toml"].startswith(b"pattern")


def test_a_store_that_is_away_is_waited_for_while_a_simulation_runs(helper, tmp_path):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        refused = []

        def behave(request):
            if request.command == "PUT":
                refused.append(request.key)
                # As often as the program repeats a request, and once more.
                if len(refused) <= 6:
                    request.give(503, b"", {})
                    return True
            return False

        server.behave = behave
        run = subprocess.Popen(
            node.command("--watch", node.written, "--until", "done"),
            env=node.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        node.write({0: FRAMES[0]})
        (node.written / "done").touch()
        told, said = run.communicate(timeout=300)
        assert run.returncode == 0, (told, said)
        assert "tried again" in said
        assert node.read() == {0: FRAMES[0]}


def test_what_is_not_with_the_store_is_not_pushed(helper, tmp_path):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:

        def behave(request):
            if request.command == "PUT" and request.key.endswith("frame001.bin"):
                request.give(403, b"<Error><Code>AccessDenied</Code></Error>", {})
                return True
            return False

        server.behave = behave
        node.write(FRAMES)
        report = node.push(status=1)
        assert (report["pushed"], report["write_through"]["failed"]) == (len(FRAMES) - 1, 1)
        assert "frame001.bin" in node.said and "credentials" in node.said


@pytest.mark.parametrize("what", ["replaced", "removed", "without a tag"])
def test_an_object_that_nobody_can_tell_from_a_later_one_is_not_pushed(helper, tmp_path, what):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:

        def behave(request):
            if request.command != "HEAD" or request.key not in server.objects:
                return False
            if what == "removed":
                request.give(404, b"", {})
            elif what == "replaced":
                request.give_object(server.objects[request.key], tag="of somebody else")
            else:
                request.give_object(server.objects[request.key], tag="")
            return True

        server.behave = behave
        node.write({0: FRAMES[0]})
        report = node.push(status=1)
        assert (report["submitted"], report["write_through"]["failed"]) == (0, 1)
        server.behave = None
        assert node.read() == {0: FRAMES[0]}


def test_parts_of_files_are_refused(helper, tmp_path):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        (node.written / "zazen.toml").write_text(
            "[[pieces]]\npath = 'all.bin'\nfirst = 0\ncount = 2\noffset = 0\nframe_bytes = 10\n"
        )
        (node.written / "all.bin").write_bytes(b"0123456789abcdefghij")
        report = node.push("--watch", node.written, "--idle-exit", "1s")
        assert report["pushed"] == 0 and "whole files only" in node.said
        assert "p/run1/all.bin" not in server.objects


def test_ctrl_c_ends_it_after_what_is_under_way(helper, tmp_path):
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        running, told = [], []

        def behave(request):
            if request.command == "PUT" and not told:
                told.append(True)
                wait_for(lambda: running, "the push to be known", 100)
                # The terminal tells all programs of its group.
                os.killpg(running[0].pid, signal.SIGINT)
            return False

        server.behave = behave
        node.write(FRAMES)
        run = subprocess.Popen(
            node.command("--watch", node.written),
            env=node.environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(run)
        report = json.loads(run.communicate(timeout=300)[0])
        assert run.returncode == 0, report
        assert report["write_through"]["written"] == report["pushed"] == len(server.objects) > 0
        wait_for(lambda: node.read() == {n: FRAMES[n] for n in node.read()}, "the frames", 60)


def test_a_planted_link_uploads_nothing(helper, tmp_path):
    """Of others who may write into the watched directory."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    with Hostile({}) as server, Node(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as node:
        node.write(FRAMES)
        os.symlink(secret, node.written / "frame009.bin")
        os.chown(node.written / "frame009.bin", 64_713, 64_713, follow_symlinks=False)
        report = node.push("--watch", node.written, "--idle-exit", "1s")
        assert report["pushed"] == len(FRAMES) and "link that user 64713 made" in node.said
        assert server.objects == {f"p/run1/frame{n:03}.bin": data for n, data in FRAMES.items()}
        # Nor does the manifest.
        os.rename(node.written / "frame009.bin", node.written / "zazen.toml")
        node.push("--watch", node.written, "--idle-exit", "1s", status=1)
        assert "p/run1/zazen.toml" not in server.objects


@pytest.fixture
def open_folder():
    """A folder that every user may search."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="zzo-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def connect_as(uid: int, socket: Path) -> Raw:
    """A caller who is that user for the kernel, which says so to the daemon."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        return Raw(socket)
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_only_operators_push_frames_of_a_bucket(helper, open_folder):
    owner, stranger = 64_711, 64_712
    with (
        Hostile({"p/run1/f-0.bin": b"zero"}) as server,
        Node(open_folder, helper, f"s3://b/p?endpoint={server.endpoint}", owner=owner, mode="0444") as node,
    ):
        socket = node.running.socket

        def push(caller, number, uid, refusal):
            caller.announce(node.dataset, f"f-{number}.bin", number, 4, uid)
            caller.stream.sendall(b"evil")
            with pytest.raises(Refused, match=refusal):
                caller.reply()

        # The user whom `owner=` names may read, and is no operator either. An object that is not
        # there could be anybody's.
        for uid in (owner, stranger):
            for number in (0, 1):
                push(connect_as(uid, socket), number, uid, "holders of the cluster's key push frames")
                push(connect_as(uid, socket), number, owner, "holders of the cluster's key push frames")
        # These very messages are taken from the daemon's user, up to their wrong checksum.
        push(Raw(socket), 1, 0, "checksum")
        assert node.read() == {0: b"zero"}
