"""A test of the namespace that hangs is ended, with all that it started."""

import subprocess
import time
from pathlib import Path

import pytest
from conftest import alone


def of(folder: Path) -> list[str]:
    """The processes whose command line names this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_a_test_that_hangs_is_ended_with_what_it_started(folder):
    def hangs():
        subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM INT; sleep 600; :", str(folder)])
        time.sleep(600)

    started = time.monotonic()
    with pytest.raises(AssertionError):
        alone(hangs, seconds=3)
    assert time.monotonic() - started < 30 and of(folder) == []


def test_what_a_test_leaves_is_ended_and_a_failure_is_told(folder):
    def leaves():
        subprocess.Popen(["setsid", "sh", "-c", "sleep 600; :", str(folder)])

    alone(leaves, seconds=30)
    assert of(folder) == []

    def fails():
        leaves()
        raise OSError("as a test does")

    with pytest.raises(AssertionError):
        alone(fails, seconds=30)
    assert of(folder) == []
