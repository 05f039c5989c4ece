"""`zazen sim` as users run it: what it prints, what it keeps, what it refuses; and spans of real
daemons."""

import csv
import importlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import zazen.testing
from zazen.testing import Cluster

ZAZEN = os.environ.get("ZAZEN_BIN", zazen.testing.program("zazen"))
KEYS = [
    "nodes", "seed", "fidelity", "makespan_s", "bytes_per_s", "metadata_ops_per_s", "events", "trace_hash"
]  # fmt: skip


def sim(*arguments, code=0):
    done = subprocess.run(
        [ZAZEN, "sim", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    return done if code else done.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_has_the_promised_keys_and_repeats():
    command = ("run", "fusionfs", "--nodes", "512..2048", "--net", "torus", "--json")
    one = sim(*command, "--threads", 1)
    assert [list(line) for line in lines(one)] == [KEYS] * 3
    assert sim(*command, "--threads", 3) == one
    other = lines(sim(*command, "--seed", 2))
    assert [line["trace_hash"] for line in other] != [line["trace_hash"] for line in lines(one)]
    assert [line["nodes"] for line in other] == [512, 1024, 2048]


@pytest.mark.parametrize("net", ["star", "torus", "fat-tree", "dragonfly"])
@pytest.mark.parametrize("fidelity", ["loggp", "path", "flow", "hop"])
def test_every_network_and_fidelity(net, fidelity):
    (line,) = lines(sim("run", "read-remote", "--nodes", 64, "--net", net, "--fidelity", fidelity, "--json"))
    assert line["fidelity"] == fidelity
    # 256 MB from a disk of 174 MB/s is the least that it can take.
    assert line["makespan_s"] > 256e6 / 174e6
    # Nodes * bytes / makespan.
    assert line["bytes_per_s"] == pytest.approx(64 * 256e6 / line["makespan_s"])


def test_compare_fidelity():
    """Each fidelity's distance from `hop` is that of runs of its own; and they do differ."""
    command = ("run", "read-random", "--nodes", 64, "--net", "torus")
    takes = {}
    for fidelity in ("loggp", "path", "flow", "hop"):
        (line,) = lines(sim(*command, "--fidelity", fidelity, "--json"))
        takes[fidelity] = line["makespan_s"]
    printed = sim(*command, "--compare-fidelity").splitlines()[1:]
    assert [row.split()[1] for row in printed] == list(takes)
    for row, fidelity in zip(printed, takes, strict=True):
        assert f"{100 * (takes[fidelity] / takes['hop'] - 1):+.2f} %" in row
    assert len(set(takes.values())) > 1
    assert "cannot be used with" in sim(*command, "--compare-fidelity", "--fidelity", "hop", code=2).stderr


def test_analysis_and_views():
    """The fetcher's misses cost time; a view that is matched reads less from other nodes."""
    (fetching,) = lines(sim("run", "analysis-fetch", "--nodes", 64, "--json"))
    assert fetching["bytes_per_s"] * fetching["makespan_s"] == pytest.approx(64 * 64 * 64e6)
    takes = {}
    for name in ("view", "view-blind"):
        (line,) = lines(sim("run", name, "--nodes", 64, "--cluster", "commodity", "--json"))
        assert line["bytes_per_s"] * line["makespan_s"] == pytest.approx(64 * 4 * 64e6)
        takes[name] = line["makespan_s"]
    assert takes["view"] < takes["view-blind"]
    refused = sim("run", "view", "--nodes", 2_000_000, "--memory", "1T", code=1).stderr
    assert "matched to at most 1048576" in refused


def test_every_workload_runs():
    names = [line.split()[0] for line in sim("run", "list").splitlines()[1:]]
    assert len(names) >= 15
    for name in names:
        (line,) = lines(sim("run", name, "--nodes", 128, "--json"))
        assert line["makespan_s"] > 0, name


def test_results_are_kept_and_resumed(tmp_path):
    out = tmp_path / "out"
    command = ("run", "metadata", "--nodes", "64..256", "-o", out)
    first = sim(*command, "--json")
    for name in (
        "runs.csv",
        "phases.csv",
        "slowest.csv",
        "busy.csv",
        "summary.json",
        "index.html",
        "metadata.svg",
        "metadata.png",
        "runs.parquet",
    ):
        assert (out / name).stat().st_size > 0, name
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["trace_hash"] for row in rows] == [line["trace_hash"] for line in lines(first)]
    assert float(rows[0]["makespan_s"]) == lines(first)[0]["makespan_s"]
    page = (out / "index.html").read_text()
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    # A damaged record is done again; the others are not touched.
    kept = sorted((out / "runs").iterdir())
    kept[0].write_text(kept[0].read_text()[:50])
    before = {path: path.stat().st_mtime_ns for path in kept[1:]}
    assert sim(*command, "--json", "--resume") == first
    assert {path: path.stat().st_mtime_ns for path in kept[1:]} == before
    assert json.loads(kept[0].read_text())["version"] == 3


def test_what_is_resumed_is_what_was_found(tmp_path):
    """Byte for byte: in what is printed and in the tables, as in a folder of another run."""
    command = ("run", "fusionfs", "--nodes", "8..64", "--json")
    printed = sim(*command)
    tables = []
    for out, resume in ((tmp_path / "a", ()), (tmp_path / "b", ()), (tmp_path / "a", ("--resume",))):
        assert sim(*command, "-o", out, *resume) == printed
        tables.append({path.name: path.read_bytes() for path in out.iterdir() if path.is_file()})
    assert tables[1] == tables[0] and tables[2] == tables[0]


def test_an_interrupted_sweep_keeps_what_was_finished(tmp_path):
    out = tmp_path / "out"
    command = [
        ZAZEN,
        "sim",
        "run",
        "metadata",
        "--nodes",
        "64,262144",
        "--threads",
        "2",
        "-o",
        str(out),
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.glob("runs/*.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line["nodes"] for line in lines(printed)] == [64]
    assert "1 of 2 runs were not done" in said and "--resume" in said
    assert (out / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing"], "there are fusionfs"),
        (["fusionfs", "--nodes", "65", "--net", "torus:4x4x4"], "room for 64 nodes, and 65"),
        (["fusionfs", "--net", "dragonfly:2x2x1x9"], "at most 3 groups"),
        (["fusionfs", "--fidelity", "exact"], "there are loggp"),
        (["fusionfs", "--cluster", "nowhere"], "there are intrepid, commodity"),
        (["fusionfs", "--nodes", "2000376", "--memory", "100M"], "needs about"),
        (["fusionfs", "--ranks-per-node", "0"], "ranks per node: 0"),
        (["assign-dead", "--nodes", "8192"], "no closed form"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments, expected):
    done = sim("run", *arguments, code=1)
    assert expected in done.stderr


def test_job_files(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        'nodes = 8\nnet = "star"\n[[step]]\ndo = "repeat"\ntimes = 3\n'
        '[[step.step]]\ndo = "write"\nbytes = "100MB"\n[[step]]\ndo = "barrier"\n'
    )
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[disk]\nwrite_bytes_per_s = 100e6\nlatency_us = 0.0\n[network]\nlatency_us = 0.0\n"
                       "overhead_us = 0.0\n")  # fmt: skip
    (line,) = lines(sim("run", job, "--cluster", cluster, "--json"))
    assert line["makespan_s"] == pytest.approx(3.0, rel=1e-6)
    cluster.write_text("[disk]\nwrite_bytes_per_s = -1.0\n")
    assert "disk.write_bytes_per_s = -1" in sim("run", job, "--cluster", cluster, code=1).stderr
    job.write_text('[[step]]\ndo = "fly"\n')
    assert 'do = "fly"' in sim("run", job, code=1).stderr


def test_ranks_that_do_not_end_are_told_to_programs_too(tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[failures]\ndead_fraction = 0.3\ntimeout_ms = 1.0\n")
    command = [ZAZEN, "sim", "run", "read-remote", "--nodes", "64", "--cluster", cluster, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "ranks did not end" in done.stderr and len(lines(done.stdout)) == 1
    assert "does not model such failures" in sim("run", "namespace", "--cluster", cluster, code=1).stderr


def test_ior():
    command = ("run", "ior", "--nodes", 8, "--net", "star", "--json")
    (line,) = lines(sim(*command, "--ior", "-b 16m -t 4m -s 4 -w -r -C -F"))
    assert line["bytes_per_s"] * line["makespan_s"] == pytest.approx(8 * 2 * 64 * 2**20)
    assert "-z is not simulated" in sim(*command, "--ior", "-z", code=1).stderr
    assert "belongs to the workload ior" in sim("run", "fusionfs", "--ior", "-w", code=1).stderr


def test_a_folder_holds_the_plots_of_its_last_sweep(tmp_path):
    sim("run", "fusionfs", "--nodes", 512, "-o", tmp_path)
    assert (tmp_path / "error.svg").exists() and (tmp_path / "throughput.png").exists()
    sim("run", "metadata", "--nodes", 64, "-o", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"metadata", "stragglers", "busy"}
    assert len(list((tmp_path / "runs").iterdir())) == 2, "finished runs stay"
    assert not list(tmp_path.rglob(".*"))


def test_a_job_file_has_nothing_that_is_not_used(tmp_path):
    job = tmp_path / "job.toml"
    for text, words in (
        ('data = "shared"\n[[step]]\ndo = "barrier"\n', "belongs to --darshan"),
        ('[[step]]\ndo = "open"\n[[step.step]]\ndo = "barrier"\n', "only a repeat may"),
        ('[[step]]\ndo = "sync"\nbytes = "1GB"\n', "sync: bytes means nothing to it"),
        ('nodes = 2000376\n[[step]]\ndo = "write"\nbytes = "10TB"\n', "16 EiB"),
    ):
        job.write_text(text)
        assert words in sim("run", job, code=1).stderr
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[disk]\nwrite_bytes_per_s = 200e6\n")
    sim("run", "fusionfs", "--nodes", 512, "--cluster", cluster, "-o", tmp_path / "out")
    (found,) = json.loads((tmp_path / "out/summary.json").read_text())
    # What the file changed is no figure of the paper, nor is the whole of it.
    assert found["cluster"] == "intrepid with changes" and "disk.write_bytes_per_s" not in found["origin"]
    assert not (tmp_path / "out/error.svg").exists()


def test_compare(tmp_path):
    for seed in (1, 2):
        sim("run", "fusionfs", "--nodes", 512, "--seed", seed, "-o", tmp_path / str(seed))
    same = json.loads(sim("compare", tmp_path / "1", tmp_path / "1", "--json"))
    assert [row["same_trace"] for row in same] == [True]
    assert "no run in common" in sim("compare", tmp_path / "1", tmp_path / "2", code=1).stderr
    summary = tmp_path / "2" / "summary.json"
    summary.write_text(summary.read_text().replace('"version":3', '"version":1'))
    assert "version 1" in sim("compare", tmp_path / "2", tmp_path / "2", code=1).stderr


def push(cluster, backing, count, size):
    folder = backing / f"set{size}"
    folder.mkdir()
    for number in range(count):
        (folder / f"f{number:06d}.dat").write_bytes(os.urandom(size * (1 + number % 5)))
    command = [ZAZEN, "push", "--nodes", ",".join(cluster.nodes), "--key", cluster.key, "--on-slow", "block"]
    files = sorted(map(str, folder.iterdir()))
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=120)


def test_compare_tells_of_ranks_that_did_not_end(tmp_path):
    """A job that broke off early has a short makespan, and is no improvement."""
    (tmp_path / "dead.toml").write_text("[failures]\ndead_fraction = 0.1\n")
    run = ("run", "metadata", "--nodes", 64, "-o")
    sim(*run, tmp_path / "alive")
    sim(*run, tmp_path / "dead", "--cluster", tmp_path / "dead.toml")
    command = [ZAZEN, "sim", "compare", tmp_path / "alive", tmp_path / "dead", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (row,) = json.loads(done.stdout)
    assert row["unfinished"][0] == 0 < row["unfinished"][1] < 64
    assert f"0 and {row['unfinished'][1]} ranks did not end" in done.stderr


def span(at, **other):
    return json.dumps({
        "v": 3, "node": "n0", "op": "frames.push", "start_ns": 10**18 + at * 10**7, "duration_ns": 10**6,
        "queue_ns": 0, "bytes_in": 1000, "bytes_out": 0, "bytes_moved": 0, "connection": 1,
        "peer": "0:9@sim", "outcome": "ok",
    } | other)  # fmt: skip


def test_validate_says_what_it_leaves_out(tmp_path):
    px = {"op": "plugins.posix.px_read"}
    for name, spans in {
        "half": [span(at, **(px if at % 2 else {})) for at in range(40)],
        "still": [span(at, duration_ns=0) for at in range(40)],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "n0.spans.jsonl").write_text("".join(f"{line}\n" for line in spans))
    command = [ZAZEN, "sim", "validate", "commodity", tmp_path / "half"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "of 40 calls 20 are not modelled (plugins.posix.px_read)" in done.stderr
    assert "took no time" in sim("validate", "commodity", tmp_path / "still", code=1).stderr
    again = (tmp_path / "half", tmp_path / "." / "half")
    assert "given twice" in sim("validate", "commodity", *again, code=1).stderr
    assert "given twice" in sim("calibrate", *again, "-o", tmp_path / "c.toml", code=1).stderr


def test_real_daemons_record_calibrate_and_validate(tmp_path):
    backing = tmp_path / "backing"
    backing.mkdir()
    for name, count, size in (("train", 200, 100_000), ("held-out", 100, 200_000)):
        with Cluster(tmp_path / f"c-{name}", backing, arguments=["--spans", tmp_path / name]) as cluster:
            push(cluster, backing, count, size)
    exported = tmp_path / "lines"
    exported.mkdir()
    sim("export", tmp_path / "train", "--format", "jsonl", "-o", exported / "all.spans.jsonl")
    recorded = (exported / "all.spans.jsonl").read_text().splitlines()
    pushes = [span for span in map(json.loads, recorded) if span["op"].startswith("frames.push")]
    assert sum(span["bytes_in"] for span in pushes) == sum(
        100_000 * (1 + number % 5) for number in range(200)
    )
    assert {span["outcome"] for span in pushes} == {"ok"}
    cluster = tmp_path / "cluster.toml"
    told = sim("calibrate", tmp_path / "train", "-o", cluster)
    assert "network.latency_us" in told and "not told" in told
    rows = json.loads(sim("validate", cluster, tmp_path / "held-out", "--json"))
    assert {row["op"] for row in rows["rows"]} >= {"all"}
    assert rows["mape"] >= 0
    same = [ZAZEN, "sim", "validate", cluster, tmp_path / "train"]
    said = subprocess.run(same, capture_output=True, text=True, timeout=300, check=True).stderr
    assert "was calibrated from these spans" in said
    trace = tmp_path / "trace.json"
    sim("export", tmp_path / "train", "-o", trace)
    assert len(json.loads(trace.read_text())["traceEvents"]) == len(recorded) + 1
    # Lines, as earlier releases wrote them, tell the same.
    again = tmp_path / "again.toml"
    sim("calibrate", exported, "-o", again)
    assert again.read_text() == cluster.read_text()
    # A file that was cut is refused by its byte, with what to do, and that helps.
    file = tmp_path / "train" / "node0.spans"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:-10])
    said = sim("calibrate", tmp_path / "train", "-o", again, code=1).stderr
    whole_at = int(said.split("truncate -s ")[1].split()[0])
    assert "was cut" in said and str(file) in said and len(whole) <= whole_at < 2 * len(whole)
    os.truncate(file, len(whole))
    sim("calibrate", tmp_path / "train", "-o", again)
    assert again.read_text() == cluster.read_text()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    said = sim("calibrate", tmp_path / "train", "-o", again, code=1).stderr
    assert "damaged" in said and "byte" in said and str(file) in said
    file.write_bytes(whole[:20])
    assert "no whole block" in sim("calibrate", tmp_path / "train", "-o", again, code=1).stderr
    file.unlink()
    os.mkfifo(file)
    assert "no regular file" in sim("calibrate", tmp_path / "train", "-o", again, code=1).stderr
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "node0.spans.jsonl").write_text("\n".join(recorded)[:-10])
    assert "was cut" in sim("calibrate", cut, "-o", cluster, code=1).stderr
    assert "no file" in sim("calibrate", pathlib.Path(sys.prefix), "-o", cluster, code=1).stderr


def python_that(folder, script):
    """An interpreter that does this, whatever it is asked: stands for one with or without a
    package."""
    path = folder / "python-stub"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {**os.environ, "ZAZEN_PYTHON": str(path)}


def replay(log, *arguments, env=None, code=0):
    command = [ZAZEN, "sim", "run", "darshan", "--darshan", str(log), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == code, done.stderr
    return done


def test_a_log_is_replayed_on_as_many_nodes_as_it_needs(tmp_path):
    log = tmp_path / "job.darshan"
    log.write_text("read by the stub")
    lines_of_log = [
        {"v": 1, "ranks": 8, "run_s": 9.0, "words": ["4 reads and writes are synthesised from counters"]},
        {"rank": 3, "file": 5, "traced": [["write", 100000000, 1.0, 2.0], ["write", 100000000, 4.0, 4.5]]},
    ]
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines_of_log))
    env = python_that(tmp_path, f"cat {tmp_path}/lines")
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[disk]\nwrite_bytes_per_s = 100e6\nlatency_us = 0.0\n")
    command = ("--cluster", cluster, "--json")
    done = replay(log, *command, env=env)
    (line,) = lines(done.stdout)
    # Pauses of 1 s and 2 s, and two seconds of writing.
    assert (line["nodes"], line["makespan_s"]) == (8, pytest.approx(5.0, rel=1e-6))
    assert "synthesised" in done.stderr and "8 ranks" in done.stderr
    assert [line["nodes"] for line in lines(replay(log, *command, "--nodes", "2,3", env=env).stdout)] == [
        2,
        3,
    ]
    assert lines(replay(log, *command, "--ranks-per-node", "4", env=env).stdout)[0]["nodes"] == 2
    said = replay(log, *command, "--nodes", "2", "--ranks-per-node", "2", env=env, code=1).stderr
    assert "8 ranks were logged" in said and "--ranks-per-node" in said
    # With a job file, which says on which network.
    job = tmp_path / "job.toml"
    job.write_text('net = "fat-tree"\n[[step]]\ndo = "barrier"\n')
    command = [ZAZEN, "sim", "run", str(job), "--darshan", str(log), "--cluster", str(cluster), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=env)
    assert lines(done.stdout)[0]["makespan_s"] == pytest.approx(5.0, rel=1e-6)
    assert "the job file's steps are not used" in done.stderr


def test_what_is_wrong_with_a_log_is_said(tmp_path):
    log = tmp_path / "job.darshan"
    log.write_text("no log")
    missing = replay(log, env=python_that(tmp_path, "echo No module >&2; exit 3"), code=1).stderr
    assert "-m pip install darshan" in missing and "ZAZEN_PYTHON" in missing
    nowhere = replay(log, env={**os.environ, "ZAZEN_PYTHON": "/nowhere/python"}, code=1).stderr
    assert "/nowhere/python does not start" in nowhere
    cut = replay(log, env=python_that(tmp_path, "echo 'Error: unable to read' >&2; exit 4"), code=1).stderr
    assert "unable to read" in cut and "job.darshan" in cut
    half = replay(log, env=python_that(tmp_path, """echo '{"v":1,"ranks":2,"ru'"""), code=1).stderr
    assert "line 1" in half
    assert "No such file" in replay(tmp_path / "nowhere", code=1).stderr
    assert "job file" in sim("run", "fusionfs", "--darshan", log, code=1).stderr
    assert "which log" in sim("run", "darshan", code=1).stderr


def test_real_darshan_logs(tmp_path):
    """The logs that the package darshan brings along: DXT, counters, STDIO alone, and one that is
    cut."""
    spec = importlib.util.find_spec("darshan")
    if spec is None or spec.origin is None:
        pytest.skip("the package darshan is not installed: pip install darshan")
    package = pathlib.Path(spec.origin).parent
    env = {**os.environ, "ZAZEN_PYTHON": sys.executable}
    for name, ranks, word in (
        ("tests/input/sample-dxt-simple.darshan", 16, "as DXT traced them"),
        ("tests/input/sample.darshan", 2048, "synthesised from counters"),
        ("tests/input/noposixopens.darshan", 32, "synthesised from counters"),
    ):
        done = replay(package / name, "--json", env=env)
        (line,) = lines(done.stdout)
        assert line["nodes"] == ranks and word in done.stderr and line["makespan_s"] > 0
    whole = (package / "tests/input/sample.darshan").read_bytes()
    for size in (100, 1000, len(whole) // 2, len(whole) - 20):
        (tmp_path / "cut.darshan").write_bytes(whole[:size])
        assert "Darshan log" in replay(tmp_path / "cut.darshan", env=env, code=1).stderr, size


def test_tables_as_parquet(tmp_path):
    """Arrow's own reader finds what is in the CSV files."""
    sim("run", "fusionfs", "--nodes", "64..256", "-o", tmp_path / "out")
    for name in ("runs", "phases", "slowest", "busy"):
        assert (tmp_path / "out" / f"{name}.parquet").read_bytes()[:4] == b"PAR1"
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the files were written, and not read")
    parquet = importlib.import_module("pyarrow.parquet")
    for name in ("runs", "phases", "slowest", "busy"):
        table = parquet.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist()
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(table) == len(rows) > 0
        for row, expected in zip(table, rows, strict=True):
            for key, value in expected.items():
                assert row[key] == (value if isinstance(row[key], str) else pytest.approx(float(value))), key


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 97, 1009])
def test_odd_numbers_of_nodes(nodes):
    for net in ("torus", "fat-tree", "dragonfly"):
        for workload in ("fusionfs", "ior-collective", "push-evict", "namespace-shared"):
            (line,) = lines(sim("run", workload, "--nodes", nodes, "--net", net, "--json"))
            assert line["nodes"] == nodes and line["makespan_s"] > 0, (workload, net)
