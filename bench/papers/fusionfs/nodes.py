"""CPU and messages for each create, from 1 to 16 nodes: each node in its own directory (N-to-N),
all in one (N-to-1).

The daemons are alone in a network namespace, whose TCP segments are counted.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import space
from evaluation import Context
from process import BenchError
from result import Figure, Goal, Table

TITLE = "Nodes: CPU and messages for each create"
PAPER = "The metadata rate grows linearly from 1 to 1,024 nodes; in one directory more slowly, ahead of GPFS."
SETTING = "1 to 16 daemons and as many clients share the cores; loopback, 2 replicas"
CLONE_NEWNET = 0x40000000


def own_network() -> None:
    """For this process and those that it starts from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise BenchError(f"unshare: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def segments() -> int:
    """TCP segments that were sent in this network namespace."""
    names, numbers = (
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(numbers[names.index("OutSegs")])


def measure(folder: Path, nodes: int, shared: bool, count: int) -> tuple[float, float, float, float]:
    """Creates a second of all nodes together; daemons' CPU µs and TCP segments for each; idle
    segments a second."""
    with space.Space(folder, nodes, "--namespace-replicas", min(nodes, 2)) as all_nodes:
        program = space.rates_program()

        def client(number: int) -> float:
            directory = "/shared" if shared else f"/own{number}"
            words = [program, all_nodes.socket(number), directory, str(count), f"n{number}-"]
            done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
            return float(done.stdout)

        idle, began = segments(), time.monotonic()
        time.sleep(2)
        idle_rate = (segments() - idle) / (time.monotonic() - began)
        before = all_nodes.cpu_seconds(), segments()
        began = time.monotonic()
        with ThreadPoolExecutor(nodes) as pool:
            list(pool.map(client, range(nodes)))
        seconds = time.monotonic() - began
        cpu, sent = all_nodes.cpu_seconds() - before[0], segments() - before[1] - idle_rate * seconds
    made = nodes * count
    return made / seconds, cpu / made * 1e6, sent / made, idle_rate


def run(context: Context) -> Figure:
    own_network()
    scales = (1, 2, 4) if context.quick else (1, 2, 4, 8, 16)
    rows, found = [], {}
    for shared in (False, True):
        for nodes in scales:
            folder = context.scratch / f"{nodes}{shared}"
            found[shared, nodes] = measure(folder, nodes, shared, 400 if context.quick else 2000)
            subprocess.run(["rm", "-rf", folder], check=True)
            rate, cpu, sent, idle = found[shared, nodes]
            kind = "N-to-1: one directory" if shared else "N-to-N: a directory each"
            rows.append([kind, nodes, rate, cpu, sent, idle])
    goals = []
    for shared in (False, True):
        low, high = found[shared, 2], found[shared, scales[-1]]
        for what, at in (("CPU", 1), ("messages", 2)):
            ratio = high[at] / low[at]
            name = "N-to-1" if shared else "N-to-N"
            goals.append(
                Goal(
                    f"{what} for each create, {name}, {scales[-1]} nodes against 2",
                    "≤ 1.25",
                    f"{ratio:.2f}",
                    ratio <= 1.25,
                )
            )
    columns = ["", "nodes", "creates, all nodes", "daemons' CPU", "TCP segments", "idle"]
    units = ["", "", "/s", "µs/create", "/create", "segments/s"]
    return Figure(
        key="nodes",
        title=TITLE,
        paper=PAPER,
        command="one client for each node creates files one at a time; "
        "2 replicas from 2 nodes on; level written",
        tables=[Table("Creates", columns, units, rows, ["Idle segments are taken off the count."])],
        goals=goals,
        limits=[
            "All nodes share the cores of one machine: rates do not add up; "
            "CPU and messages do not depend on it"
        ],
    )
