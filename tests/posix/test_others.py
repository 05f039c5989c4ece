"""Functions of libc that make several calls by themselves, and absurd arguments."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX

PROGRAM = Path(__file__).parent / "programs" / "others.c"
NUMBERS = Path(__file__).parent / "programs" / "numbers.c"
MEMORY = Path(__file__).parent / "programs" / "memory.c"


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
def test_functions_that_do_several_things(daemon, tmp_path, options):
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    words = ["cc", "-w", "-O2", "-D_FORTIFY_SOURCE=2", "-o", tmp_path / "others", PROGRAM, "-lutil"]
    subprocess.run(words, check=True)
    daemon.empty()
    words = [tmp_path / "others", daemon.direct, daemon.direct / "by-daemon"]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=60)
    there = daemon.run(tmp_path / "others", PREFIX, f"{PREFIX}/by-daemon", options=options)
    assert direct.stdout.count("\n") > 10
    assert there.stdout == direct.stdout, there.stderr
    for name in ("file", "printed", "by-daemon"):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name
    assert "on the terminal 1" in (daemon.far / "printed").read_text()


@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
def test_calls_by_number_and_processes_past_fork(request, tmp_path, mode):
    """Calls by number named this machine's files, and a child by `clone` died or took its parent's
    replies."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    subprocess.run(["cc", "-O1", "-o", tmp_path / "numbers", NUMBERS], check=True)
    daemon.empty()
    direct = subprocess.run([tmp_path / "numbers", daemon.direct], capture_output=True, text=True, timeout=60)
    options = ["--direct"] if mode == "direct" else []
    there = daemon.run(tmp_path / "numbers", PREFIX, options=options)
    assert direct.stdout.count("script word") == 3 and "status 15" in direct.stdout
    assert there.stdout == direct.stdout, there.stderr
    for name in ("named", "inherited", "by-clone", "by-clone3", "by-function"):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name


@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
def test_addresses_that_a_program_does_not_have(request, tmp_path, mode):
    """Errors, not crashes; and a fault of the program's own still ends it."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    subprocess.run(["cc", "-w", "-O1", "-o", tmp_path / "memory", MEMORY], check=True)
    daemon.empty()
    direct = subprocess.run([tmp_path / "memory", daemon.direct], capture_output=True, text=True, timeout=60)
    options = ["--direct"] if mode == "direct" else []
    there = daemon.run(tmp_path / "memory", PREFIX, options=options)
    assert direct.stdout.count("EFAULT") > 20 and "still there 1 -" in direct.stdout
    assert there.stdout == direct.stdout, there.stderr
    assert (daemon.far / "f").read_bytes() == (daemon.direct / "f").read_bytes()


def test_a_far_folder_as_tmpdir_of_another_nodes_programs(node):
    """`zazen run` needs a folder of this machine for itself."""
    node.empty()
    environment = os.environ | {"TMPDIR": PREFIX}
    environment.pop("XDG_RUNTIME_DIR", None)
    done = node.run("sh", "-c", "echo x > $TMPDIR/x && cat $TMPDIR/x", env=environment)
    assert done.stdout == "x\n", done.stderr
