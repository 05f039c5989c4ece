"""BLAST in three stages, unmodified, weak-scaled: each node formats its part of a database and
searches it, then one node merges what all found; through Zazen's mount, its peers', and in a plain
directory."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import packages
import systems
from evaluation import Context
from process import BenchError, say
from result import Figure, Goal, Table, Value

TITLE = "BLAST in three stages, weak-scaled over 1 to 4 nodes"
PAPER = "On 1,024 nodes ParallelBLAST took 30 times less time with FusionFS than with GPFS, by locality."
SETTING = "four nodes share one machine's cores, so that the time grows with the nodes; compare systems"
PACKAGES = ("ncbi-blast+",)
NODES = 4
SEED = 11
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
STAGES = ("format", "search", "merge")


def proteins(file: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with file.open("w") as out:
        for number in range(count):
            letters = "".join(chance.choices(AMINO_ACIDS, k=chance.randrange(100, 400)))
            out.write(f">p{seed}-{number}\n{letters}\n")


def queries(file: Path, nodes: int, each: int, parts: list[Path]) -> None:
    """Pieces of the database's own sequences, so that there is something to find."""
    chance = random.Random(SEED)
    with file.open("w") as out:
        for part in parts[:nodes]:
            lines = part.read_text().splitlines()
            for number in range(each):
                at = chance.randrange(len(lines) // 2)
                out.write(f">q-{part.name}-{number}\n{lines[2 * at + 1][10:90]}\n")


def program(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise BenchError(f"{words[0]}: {done.stderr[-500:]}")


def on_each(nodes: int, work: Callable[[int], None]) -> float:
    """Seconds until all nodes have done their part."""
    began = time.monotonic()
    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(work, range(nodes)))
    return time.monotonic() - began


def turn(
    system: systems.System, nodes: int, name: str, parts: list[Path], asked: Path
) -> tuple[dict, list[str]]:
    """Seconds of each stage, and what was found."""
    at = [place / name for place in system.places]
    at[0].mkdir()

    def form(node: int) -> None:
        part = at[node] / f"part{node}.fasta"
        shutil.copyfile(parts[node], part)
        program("makeblastdb", "-in", part, "-dbtype", "prot", "-out", at[node] / f"part{node}")

    def search(node: int) -> None:
        out = at[node] / f"found{node}"
        # The size of the whole database, so that the scores do not depend on the parts.
        program(
            "blastp", "-db", at[node] / f"part{node}", "-query", asked, "-outfmt", 6, "-out", out,
            "-dbsize", 10_000_000, "-evalue", 1e-3, "-seg", "no",
        )  # fmt: skip

    found: list[str] = []

    def merge(_node: int) -> None:
        for node in range(nodes):
            found.extend((at[0] / f"found{node}").read_text().splitlines())
        found.sort()
        (at[0] / "found").write_text("\n".join(found))

    works = zip(STAGES, (form, search, merge), (nodes, nodes, 1), strict=True)
    seconds = {stage: on_each(count, work) for stage, work, count in works}
    shutil.rmtree(at[0])
    return seconds, found


def run(context: Context) -> Figure:
    if context.install:
        packages.install(PACKAGES)
    if lacking := packages.lacking(PACKAGES):
        raise BenchError(f"BLAST: needs `{packages.command(lacking)}`")
    count, each = (200, 2) if context.quick else (3000, 10)
    scales = (1, NODES) if context.quick else (1, 2, NODES)
    source = context.scratch / "blast"
    source.mkdir(parents=True)
    parts = [source / f"part{node}" for node in range(NODES)]
    for node, part in enumerate(parts):
        proteins(part, count, node)
    samples: dict[tuple[str, int, str], list[float]] = {}
    with ExitStack() as stack:
        up, skipped = systems.start(context, NODES, stack)
        for nodes in scales:
            asked = source / f"asked{nodes}"
            queries(asked, nodes, each, parts)
            for number in range(context.repeats):
                answers = []
                for system in up if number % 2 == 0 else list(reversed(up)):
                    say(f"{nodes} nodes, turn {number + 1} of {context.repeats}: {system.name}")
                    seconds, found = turn(system, nodes, f"blast-{nodes}-{number}", parts, asked)
                    answers.append(found)
                    for stage, took in (seconds | {"all": sum(seconds.values())}).items():
                        samples.setdefault((system.name, nodes, stage), []).append(took)
                if not answers[0] or any(found != answers[0] for found in answers):
                    raise BenchError("BLAST: the systems' results differ, or nothing was found")
    names = [system.name for system in up]
    rows = [
        [nodes, stage, *(Value.of(samples[name, nodes, stage]) for name in names)]
        for nodes in scales
        for stage in (*STAGES, "all")
    ]
    goals = []
    for name in names[1:]:
        pairs = zip(samples[systems.OURS, NODES, "all"], samples[name, NODES, "all"], strict=True)
        ratio = Value.of([theirs / ours for ours, theirs in pairs])
        is_peer = name != systems.PLAIN
        goals.append(
            Goal(
                f"all stages on {NODES} nodes, time with {name} : time with Zazen",
                "≥ 1" if is_peer else "–",
                f"{ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f})",
                ratio.median >= 1 if is_peer else None,
                "" if is_peer else "one kernel's own file system, no network",
            )
        )
    return Figure(
        key="blast",
        title=TITLE,
        paper=PAPER,
        command=f"makeblastdb of {count} random proteins a node, blastp of {each} queries a node against "
        "each part, and a merge on node 0; results are compared",
        tables=[Table("Seconds", ["nodes", "stage", *names], ["", "", *("s" for _ in names)], rows)],
        goals=goals,
        limits=["All nodes share the cores, so that weak scaling is not flat here"],
        skipped=skipped,
    )
