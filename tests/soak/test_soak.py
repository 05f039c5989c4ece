"""The soak itself, for some seconds: that its work and its faults run. `make soak` is the real
one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import soak

#: It waits up to five minutes for readers, and for the workers, where the machine is busy.
SECONDS_MAX = 1500


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_some_seconds_of_soak_find_nothing(tmp_path):
    report = tmp_path / "report.json"
    told = subprocess.run(
        [sys.executable, Path(__file__).with_name("soak.py"), "--hours", "0.004", "--report", report],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert told.returncode == 0, (told.stdout[-4000:], told.stderr[-4000:])
    found = json.loads(report.read_text())
    assert found["frames"] > 0 and found["faults"], told.stdout
    assert all(of["done"] > 0 for of in found["workers"].values()), found["workers"]


def test_a_daemon_that_grows_is_found():
    """As one did within 35 minutes, by buffers that it kept for answers and did not use again."""
    seconds, flat = 2100.0, {"descriptors": 60, "threads": 40}

    def samples(memory):
        return [(at, {"memory": int(memory(at / seconds)), **flat}) for at in range(5, 2105, 5)]

    problems = soak.judge_growth(samples(lambda part: 44.6e6 + part * 49.5e6), seconds)
    assert len(problems) == 1 and "memory" in problems[0]
    # What grows at the beginning only, and what comes and goes, is no growth.
    assert not soak.judge_growth(samples(lambda part: min(part * 5, 1) * 60e6), seconds)
    assert not soak.judge_growth(samples(lambda part: 20e6 + (part * 100 % 3 > 1) * 60e6), seconds)
    threads = [(at, {"memory": 1, "descriptors": 60, "threads": at}) for at in range(5, 2105, 5)]
    assert "threads" in soak.judge_growth(threads, seconds)[0]
    # A run that is too short for samples says nothing of it.
    assert not soak.judge_growth([(3.0, {"memory": 1, **flat})], 10.0)


def test_rare_problems_are_shown():
    many = [f"a program of n{number % 4} failed at {number / 7} s" for number in range(10_000)]
    found = soak.kinds_of([*many, "n3: 5 wrong bytes"])
    assert found == [("a program of nN failed at N s", 10_000), ("nN: N wrong bytes", 1)]
