"""Forwarded reading and writing of files, against the kernel itself and file systems in user
space."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import mounts
from host import Daemon, bound_to, in_memory, measured, workplace
from measure import cores, in_turns
from process import BenchError, say
from result import Figure, Goal, Kind, Plot, Series, Summary, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Files: forwarded, direct, FUSE, sshfs"
PAPER = (
    "Figure 2 counts the crossings of user space and kernel that FUSE-like clients cost on the way to a "
    "server; no latencies are given"
)
SIZES = {4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB"}
DIRECT = "direct"
FORWARDED = "forwarded (posix plug-in, preload library)"
IN_PLACE = "forwarded, bytes in the pool (zazen_forward_allocate)"
POOL = "called from a plug-in's client, bytes in the pool"
BARE = "raw: a process on the other core spins on shared memory, and calls the kernel"
PASSED = "forwarded --direct (this machine's kernel has the folder)"
PLAIN = "FUSE, plain"
FREE = "FUSE, plain, where the kernel puts both ends"
PASS = "FUSE, kernel pass-through"
SSHFS = "sshfs"
PREFIX = "/zazen-forwarded"
NOTE = (
    "Clients on one core, daemons and servers on another. FUSE and sshfs with direct_io (and sshfs_sync): "
    "each call is a request, as each forwarded call is; "
    "with the kernel's cache, reading again would be the kernel's own."
)
# What forwarding may add to a small call, in µs.
EXTRA_US = 0.6
# Where and on what it is measured, for the page's first table.
SETTING = "a program's file calls on one machine: forwarded to a daemon, through FUSE, and direct"


class Race:
    """The systems, each with the command that does an operation of a size."""

    def __init__(self) -> None:
        self.commands: dict[str, tuple[list[object], list[object], dict[str, str]]] = {}

    def add(
        self, name: str, head: list[object], tail: list[object], variables: dict[str, str] | None = None
    ) -> None:
        self.commands[name] = (head, tail, variables or {})

    def run(self, name: str, operation: str, size: int, seconds: float) -> dict:
        head, tail, variables = self.commands[name]
        given = {OPERATION: operation, SIZE: size, COUNT: int(seconds / (5e-6 + size / 3e9))}
        command = [given.get(word, word) for word in head]
        timed = [] if COUNT in head else ["--seconds", seconds]
        bound = [] if name == FREE else ["--cpu", 0]
        return measured([*command, *tail, *timed, *bound], variables)


# What a command has in these places: the operation, its bytes, and how many, where it can't fill a
# time.
OPERATION, SIZE, COUNT = "OPERATION", "SIZE", "COUNT"


def systems(context: Context, figure: Figure, race: Race, stack: contextlib.ExitStack) -> None:
    """Starts everything; servers on the last CPU, clients on the first."""
    programs = stack.enter_context(workplace())
    folder = stack.enter_context(in_memory())
    cpus = {cores() - 1}
    ops, file = programs.tool("ops"), folder / "file"
    file.touch()

    def by_path(name: str, path: object, variables: dict[str, str] | None = None) -> None:
        race.add(name, [ops, OPERATION, path, SIZE], [], variables)

    by_path(DIRECT, file)
    if cores() > 1:
        bare = [programs.tool("floor"), OPERATION, SIZE, COUNT, 0, cores() - 1, folder / "bare"]
        race.add(BARE, bare, [])
    if programs.posix and programs.preload:
        daemon = stack.enter_context(
            Daemon(programs, [programs.posix, programs.rates], cpus, exports=[folder])
        )
        forward = ["--forward", f"{PREFIX}={folder}"]
        for name, options in ((FORWARDED, []), (PASSED, ["--direct"])):
            by_path(name, f"{PREFIX}/file", daemon.variables_for(*forward, *options))
        own = [programs.tool("forward_ops", "-ldl"), f"{PREFIX}/file", OPERATION, SIZE, COUNT, "--pool"]
        race.add(IN_PLACE, own, [], daemon.variables_for(*forward))
    else:
        figure.skipped.append(
            "forwarded files: libzazen_posix.so or libzazen_preload.so is not there; `make install`"
        )
        daemon = stack.enter_context(Daemon(programs, [programs.rates], cpus))
    race.add(
        POOL, [programs.calls, daemon.socket, OPERATION, SIZE], ["--pool", "--carrier", "shm", "--file", file]
    )
    why = mounts.why_no_fuse()
    for name, mode, where in ((PLAIN, "plain", cpus), (FREE, "plain", None), (PASS, "passthrough", cpus)):
        try:
            if why:
                raise BenchError(why)
            mountpoint = programs.folder / f"fuse{len(race.commands)}"
            with bound_to(where):
                by_path(name, stack.enter_context(mounts.fuse(programs, mode, file, mountpoint)))
        except BenchError as error:
            figure.skipped.append(f"{name}: {error}")
    why = mounts.sshfs_or_why(context.install)
    try:
        if why:
            raise BenchError(why)
        with bound_to(cpus):
            there = mounts.sshfs(
                folder, programs.folder / "sshfs", programs.folder / "ssh", ["direct_io", "sshfs_sync"]
            )
            by_path(SSHFS, stack.enter_context(there) / "file")
    except BenchError as error:
        figure.skipped.append(f"{SSHFS}: {error}")


def microseconds(samples: list[dict]) -> Value:
    return Value.of([sample["median_ns"] / 1e3 for sample in samples])


def ratio(of: list[dict], to: list[dict]) -> Value:
    """Of medians, run by run."""
    return Value.of([a["median_ns"] / b["median_ns"] for a, b in zip(of, to, strict=True)])


def goals(figure: Figure, found: dict) -> None:
    small, large = found["pwrite", 4 << 10], found["pwrite", 1 << 20]
    whole = lambda value: f"{value.median:.2f} ({value.low:.2f} … {value.high:.2f})"  # noqa: E731
    if FORWARDED in small:
        trip = microseconds(small[FORWARDED])
        alone = microseconds(small[DIRECT]).median
        extra = Value.of([
            (ours["median_ns"] - direct["median_ns"]) / 1e3
            for ours, direct in zip(small[FORWARDED], small[DIRECT], strict=True)
        ])  # fmt: skip
        why = f"{whole(trip)} µs; direct takes {alone:.2f} µs here"
        if BARE in small:
            least = microseconds(small[BARE]).median - alone
            why += f"; a bare process on the other core takes {least:.2f} µs more than direct"
        figure.goals.append(
            Goal(
                "forwarded 4 KiB pwrite, polling daemon: µs more than a direct one",
                f"≤ {EXTRA_US}", whole(extra),
                extra.median <= EXTRA_US, why,
            )
        )  # fmt: skip
        if PLAIN in small:
            times, fastest = (ratio(small[fuse], small[FORWARDED]) for fuse in (PLAIN, FREE))
            figure.goals.append(
                Goal("plain FUSE : forwarded, 4 KiB pwrite, each end on a core of its own",
                     "≥ 10", whole(times),
                     times.median >= 10)
            )  # fmt: skip
            why = "with both ends on one core, FUSE has no idle core to wake"
            figure.goals.append(
                Goal(
                    "the same, FUSE where the kernel puts it",
                    "≥ 10",
                    whole(fastest),
                    fastest.median >= 10,
                    why,
                )
            )
            figure.summaries.append(
                Summary("4 KiB pwrite, FUSE : forwarded", "–", f"{times.median:.1f}",
                        f"{ratio(small[PLAIN], small[DIRECT]).median:.1f}: FUSE : direct")
            )  # fmt: skip
    in_place = IN_PLACE if IN_PLACE in large else POOL
    share = ratio(large[DIRECT], large[in_place])
    figure.goals.append(
        Goal("1 MiB pwrite from the pool, of direct", "≥ 80 %",
             f"{100 * share.median:.0f} % ({100 * share.low:.0f} … "
             f"{100 * share.high:.0f})", share.median >= 0.8)
    )  # fmt: skip


def run(context: Context) -> Figure:
    figure = Figure("files", TITLE, PAPER, "run.py files")
    race, found = Race(), {}
    seconds = 0.05 if context.quick else 0.2
    with contextlib.ExitStack() as stack:
        systems(context, figure, race, stack)
        names = list(race.commands)
        for operation in ("pwrite", "pread"):
            for size in SIZES:
                say(f"files: {operation} of {SIZES[size]}")
                found[operation, size] = in_turns(
                    names,
                    context.repeats,
                    lambda name, operation=operation, size=size: race.run(name, operation, size, seconds),
                )
    kinds: dict[str, Kind] = {
        FORWARDED: "ours",
        IN_PLACE: "ours",
        POOL: "ours",
        PASSED: "ours",
        DIRECT: "ceiling",
        BARE: "ceiling",
    }
    for operation in ("pwrite", "pread"):
        rows = [[name, *(microseconds(found[operation, size][name]) for size in SIZES)] for name in names]
        rows += [
            [
                f"direct : {name}",
                *(ratio(found[operation, size][DIRECT], found[operation, size][name]) for size in SIZES),
            ]
            for name in (FORWARDED, IN_PLACE, POOL)
            if name in names
        ]
        title, units = f"{operation} of a file in memory, medians", ["", *["µs"] * len(SIZES)]
        figure.tables.append(Table(title, ["", *SIZES.values()], units, rows, [NOTE]))
        series = [
            Series(name, kinds.get(name, "peer"), list(SIZES.values()),
                   [microseconds(found[operation, size][name]).median for size in SIZES])
            for name in names
        ]  # fmt: skip
        figure.plots.append(
            Plot(
                f"files_{operation}",
                f"{operation} of a file in memory",
                "",
                "median [µs]",
                series,
                "bars",
                y_log=True,
            )
        )
    goals(figure, found)
    if cores() == 1:
        figure.limits.append("one core: nothing polls here")
    return figure
