"""Programs' own tests, direct and forwarded, as a table: CPython's modules, then programs with a
verdict of their own.

    python tests/posix/proof.py                     # all, within a quarter of an hour
    python tests/posix/proof.py test_os test_io     # these modules of CPython
    python tests/posix/proof.py git fio-sync        # these programs
    python tests/posix/proof.py --json proof.json

The same is done on this machine and forwarded, at the same time, each in a folder of its own; what
one test, or one line of a program's output, came to must be the same. What differs is done once
more: what then agrees was chance. In the forwarded runs the detector of escapes is on: a byte
written past the library ends the program and is counted here.

Exit: 0 if nothing differs but by a limit that docs/forwarding.md states, and nothing escaped.
"""

import argparse
import fnmatch
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

import harness
from harness import PREFIX
from proof_programs import PROGRAMS, missing

MODULES = """
test_os test_posix test_io test_fileio test_file test_largefile test_fileinput test_shutil test_tempfile
test_pathlib test_posixpath test_genericpath test_glob test_subprocess test_socket test_select test_poll
test_selectors test_fcntl test_resource test_mmap test_zipfile test_tarfile test_gzip test_bz2 test_dbm
test_shelve test_mailbox test_sqlite3 test_import test_zipimport
""".split()
# These hang or fail without forwarding, too, on machines without the hardware or services.
IGNORED = ["*VSOCK*"]
# What can't be the same, by the limit that docs/forwarding.md states.
MMAP = """
access_parameter basic entire_file find_end io_methods mmap_closed_by_int_scenarios move offset repr rfind
tougher_find
""".split()
STATED = {f"test.test_mmap.MmapTests.test_{name}": "shared writable mappings" for name in MMAP}
STATED |= {"test.test_fcntl.TestFcntl.test_fcntl_64_bit": "F_NOTIFY"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Run:
    """One program under a time limit, with all that it started."""

    def __init__(self, words: list[str], environment: dict, cwd, seconds: float) -> None:
        self.output = tempfile.TemporaryFile()
        self.until = time.monotonic() + seconds
        self.process = subprocess.Popen(
            words,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> tuple[int | None, str]:
        """Exit status (None: the time ran out) and all that was said."""
        try:
            status = self.process.wait(max(0.1, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.output.close()
        return status, text


def tests_of(text: str) -> dict[str, str]:
    """What each test of unittest's output came to; for runs that left no XML."""
    found = {}
    for line in text.splitlines():
        name, dots, result = line.rpartition(" ... ")
        if dots and "(" in name and (result in ("ok", "FAIL", "ERROR") or result.startswith("skipped")):
            found[name.partition("(")[2].partition(")")[0]] = result.split()[0]
    return found


def tests_of_xml(path: Path) -> dict[str, str]:
    found = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case} & {"error", "failure", "skipped"}
        skipped = "skipped" in kinds or case.get("result") == "skipped"
        found[case.get("name")] = "skipped" if skipped else ("failed" if kinds else "ok")
    return found


def module(daemon, name: str, seconds: float, options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """What each test came to, direct and forwarded."""
    daemon.empty()
    runs = {}
    for side in ("direct", "forwarded"):
        folder = PREFIX if side == "forwarded" else str(daemon.direct)
        xml_path = daemon.folder / f"{side}.xml"
        xml_path.unlink(missing_ok=True)
        words = [harness.python(), "-m", "test", "-v", "--tempdir", folder, "--junit-xml", str(xml_path)]
        words += [word for pattern in IGNORED for word in ("-i", pattern)]
        command = (daemon.command("--abort-on-escape") if side == "forwarded" else []) + [*words, name]
        environment = {**os.environ, "TMPDIR": folder, "ZAZEN_FORWARD_ESCAPES": str(daemon.escapes)}
        cwd = None if side == "forwarded" else str(daemon.direct)
        runs[side] = Run(command, environment, cwd, seconds)
    found = {}
    for side, run in runs.items():
        status, text = run.wait()
        xml_path = daemon.folder / f"{side}.xml"
        found[side] = tests_of_xml(xml_path) if xml_path.exists() else tests_of(text)
        if status is None:
            found[side]["(the time ran out)"] = "failed"
        elif status < 0 or not found[side]:
            found[side][f"(ended with {status})"] = "failed"
        if options.keep:
            (options.keep / f"{name}.{side}").write_text(text)
    return found


def program(daemon, name: str, seconds: float, options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """What each part of a program's work came to, direct and forwarded."""
    daemon.empty()
    runs = {}
    for side in ("direct", "forwarded"):
        folder = PREFIX if side == "forwarded" else str(daemon.direct)
        command = (daemon.command("--abort-on-escape") if side == "forwarded" else []) + ["bash", "-c"]
        script = f"cd {folder} || exit 99\n{PROGRAMS[name].script}"
        environment = {**os.environ, "LC_ALL": "C", "PYTHON": harness.python(), "HOME": folder}
        environment |= {
            "DATA": str(Path(os.__file__).parent / "email"),
            "PJDFSTEST": str(options.pjdfstest or ""),
        }
        environment |= {"LOCAL": str(daemon.folder), "ZAZEN_FORWARD_ESCAPES": str(daemon.escapes)}
        runs[side] = Run([*command, script], environment, None, seconds)
    found = {}
    for side, run in runs.items():
        status, text = run.wait()
        folder = PREFIX if side == "forwarded" else str(daemon.direct)
        text = text.replace(folder, "FOLDER")
        found[side] = PROGRAMS[name].parts(text)
        found[side]["exit"] = "the time ran out" if status is None else f"status {status}"
        if options.keep:
            (options.keep / f"{name}.{side}").write_text(text)
    return found


def stated(name: str, test: str) -> str | None:
    """The stated limit behind a difference."""
    for pattern, why in (
        STATED | {f"{name}:{test}": why for name, one in PROGRAMS.items() for test, why in one.stated}
    ).items():
        if fnmatch.fnmatch(test, pattern) or fnmatch.fnmatch(f"{name}:{test}", pattern):
            return why
    return None


def differing(found: dict[str, dict[str, str]]) -> list[str]:
    direct, forwarded = found["direct"], found["forwarded"]
    return sorted(
        test for test in direct.keys() | forwarded.keys() if direct.get(test) != forwarded.get(test)
    )


def compare(daemon, one, name: str, seconds: float, options: argparse.Namespace) -> dict:
    """One row of a table."""
    begun, escapes = time.monotonic(), daemon.count_escapes()
    found = one(daemon, name, seconds, options)
    differ = differing(found)
    if [test for test in differ if stated(name, test) is None] and time.monotonic() < options.until:
        say(f"  {name}: {len(differ)} differ; once more")
        again = one(daemon, name, seconds, options)
        differ = sorted(set(differ) & set(differing(again)))
        found = again
    row = {"name": name, "seconds": round(time.monotonic() - begun, 1), "tests": len(found["direct"])}
    for side in found:
        row[side] = sum(
            result.split(" ")[0] == "ok" or result == "status 0" for result in found[side].values()
        )
        row[f"skipped, {side}"] = sum(result == "skipped" for result in found[side].values())
    row["escapes"] = daemon.count_escapes() - escapes
    row["stated"] = {test: stated(name, test) for test in differ if stated(name, test) is not None}
    row["different"] = {
        test: [found["direct"].get(test), found["forwarded"].get(test)]
        for test in differ
        if test not in row["stated"]
    }
    return row


COLUMNS = ["parts", "ok, direct", "ok, forwarded", "skipped, both", "a stated limit", "different", "escapes"]


def table(rows: list[dict]) -> str:
    """As tests/posix/README.md shows it."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for row in rows:
        cells = (
            ["not done: " + row["missing"]]
            if "missing" in row
            else [row["tests"], row["direct"], row["forwarded"]]
        )
        if "missing" not in row:
            cells.append(min(row["skipped, direct"], row["skipped, forwarded"]))
            cells += [len(row["stated"]) or "", len(row["different"]), row["escapes"]]
        lines.append(f"| `{row['name']}` | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def pjdfstest(given: Path | None) -> Path | None:
    found = shutil.which("pjdfstest")
    return given or (Path(found) if found else None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="modules and programs [default: all]")
    parser.add_argument("--programs", action="store_true", help="no modules of CPython")
    parser.add_argument("--isolated", action="store_true", help="the plug-in in a process of its own")
    parser.add_argument("--seconds", type=float, default=90, help="for one module or program [90]")
    parser.add_argument("--minutes", type=float, default=15, help="for all: what does not fit is said [15]")
    parser.add_argument(
        "--pjdfstest", type=Path, help="the program (cargo install pjdfstest) [default: of $PATH]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows with every difference; - is stdout")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="what the programs said, kept there")
    options = parser.parse_args()
    options.until = time.monotonic() + options.minutes * 60
    options.pjdfstest = pjdfstest(options.pjdfstest)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    options = arguments()
    names = options.names or ([] if options.programs else MODULES) + list(PROGRAMS)
    rows = []
    with harness.Daemon(harness.build(), isolated=options.isolated) as daemon:
        for at, name in enumerate(names, 1):
            one = program if name in PROGRAMS else module
            lacks = missing(name, options.pjdfstest) if name in PROGRAMS else None
            if one is module and importlib.util.find_spec(f"test.{name}") is None:
                lacks = "this Python has no such test of its own"
            left = options.until - time.monotonic()
            lacks = lacks or ("the time for all ran out" if left < 5 else None)
            if lacks:
                rows.append({"name": name, "missing": lacks})
                say(f"[{at}/{len(names)}] {name}: not done: {lacks}")
                continue
            say(f"[{at}/{len(names)}] {name}")
            row = compare(daemon, one, name, min(options.seconds, left), options)
            rows.append(row)
            for test, results in row["different"].items():
                say(f"  differs: {test}: {results[0]}, forwarded {results[1]}")
    if options.json:
        text = json.dumps(rows, indent=1)
        print(text) if str(options.json) == "-" else options.json.write_text(text + "\n")
    if str(options.json) != "-":
        print(table(rows))
    bad = sum(len(row.get("different", ())) + row.get("escapes", 0) for row in rows)
    done = [row for row in rows if "missing" not in row]
    parts, not_done = sum(row["tests"] for row in done), len(rows) - len(done)
    say(f"{parts} parts of {len(done)} programs; {bad} differ or escaped; {not_done} not done")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
