"""Streams in this process (loopback) and in real daemons."""

import subprocess
import sys
from pathlib import Path

import pytest
import zazen.testing

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "correlator"))

import make_library
import streams
from launching import mpi_environment, mpiexec
from observation import Sending


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


@pytest.fixture
def send():
    started = []

    def start(*words):
        started.append(Sending(*words))
        return started[-1]

    yield start
    for sending in started:
        sending.thread.join(60)


@pytest.fixture
def mpi():
    """Runs a Python program on so many ranks."""
    pytest.importorskip("mpi4py")
    launcher = mpiexec()
    running = []

    def start(ranks, program, *words):
        command = [launcher, "-n", ranks, sys.executable, program, *words]
        pipe = subprocess.PIPE
        job = subprocess.Popen(
            [str(word) for word in command], stdout=pipe, stderr=subprocess.STDOUT, env=mpi_environment()
        )
        running.append(job)
        return job

    yield start
    for job in running:
        if job.poll() is None:
            job.kill()
            job.wait()
