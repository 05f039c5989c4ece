"""Figure 6: files on a file system that serves many clients at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import servers
from host import Daemon, workplace
from process import BenchError
from result import Figure, Summary
from throughput import Contender, Grid, prepare

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 6: a file system that takes parallel access"
PAPER = (
    "PVFS over 14 servers: one compute node is as fast through CIOD as through ZOID; 32 gain up to 64 % by "
    "ZOID, for CIOD serves one at a time (reading degraded between 512 and 1,024 KB, by PVFS)"
)
PREFIX = "/zazen-forwarded"
FORWARDED, DIRECT = "forwarded", "mounted by the clients"
CLIENTS = [1, 32]
SPAN = 16 << 20
# Where and on what it is measured, for the page's first table.
SETTING = "programs that read and write files of a GlusterFS volume, servers and clients on one machine"


def run(context: Context) -> Figure:
    figure = Figure("fig6", TITLE, PAPER, "run.py fig6")
    if why := servers.lacking(servers.GLUSTER_PACKAGES, context.install):
        figure.skipped.append(why)
        return figure
    with workplace() as programs:
        if not (programs.posix and programs.preload):
            raise BenchError("libzazen_posix.so or libzazen_preload.so is not there; `make install`")
        mounted = servers.glusterfs(
            context.scratch / "bricks", programs.folder / "mnt", context.scratch / "gluster"
        )
        with mounted as folder, Daemon(programs, [programs.posix], exports=[folder]) as daemon:
            prepare(folder, CLIENTS[-1], SPAN)
            variables = daemon.variables_for("--forward", f"{PREFIX}={folder}")

            def at(place: object):
                tail = ["--span", SPAN]
                return lambda direction, size, nth: [
                    programs.tool("ops"),
                    direction,
                    f"{place}/{nth}",
                    size,
                    *tail,
                ]

            contenders = [
                Contender(FORWARDED, "ours", at(PREFIX), variables),
                Contender(DIRECT, "ceiling", at(folder)),
            ]
            grid = Grid(figure, contenders, {"pread": "Reading", "pwrite": "Writing"}, CLIENTS, 0.2,
                        repeats=max(3, context.repeats - 2))  # fmt: skip
            found = grid.measure(context)
    figure.limits.append(
        f"GlusterFS with {servers.BRICKS} bricks without replicas, which are folders of one disk in the page "
        "cache; its client does not cache. Servers and clients share this machine's cores"
    )
    for direction in grid.directions:

        def rate(count, size, direction=direction):
            return found[direction, count, FORWARDED, size].median

        gains = [rate(CLIENTS[-1], size) / rate(1, size) for size in grid.sizes]
        of_direct = [
            found[direction, CLIENTS[-1], FORWARDED, size].median
            / found[direction, CLIENTS[-1], DIRECT, size].median
            for size in grid.sizes
        ]
        figure.summaries.append(
            Summary(f"parallel file system, {grid.directions[direction].lower()}: 32 clients : 1",
                    "1.64 (64 KB), ZOID writing", f"{min(gains):.2f} … {max(gains):.2f}",
                    f"two cores; {100 * min(of_direct):.0f} … {100 * max(of_direct):.0f} % of not forwarded")
        )  # fmt: skip
    return figure
