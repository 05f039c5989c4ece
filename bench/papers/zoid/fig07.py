"""Figure 7: TCP sockets from the daemon's node to another machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from host import Daemon, start, workplace
from process import BenchError, stop
from result import Figure, Summary
from throughput import KIB, Contender, Grid

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 7: TCP sockets"
PAPER = (
    "on the LOFAR Blue Gene/L: ZOID outperforms CIOD for small and medium messages; for large ones both "
    "approach the 1.0 Gb/s of the Ethernet when writing"
)
PREFIX = "/zazen-forwarded"
FORWARDED, DIRECT = "forwarded", "not forwarded"
CLIENTS = [1, 8]
# Where and on what it is measured, for the page's first table.
SETTING = "programs that use sockets, forwarded to a daemon of the same machine"


def run(context: Context) -> Figure:
    figure = Figure("fig7", TITLE, PAPER, "run.py fig7")
    with workplace() as programs:
        if not (programs.posix and programs.preload):
            raise BenchError("libzazen_posix.so or libzazen_preload.so is not there; `make install`")
        ops = programs.tool("ops")
        server = start([ops, "serve"])
        try:
            there = f"127.0.0.1:{json.loads(server.stdout.readline())['port']}"
            with Daemon(programs, [programs.posix]) as daemon:
                variables = daemon.variables_for("--forward", PREFIX, "--sockets")
                command = lambda direction, size, _nth: [ops, direction, there, size]  # noqa: E731
                contenders = [
                    Contender(FORWARDED, "ours", command, variables),
                    Contender(DIRECT, "ceiling", command),
                ]
                sizes = [1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
                directions = {"recv": "Reading", "send": "Writing"}
                grid = Grid(
                    figure, contenders, directions, CLIENTS, 0.2, sizes, repeats=max(3, context.repeats - 2)
                )
                found = grid.measure(context)
        finally:
            stop(server)
    for direction, title in directions.items():
        best = {
            name: max(found[direction, 1, name, size].median for size in grid.sizes)
            for name in (FORWARDED, DIRECT)
        }
        figure.summaries.append(
            Summary(f"a TCP socket, {title.lower()}", "1.0 Gb/s, the network",
                    f"{8 * best[FORWARDED]:.1f} Gb/s",
                    f"{8 * best[DIRECT]:.1f} Gb/s, not forwarded")
        )  # fmt: skip
    return figure
