"""What the tests of streams share: configs, a sender with known faults, the sums that must hold."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "correlator"))

import make_library
import sky as skies
import stations
import streams

EXAMPLE = Path(make_library.__file__).parent
SKY = skies.Sky()


def config(sky=SKY, **changes):
    """Of a stream that one rank reads, with patience for slow machines; `deadline_ms` is waited for
    if packets are lost."""
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


def check_sums(counters, packets):
    """The counters of each station add up to what was sent, `packets` of it in the observation."""
    for station in counters["station"]:
        parts = "stored duplicate late refused outside strange".split()
        assert station["arrived"] == sum(station[part] for part in parts), station
        assert station["delivered"] + station["dropped"] + station["missing"] == packets, station
        assert station["stored"] == station["delivered"] + station["dropped"], station
    results = "added skipped duplicate late unfit".split()
    assert counters["results"] == sum(counters[f"results_{part}"] for part in results), counters


def wait_for_ports(path, job):
    """The ports of each node, as soon as the job has written them."""
    for _ in range(600):
        if path.exists():
            return json.loads(path.read_text())
        if job.poll() is not None:
            break
        time.sleep(0.05)
    job.kill()
    pytest.fail(f"the job wrote no ports:\n{job.communicate()[0].decode()}")
