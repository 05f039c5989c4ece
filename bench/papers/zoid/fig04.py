"""Figure 4: the base throughput of forwarding, without work at the far side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from host import Daemon, workplace
from result import Figure, Goal, Summary, Table
from throughput import KIB, Contender, Grid

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 4: base performance, /dev/zero"
PAPER = (
    "8 compute nodes read and write /dev/zero at the I/O node: ZOID and CIOD both reach 2.5 Gb/s of the "
    "collective network's 2.8 in either direction, ZOID at much smaller buffers (128 KB and less)"
)
PREFIX = "/zazen-forwarded"
CLIENTS = 8
SINK = "plug-in, from the pool"
COPIED = "plug-in, the program's own memory"
SOCKET = "plug-in, unix socket"
FORWARDED = "forwarded /dev/zero"
DIRECT = "/dev/zero, not forwarded"
# What a program calls, and what the plug-in's client calls.
FUNCTIONS = {"stream-write": "drop", "stream-read": "get"}
# Where and on what it is measured, for the page's first table.
SETTING = "client processes and one daemon on one machine, streams of buffers"


def run(context: Context) -> Figure:
    figure = Figure("fig4", TITLE, PAPER, "run.py fig4")
    with workplace() as programs:
        plugins = [programs.rates, *([programs.posix] if programs.posix else [])]
        with Daemon(programs, plugins, exports=["/dev"]) as daemon:

            def called(*options: object):
                head = [programs.calls, daemon.socket]
                return lambda direction, size, _nth: [*head, FUNCTIONS[direction], size, *options]

            def device(path: str):
                return lambda direction, size, _nth: [programs.tool("ops"), direction, path, size]

            contenders = [
                Contender(SINK, "ours", called("--carrier", "shm", "--pool")),
                Contender(COPIED, "ours", called("--carrier", "shm")),
                Contender(SOCKET, "peer", called("--carrier", "unix")),
                Contender(DIRECT, "ceiling", device("/dev/zero")),
            ]
            if programs.posix and programs.preload:
                variables = daemon.variables_for("--forward", f"{PREFIX}=/dev")
                contenders.insert(2, Contender(FORWARDED, "ours", device(f"{PREFIX}/zero"), variables))
            else:
                figure.skipped.append("forwarded /dev/zero: libzazen_posix.so is not there; `make install`")
            directions = {"stream-write": "To the far side", "stream-read": "From the far side"}
            notes = [
                "From the pool: bytes are where both ends see them; nobody copies or reads them. "
                "The others copy."
            ]
            grid = Grid(figure, contenders, directions, [CLIENTS], 0.2, repeats=context.repeats, notes=notes)
            found = grid.measure(context)
            more = Figure("fig4", "", "", "")
            some = [4 * KIB, 64 * KIB, 1024 * KIB]
            counts = {"stream-write": "Writing, by the number of clients"}
            several = Grid(
                more, contenders[:3], counts, [1, 32], 0.2, some, repeats=max(3, context.repeats - 2)
            )
            several.measure(context)
            figure.tables += more.tables
    sizes = grid.sizes
    rate = lambda name, size: found["stream-write", CLIENTS, name, size].median  # noqa: E731
    best = max(rate(COPIED, size) for size in sizes)
    enough = next(size for size in sizes if rate(COPIED, size) >= 0.8 * best)
    socket_best = max(rate(SOCKET, size) for size in sizes)
    figure.tables.append(
        Table("In the paper, Gb/s", ["", "maximum", "limit of the network"], ["", "Gb/s", "Gb/s"],
              [["ZOID, CIOD, both directions", 2.5, 2.8]])
    )  # fmt: skip
    small = sizes[0]
    figure.goals.append(
        Goal("small buffers (4 KiB): shared memory against the socket", "> 1, as ZOID against CIOD",
             f"{rate(COPIED, small) / rate(SOCKET, small):.1f}", rate(COPIED, small) > rate(SOCKET, small))
    )  # fmt: skip
    ours = f"{8 * best:.0f} Gb/s, 80 % of it from {enough >> 10} KiB"
    ceiling = f"{8 * socket_best:.0f} Gb/s: by the socket alone"
    figure.summaries.append(Summary("base throughput, 8 clients, writing", "2.5 Gb/s", ours, ceiling))
    return figure
