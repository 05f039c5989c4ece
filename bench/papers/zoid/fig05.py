"""Figure 5: files on a network file system that only the daemon's node mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import servers
from host import Daemon, in_memory, workplace
from process import BenchError
from result import Figure, Summary
from throughput import KIB, Contender, Grid, prepare

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 5: a network file system"
PAPER = (
    "NFS: with one compute node ZOID slightly outperforms CIOD for small buffers; with several, it reads "
    "much faster and writes slower, and both are much slower than with one: NFS wants one sequential client"
)
PREFIX = "/zazen-forwarded"
FORWARDED, DIRECT = "forwarded", "mounted by the clients"
SPAN = 16 << 20
CLIENTS = [1, 8]
# Where and on what it is measured, for the page's first table.
SETTING = "programs that read and write files over NFS, server and clients on one machine"


def run(context: Context) -> Figure:
    figure = Figure("fig5", TITLE, PAPER, "run.py fig5")
    if why := servers.lacking(servers.NFS_PACKAGES, context.install):
        figure.skipped.append(why)
        return figure
    with workplace() as programs, in_memory() as served:
        if not (programs.posix and programs.preload):
            raise BenchError("libzazen_posix.so or libzazen_preload.so is not there; `make install`")
        prepare(served, CLIENTS[-1], SPAN)
        mounted = servers.nfs(programs, served, programs.folder / "mnt", programs.folder / "nfs")
        with mounted as there, Daemon(programs, [programs.posix], exports=[there]) as daemon:
            variables = daemon.variables_for("--forward", f"{PREFIX}={there}")

            def at(folder: object):
                tail = ["--span", SPAN]
                return lambda direction, size, nth: [
                    programs.tool("ops"),
                    direction,
                    f"{folder}/{nth}",
                    size,
                    *tail,
                ]

            contenders = [
                Contender(FORWARDED, "ours", at(PREFIX), variables),
                Contender(DIRECT, "ceiling", at(there)),
            ]
            sizes = [4 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
            grid = Grid(figure, contenders, {"read": "Reading", "write": "Writing"}, CLIENTS, 0.4, sizes,
                        repeats=max(3, context.repeats - 2))  # fmt: skip
            found = grid.measure(context)
    figure.limits.append(
        "NFS v3 by nfs-ganesha, of files in memory. Kernels of containers can mount no NFS: the client is "
        "libnfs behind FUSE (nfsfs.c, which does what fuse-nfs does), without the kernel's cache "
        "(direct_io), a connection for each of its threads. Server and clients share this machine's cores"
    )
    for direction in grid.directions:
        shares = [
            found[direction, count, FORWARDED, size].median / found[direction, count, DIRECT, size].median
            for count in grid.clients
            for size in grid.sizes
        ]
        figure.summaries.append(
            Summary(f"network file system, {direction}: forwarded, of mounted", "–",
                    f"{100 * min(shares):.0f} … {100 * max(shares):.0f} %", "100 %")
        )  # fmt: skip
    return figure
