"""Tasks run where their files lie: two real nodes of a namespace, real Dask workers, real Parsl
executors."""

import contextlib
import os
import threading
import time

import pytest
import zazen
import zazen.testing
from zazen import namespace
from zazen.schedulers import holders, most_held, namespace_path, nodelist

FILES = 6


@pytest.fixture
def nodes(folder, backing):
    """Two daemons of one namespace, named n0 and n1."""
    key = folder / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    listed = folder / "nodes"
    with contextlib.ExitStack() as stack:
        daemons = []
        for number in range(2):
            place = folder / f"n{number}"
            place.mkdir()
            words = ["--namespace", place / "ns", "--namespace-format", "--namespace-nodes", listed]
            daemon = zazen.testing.Daemon(
                place, backing, words, listen="127.0.0.1:0", key=key, name=f"n{number}"
            )
            daemons.append(stack.enter_context(daemon))
        fresh = folder / "nodes.new"
        fresh.write_text("".join(f"{daemon.address}\n" for daemon in daemons))
        fresh.rename(listed)
        for daemon in daemons:
            _wait_for(daemon)
        yield daemons


def _wait_for(daemon):
    """Waits until the namespace answers, and each node has said its name to this one."""
    until = time.monotonic() + 90
    while True:
        names = set()
        with contextlib.suppress(OSError, zazen.Error):
            names = {node["name"] for node in namespace.Namespace(daemon.socket).nodes()}
        if names == {"n0", "n1"}:
            return
        assert time.monotonic() < until, names
        time.sleep(0.05)


@pytest.fixture
def files(nodes):
    """Files in the namespace, in turn on n0 and n1, and the node of each; the last one is empty."""
    writers = [namespace.Namespace(daemon.socket) for daemon in nodes]
    writers[0].mkdir("/d")
    expected = {}
    for number in range(FILES):
        writers[number % 2].write_bytes(f"/d/f{number}", b"x" * 1000)
        expected[f"/job/d/f{number}"] = f"n{number % 2}"
    return expected


def test_paths_of_a_mount_are_paths_of_the_namespace():
    assert namespace_path("/job/a/../b", "/job/") == "/b"
    assert namespace_path("/job", "/job") == "/"
    assert namespace_path("/a/b") == "/a/b"
    for path, mount in (("/jobs/a", "/job"), ("a", "/job"), ("/a", "job")):
        with pytest.raises(ValueError, match=path):
            namespace_path(path, mount)


def test_a_task_goes_to_the_node_with_most_of_its_inputs():
    held = {"a": "n2", "b": "n1", "c": "n1", "d": None, "e": "n2"}
    assert most_held(["a", "b", "c"], held) == "n1"
    assert most_held(["a", "b"], held) == "n1"
    assert most_held(["a", "e", "d"], held) == "n2"
    assert most_held(["d"], held) is None
    assert most_held([], held) is None


def test_one_path_alone_is_not_taken_apart():
    for call in (holders, nodelist):
        with pytest.raises(TypeError, match="takes several paths"):
            call("/job/a")


def test_holders_are_those_that_wrote(nodes, files):
    of = namespace.Namespace(nodes[0].socket)
    assert holders(files, mount="/job", of=of) == files
    some = ["/job/d/f1", "/job/d/f3", "/job/d/f2"]
    assert nodelist(some, mount="/job", of=of) == "n1,n0"
    with pytest.raises(FileNotFoundError):
        holders(["/job/none"], mount="/job", of=of)
    assert holders([], of=of) == {}
    assert nodelist([], of=of) == ""


def beside(socket):
    os.environ["ZAZEN_SOCKET"] = socket


def where(*paths):
    return paths, os.environ["ZAZEN_SOCKET"]


def test_dask_workers_get_their_nodes_files(nodes, files):
    distributed = pytest.importorskip(
        "distributed", reason="distributed is not installed: pip install 'zazen[schedulers]'"
    )
    from zazen.schedulers.dask import map_files, workers_of_nodes

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        addresses = sorted(client.scheduler_info()["workers"])
        for address, daemon in zip(addresses, nodes, strict=True):
            client.run(beside, str(daemon.socket), workers=[address])
        assert workers_of_nodes(client) == {"n0": [addresses[0]], "n1": [addresses[1]]}
        of = namespace.Namespace(nodes[0].socket)
        options = {"mount": "/job", "strict": True, "of": of}
        sockets = {f"n{number}": str(daemon.socket) for number, daemon in enumerate(nodes)}
        results = client.gather(map_files(client, where, files, **options))
        assert results == [((path,), sockets[node]) for path, node in files.items()]
        pair = ["/job/d/f0", "/job/d/f2", "/job/d/f1"]
        assert client.gather(map_files(client, where, [pair], **options)) == [(tuple(pair), sockets["n0"])]
        # A worker whose daemon does not answer is of no node.
        client.run(beside, "/nowhere/socket", workers=[addresses[1]])
        assert workers_of_nodes(client) == {"n0": [addresses[0]]}
        with pytest.raises(zazen.UnavailableError, match="node n1, which holds most of /job/d/f1"):
            map_files(client, where, files, **options)


def thread(*paths):
    return paths, threading.current_thread().name


def test_parsl_executors_get_their_nodes_files(nodes, files, folder):
    parsl = pytest.importorskip("parsl", reason="parsl is not installed: pip install 'zazen[schedulers]'")
    from parsl.config import Config
    from parsl.executors import ThreadPoolExecutor
    from zazen.schedulers.parsl import map_files

    executors = [
        ThreadPoolExecutor(label=name, max_threads=1, thread_name_prefix=name) for name in ("n0", "n1")
    ]
    of = namespace.Namespace(nodes[0].socket)
    with parsl.load(Config(executors=executors, run_dir=str(folder / "runs"), usage_tracking=0)):
        futures = map_files(thread, files, mount="/job", of=of)
        results = [future.result(timeout=60) for future in futures]
    assert [(path, name.split("_")[0]) for (path,), name in results] == list(files.items())
