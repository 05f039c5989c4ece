import os
import runpy
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_quickstart_runs():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py"],
        env={name: value for name, value in os.environ.items() if name != "ZAZEN_SOCKET"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pushed=100" in done.stdout and done.stdout.count("sum 4950") == 2, done.stdout


def test_importing_an_example_does_nothing():
    assert runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="imported")["main"]
