"""`zazen dash`: what it shows in a real browser, and what strangers get of it."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
import zazen
from browser import Browser
from launching import wait_for

from conftest import FRAMES, frame_bytes, frame_name

# A directory that would be a script, if the page took names for HTML; and one that would turn text.
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TURNED = "sim\u202etxt"


class Dash:
    """A running `zazen dash`."""

    def __init__(self, tool, *arguments: object) -> None:
        self.process = tool.start("dash", "--every", "0.5", *arguments)
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.process.stderr.read()
        self.place, _, self.token = self.address.partition("/#token=")

    def get(self, path: str = "/state", **headers: str) -> tuple[int, str]:
        """The status and the text at `path`; `headers` with underscores for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.place + path, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def state(self) -> dict:
        status, text = self.get(Authorization=f"Bearer {self.token}")
        assert status == 200, text
        return json.loads(text)


@pytest.fixture
def dash(pushed):
    dash = Dash(pushed.tool)
    yield dash
    dash.process.terminate()
    dash.process.communicate(timeout=60)


def row(name: str) -> str:
    """JavaScript: the row of a node, as a list of its cells' texts."""
    rows = "[...document.querySelectorAll('#node-table tbody tr')]"
    cells = f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))"
    return f"{cells}.find((row) => row[0] === {json.dumps(name)})"


def test_nodes_datasets_and_a_death_are_shown(pushed, dash, tmp_path):
    with Browser(tmp_path / "browser") as page:
        page.go(dash.address)
        page.wait_for("document.querySelector('#summary').textContent === '2 nodes: 2 up'")
        assert page.value("location.href") == dash.place + "/", "the token stays out of the history"
        page.wait_for("document.querySelectorAll('#dataset-table tbody tr').length === 1")
        assert page.text("#dataset-table td") == str(pushed.dataset)
        assert page.value(row("n0"))[3] == str(FRAMES // 2)
        assert page.text("#alerts") == ""
        # Who holds what, by the keyboard alone.
        for _ in range(40):
            page.press("Tab")
            if page.value("document.activeElement.matches('#dataset-table button[aria-expanded]')"):
                break
        page.press("Enter")
        page.wait_for("document.querySelectorAll('.holders li').length === 2")
        assert page.text(".holders li").startswith("n0: 6 native, 0 alien")
        # The table is made anew by each answer; the focus stays.
        held = "document.activeElement.matches('#dataset-table button[aria-expanded=true]')"
        before = page.value("lastAt")
        page.wait_for(f"lastAt > {before} + 1000 && {held}")
        # On a phone, nothing is wider than the screen.
        page.order(
            "Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True
        )
        page.wait_for("innerWidth === 360")
        assert page.value("document.documentElement.scrollWidth") <= 360
        page.order("Emulation.clearDeviceMetricsOverride")
        pushed.tool("testbed", "kill", "n1")
        page.wait_for("document.querySelector('#summary').textContent === '2 nodes: 1 dead, 1 up'")
        assert page.value(row("n1"))[1] == "dead"
        assert "start `zazend` on that node" in page.text("#alerts")
        assert page.value("document.title") == "(1) Zazen"
        page.wait_for("document.querySelectorAll('.holders li').length === 1")
        # A reload keeps what the page needs; a new tab without the token gets nothing.
        page.order("Page.reload")
        page.wait_for("document.querySelector('#summary').textContent === '2 nodes: 1 dead, 1 up'")
        dash.process.send_signal(signal.SIGINT)
        dash.process.wait(60)
        page.wait_for("document.querySelector('#summary').textContent.includes('does not answer')")
        assert page.value(row("n1"))[1] == "dead", "what it heard last stays"


def test_names_are_text_and_nothing_else(testbed, tmp_path):
    for name in (EVIL.replace("/", "\u2215"), TURNED):
        folder = testbed.folder / "server" / name
        folder.mkdir()
        (folder / frame_name(1)).write_bytes(frame_bytes(1))
        testbed.push([folder / frame_name(1)])
    dash = Dash(testbed.tool)
    with Browser(tmp_path / "browser") as page:
        page.go(dash.address)
        page.wait_for("document.querySelectorAll('#dataset-table tbody tr').length === 2")
        rows = page.value(
            "[...document.querySelectorAll('#dataset-table td.name')].map((td) => td.innerText)"
        )
        assert any(text.endswith(EVIL.replace("/", "\u2215")) for text in rows), rows
        assert any(text.endswith("sim\\u{202e}txt") for text in rows), rows
        page.value("document.querySelectorAll('#dataset-table td:last-child button')[0].click()")
        page.wait_for("!document.querySelector('#explain-of').textContent.includes('asking')")
        assert page.value("document.querySelectorAll('img, main script').length") == 0
        assert page.value("document.title") == "Zazen"
        # Even a script that came in would not run.
        page.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned=1\">')")
        page.value("new Promise((done) => setTimeout(done, 200))")
        assert page.value("window.owned") is None
    dash.process.terminate()
    dash.process.communicate(timeout=60)


def test_the_last_analysis_is_explained(pushed, tmp_path, monkeypatch):
    (node, _) = json.loads(pushed.tool("status", "--json").stdout)["nodes"]
    monkeypatch.setenv("ZAZEN_SOCKET", node["target"].removeprefix("daemon at "))
    # Long enough to leave a record.
    with zazen.open(pushed.dataset) as dataset:
        for _ in dataset.frames():
            time.sleep(0.01)
    dash = Dash(pushed.tool)
    with Browser(tmp_path / "browser") as page:
        page.go(dash.address)
        told = json.loads(pushed.tool("explain", pushed.dataset, "--json").stdout)
        verdict = json.dumps(told["verdict"])
        page.wait_for(f"document.querySelector('#explain-verdict').textContent === {verdict}")
        assert page.text("#explain-of").startswith(f"{pushed.dataset}, begun ")
        assert page.value("document.querySelectorAll('#explain-bars .bar').length") > 0
        assert "12 frames" in page.text("#hits-text") or "none was read" in page.text("#hits-text")
    dash.process.terminate()
    dash.process.communicate(timeout=60)


