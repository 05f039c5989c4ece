"""Whole programs on a forwarded folder, against the same programs on the same folder."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from host import Daemon, in_memory, workplace
from measure import cores, in_turns
from process import BenchError, call, environment, say
from result import Figure, Goal, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Whole programs"
PAPER = "ZOID forwards all calls of the programs of compute nodes (§2.1); the paper has no whole programs"
PREFIX = "/zazen-forwarded"
FILES = 2000
EXCHANGES = 20_000
# For so long what changed is news, which ends answers that came along: programs mostly read older
# files.
NEWS_S = 3
# Bash scripts that begin in the folder. Each leaves the folder as it found it.
PROGRAMS = {
    f"tar of {FILES:,} files": "tar cf ../out.tar many",
    f"tar x of {FILES:,} files": "mkdir t && tar xf in.tar -C t && rm -r t",
    "find": "find . -newer in.tar -size +1M",
    "grep -r": "grep -r nothing-has-this many; true",
    "git status": "git -C repo status --porcelain",
    "ls -lR": "ls -lR . > /dev/null",
    "sqlite, 1,000 commits": "sqlite3 db < commits > /dev/null && rm db",
    "a shell of 200 commands": "for i in $(seq 200); do cat many/f$i > /dev/null; done",
    "dd, 256 MB": "dd if=/dev/zero of=large bs=1M count=256 status=none && rm large",
    "python, 100 imports": "python3 -S -c 'import sys; sys.path.insert(0, \"modules\"); import all_of_them'",
}
NEEDS = {"git status": "git", "sqlite, 1,000 commits": "sqlite3", "python, 100 imports": "python3"}
PLAIN, KERNEL, RELAYED, NODE = "plain", "forwarded", "forwarded --relay", "forwarded --node (TCP, loopback)"
GOALS = {KERNEL: 1.5, NODE: 5.0}
# Where and on what it is measured, for the page's first table.
SETTING = "programs of one process and of many, a daemon and its client on one machine, files in memory"


@dataclass
class Run:
    seconds: float
    # Of the program and all that it started, and of the daemon and its plug-ins.
    cpu_s: float
    calls: int


def prepare(folder: Path) -> None:
    """What the programs work on."""
    many = folder / "many"
    for number in range(FILES):
        place = many / f"d{number % 20}" if number >= 300 else many
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}").write_text(f"line {number}\n" * 40)
    modules = folder / "modules"
    modules.mkdir()
    names = [f"module{number}" for number in range(100)]
    for name in names:
        (modules / f"{name}.py").write_text("VALUE = 1\n")
    (modules / "all_of_them.py").write_text("".join(f"import {name}\n" for name in names))
    begin = "create table t (a integer primary key, b text);\n"
    commits = "".join(f"begin; insert into t values ({number}, 'text'); commit;\n" for number in range(1000))
    # The journal is what is measured, not the disk.
    (folder / "commits").write_text(begin + "pragma synchronous = off;\n" + commits)
    subprocess.run(["tar", "cf", "in.tar", "many"], cwd=folder, check=True)
    if shutil.which("git"):
        quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        for words in (
            ["init", "-q", "repo"],
            ["-C", "repo", "add", "."],
            ["-C", "repo", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"],
        ):
            if words[-1] == ".":
                shutil.copytree(many, folder / "repo" / "many")
            subprocess.run(["git", *words], cwd=folder, check=True, env=os.environ | quiet)


def used() -> float:
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    return told.ru_utime + told.ru_stime


def run_once(words: list[str], script: str, there: object, daemon: Daemon) -> Run:
    """Runs a script that begins in `there`."""
    quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "LC_ALL": "C"}
    command = [*words, "bash", "-c", f"cd {there} && {script}"]
    cpu, calls, began = used() + daemon.cpu_s(), served(daemon), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment() | quiet, timeout=300)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise BenchError(f"`{script}` in {there} failed ({done.returncode}): {done.stderr[-500:]}")
    return Run(seconds, used() + daemon.cpu_s() - cpu, served(daemon) - calls)


def bare_exchange_s(floor: Path, repeats: int) -> float:
    """What 64 bytes there and back take over TCP at least: the median of some runs."""
    cpus = [0, cores() - 1] if cores() > 1 else []
    words = [floor, "tcpspin" if cpus else "tcp", 64, EXCHANGES, *cpus]
    return statistics.median(json.loads(call(words))["median_ns"] for _ in range(repeats)) / 1e9


def served(daemon: Daemon) -> int:
    """Calls that the posix plug-in has served."""
    with contextlib.suppress(BenchError):
        return sum(function["calls"] for function in daemon.report("posix")["functions"])
    return 0


def run(context: Context) -> Figure:
    figure = Figure("programs", TITLE, PAPER, "run.py programs")
    with workplace() as programs, in_memory() as above:
        if not (programs.posix and programs.preload):
            raise BenchError("libzazen_posix.so or libzazen_preload.so is not there; `make install`")
        folder = above / "folder"
        folder.mkdir()
        prepare(folder)
        with Daemon(programs, [programs.posix], exports=[above]) as daemon:
            run_words = [str(programs.zazen), "run", "--forward", f"{PREFIX}={above}"]
            here = [*run_words, "--socket", str(daemon.socket)]
            modes = {
                PLAIN: [],
                KERNEL: [*here, "--"],
                RELAYED: [*here, "--relay", "--"],
                NODE: [*run_words, "--node", daemon.address, "--key", str(daemon.key), "--"],
            }
            bare_s = bare_exchange_s(programs.tool("floor"), context.repeats)
            time.sleep(NEWS_S + 1)
            rows, costs, worst = [], [], dict.fromkeys(GOALS, ("", 0.0))
            for what, script in PROGRAMS.items():
                needed = NEEDS.get(what)
                if needed and shutil.which(needed) is None:
                    figure.skipped.append(f"{what}: {needed} is not installed")
                    continue
                say(what)

                def once(name: str, script: str = script) -> Run:
                    there = folder if name == PLAIN else f"{PREFIX}/folder"
                    return run_once(modes[name], script, there, daemon)

                found = in_turns(list(modes), context.repeats, once)
                plain = Value.of([1e3 * run.seconds for run in found[PLAIN]])
                row, cost = [what, plain], [what, Value.of([1e3 * run.cpu_s for run in found[PLAIN]])]
                for name in (KERNEL, RELAYED, NODE):
                    pairs = list(zip(found[name], found[PLAIN], strict=True))
                    ratio = Value.of([a.seconds / b.seconds for a, b in pairs])
                    row.append(ratio)
                    # Clock ticks: less than one tick is no measure of anything.
                    cost.append(Value.of([a.cpu_s / max(b.cpu_s, 0.01) for a, b in pairs]))
                    cost.append(min(run.calls for run in found[name]))
                    if name == NODE:
                        cost.append(1e3 * bare_s * cost[-1] / plain.median)
                    if name in worst and ratio.median > worst[name][1]:
                        worst[name] = (what, ratio.median)
                rows.append(row)
                costs.append(cost)
    columns = ["", PLAIN, KERNEL, RELAYED, NODE]
    notes = [
        "From the start of `bash` or `zazen run` to its end. "
        "Program, daemon and go-between share the machine.",
        "On this machine, the program's own kernel serves a forwarded folder, unless --relay is given.",
        f"The files were made {NEWS_S + 1} s before, or earlier: over TCP, answers of younger ones bring "
        "fewer others.",
    ]
    figure.tables.append(
        Table("Time, and how many times the plain program's", columns, ["", "ms", *["×"] * 3], rows, notes)
    )
    columns = ["", PLAIN]
    for name in (KERNEL, RELAYED, NODE):
        columns += [name, "calls"]
    columns.append("as many bare exchanges")
    title = "CPU time of all processes, and calls that the plug-in served"
    notes = [
        f"A bare exchange of 64 bytes over TCP takes {1e6 * bare_s:.1f} µs here, if both ends ask their "
        "sockets again and again, each on a CPU of its own. So a program whose calls wait for each other "
        "takes that many times the plain one's time for the exchanges alone. Not all calls wait."
    ]
    figure.tables.append(Table(title, columns, ["", "ms", *["×", ""] * 3, "×"], costs, notes))
    for name, bound in GOALS.items():
        what, ratio = worst[name]
        figure.goals.append(
            Goal(
                f"whole programs, {name}",
                f"≤ {bound} × plain",
                f"at most {ratio:.1f} × ({what})",
                ratio <= bound,
            )
        )
    return figure
