"""What of object stores a wheel holds. `make wheel` builds one; here only its programs are laid
out."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("built, more", [(None, {"zazen-objects"}), ("1", set())])
def test_a_wheel_has_the_program_and_an_installed_clone_has_not(helper, tmp_path, built, more):
    if shutil.which("cargo") is None or find_spec("setuptools") is None:
        pytest.skip("no cargo, or no setuptools")
    environment = {name: value for name, value in os.environ.items() if name != "ZAZEN_BUILT"}
    environment |= {"ZAZEN_PROFILE": "dev"} | ({"ZAZEN_BUILT": built} if built else {})
    words = ["setup.py", "-q", "build", "--build-base", tmp_path, "build_scripts", "--build-dir"]
    done = subprocess.run(
        [sys.executable, *words, tmp_path / "bin"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    laid_out = {path.name for path in (tmp_path / "bin").iterdir()}
    assert laid_out == {"zazen", "zazend"} | more
    for name in laid_out:
        assert os.access(tmp_path / "bin" / name, os.X_OK)
