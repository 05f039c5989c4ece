"""scripts/rust_tests.py, on a crate of its own: it passes over no test that fails, dies or does not
compile."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/rust_tests.py"
GOOD = '#[test]\nfn good() {\n    assert_eq!(std::fs::read_to_string("here").unwrap(), "yes");\n}\n'
BAD = '#[test]\nfn bad() {\n    panic!("seven is not eight");\n}\n'


def run(folder, *words, **files):
    if shutil.which("cargo") is None:
        pytest.skip("no cargo")
    crate = folder / "tried"
    crate.mkdir()
    manifest = '[package]\nname = "tried"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n'
    (crate / "Cargo.toml").write_text(manifest)
    (crate / "here").write_text("yes")
    for part in ("src", "tests"):
        (crate / part).mkdir()
    (crate / "src/lib.rs").write_text("")
    for name, text in files.items():
        (crate / "tests" / f"{name}.rs").write_text(text)
    command = [sys.executable, SCRIPT, "--offline", *words]
    environment = dict(os.environ, CARGO_TARGET_DIR=str(crate / "target"))
    return subprocess.run(command, cwd=crate, env=environment, capture_output=True, text=True)


def test_all_that_passes_is_counted(tmp_path):
    done = run(tmp_path, good=GOOD, more=GOOD + GOOD.replace("good()", "better()"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tried: more: 2 passed" in done.stdout
    assert "3 test programs, 3 tests passed, 0 programs failed" in done.stdout


def test_a_failure_is_shown_and_the_others_run(tmp_path):
    done = run(tmp_path, good=GOOD, bad=BAD)
    assert done.returncode == 1
    assert "seven is not eight" in done.stdout
    assert "failed: tried: bad" in done.stdout and "tried: good: 1 passed" in done.stdout


def test_a_program_that_dies_is_a_failure(tmp_path):
    done = run(tmp_path, dies="#[test]\nfn dies() {\n    std::process::abort();\n}\n")
    assert done.returncode == 1 and "tried: dies failed with status -6" in done.stdout


def test_what_does_not_compile_is_a_failure(tmp_path):
    done = run(tmp_path, good=GOOD, broken="#[test]\nfn broken() {\n    none();\n}\n")
    assert done.returncode == 101 and "cannot find function" in done.stderr


def test_without_a_test_program_it_fails(tmp_path):
    done = run(tmp_path, "--bins", good=GOOD)
    assert done.returncode == 1 and "no test program" in done.stderr
