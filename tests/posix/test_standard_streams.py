"""Streams of C and C++, direct and forwarded: whoever holds libc's objects, whenever they took
them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def streams(daemon):
    """A program linked to a shared library whose constructors use iostream."""
    if shutil.which("c++") is None:
        pytest.skip("c++ is not installed")
    folder = daemon.folder / "streams"
    folder.mkdir()
    library, program = folder / "libearly.so", folder / "streams"
    compiler = ["c++", "-O1", "-o"]
    subprocess.run([*compiler, library, "-shared", "-fPIC", PROGRAMS / "early.cc"], check=True)
    words = [PROGRAMS / "streams.cc", library, f"-Wl,-rpath,{folder}", "-ldl"]
    subprocess.run([*compiler, program, *words], check=True)
    return str(program)


REDIRECTED = '"$0" "$1" < in > out 2> err; echo status $?; cat out err'


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "speaking"])
def test_streams_of_a_program_whose_library_uses_them_first(daemon, streams, options, speaks):
    daemon.empty()
    environment = os.environ | ({"EARLY_SPEAKS": "1", "STREAMS_FAIL": "1"} if speaks else {})
    for folder in (daemon.direct, daemon.far):
        (folder / "in").write_text("one\ntwo\n")
    direct = subprocess.run(
        ["bash", "-c", REDIRECTED, streams, "."],
        cwd=daemon.direct,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert "cout into again" in (daemon.direct / "again").read_text()
    script = f"cd {PREFIX} && {REDIRECTED}"
    there = daemon.run("bash", "-c", script, streams, PREFIX, options=options, env=environment, text=False)
    assert there.stdout == direct.stdout, there.stderr
    for name in sorted(os.listdir(daemon.direct)):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name
    assert sorted(os.listdir(daemon.far)) == sorted(os.listdir(daemon.direct))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_a_program_of_c_plus_plus(daemon):
    """Its output was lost with exit status 0."""
    daemon.empty()
    done = daemon.run("bash", "-c", f"cmake --version > {PREFIX}/x && wc -l < {PREFIX}/x")
    assert (daemon.far / "x").read_text() == subprocess.run(
        ["cmake", "--version"], capture_output=True, text=True
    ).stdout
    assert done.returncode == 0
