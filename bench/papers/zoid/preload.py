"""The cost of the preload library for calls that are not forwarded, and for a program's start."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from host import Daemon, in_memory, measured, workplace
from measure import in_turns
from process import BenchError, environment
from result import Figure, Goal, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "The preload library: what is not forwarded"
PAPER = "on compute nodes there was nothing but forwarding: ZOID replaced libc there (§2.1)"
PREFIX = "/zazen-forwarded"
# Operation, path (FILE: one in memory), bytes.
CALLS = {
    "read 1 byte of /dev/zero": ("stream-read", "/dev/zero", 1),
    "write 1 byte to /dev/null": ("stream-write", "/dev/null", 1),
    "pread 4 KiB of a file": ("pread", "FILE", 4096),
    "lseek": ("lseek", "FILE", 0),
    "fstat": ("fstat", "FILE", 0),
    "stat by path": ("stat", "FILE", 0),
    "open and close": ("open", "FILE", 0),
    "open what is not there": ("missing", "-", 0),
}
EXTRA_NS_MAX = 5
WITHOUT, WITH = "without", "with"
# Where and on what it is measured, for the page's first table.
SETTING = "one program with and without the preload library"


def start_seconds(variables: dict[str, str], times: int) -> float:
    """The median time from spawning /bin/true to its end."""
    environ = environment() | variables
    took = []
    for _ in range(times):
        began = time.perf_counter()
        pid = os.posix_spawn("/bin/true", ["true"], environ)
        os.waitpid(pid, 0)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def run(context: Context) -> Figure:
    figure = Figure("preload", TITLE, PAPER, "run.py preload")
    # Differences of nanoseconds need many runs. The best runs are compared.
    repeats = 2 * context.repeats + 1
    rows, extras = [], {}
    with workplace() as programs, in_memory() as folder:
        if not (programs.posix and programs.preload):
            raise BenchError("libzazen_posix.so or libzazen_preload.so is not there; `make install`")
        file = folder / "file"
        file.touch()
        with Daemon(programs, [programs.posix]) as daemon:
            variables = {WITHOUT: {}, WITH: daemon.variables_for("--forward", PREFIX)}
            for what, (operation, path, size) in CALLS.items():
                place = file if path == "FILE" else path
                rounds = 50_000 if context.quick else 150_000
                words = [
                    programs.tool("ops"),
                    operation,
                    place,
                    size,
                    "--rounds",
                    rounds,
                    "--batch",
                    1000,
                    "--cpu",
                    0,
                ]
                words += ["--span", 1 << 20]
                found = in_turns(
                    [WITHOUT, WITH], repeats, lambda name, words=words: measured(words, variables[name])
                )
                taken = {
                    name: Value.of([float(run["min_ns"]) for run in runs]) for name, runs in found.items()
                }
                extras[what] = taken[WITH].low - taken[WITHOUT].low
                rows.append([what, taken[WITHOUT], taken[WITH], extras[what]])
            times = 50 if context.quick else 300
            started = in_turns(
                [WITHOUT, WITH], context.repeats, lambda name: start_seconds(variables[name], times)
            )
    figure.tables.append(
        Table("Calls that are not forwarded", ["", "without", "with", "extra"], ["", "ns", "ns", "ns"], rows,
              ["Best thousand calls of each run; extra: the best of all runs with, less the best without. "
               "Calls with a path are compared with the prefixes, and longer ones cost more."])
    )  # fmt: skip
    spent = {name: Value.of([1e6 * value for value in values]) for name, values in started.items()}
    extra = spent[WITH].median - spent[WITHOUT].median
    title, columns = "Starting /bin/true, spawn to end", ["", "without", "with", "extra"]
    row = ["medians", spent[WITHOUT], spent[WITH], extra]
    notes = ["No daemon is connected to before the first forwarded path."]
    figure.tables.append(Table(title, columns, ["", "µs", "µs", "µs"], [row], notes))
    by_descriptor = {
        what: extra for what, extra in extras.items() if CALLS[what][0] not in ("stat", "open", "missing")
    }
    worst = max(by_descriptor, key=lambda what: by_descriptor[what])
    figure.goals.append(
        Goal("extra for a call on a descriptor that is not forwarded", f"≤ {EXTRA_NS_MAX} ns",
             f"at most {by_descriptor[worst]:.1f} ns ({worst})", by_descriptor[worst] <= EXTRA_NS_MAX)
    )  # fmt: skip
    return figure
