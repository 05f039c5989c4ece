"""The ID of a forwarded call: one for its whole way from the client to the far system call."""

import json
import os
import subprocess

import zazen.testing
from zazen.testing import Cluster

ZAZEN = os.environ.get("ZAZEN_BIN", zazen.testing.program("zazen"))
CALL = "plugins.posix."


def recorded(folder):
    """All spans of the folder's files."""
    out = folder / "all"
    subprocess.run([ZAZEN, "sim", "export", folder, "--format", "jsonl", "-o", out], check=True, timeout=60)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_a_forwarded_call_has_one_id_on_its_whole_way(tmp_path):
    far, spans, backing = (tmp_path / name for name in ("far", "spans", "backing"))
    far.mkdir()
    backing.mkdir()
    content = os.urandom(300_000)
    (far / "a").write_bytes(content)
    arguments = ["--plugin", "posix", "--export", far, "--spans", spans]
    with Cluster(tmp_path / "c", backing, arguments=arguments) as cluster:
        ways = [
            ["--node", cluster.nodes[0], "--key", cluster.key],
            ["--socket", cluster.sockets[0], "--relay"],
        ]
        for way in ways:
            command = [ZAZEN, "run", *way, "--forward", f"/zz={far}", "--", "cat", "/zz/a"]
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
            assert (done.returncode, done.stdout) == (0, content), done.stderr.decode()
    # The daemon and the plug-in's processes have ended: all is written.
    calls = [span for span in recorded(spans) if span["op"].startswith(CALL)]
    near = [span for span in calls if span["node"] == "node0"]
    there = [span for span in calls if span["node"] != "node0"]
    by_id = {span["id"]: span for span in there}
    assert len(by_id) == len(there), "no two calls have one ID"
    # From another node: the daemon passed each call on, and both have it under one ID.
    assert near and len({span["id"] for span in near}) == len(near)
    for span in near:
        assert by_id[span["id"]]["op"] == span["op"]
        assert by_id[span["id"]]["node"].startswith("node0.") and span["node"] == "node0"
    # On this machine the client goes to the plug-in's process itself.
    assert len(there) > len(near)
    # Each client drew a number; the rest counts its calls.
    clients = {span["id"][:8] for span in there}
    assert len(clients) == 2 and clients > {span["id"][:8] for span in near}
    for client in clients:
        places = sorted(int(span["id"][8:], 16) for span in there if span["id"].startswith(client))
        assert len(set(places)) == len(places) and places[-1] < 4 * len(places) + 16
    assert {span["op"] for span in there} > {CALL + "px_open"}, sorted({span["op"] for span in there})
    # For the eye: an arrow from the daemon to the process for each call that was passed on.
    out = tmp_path / "trace.json"
    subprocess.run([ZAZEN, "sim", "export", spans, "-o", out], check=True, timeout=60)
    events = json.loads(out.read_text())["traceEvents"]
    arrows = [event for event in events if event["name"] == "call"]
    assert len(arrows) == 2 * len(near)
    assert {event["id"] for event in arrows} == {span["id"] for span in near}
