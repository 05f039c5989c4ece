"""`zazen stage-out` into a bucket: what arrives is what was there, whole, or there is an error."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import zazen.testing
from hostile import Hostile
from launching import wait_for
from zazen import namespace

from conftest import KEYS, location

#: More than two parts of an object, and a rest.
LARGE = bytes(at * 7 % 251 for at in range(1 << 16)) * 290


class Source:
    """A namespace of one node, with files that `zazen stage-out` takes."""

    def __init__(self, folder: Path, helper: str) -> None:
        self.helper = helper
        (folder / "empty").mkdir()
        words = ["--namespace", folder / "namespace", "--namespace-format", "--namespace-root", "trust"]
        self.daemon = zazen.testing.Daemon(folder, folder / "empty", words)
        self.tree = folder / "tree"
        self.tree.mkdir()

    def serves(self) -> bool:
        """Whether the namespace is there."""
        try:
            namespace.Namespace(str(self.daemon.socket)).makedirs("/run", exist_ok=True)
        except OSError:
            return False
        return True

    def stage_in(self) -> None:
        self.tool("stage-in", self.tree, "/run")

    def stage_out(self, target: str, *flags: str, status: int = 0) -> dict:
        return json.loads(self.tool("stage-out", "--json", *flags, "/run", target, status=status))

    def command(self, *words: object) -> list[str]:
        return [zazen.testing.program("zazen"), *map(str, words), "--socket", str(self.daemon.socket)]

    def environment(self) -> dict[str, str]:
        return zazen.testing.environment() | KEYS | {"ZAZEN_OBJECTS": self.helper}

    def tool(self, *words: object, status: int = 0) -> str:
        command, environment = self.command(*words), self.environment()
        told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert told.returncode == status, (told.stdout, told.stderr)
        return told.stdout


@pytest.fixture
def source(tmp_path, helper):
    made = Source(tmp_path, helper)
    with made.daemon:
        wait_for(made.serves, "the namespace", 100)
        yield made


def put(source, files):
    for name, data in files.items():
        path = source.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    source.stage_in()


def test_files_arrive_whole_and_a_second_run_sends_nothing(source, store):
    files = {"a/small": b"small", "a/b/none": b"", "large": LARGE, "one part": LARGE[: 8 << 20]}
    put(source, files)
    target = location(store).replace("?", "/out?")
    report = source.stage_out(target)
    assert (report["copied"], report["there"], report["failed"]) == (4, 0, [])
    for name, data in files.items():
        assert store.request("GET", f"{store.prefix}/out/{name}") == data
    report = source.stage_out(target)
    assert (report["copied"], report["there"], report["failed"]) == (0, 4, [])
    # A change of one is one object, and an object of somebody else is replaced.
    (source.tree / "a/small").write_bytes(b"other")
    source.stage_in()
    store.put(f"{store.prefix}/out/large", b"not ours")
    report = source.stage_out(target)
    assert (report["copied"], report["there"], report["failed"]) == (2, 2, [])
    assert store.request("GET", f"{store.prefix}/out/a/small") == b"other"
    assert store.request("GET", f"{store.prefix}/out/large") == LARGE


def test_what_a_bucket_cannot_hold_is_named_or_counted(source, store):
    put(source, {"file": b"data", "again": b"same"})
    (source.tree / "empty").mkdir()
    (source.tree / "link").symlink_to("file")
    os.link(source.tree / "again", source.tree / "more")
    source.stage_in()
    target = location(store).replace("?", "/odd?")
    report = source.stage_out(target, status=1)
    assert [Path(failure["path"]).name for failure in report["failed"]] == ["link"]
    assert "symbolic links" in report["failed"][0]["error"]
    assert (report["copied"], report["left_out"]) == (3, 1)
    assert store.request("GET", f"{store.prefix}/odd/more") == b"same"
    # An object where a directory should be would hide what is beneath it.
    store.put(f"{store.prefix}/hidden", b"x")
    source.tool("stage-out", "/run", location(store).replace("?", "/hidden?"), status=1)
    # And an object may not hide a directory.
    source.tool("stage-out", "/run/file", location(store).replace("?", "/odd?"))
    store.put(f"{store.prefix}/odd/file/beneath", b"x")
    source.tool("stage-out", "/run/file", location(store).replace("?", "/new/file?"))
    assert store.request("GET", f"{store.prefix}/new/file") == b"data"


@pytest.mark.parametrize("held", ["a part", "the beginning"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ends_early_leaves_no_part_of_an_object(source, end, held):
    # The store answers the first such request only after the run was told to end; a run that was
    # killed is gone by then.
    command = {"a part": "PUT", "the beginning": "POST"}[held]
    put(source, {"large": LARGE})
    with Hostile({}) as server:

        def behave(request):
            if request.command == command:
                wait_for(lambda: run.poll() is not None or ended.is_set(), "the run to be told", 100)
            return False

        server.behave, ended = behave, threading.Event()
        target = f"s3://b/out?endpoint={server.endpoint}"
        run = subprocess.Popen(source.command("stage-out", "/run", target), env=source.environment())
        wait_for(lambda: any(told[0] == command for told in server.requests), f"{held} to come", 100)
        run.send_signal(end)
        if end == signal.SIGKILL:
            run.wait(100)
        ended.set()
        assert run.wait(200) != 0
        if end == signal.SIGKILL:
            assert not server.objects
        else:
            # A file whose last part was under way may be whole by then.
            assert server.objects in ({}, {"out/large": LARGE})
        wait_for(lambda: server.began and not server.uploads, "the parts to be dropped", 100)


@pytest.mark.parametrize("lie", ["other bytes", "fewer bytes", "another time", "nothing"])
def test_a_store_that_keeps_something_else_is_an_error(source, lie):
    put(source, {"small": b"small file"})
    with Hostile({}) as server:

        def behave(request):
            if request.command != "PUT":
                return False
            told = {"x-amz-meta-zazen-modified-ns": request.headers["x-amz-meta-zazen-modified-ns"]}
            kept = {"other bytes": b"smalL file", "fewer bytes": b"small"}.get(lie, request.body)
            if lie == "another time":
                told = {"x-amz-meta-zazen-modified-ns": "1"}
            if lie != "nothing":
                server.objects[request.key], server.properties[request.key] = kept, told
            request.give(200, b"", {"ETag": '"x"'})
            return True

        server.behave = behave
        target = f"s3://b/out?endpoint={server.endpoint}"
        report = source.stage_out(target, status=1)
        assert len(report["failed"]) == 1 and report["copied"] == 0


def test_without_rights_there_is_an_error_that_says_so(source):
    put(source, {"small": b"small file"})
    with Hostile({}) as server:

        def behave(request):
            if request.command == "PUT":
                request.give(403, b"<Error><Code>AccessDenied</Code></Error>", {})
            return request.command == "PUT"

        server.behave = behave
        report = source.stage_out(f"s3://b/out?endpoint={server.endpoint}", status=1)
        (failure,) = report["failed"]
        assert "credentials" in failure["error"]
    words = ("stage-out", "/run", "s3://b/out?endpoint=nonsense")
    source.tool(*words, status=1)
