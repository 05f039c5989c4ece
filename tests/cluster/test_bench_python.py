"""The bench of Python's overhead runs; whether its goal holds is not a test's to say on a busy
machine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "python_overhead.py"


def test_python_overhead_prints_its_rows(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc): the bench compares with a C program")
    command = [sys.executable, BENCH, "--json", "--repeats", "1", "--scale", "0.02", "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = {(row["reader"], row["frame_bytes"]): row for row in report["rows"]}
    assert set(rows) == {(loop, n) for loop in ("c", "bare", "unpack", "numpy") for n in (4096, 65536)}
    for (reader, _), row in rows.items():
        assert 0 < row["wall_us"]["median"] < 1e6 and 0 < row["cpu_us"]["median"] < 1e5
        assert (row["above_c_cpu_us"] is None) == (reader == "c")
    assert report["goal_us"] == 20
