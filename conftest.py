"""What holds for the tests of all folders."""

import collections
import os
import signal

import pytest

# A shell that runs a command in the background, and nohup, make it ignore these signals. The
# programs that tests start would inherit that, and a shell cannot trap a signal that it was started
# to ignore.
for _ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_ignored) == signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored == signal.SIGINT else signal.SIG_DFL)

# Python then writes each word of a line by itself, and lines of several ranks mix.
os.environ.pop("PYTHONUNBUFFERED", None)

# More ranks, and more processes, than there are cores run here. A rank of MPI that waits polls, and
# takes the time of the rank that it waits for: here it sleeps after some polls (MPICH), or yields
# (Open MPI). Threads of libraries of linear algebra would poll as well.
for _name, _value in {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "50",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(_name, _value)

# The tests of these files take longest. They begin first: whole files are handed to the workers,
# and all wait for one that begins last.
LONGEST = (
    "tests/soak/test_soak.py",
    "tests/namespace/test_leave.py",
    "tests/plugin/test_plugin.py",
    "tests/namespace/test_data.py",
    "tests/plugin/test_host.py",
    "tests/trust/test_calls.py",
    "tests/cluster/test_packages.py",
    "tests/namespace/test_two_mounts.py",
    "tests/namespace/test_mount.py",
    "tests/trajectories/test_watch.py",
    "tests/mpi/test_water.py",
    "tests/mpi/test_lost_nodes.py",
    "tests/mpi/test_mpi.py",
)


def pytest_collection_modifyitems(items):
    """The longest files first; the order of all else stays."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


# How much of a processor the tests of each file take.


def pytest_addoption(parser):
    parser.addoption(
        "--dearest",
        type=int,
        default=0,
        metavar="N",
        help="show the N files whose tests take most processor time, and how long they take",
    )


def _processor_seconds() -> float:
    """Of this process, and of all others that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.processor_seconds = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    # Reports come from the worker to the process that prints.
    report = yield
    now = _processor_seconds()
    report.processor_seconds, item.processor_seconds = now - item.processor_seconds, now
    return report


def pytest_terminal_summary(terminalreporter, config):
    """A daemon or a job that a later test waits for counts there."""
    shown = config.getoption("dearest")
    if not shown:
        return
    processor, took = collections.Counter(), collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "processor_seconds"):
                file = report.nodeid.partition("::")[0]
                processor[file] += report.processor_seconds
                took[file] += report.duration
    terminalreporter.section(f"processor {processor.total():.0f} s")
    for file, seconds in processor.most_common(shown):
        terminalreporter.write_line(f"{took[file]:6.1f} s, processor {seconds:5.1f} s  {file}")
