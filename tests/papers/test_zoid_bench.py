"""ZOID's evaluation as far as it is code: figures are what the page wants, programs compile and
measure."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "bench" / "papers"
ZOID = PAPERS / "zoid"
sys.path[:0] = [str(PAPERS / "common"), str(ZOID)]

FIGURES = "fig04 fig05 fig06 fig07 carriers files preload fairness kills".split()
ALONE = ["floor", "ops", "passfs", "locker", "forward_ops"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows(name):
    module = importlib.import_module(name)
    assert module.TITLE and module.PAPER and callable(module.run)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("programs")
    for name in ALONE:
        flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler, *flags, ZOID / f"{name}.c", "-o", folder / name, "-ldl"], check=True)
    return folder


def said(*command):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["memcpy", "socketpair", "tcp", "futex"])
def test_the_floor_is_measured(programs, kind):
    floor = said(programs / "floor", kind, 4096, 200)
    assert floor["calls"] == 200 and floor["bytes"] == 200 * 4096
    assert 0 < floor["min_ns"] <= floor["median_ns"] <= floor["p99_ns"]


@pytest.mark.parametrize("operation", ["read", "write", "pread", "pwrite", "open", "stat", "lseek", "fstat"])
def test_operations_do_what_they_count(programs, operation, tmp_path):
    file = tmp_path / "file"
    done = said(programs / "ops", operation, file, 4096, "--rounds", 100, "--span", 1 << 20)
    assert done["calls"] == 100 and done["bytes"] == 100 * 4096
    assert file.exists()


def test_the_best_and_the_rest_of_samples_are_in_order(programs, tmp_path):
    done = said(programs / "ops", "pwrite", tmp_path / "file", 64, "--seconds", 0.02, "--span", 1 << 20)
    assert done["calls"] > 0 and done["seconds"] > 0
    assert done["min_ns"] <= done["p10_ns"] <= done["median_ns"] <= done["p99_ns"]
