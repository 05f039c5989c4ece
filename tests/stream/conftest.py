"""Streams in this process (loopback) and in real daemons."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zazen.testing

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "correlator"))

import make_library
import sky as skies
import stations
import streams

EXAMPLE = Path(make_library.__file__).parent


@pytest.fixture(scope="session")
def plugin():
    try:
        return make_library.plugin()
    except FileNotFoundError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def loopback_library(tmp_path_factory):
    return make_library.make(
        tmp_path_factory.mktemp("lb"), loopback=True, zazen=zazen.testing.program("zazen")
    )


@pytest.fixture(scope="session")
def daemon_library(tmp_path_factory):
    return make_library.make(tmp_path_factory.mktemp("dm"), zazen=zazen.testing.program("zazen"))


@pytest.fixture
def host(loopback_library, plugin):
    """The plug-in in this process."""
    with streams.Library(loopback_library).connect(plugin=plugin) as host:
        yield host


@pytest.fixture(params=["isolated", "in-process"])
def daemon(request, tmp_path_factory, plugin):
    """A daemon that hosts the plug-in, in a process of its own or in the daemon's."""
    folder = tmp_path_factory.mktemp("z")
    (folder / "backing").mkdir()
    place = f"{plugin}:in-process" if request.param == "in-process" else str(plugin)
    arguments = ["--plugin", place, "--drain-seconds", "3"]
    with zazen.testing.Cluster(folder / "c", folder / "backing", arguments=arguments) as cluster:
        yield cluster


SKY = skies.Sky()


def config(sky=SKY, **changes):
    """Of a stream that one rank reads, with patience for slow machines; `deadline_ms` is waited for if packets are
    lost."""
    values = {
        "stations": sky.stations,
        "subbands": sky.subbands,
        "sample_bytes": 2,
        "packet_samples": sky.packet_samples,
        "block_packets": sky.block_packets,
        "slots": 64,
        "deadline_ms": 10_000,
        "silence_ms": 20_000,
        "block_first": 0,
        "block_count": 32,
        "integrate": 4,
        "element": streams.ELEMENTS["i64"],
    }
    return streams.Config(**(values | changes))


class Sending:
    """stations.py in a thread; `report` is what it says it sent."""

    def __init__(self, *words):
        self.arguments = stations.parse([str(word) for word in words])
        self.report = None
        self.error = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.report = stations.observe(self.arguments, skies.of_options(self.arguments))
        except Exception as error:
            self.error = error

    def join(self):
        self.thread.join(60)
        assert self.error is None and self.report is not None, self.error
        return self.report


@pytest.fixture
def send():
    started = []

    def start(*words):
        started.append(Sending(*words))
        return started[-1]

    yield start
    for sending in started:
        sending.thread.join(60)


def wait_until(condition, seconds=20):
    """What has been sent, or has gone, has not yet been noticed."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_sums(counters, packets):
    """The counters of each station add up to what was sent, `packets` of it in the observation."""
    for station in counters["station"]:
        parts = "stored duplicate late refused outside strange".split()
        assert station["arrived"] == sum(station[part] for part in parts), station
        assert station["delivered"] + station["dropped"] + station["missing"] == packets, station
        assert station["stored"] == station["delivered"] + station["dropped"], station
    results = "added skipped duplicate late unfit".split()
    assert counters["results"] == sum(counters[f"results_{part}"] for part in results), counters


@pytest.fixture
def mpi():
    """Runs a Python program on so many ranks."""
    pytest.importorskip("mpi4py")
    launcher = Path(sys.executable).parent / "mpiexec"
    if not launcher.exists():
        pytest.skip("no mpiexec beside this Python: pip install mpich")
    running = []

    def start(ranks, program, *words):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            clean |= {name: "1", f"{name}_CONFIRM": "1"}
        command = [launcher, "-n", ranks, sys.executable, program, *words]
        pipe = subprocess.PIPE
        job = subprocess.Popen(
            [str(word) for word in command], stdout=pipe, stderr=subprocess.STDOUT, env=clean
        )
        running.append(job)
        return job

    yield start
    for job in running:
        if job.poll() is None:
            job.kill()
            job.wait()


def wait_for_ports(path, job):
    """The ports of each node, as soon as the job has written them."""
    for _ in range(600):
        if path.exists():
            return json.loads(path.read_text())
        if job.poll() is not None:
            break
        threading.Event().wait(0.05)
    job.kill()
    pytest.fail(f"the job wrote no ports:\n{job.communicate()[0].decode()}")
