"""Nodes write one file together (N-to-1), with one holder and in chunks: what crosses the network,
and how fast it is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import space
from evaluation import Context
from nodes import own_network
from result import Figure, Goal, Table, Value

TITLE = "A shared file: one holder against chunks"
PAPER = "Files that are written by many processes are beyond the paper: FusionFS keeps a file on one node."
SETTING = "2 to 8 nodes on one machine; loopback, page cache"
MIB = 1 << 20
# One process of the job: its parts of the file, or another's, in calls of 1 MiB.
PROGRAM = """
import os, sys
path, work, first, step, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
data = bytes(range(1, 256)) * 4113
data = data[: 1 << 20]
file = os.open(path, os.O_WRONLY if work == "write" else os.O_RDONLY)
sys.stdin.readline()
for number in range(count):
    at = (first + number * step) << 20
    if work == "write":
        assert os.pwrite(file, data, at) == len(data)
    else:
        assert os.pread(file, len(data), at) == data
os.close(file)
"""


def carried() -> int:
    """Bytes that went over the loopback of this network namespace."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise ValueError("there is no loopback")


@contextlib.contextmanager
def mounted(all_nodes: space.Space, count: int) -> Iterator[list[Path]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(all_nodes.mounted(number)) for number in range(count)]


def together(paths: list[Path], work: str, layout: str, count: int) -> tuple[float, float]:
    """Seconds that all processes took together, and bytes that were carried for each of theirs."""
    nodes = len(paths)
    first = (lambda node: node * count) if layout == "ranges" else (lambda node: node)
    step = 1 if layout == "ranges" else nodes
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, path, work, *map(str, (first(node), step, count))],
            stdin=subprocess.PIPE,
            text=True,
        )
        for node, path in enumerate(paths)
    ]
    # All have begun, and none has written.
    time.sleep(1)
    before, began = carried(), time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
    failed = [process.wait(300) for process in processes]
    if any(failed):
        raise ValueError(f"{work} {layout}: {failed}")
    seconds = time.monotonic() - began
    return seconds, (carried() - before) / (nodes * count * MIB)


def run(context: Context) -> Figure:
    own_network()
    scales = (2, 4) if context.quick else (2, 4, 8)
    count = 16 if context.quick else 48
    rows, crossed = [], {}
    for nodes in scales:
        with (
            space.Space(context.scratch / f"shared{nodes}", nodes) as all_nodes,
            mounted(all_nodes, nodes) as mounts,
        ):
            for kind in ("holder", "chunks"):
                (mounts[0] / kind).mkdir()
            os.setxattr(mounts[0] / "chunks", "user.zazen.chunks", b"1")
            time.sleep(2.5)
            for layout in ("ranges", "in turn"):
                for kind in ("holder", "chunks"):
                    written, read = [], []
                    for turn in range(context.repeats):
                        name = f"{kind}/{layout.replace(' ', '')}{turn}"
                        (mounts[0] / name).touch()
                        paths = [mount / name for mount in mounts]
                        written.append(together(paths, "write", layout, count))
                        # Each reads what it has written.
                        read.append(together(paths, "read", layout, count))
                        paths[0].unlink()
                    megabytes = nodes * count * MIB / 1e6
                    link = Value.of([share for _, share in written])
                    crossed[nodes, layout, kind] = link
                    rows.append(
                        [
                            layout,
                            nodes,
                            "one holder" if kind == "holder" else "chunks of 1 MiB",
                            link,
                            Value.of([megabytes / seconds for seconds, _ in written]),
                            Value.of([share for _, share in read]),
                            Value.of([megabytes / seconds for seconds, _ in read]),
                        ]
                    )
    most = scales[-1]
    share = crossed[most, "in turn", "chunks"].median
    goal = Goal(
        f"bytes on links for each byte written, {most} nodes, chunks", "≤ 0.05", f"{share:.3f}", share <= 0.05
    )
    columns = ["each node writes", "nodes", "file", "on links", "write, all", "on links", "read own, all"]
    units = ["", "", "", "byte/byte", "MB/s", "byte/byte", "MB/s"]
    return Figure(
        key="shared",
        title=TITLE,
        paper=PAPER,
        command="a process on each node's mount writes its parts of one file in calls of 1 MiB, and "
        "reads them: one range each, or every N-th MiB",
        tables=[Table("One file", columns, units, rows)],
        goals=[goal],
        limits=[
            "All nodes share the cores, the memory and the disk of one machine: rates do not add up; "
            "what crosses the links does not depend on it",
        ],
    )
