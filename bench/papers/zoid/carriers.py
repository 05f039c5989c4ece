"""The cost of a call by each carrier, beside the machine's own cost for the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from host import Daemon, Programs, measured, workplace
from measure import in_turns
from process import say
from result import Figure, Goal, Kind, Plot, Series, Summary, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Carriers: round trips and throughput"
PAPER = (
    "no table of its own: ZOID's base throughput is Figure 4's; “performance was one of ZOID's key design "
    "criteria” (§3): user space on the compute nodes, zero copy, eager messages"
)
SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 4 << 20]
NAMES = {64: "64 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
US = 1e-3
# A way to move bytes: its name, what it is, and the command for a number of bytes and of seconds.
Way = tuple[str, Kind, Callable[[int, float], list[object]]]
# Waits between calls, and what the daemon does after them.
PAUSES = {
    "polling (the next call follows at once)": 0,
    "asleep (2 ms later)": 2_000_000,
    "parked, without a thread (80 ms later)": 80_000_000,
}
# Where and on what it is measured, for the page's first table.
SETTING = "two processes of one machine, calls with an empty function"


def ways(
    programs: Programs, isolated: Daemon, inside: Daemon, function: str, cpus: tuple[int, int]
) -> list[Way]:
    """The client on the first CPU; daemons are on the second."""
    client, far = cpus

    def call(address: object, *options: object) -> Callable[[int, float], list[object]]:
        head = [programs.calls, address, function]
        return lambda size, seconds: [*head, size, *options, "--seconds", seconds, "--cpu", client]

    def floor(kind: str) -> Callable[[int, float], list[object]]:
        # A raw round trip takes 1 µs for each 10 KB, and 15 µs if the kernel has a part in it.
        each = (
            (lambda size: 1e-7 + size / 1e10)
            if kind in ("spin", "memcpy")
            else (lambda size: 1.5e-5 + size / 3e9)
        )
        tool = programs.tool("floor")
        return lambda size, seconds: [tool, kind, size, int(seconds / each(size)) + 10, client, far]

    return [
        ("shared memory, from the pool", "ours", call(isolated.socket, "--carrier", "shm", "--pool")),
        ("shared memory", "ours", call(isolated.socket, "--carrier", "shm")),
        ("unix socket", "ours", call(isolated.socket, "--carrier", "unix")),
        ("TCP", "ours", call(inside.address)),
        ("TCP, passed on to the plug-in's process", "ours", call(isolated.address)),
        ("raw: spinning on shared memory", "ceiling", floor("spin")),
        ("raw: futex on shared memory", "ceiling", floor("futex")),
        ("raw: socket pair", "ceiling", floor("socketpair")),
        ("raw: TCP", "ceiling", floor("tcp")),
        ("memcpy, one process", "ceiling", floor("memcpy")),
    ]


def race(context: Context, contenders: list[Way], size: int, key: dict[str, str]) -> dict[str, list[dict]]:
    """All ways with `size` bytes, in turns."""
    seconds = 0.05 if context.quick else 0.15
    by_name = {name: command for name, _, command in contenders}
    return in_turns(list(by_name), context.repeats, lambda name: measured(by_name[name](size, seconds), key))


def medians(samples: list[dict]) -> Value:
    """Median round trip in microseconds, of each run."""
    return Value.of([sample["median_ns"] * US for sample in samples])


def rate(samples: list[dict]) -> Value:
    """GB/s, calls one after another."""
    return Value.of([sample["bytes"] / sample["seconds"] / 1e9 for sample in samples])


def by_size(context: Context, figure: Figure, programs: Programs, isolated: Daemon, inside: Daemon) -> dict:
    """Each end on a core of its own: all carriers, all sizes."""
    contenders = ways(programs, isolated, inside, "put", (0, 1))
    key = {"ZAZEN_KEY": str(isolated.key)}
    found = {}
    for size in SIZES:
        say(f"carriers: {NAMES[size]}")
        found[size] = race(context, contenders, size, key)
    trips = [[name, *(medians(found[size][name]) for size in SIZES)] for name, _, _ in contenders]
    figure.tables.append(
        Table("Round trip, the far end looks at each cache line of what came", ["", *NAMES.values()],
              ["", *["µs"] * len(SIZES)], trips,
              ["Each end on a core of its own; medians of the runs' medians. The clock's own 20–30 ns are "
               "part of it. raw: a process that answers with 64 bytes, and nothing else."])
    )  # fmt: skip
    large = SIZES[2:]
    rates = [[name, *(rate(found[size][name]) for size in large)] for name, _, _ in contenders]
    figure.tables.append(
        Table("The same calls, one after another, as throughput", ["", *(NAMES[size] for size in large)],
              ["", *["GB/s"] * len(large)], rates)
    )  # fmt: skip
    series = [
        Series(
            name, kind, [float(size) for size in SIZES], [medians(found[size][name]).median for size in SIZES]
        )
        for name, kind, _ in contenders
        if "passed on" not in name
    ]
    figure.plots.append(
        Plot(
            "carriers",
            "Round trip by carrier",
            "bytes of the call",
            "median [µs]",
            series,
            x_log=True,
            y_log=True,
        )
    )
    return found


def on_one_core(context: Context, figure: Figure, programs: Programs) -> None:
    """Both ends bound to CPU 0; and where the kernel puts them."""
    rows: list[list] = []
    goal = None
    for title, cpus, client in (("one core", {0}, 0), ("where the kernel puts them", None, None)):
        with Daemon(programs, [programs.rates], cpus) as daemon:
            bound = [] if client is None else ["--cpu", client]

            def command(
                carrier: str, size: int, daemon: Daemon = daemon, bound: list = bound
            ) -> list[object]:
                seconds = 0.05 if context.quick else 0.15
                options = ["--carrier", carrier, "--seconds", seconds, *bound]
                return [programs.calls, daemon.socket, "put", size, *options]

            raw = [programs.tool("floor"), "socketpair", 64, 3000, *([0, 0] if client == 0 else [])]
            futex = [programs.tool("floor"), "futex", 64, 3000, *([0, 0] if client == 0 else [])]
            cells = {
                f"{carrier} {size}": command(carrier, size)
                for carrier in ("shm", "unix")
                for size in (64, 4096)
            }
            cells |= {"raw": raw, "futex": futex}
            found = in_turns(list(cells), context.repeats, lambda name, cells=cells: measured(cells[name]))
        values = [medians(found[name]) for name in cells]
        rows.append([title, *values])
        if client == 0:
            goal = values[0]
    columns = [
        "both ends",
        "shm, 64 B",
        "shm, 4 KiB",
        "unix, 64 B",
        "unix, 4 KiB",
        "raw: socket pair",
        "raw: futex",
    ]
    figure.tables.append(Table("Over-subscribed: round trip", columns, ["", *["µs"] * 6], rows))
    assert goal is not None
    figure.goals.append(
        Goal(
            "both ends on one core, 64 B by shared memory", "< 6 µs", f"{goal.median:.2f} µs", goal.median < 6
        )
    )
    figure.summaries.append(
        Summary("round trip, both ends on one core", "–", f"{goal.median:.1f} µs",
                f"{rows[0][6].median:.1f} µs: a bare futex there and back")
    )  # fmt: skip


def by_waiting(context: Context, figure: Figure, programs: Programs, isolated: Daemon) -> None:
    """What the daemon does when the call comes."""

    def command(pause: int) -> list[object]:
        rounds = {0: 20_000, 2_000_000: 100, 80_000_000: 12}[pause]
        words = [programs.calls, isolated.socket, "put", 64, "--carrier", "shm", "--cpu", 0]
        return [*words, "--rounds", rounds, *(["--pause", pause] if pause else [])]

    found = in_turns(list(PAUSES.values()), context.repeats, lambda pause: measured(command(pause)))
    rows = [[what, medians(found[pause])] for what, pause in PAUSES.items()]
    notes = [
        "An idle virtual CPU must be kicked awake before it can answer: that is in the second and third row, "
        "and in any carrier."
    ]
    figure.tables.append(
        Table("Shared memory, 64 B, by what the daemon does", ["", "round trip"], ["", "µs"], rows, notes)
    )


def run(context: Context) -> Figure:
    figure = Figure("carriers", TITLE, PAPER, "run.py carriers")
    with workplace() as programs:
        cpus = {1} if len(os.sched_getaffinity(0)) > 1 else None
        with Daemon(programs, [programs.rates], cpus) as isolated:
            inside = Daemon(programs, [f"{programs.rates}:in-process"], cpus, key=isolated.key)
            with inside:
                found = by_size(context, figure, programs, isolated, inside)
                by_waiting(context, figure, programs, isolated)
        on_one_core(context, figure, programs)
    pool, floor = found[64]["shared memory, from the pool"], found[64]["raw: spinning on shared memory"]
    ours, bare = medians(pool).median, medians(floor).median
    figure.summaries.append(
        Summary("round trip, 64 B", "–", f"{ours:.2f} µs", f"{bare:.2f} µs: two spinning processes")
    )
    return figure
