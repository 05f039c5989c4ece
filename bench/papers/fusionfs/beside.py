"""Zazen's mount beside other file systems on the same four nodes: names and bytes a second, and the
processor time that they cost.

All systems are up at the same time, each with its client on every node, and take turns.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import systems
from evaluation import Context
from process import BenchError, say
from result import Figure, Goal, Table, Value

TITLE = "Peers: names and bytes a second through the mounts of four nodes"
PAPER = (
    "On 1,024 nodes FusionFS makes files one to two orders faster than HDFS and PVFS; its writes are local, "
    "so that they scale with the nodes."
)
SETTING = "four nodes with a client each share one machine's cores and disk; links of 10 Gbit/s between them"
NODES = 4
BLOCK = 1 << 20
# What is measured: its name, its unit.
WHATS = {
    "create, a directory each": "/s",
    "create, one directory": "/s",
    "stat on another node": "/s",
    "remove": "/s",
    "write": "MB/s",
    "read on the same node": "MB/s",
    "read on another node": "MB/s",
}


def create(folder: str, prefix: str, count: int) -> None:
    for number in range(count):
        os.close(os.open(f"{folder}/{prefix}{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def stat(folder: str, prefix: str, count: int) -> None:
    for number in range(count):
        os.stat(f"{folder}/{prefix}{number}")


def remove(folder: str, prefix: str, count: int) -> None:
    for number in range(count):
        os.unlink(f"{folder}/{prefix}{number}")


def write(path: str, size: int) -> None:
    block = os.urandom(BLOCK)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    for _ in range(size // BLOCK):
        if os.write(descriptor, block) != BLOCK:
            raise OSError(f"{path}: a short write")
    os.close(descriptor)


def read(path: str, size: int) -> None:
    descriptor, buffer, got = os.open(path, os.O_RDONLY), bytearray(BLOCK), 0
    while count := os.readv(descriptor, [buffer]):
        got += count
    os.close(descriptor)
    if got != size:
        raise OSError(f"{path}: {got} of {size} bytes")


def timed(work: Callable[..., None], *arguments: object) -> tuple[float, float]:
    began = time.monotonic()
    work(*arguments)
    return began, time.monotonic()


class Clients:
    """A process for each node, which do the same at the same time."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool

    def seconds(self, work: Callable[..., None], arguments: list[tuple]) -> float:
        """From the first one's beginning to the last one's end."""
        spans = list(self.pool.map(timed, [work] * len(arguments), *zip(*arguments, strict=True)))
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


def turn(system: systems.System, clients: Clients, number: int, count: int, size: int) -> dict[str, tuple]:
    """One turn of one system: rate, and processor µs of servers and mounts for each operation (of a
    MB where bytes move)."""
    found = {}
    places = system.places
    nodes = range(len(places))
    top = f"t{number}"
    for at in nodes:
        (places[at] / f"{top}-own{at}").mkdir()
    (places[0] / f"{top}-one").mkdir()
    own = [str(places[at] / f"{top}-own{at}") for at in nodes]
    own_of_next = [str(places[at] / f"{top}-own{(at + 1) % len(places)}") for at in nodes]
    one = [str(places[at] / f"{top}-one") for at in nodes]
    next_one = [(at + 1) % len(places) for at in nodes]

    def measure(what: str, work: Callable[..., None], arguments: list[tuple], amount: float) -> None:
        before = system.cpu_seconds()
        seconds = clients.seconds(work, arguments)
        found[what] = amount / seconds, (system.cpu_seconds() - before) / amount * 1e6

    names = [(own[at], "f", count) for at in nodes]
    total, megabytes = count * len(places), size * len(places) / 1e6
    measure("create, a directory each", create, names, total)
    measure("create, one directory", create, [(one[at], f"n{at}-", count) for at in nodes], total)
    measure("stat on another node", stat, [(own_of_next[at], "f", count) for at in nodes], total)
    measure("remove", remove, names, total)
    measure("write", write, [(f"{own[at]}/data", size) for at in nodes], megabytes)
    measure("read on the same node", read, [(f"{own[at]}/data", size) for at in nodes], megabytes)
    far = [(f"{own_of_next[at]}/data", size) for at in nodes]
    measure("read on another node", read, far, megabytes)
    for at in nodes:
        shutil.rmtree(own[at])
        for number_of in range(count):
            (places[at] / f"{top}-one/n{at}-{number_of}").unlink()
    (places[next_one[0]] / f"{top}-one").rmdir()
    return found


def run(context: Context) -> Figure:
    count, size = (100, 8 << 20) if context.quick else (500, 64 << 20)
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        up, skipped = systems.start(context, NODES, stack)
        pool = stack.enter_context(ProcessPoolExecutor(NODES, mp_context=get_context("spawn")))
        clients = Clients(pool)
        for number in range(context.repeats):
            for system in up if number % 2 == 0 else list(reversed(up)):
                say(f"turn {number + 1} of {context.repeats}: {system.name}")
                try:
                    found = turn(system, clients, number, count, size)
                except OSError as error:
                    raise BenchError(f"{system.name}: {error}") from error
                for what, (rate, cost) in found.items():
                    rates.setdefault((system.name, what), []).append(rate)
                    costs.setdefault((system.name, what), []).append(cost)
    names = [system.name for system in up]
    tables = []
    for title, samples, unit_of in (
        ("All four nodes together", rates, lambda unit: unit),
        ("Processor time of servers and mounts", costs, lambda unit: "µs" if unit == "/s" else "µs/MB"),
    ):
        rows = [
            [f"{what} [{unit_of(unit)}]", *(Value.of(samples[name, what]) for name in names)]
            for what, unit in WHATS.items()
        ]
        tables.append(Table(title, ["", *names], ["", *("" for _ in names)], rows))
    goals = []
    for what in WHATS:
        for name in names[1:]:
            pairs = zip(rates[systems.OURS, what], rates[name, what], strict=True)
            ratio = Value.of([ours / theirs for ours, theirs in pairs])
            shown = f"{ratio.median:.2f} × ({ratio.low:.2f} … {ratio.high:.2f})"
            is_peer = name != systems.PLAIN
            goals.append(
                Goal(
                    f"{what}: Zazen : {name}",
                    "≥ 1" if is_peer else "–",
                    shown,
                    ratio.median >= 1 if is_peer else None,
                    "" if is_peer else "one kernel's own file system, no network",
                )
            )
    return Figure(
        key="peers",
        title=TITLE,
        paper=PAPER,
        command=f"{NODES} processes at once, one for each node's mount: {count} files in turn, "
        f"then a file of {size >> 20} MiB in calls of 1 MiB; nothing is synced, caches are warm",
        tables=tables,
        goals=goals,
        limits=[
            "All nodes share the cores: rates of four nodes do not add up; compare processor times",
            "Nothing is synced: bytes that a system took may be in the page cache of its server",
        ],
        skipped=skipped,
    )
