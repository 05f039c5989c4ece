"""What monitoring sees: the metrics page, the alerts and the dashboard, on Debian's Prometheus.

Needs `prometheus` and `promtool` (Debian's package prometheus); skipped with that reason without.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import zazen
import zazen.testing
from launching import wait_for

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging/prometheus"
DASHBOARD = ROOT / "packaging/grafana/zazen.json"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; it comes with Debian's package prometheus")
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url: str, accept: str = "") -> tuple[str, str]:
    """The content type and the text at `url`."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=90) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.fixture
def nodes(tmp_path):
    """Four daemons with metrics that have read and pushed."""
    backing = tmp_path / "backing"
    (backing / "sim").mkdir(parents=True)
    for number in range(16):
        (backing / "sim" / f"f-{number}.bin").write_bytes(bytes([number]) * 20_000)
    daemons = []
    try:
        for number in range(4):
            place = tmp_path / f"n{number}"
            place.mkdir()
            arguments = ["--metrics", "127.0.0.1:0"]
            daemon = zazen.testing.Daemon(place, backing, arguments, name=f"n{number}")
            daemon.start()
            daemons.append((daemon, json.loads((place / "log.ready").read_text())["metrics"]))
        read(backing / "sim", daemons)
        yield backing / "sim", daemons
    finally:
        for daemon, _ in daemons:
            daemon.stop()


def read(dataset: Path, daemons) -> None:
    for daemon, _ in daemons:
        with zazen.open(str(dataset), socket=str(daemon.socket)) as opened:
            assert len(list(opened.frames())) == 16


