"""The mark that makes a library's constructors run before those of all others."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/initfirst.py"
SOURCE = """#include <unistd.h>
__attribute__((constructor)) static void begin(void) { write(1, NAME, 1); }
"""


def marked(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


def library(folder, name, *more):
    source, made = folder / "library.c", folder / f"lib{name}.so"
    source.write_text(SOURCE)
    words = [
        "cc",
        "-shared",
        "-fPIC",
        f'-DNAME="{name}"',
        source,
        "-Wl,-z,now",
        "-o",
        made,
        "-Wl,--no-as-needed",
        *more,
    ]
    subprocess.run(words, check=True)
    return made


def test_the_marked_librarys_constructor_runs_first(tmp_path):
    # b is first in LD_PRELOAD, and needs a: the loader would begin with a.
    a = library(tmp_path, "a")
    b = library(tmp_path, "b", a)

    def order():
        told = subprocess.run(
            ["/bin/true"], env={"LD_PRELOAD": str(b)}, capture_output=True, text=True, check=True
        )
        return told.stdout

    assert order() == "ab"
    assert marked("--check", b).returncode == 1
    for _ in range(2):
        assert marked(b).returncode == 0
    assert marked("--check", b).returncode == 0
    assert order() == "ba"


def test_what_cannot_be_marked_is_named(tmp_path):
    odd = tmp_path / "odd.so"
    for content in (b"", b"no library at all", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01"):
        odd.write_bytes(content)
        failed = marked(odd)
        assert failed.returncode == 1 and f"{odd}: " in failed.stderr, failed.stderr
        assert odd.read_bytes() == content
