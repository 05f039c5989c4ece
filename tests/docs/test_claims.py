"""Commands and flags that the documentation names exist: each is looked up in the programs' own
--help.

scripts/tidy_docs.py (`make check`) checks what needs no program: links, files, settings, names.
"""

import functools
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import zazen.testing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tidy_docs import blocks  # noqa: E402

PAGES = sorted(
    path
    for folder in ("", "docs", "docs/decisions", "docs/formats", "examples", "tests", "sdk/plugin/template")
    for path in (ROOT / folder).glob("*.md")
)
# Flags that only programs of other names have; each page that names one says whose it is.
OTHER_FLAGS = {"--lose", "--rate", "--root", "--pjdfstest", "--symmetric"}
# Flags of Slurm's sbatch.
OTHER_FLAGS |= {"--comment", "--constraint", "--exclude", "--nodelist", "--prefer", "--reservation"}
# Python programs of ours, whose flags pages name.
PROGRAMS = [
    "examples/protein_gallery.py",
    "integrations/slurm/zazen-slurm-features",
    "integrations/viz/src/generate.py",
    "tests/posix/ltp.py",
]


@functools.cache
def told(*words):
    """What `words --help` says, or None where there is no such command."""
    program = zazen.testing.program(words[0])
    done = subprocess.run([program, *words[1:], "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def commands_of(words):
    """The subcommands that the help of `words` lists."""
    section = re.search(r"^Commands:\n((?:  .*\n|\n)+)", told(*words) or "", flags=re.MULTILINE)
    return (
        set(re.findall(r"^  ([a-z][a-z-]*)", section[1], flags=re.MULTILINE)) - {"help"} if section else set()
    )


@functools.cache
def flags_of_programs():
    texts = [(ROOT / name).read_text() for name in PROGRAMS]
    return {flag for text in texts for flag in re.findall(r'add_argument\(\s*"(--[a-z][a-z-]*)"', text)}


def flags_of(words):
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", told(*words) or ""))


@functools.cache
def every_flag():
    """Flags of zazend, of zazen and of all its subcommands."""
    found = flags_of(("zazend",))
    waiting = [("zazen",)]
    while waiting:
        words = waiting.pop()
        found |= flags_of(words)
        waiting += [(*words, name) for name in commands_of(words)]
    return found


def lines_of(path):
    """Code lines and code spans, with the line's number; lines that end in a backslash go on."""
    pending = ""
    for number, line, language in blocks(path.read_text()):
        if language is None:
            yield from ((number, span, False) for span in re.findall(r"`([^`]+)`", line))
        elif language in ("", "sh"):
            pending += line.removeprefix("$ ")
            if pending.endswith("\\"):
                pending = pending[:-1] + " "
                continue
            yield number, pending, True
            pending = ""


def parts(line):
    """The commands of a line that are ours, as words; what runs behind ` -- ` is another
    program's."""
    for part in re.split(r"&&|\|\||[;|]|(?<=\s)&(?=\s|$)|\s#\s", line):
        try:
            words = shlex.split(part.strip())
        except ValueError:
            words = part.split()
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        for at, word in enumerate(words):
            if word in ("zazen", "zazend"):
                own = words[at:]
                yield own[: own.index("--")] if "--" in own else own
                break


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_exist(path):
    wrong = []
    for number, line, _ in lines_of(path):
        for words in parts(line):
            command = [words[0]]
            for word in words[1:]:
                known = commands_of(tuple(command))
                if not known:
                    break
                if not re.fullmatch(r"[a-z][a-z-]*", word):
                    break
                if word not in known:
                    wrong.append(f"{path.name}:{number}: {' '.join(command)} has no command {word}")
                    break
                command.append(word)
            flags = [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]
            wrong += [
                f"{path.name}:{number}: {' '.join(command)} has no flag {flag}"
                for flag in flags
                if flag not in flags_of(tuple(command))
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_named_alone_exist(path):
    wrong = []
    for number, span, is_line in lines_of(path):
        flag = re.match(r"(--[a-z][a-z-]*)(?:[ =\[].*)?$", span)
        if flag and not is_line and flag[1] not in every_flag() | flags_of_programs() | OTHER_FLAGS:
            wrong.append(f"{path.name}:{number}: neither zazen nor zazend has a flag {flag[1]}")
    assert not wrong, "\n".join(wrong)


def test_there_is_one_port_for_metrics():
    """The settings and all pages name the same one."""
    texts = [path.read_text() for path in [*PAGES, *(ROOT / "packaging").iterdir()] if path.is_file()]
    lines = [line for text in texts for line in text.splitlines() if "metrics" in line]
    ports = {
        port for line in lines for port in re.findall(r"(?:[\d.]+|localhost|HOST|NODE):(\d{4,5})\b", line)
    }
    assert ports == {"9345"}, ports


def test_no_page_makes_a_key_by_redirection():
    """`zazen key new > FILE` leaves an empty file where the command fails."""
    for path in [*PAGES, *(ROOT / "packaging").iterdir()]:
        if path.is_file():
            assert not re.search(r"zazen key new\s*>", path.read_text()), path