def test_strangers_get_nothing(dash):
    token = f"Bearer {dash.token}"
    for headers in (
        {},
        {"Authorization": "Bearer " + "0" * 32},
        {"Authorization": f"Basic {dash.token}"},
        {"Cookie": f"token={dash.token}"},
        {"Authorization": token, "Host": "evil.example"},
        {"Authorization": token, "Host": "127.0.0.1.evil.example"},
    ):
        status, text = dash.get(**headers)
        assert status in (401, 421) and "sim1" not in text and "n0" not in text, (headers, text)
    assert dash.get("/state?token=" + dash.token)[0] == 401, "no token in an address that is logged"
    # The page itself says nothing of the cluster.
    for path in ("/", "/dash.js", "/dash.css"):
        status, text = dash.get(path)
        assert status == 200 and "sim1" not in text and dash.token not in text
    assert dash.get("/else")[0] == 404
    # The port is on the loopback interface only.
    port = int(dash.place.rpartition(":")[2])
    listening = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
    assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening
    # The secret is no argument of a process, which anybody could list.
    assert dash.token.encode() not in open(f"/proc/{dash.process.pid}/cmdline", "rb").read()


def test_other_pages_of_the_users_browser_get_nothing(dash, tmp_path):
    """A page of another origin, and one whose name was made to mean 127.0.0.1 (DNS rebinding)."""
    attack = """<script>
      const tried = [];
      const look = async (name, how) => {
        try { tried.push(name + ": " + await how()); } catch (error) { tried.push(name + ": failed"); }
      };
      const at = "PLACE/state", token = {headers: {Authorization: "Bearer TOKEN"}};
      const get = async (init) => (await fetch(at, init)).text();
      (async () => {
        await look("plain", () => get({}));
        await look("with the token", () => get(token));
        await look("opaque", () => get({mode: "no-cors", credentials: "include"}));
        await look("script", () => new Promise((done, fail) => {
          const element = document.createElement("script");
          element.src = at; element.onload = () => done("loaded"); element.onerror = fail;
          document.body.append(element);
        }));
        await look("frame", () => new Promise((done) => {
          const element = document.createElement("iframe");
          element.src = "PLACE/"; document.body.append(element);
          element.onload = () => {
            try { done(element.contentDocument.body.innerText); } catch { done("sealed"); }
          };
        }));
        window.tried = tried;
      })();
    </script>""".replace("PLACE", dash.place).replace("TOKEN", dash.token)

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><body>" + attack.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    try:
        with Browser(tmp_path / "browser", rebound) as page:
            page.go(f"http://127.0.0.1:{server.server_port}/")
            tried = page.wait_for("window.tried")
            nothing = ["plain: failed", "with the token: failed", "opaque: failed", "script: failed"]
            assert tried == [*nothing, "frame: sealed"], tried
            port = dash.place.rpartition(":")[2]
            page.go(f"http://evil.example:{port}/#token={dash.token}")
            page.wait_for("document.body && document.body.innerText.includes('own address')")
            shown = f"{{headers: {{Authorization: 'Bearer {dash.token}'}}}}"
            told = page.value(f"fetch('/state', {shown}).then((answer) => answer.text())")
            assert "own address" in told and "sim1" not in told
    finally:
        server.shutdown()


def test_a_silent_node_is_shown_and_keeps_no_other_waiting(pushed):
    dash = Dash(pushed.tool)
    try:
        wait_for(lambda: [node["state"] for node in dash.state()["nodes"]] == ["up", "up"], "both nodes")
        (_, node) = json.loads(pushed.tool("status", "--json").stdout)["nodes"]
        os.kill(node["status"]["pid"], signal.SIGSTOP)
        try:
            wait_for(lambda: [node["state"] for node in dash.state()["nodes"]] == ["up", "hangs"], "a hang")
        finally:
            os.kill(node["status"]["pid"], signal.SIGCONT)
        wait_for(lambda: [node["state"] for node in dash.state()["nodes"]] == ["up", "up"], "both again")
    finally:
        dash.process.terminate()
        dash.process.communicate(timeout=60)


def test_with_the_cluster_key_and_bad_arguments(pushed, tool, tmp_path):
    dash = Dash(pushed.tool, "--nodes", pushed.nodes)
    wait_for(lambda: [node["state"] for node in dash.state()["nodes"]] == ["up", "up"], "both nodes")
    port = dash.place.rpartition(":")[2]
    refused = pushed.tool("dash", "--port", port, status=1).stderr
    assert port in refused and "--port" in refused
    dash.process.terminate()
    dash.process.communicate(timeout=60)
    tool("key", "new", tmp_path / "wrong")
    dash = Dash(pushed.tool, "--nodes", pushed.nodes, "--key", tmp_path / "wrong")
    wait_for(lambda: {node["state"] for node in dash.state()["nodes"]} == {"wrong key"}, "two refusals")
    assert dash.state()["datasets"] == []
    dash.process.terminate()
    dash.process.communicate(timeout=60)
    for wrong in ("0", "-1", "nan", "x"):
        assert "0.5 to 3600" in tool("dash", f"--every={wrong}", status=2).stderr
