"""How long a dead node's part of the metadata is away: a client creates files all the time, a node
is killed."""

from __future__ import annotations

import subprocess
import time

import space
from evaluation import Context
from result import Figure, Goal, Table, Value
from zazen import namespace

TITLE = "Death: the longest pause of a client that creates in every partition"
PAPER = "Metadata replicas keep the file system available when a node fails."
SETTING = "4 daemons on one machine, 2 replicas; one is killed"


def pause(context: Context, turn: int) -> float:
    """Seconds of the longest create, from a node that lives, around the death of another."""
    folder = context.scratch / f"t{turn}"
    with space.Space(folder, 4, "--namespace-replicas", 2) as four:
        ns = namespace.Namespace(four.socket(0), umask=0)
        # Directories are spread over the partitions of all nodes.
        for number in range(64):
            ns.mkdir(f"/d{number}")
        longest, killed, at = 0.0, None, 0
        began = time.monotonic()
        while time.monotonic() - began < 25:
            if killed is None and time.monotonic() - began > 2:
                four.daemons[3].kill()
                killed = time.monotonic()
            since = time.monotonic()
            ns.create_many(f"/d{at % 64}", [f"f{at}"])
            longest = max(longest, time.monotonic() - since)
            at += 1
    subprocess.run(["rm", "-rf", folder], check=True)
    return longest


def run(context: Context) -> Figure:
    pauses = Value.of([pause(context, turn) for turn in range(min(context.repeats, 3))])
    measured = f"{pauses.median:.1f} s ({pauses.low:.1f} … {pauses.high:.1f})"
    return Figure(
        key="death",
        title=TITLE,
        paper=PAPER,
        command="4 nodes, 2 replicas; node 3 is killed (SIGKILL) while "
        "node 0's client creates in 64 directories",
        tables=[Table("Longest create", ["", "pause"], ["", "s"], [["4 nodes, one dies", pauses]])],
        goals=[Goal("service back after a node's death", "≤ 10 s", measured, pauses.high <= 10)],
    )
