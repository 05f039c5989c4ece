"""The soak itself, for some seconds: that its work and its faults run. `make soak` is the real
one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