def test_each_reader_gets_the_format_that_it_asks_for(nodes):
    _, daemons = nodes
    url = f"http://{daemons[0][1]}/metrics"
    kind, older = get(url)
    assert kind.startswith("text/plain; version=0.0.4") and "# EOF" not in older
    assert "# TYPE zazen_fetched_total counter\nzazen_fetched_total 16\n" in older
    kind, newer = get(url, OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text") and newer.endswith("# EOF\n")
    assert "# TYPE zazen_fetched counter\nzazen_fetched_total 16\n" in newer


def test_durations_are_counted(nodes):
    _, daemons = nodes
    page = get(f"http://{daemons[0][1]}/metrics")[1]
    counts = dict(re.findall(r"^(zazen_\w+_count(?:\{[^}]*\})?) (\d+)$", page, re.MULTILINE))
    assert int(counts['zazen_call_seconds_count{op="read"}']) > 0, counts
    assert int(counts["zazen_fetch_seconds_count"]) > 0, counts
    assert counts["zazen_fetch_wait_seconds_count"] == counts["zazen_fetch_seconds_count"], counts
    for series, count in counts.items():
        name, _, label = series.partition("_count")
        label = label.strip("{}")
        everything = f'{name}_bucket{{le="+Inf"{"," + label if label else ""}}} {count}\n'
        assert everything in page, everything


def test_the_largest_datasets_are_named_where_the_administrator_asks_for_it(tmp_path):
    backing = tmp_path / "backing"
    # Quotes and ends of lines stay within their label.
    names = ["small", 'mid"dle', "la\nrge"]
    for size, name in enumerate(names, 1):
        (backing / name).mkdir(parents=True)
        for number in range(size):
            (backing / name / f"f-{number}.bin").write_bytes(bytes(200_000))
    settings = tmp_path / "settings.toml"
    settings.write_text("metrics_datasets = 0\n")
    arguments = ["--metrics", "127.0.0.1:0", "--config", settings]
    with zazen.testing.Daemon(tmp_path, backing, arguments) as daemon:
        for name in names:
            with zazen.open(str(backing / name), socket=str(daemon.socket)) as opened:
                assert len(list(opened.frames())) > 0
        url = f"http://{json.loads((tmp_path / 'log.ready').read_text())['metrics']}/metrics"
        page = get(url)[1]
        assert "\nzazen_datasets 3\n" in page and "dataset=" not in page and "small" not in page
        settings.write_text("metrics_datasets = 2\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "dataset=" in get(url)[1], "the largest datasets", 60)
        page = get(url, OPEN_METRICS)[1]
        large = str(backing / "la").replace("\n", "\\n") + "\\nrge"
        assert f'zazen_dataset_alien_frames{{dataset="{large}",series="f-{{n}}.bin"}} 3\n' in page, page
        assert f'zazen_dataset_scans{{dataset="{backing}/mid\\"dle",series="f-{{n}}.bin"}} 0\n' in page
        assert "\nzazen_datasets 3\n" in page and "small" not in page
    with pytest.raises(RuntimeError, match="metrics_datasets 1001: give a number from 1 to 1000"):
        zazen.testing.Daemon(tmp_path, backing, ["--metrics-datasets", 1001]).start()


def test_promtool_has_nothing_to_say_of_the_page(nodes):
    promtool = tool("promtool")
    _, daemons = nodes
    page = get(f"http://{daemons[0][1]}/metrics")[1]
    told = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_alerts_are_well_formed_and_fire_when_they_should():
    promtool = tool("promtool")
    for words in (["check", "rules", "zazen.rules.yml"], ["test", "rules", "zazen.rules.test.yml"]):
        told = subprocess.run([promtool, *words], cwd=RULES, capture_output=True, text=True, timeout=120)
        assert told.returncode == 0, told.stdout + told.stderr


def test_every_metric_that_alerts_and_dashboard_name_exists(nodes):
    """Without Prometheus, too: a renamed metric would leave an alert that never fires."""
    _, daemons = nodes
    page = get(f"http://{daemons[0][1]}/metrics")[1]
    there = set(re.findall(r"^(zazen_\w+)", page, re.MULTILINE))
    # Only daemons with plug-ins have these.
    there |= {"zazen_plugin_crashes_total"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = (RULES / "zazen.rules.yml").read_text()
    named = set(re.findall(r"\bzazen_\w+", " ".join(texts)))
    # Names in prose have no zazen_ before them.
    named |= set(re.findall(r"\bzazen_\w+", rules))
    assert len(named) > 20 and not named - there, named - there


def test_every_panel_of_the_dashboard_has_data(nodes, tmp_path):
    prometheus = tool("prometheus")
    dataset, daemons = nodes
    targets = [address for _, address in daemons]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "zazen.rules.yml")],
        "scrape_configs": [{"job_name": "zazen", "static_configs": [{"targets": targets}]}],
    }
    # JSON is YAML.
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    with open(tmp_path / "prometheus.log", "w") as log:
        server = subprocess.Popen(
            [
                prometheus,
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )

    def ask(query: str) -> list:
        words = urllib.parse.urlencode({"query": query})
        answer = json.loads(get(f"http://{address}/api/v1/query?{words}")[1])
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def scraped() -> bool:
        try:
            return ask('sum(up{job="zazen"})')[0]["value"][1] == "4"
        except (OSError, IndexError):
            return False

    try:
        wait_for(scraped, "all four daemons are scraped", seconds=120)
        panels = json.loads(DASHBOARD.read_text())["panels"]
        queries = {
            target["expr"].replace("$node", ".*").replace("$__rate_interval", "1m"): panel["title"]
            for panel in panels
            for target in panel["targets"]
        }
        # A quantile of no calls is NaN, and a share of no frames too: reads go on until there are
        # some. All fetches were before the first scrape, so theirs stay NaN.
        empty = dict(queries)

        def only_fetches_have_none() -> bool:
            read(dataset, daemons)
            time.sleep(1)
            for query in list(empty):
                if any(result["value"][1] != "NaN" for result in ask(query)):
                    del empty[query]
            return set(empty.values()) <= {"Time of fetches: 99 of 100"}

        wait_for(only_fetches_have_none, f"data of {empty}", seconds=120)
        assert not [query for query in empty if not ask(query)]
        rules = json.loads(get(f"http://{address}/api/v1/rules")[1])["data"]["groups"][0]["rules"]
        assert len(rules) >= 11
    finally:
        server.terminate()
        server.wait()
