"""Kills a thousand clients at any point, and checks what the daemon still holds for them
afterwards."""

from __future__ import annotations

import fcntl
import random
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from host import Daemon, Programs, in_memory, start, workplace
from process import say
from result import Figure, Goal, Table

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Killed clients"
PAPER = (
    "“a crashing application thread crashes the daemon as well” (§4.1); crashing clients are handled (§2.1)"
)
PREFIX = "/zazen-forwarded"
AT_ONCE = 20
# The latest time at which a client is killed. It connects within some milliseconds and then calls
# all the time.
LIVES_S = 0.15
SETTLES_S = 20
SEED = 20080220
# Where and on what it is measured, for the page's first table.
SETTING = "client processes of one daemon, killed at random points"


def kill_some(commands: list[tuple[list[object], dict[str, str]]], chance: random.Random) -> Counter:
    """Starts them together and kills each at its own time. Returns how far each had come."""
    began = time.monotonic()
    children = [
        (began + chance.uniform(0, LIVES_S), start(command, variables)) for command, variables in commands
    ]
    fates: Counter = Counter()
    for when, child in sorted(children, key=lambda pair: pair[0]):
        time.sleep(max(0.0, when - time.monotonic()))
        child.kill()
        out, errors = child.communicate()
        if child.returncode == -9:
            fates["killed while calling" if out else "killed before it had connected"] += 1
        else:
            fates[f"ended by itself: {errors.strip()[-200:]}"] += 1
    return fates


def holdings(daemon: Daemon) -> dict[str, int]:
    """What the daemon and its plug-ins' processes hold."""
    found: Counter = Counter()
    pids = daemon.pids()
    for pid in pids:
        process = Path(f"/proc/{pid}")
        found["descriptors"] += sum(1 for _ in (process / "fd").iterdir())
        found["clients' regions mapped"] += (process / "maps").read_text().count("/memfd:")
        found["threads"] += sum(1 for _ in (process / "task").iterdir())
    held = {line.split()[4] for line in Path("/proc/locks").read_text().splitlines() if "->" not in line}
    found["file locks"] = sum(1 for pid in pids if str(pid) in held)
    return dict(found)


def of_plugins(daemon: Daemon, names: list[str]) -> dict[str, int]:
    found: Counter = Counter()
    for name in names:
        report = daemon.report(name)
        for what in ("clients", "handles", "running", "crashes"):
            found[what] += report[what]
        found["starts of plug-ins"] += report["generation"]
    return dict(found)


def lasting(daemon: Daemon, names: list[str], before: dict[str, int]) -> dict[str, int]:
    """What is held once nothing changes any more, or time is up."""
    until = time.monotonic() + SETTLES_S
    while True:
        now = holdings(daemon) | of_plugins(daemon, names)
        if all(now[what] <= before[what] for what in now if what != "threads") or time.monotonic() > until:
            return now
        time.sleep(0.25)


def locked_files(folder: Path) -> int:
    """Files of the clients that nobody else could lock now."""
    stuck = 0
    for file in folder.glob("lock*"):
        with file.open("r+b") as opened:
            try:
                fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                stuck += 1
    return stuck


def clients(programs: Programs, daemon: Daemon, folder: Path, count: int, chance: random.Random) -> list:
    """A fifth forwards files, if forwarding is available; the others call a plug-in."""
    forwarding = (
        daemon.variables_for("--forward", f"{PREFIX}={folder}")
        if programs.posix and programs.preload
        else None
    )
    made = []
    for nth in range(count):
        seed = chance.randrange(1, 1 << 62)
        if forwarding and nth % 5 == 0:
            made.append(([programs.tool("locker"), PREFIX, seed], forwarding))
        else:
            made.append(([programs.client("victim"), daemon.socket, folder / "file", seed], {}))
    return made


def run(context: Context) -> Figure:
    figure = Figure("kills", TITLE, PAPER, "run.py kills")
    count = 200 if context.quick else 1000
    chance = random.Random(SEED)
    fates: Counter = Counter()
    with workplace() as programs, in_memory() as folder:
        plugins = [programs.rates, *([programs.posix] if programs.posix else [])]
        names = ["rates", *(["posix"] if programs.posix else [])]
        if len(names) == 1:
            figure.skipped.append("clients that forward files: libzazen_posix.so is not there")
        with Daemon(programs, plugins, exports=[folder]) as daemon:
            # Things that are made once, with the first clients, are not leaks.
            kill_some(clients(programs, daemon, folder, 2 * AT_ONCE, chance), chance)
            time.sleep(2)
            before = holdings(daemon) | of_plugins(daemon, names)
            resident = memory_bytes(daemon)
            for first in range(0, count, AT_ONCE):
                fates += kill_some(
                    clients(programs, daemon, folder, min(AT_ONCE, count - first), chance), chance
                )
            say(f"kills: {dict(fates)}")
            after = lasting(daemon, names, before)
            grown = memory_bytes(daemon) - resident
            alive = daemon.process.poll() is None
            stuck = locked_files(folder)
            errors = [line for line in daemon.log.read_text().splitlines() if " ERROR " in line]
    rows: list[list] = [[what, before[what], after[what]] for what in before]
    notes = [f"{what}: {number}" for what, number in sorted(fates.items())]
    notes.append(f"resident memory: {grown / 1e6:+.1f} MB; errors logged: {len(errors)}; seed {SEED}")
    columns = ["daemon and plug-ins hold", "before", "after"]
    figure.tables.append(Table(f"{count} clients killed", columns, ["", "", ""], rows, notes))
    restarts = after["starts of plug-ins"] - before["starts of plug-ins"] + after["crashes"] + (not alive)
    figure.goals.append(Goal("restarts of daemon or plug-ins", "0", str(restarts), restarts == 0))
    leaks = {
        what: after[what] - before[what]
        for what in before
        if what not in ("threads", "starts of plug-ins", "crashes")
    }
    leaks["files that stay locked"] = stuck
    left = [f"{number} {what}" for what, number in leaks.items() if number > 0]
    figure.goals.append(
        Goal(
            "descriptors, regions with their pool bytes, handles, clients, locks left",
            "0",
            ", ".join(left) or "0",
            not left,
        )
    )
    return figure


def memory_bytes(daemon: Daemon) -> int:
    """Resident memory of all of them, without shared pages."""
    total = 0
    for pid in daemon.pids():
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private_"))
    return total
