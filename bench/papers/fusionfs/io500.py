"""IOR and mdtest, easy and hard as the IO500 has them, unmodified, on four nodes: Zazen's mount and
its peers.

Needs $IOR, a folder with the programs `ior` and `mdtest`, built from github.com/hpc/ior for the
environment's own MPI (`./bootstrap && ./configure CC=mpicc && make`, with .venv/bin first on the
PATH); no package has them.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import systems
from evaluation import Context
from process import BenchError, binary, call, say
from result import Figure, Goal, Table, Value

TITLE = "IOR and mdtest, easy and hard, on four nodes"
PAPER = "The paper runs IOR on 16 to 1,024 nodes: local writes scale with the nodes, GPFS with its servers."
SETTING = "four nodes with one rank each share one machine's cores and disk"
NODES = 4
# A rank sees the mount of its node under this name.
JOB = "job"
# The IO500's: files of 3,901 bytes, and records of 47,008 bytes.
MDTEST_HARD_BYTES, IOR_HARD_BYTES = 3901, 47008
RANK = """\
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}
IFS=:
set -- $PLACES -- "$@"
shift "$rank"
place=$1
while [ "$1" != -- ]; do shift; done
shift
mount --bind "$place" "$JOB" && exec "$@"
"""


def programs() -> tuple[Path, Path]:
    folder = os.environ.get("IOR")
    if not folder:
        raise BenchError("IOR and mdtest: $IOR is not set to a folder with both, see the file io500.py")
    found = []
    for name in ("ior", "mdtest"):
        places = [Path(folder) / name, Path(folder) / "src" / name, Path(folder) / "bin" / name]
        there = [place for place in places if place.is_file()]
        if not there:
            raise BenchError(f"$IOR: no {name} in {folder}")
        found.append(there[0])
    return found[0], found[1]


def on_nodes(system: systems.System, job: Path, command: list[object]) -> str:
    """Runs a command as four ranks, each in a mount namespace in which `job` is its node's mount;
    its standard output."""
    places = ":".join(str(place) for place in system.places)
    head = [binary("mpiexec"), "-n", str(NODES), "-env", "PLACES", places, "-env", "JOB", str(job)]
    ranks = ["unshare", "--mount", "--propagation", "private", "sh", "-c", RANK, "sh"]
    return call([*head, *ranks, *command], timeout=300)


def mdtest_rates(text: str) -> dict[str, float]:
    """Operations a second of mdtest's summary: the mean of its only iteration."""
    found = {}
    for what, row in (("create", "File creation"), ("stat", "File stat"), ("remove", "File removal")):
        match = re.search(rf"^\s*{row}\s+([0-9.]+)\s+([0-9.]+)\s+([0-9.]+)", text, re.MULTILINE)
        if not match:
            raise BenchError(f"mdtest said no rate of {row}:\n{text[-1500:]}")
        found[what] = float(match.group(3))
    return found


def ior_rates(text: str) -> dict[str, float]:
    """MiB/s of IOR's summary."""
    summary = text.partition("Summary of all tests:")[2]
    found = {}
    for what in ("write", "read"):
        match = re.search(rf"^{what}\s+([0-9.]+)", summary, re.MULTILINE)
        if not match:
            raise BenchError(f"IOR said no rate of {what}:\n{text[-1500:]}")
        found[what] = float(match.group(1))
    return found


def turn(system: systems.System, job: Path, ior: Path, mdtest: Path, quick: bool) -> dict[str, float]:
    files, size, records = (40, "4m", 40) if quick else (400, "64m", 500)
    found = {}
    easy = on_nodes(system, job, [mdtest, "-n", files, "-u", "-F", "-d", job / "mdtest-easy"])
    hard_size = ["-w", MDTEST_HARD_BYTES, "-e", MDTEST_HARD_BYTES]
    hard = on_nodes(system, job, [mdtest, "-n", files, *hard_size, "-F", "-d", job / "mdtest-hard"])
    for kind, text in (("easy", easy), ("hard", hard)):
        found |= {f"mdtest {kind}: {what} [/s]": rate for what, rate in mdtest_rates(text).items()}
    # -C: each rank reads what its neighbour wrote. -R and -W: the bytes are compared.
    checks = ["-C", "-w", "-r", "-W", "-R"]
    timed = ["-C", "-w", "-r"]
    easy_way = ["-F", "-t", "1m", "-b", size, "-o", job / "ior-easy"]
    hard_way = ["-t", IOR_HARD_BYTES, "-b", IOR_HARD_BYTES, "-s", records, "-o", job / "ior-hard"]
    for kind, way in (("easy", easy_way), ("hard", hard_way)):
        rates = ior_rates(on_nodes(system, job, [ior, "-a", "POSIX", *timed, *way]))
        found |= {f"IOR {kind}: {what} [MiB/s]": rate for what, rate in rates.items()}
        checked = on_nodes(system, job, [ior, "-a", "POSIX", *checks, *way])
        if re.search(r"incorrect data|[1-9][0-9]* errors", checked, re.IGNORECASE):
            raise BenchError(f"{system.name}: IOR {kind} read wrong bytes:\n{checked[-1500:]}")
    return found


def run(context: Context) -> Figure:
    ior, mdtest = programs()
    samples: dict[tuple[str, str], list[float]] = {}
    failed: dict[str, str] = {}
    job = context.scratch / JOB
    job.mkdir(parents=True)
    with ExitStack() as stack:
        up, skipped = systems.start(context, NODES, stack)
        for number in range(context.repeats):
            for system in up if number % 2 == 0 else list(reversed(up)):
                if system.name in failed:
                    continue
                say(f"turn {number + 1} of {context.repeats}: {system.name}")
                try:
                    found = turn(system, job, ior, mdtest, context.quick)
                except BenchError as error:
                    if system.name == systems.OURS:
                        raise
                    failed[system.name] = str(error).splitlines()[-1]
                    continue
                for what, rate in found.items():
                    samples.setdefault((system.name, what), []).append(rate)
                for place in system.places[:1]:
                    for left in place.iterdir():
                        shutil.rmtree(left) if left.is_dir() else left.unlink()
    names = [system.name for system in up if system.name not in failed]
    whats = list(dict.fromkeys(what for _, what in samples))
    rows = [[what, *(Value.of(samples[name, what]) for name in names)] for what in whats]
    goals = []
    for what in whats:
        for name in names[1:]:
            pairs = zip(samples[systems.OURS, what], samples[name, what], strict=True)
            ratio = Value.of([ours / theirs for ours, theirs in pairs])
            is_peer = name != systems.PLAIN
            goals.append(
                Goal(
                    f"{what.rsplit(' [', 1)[0]}: Zazen : {name}",
                    "≥ 1" if is_peer else "–",
                    f"{ratio.median:.2f} × ({ratio.low:.2f} … {ratio.high:.2f})",
                    ratio.median >= 1 if is_peer else None,
                    "" if is_peer else "one kernel's own file system, no network",
                )
            )
    return Figure(
        key="io500",
        title=TITLE,
        paper=PAPER,
        command="mdtest -F -u / -w 3901 -e 3901; ior -F -t 1m / -t 47008 -b 47008 -s N, one shared file; "
        "-C: each rank reads what another wrote; caches are warm",
        tables=[Table("Four ranks", ["", *names], ["", *("" for _ in names)], rows)],
        goals=goals,
        limits=["All nodes share the cores and the disk; run lengths are seconds, not the IO500's 300 s"],
        skipped=[*skipped, *(f"{name}: {error}" for name, error in failed.items())],
    )
