"""Functions of libc that make several calls by themselves, and absurd arguments."""

import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX

PROGRAM = Path(__file__).parent / "programs" / "others.c"


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
