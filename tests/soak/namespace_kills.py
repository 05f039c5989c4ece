"""Nodes of a namespace are killed at random while programs change files on all of them; each
acknowledged change is looked for.

Usage: namespace_kills.py [--kills N] [--round N] [--level LEVEL] [--together]
    [--keep-disks] [--seed SEED] [--report FILE]

As root. Four nodes with two replicas, each mounted. Eight programs, half of them through mounts and
half through the library, make, write, append to, overwrite, cut, sync, rename, link and remove
files of a few bytes to a few MiB in folders of their own, and write to files in chunks that all
share. Each operation goes into a journal outside the testbed; `oracle.py` says what may be there.

One node after the other gets SIGKILL, at a random moment. It comes back within a lease, or when the
others serve its part, or is killed again just after it came back. The next kill waits until each
partition has its backup again. The last kill of a round takes the disk of its node along, while
programs rest and all copies are made: what has copies must be readable, of the rest the names.
With --together, two or all four nodes are killed at times (levels `written` and `synced`; disks
stay then).

Held: a change that was acknowledged is there, with all its bytes; nothing else is. Of a change that
failed, any part may be there. No operation takes longer than OPERATION_S. After each kill an
operation in every partition is repeated until all have succeeded: the time that takes is shown.

A round begins with a new namespace. With --report each round adds a line to FILE, and a later call
goes on where the last one ended; ^C ends a round early, and compares what was done. The exit status
is 0 if all held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zazen.testing
from changes import (
    BACK_S,
    NODES,
    OPERATION_S,
    SHARED_FILES,
    WORKERS,
    Program,
    Tree,
    within,
)
from oracle import Journal, spread
from zazen import namespace

LEVELS = ("memory", "written", "synced")
#: The bits of an inode's number above these say its partition.
SERIAL_BITS = 40
#: The goal for the time from a kill until all partitions serve.
BACK_GOAL_S = 10.0


#: Starts commands for `Tool`: a line of JSON in, one out.
STARTER = """
import json, subprocess, sys
for line in sys.stdin:
    done = subprocess.run(json.loads(line), text=True, capture_output=True, timeout=300)
    print(json.dumps([done.returncode, done.stdout + done.stderr]), flush=True)
"""


class Tool:
    """Runs `zazen` from a process that has no files of the mounts open, in a session of its own:
    ^C is for this program alone.

    A child of this process would have all descriptors of the programs for a moment. Closing one of
    a mount whose daemon is dead takes up to 20 seconds: nodes would be started so late.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=zazen.testing.environment(),
            start_new_session=True,
        )

    def __call__(self, *words: object) -> str:
        command = [zazen.testing.program("zazen"), *map(str, words)]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        status, said = json.loads(self._process.stdout.readline())
        if status != 0:
            raise RuntimeError(f"{' '.join(command)}: {said}")
        return said

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Stuck(Exception):
    """The namespace did not come back in time."""


class Killer:
    """Kills nodes of a testbed and starts them again, and measures when all partitions serve."""

    def __init__(
        self, tool: Tool, bed: Path, trees: list[Tree], chance: random.Random, journal: Journal
    ) -> None:
        self.tool, self.bed, self.chance, self.journal = tool, bed, chance, journal
        self.libraries = [tree.library for tree in trees if tree.library is not None]
        self.kills = self.disks = self.probed = 0
        #: Seconds from a kill until an operation in each partition had succeeded, by whether the
        #: node was away that long.
        self.back: dict[str, list[float]] = {"away": [], "restarted": [], "together": []}
        #: Seconds from a node's return until each partition had its backup.
        self.caught_up: list[float] = []
        self.probes = self._directories()

    def _directories(self) -> list[str]:
        """Directories, one in each partition at least."""
        library = self.libraries[0]
        missing, found = set(range(library.status()["partitions"])), []
        for number in range(4000):
            path = f"/probe/d{number}"
            library.makedirs(path)
            partition = library.stat(path).st_ino >> SERIAL_BITS
            if partition in missing:
                missing.discard(partition)
                found.append(path)
            if not missing:
                return found
        raise Stuck(f"no directory is in the partitions {sorted(missing)}")

    def probe(self, nodes: list[int], killed: float) -> float:
        """Makes a file in each partition, through a node that lives if there is one.

        Returns how long after the kill all had succeeded.
        """
        living = [n for n in range(NODES) if n not in nodes] or list(range(NODES))
        library = self.libraries[self.chance.choice(living)]
        for path in self.probes:
            while True:
                self.probed += 1
                try:
                    library.create_many(path, [f"f{self.probed}"])
                    break
                except OSError as error:
                    if time.monotonic() > killed + BACK_S:
                        raise Stuck(f"{path}: no file can be made {BACK_S:.0f} s after a kill") from error
                    time.sleep(0.02)
        took = time.monotonic() - killed
        self.journal.event(f"all partitions serve, {took:.3f} s after the kill")
        return took

    def await_whole(self, copies: bool = False) -> None:
        """Returns when all nodes take part and each partition has its backup, and each file its
        copies, if that is asked for."""
        until, calm = time.monotonic() + BACK_S, 0
        while calm < (5 if copies else 1):
            calm = calm + 1 if self.is_whole(copies) else 0
            if time.monotonic() > until:
                states = [self._status(library) for library in self.libraries]
                raise Stuck(f"partitions lack a backup {BACK_S:.0f} s after a return: {states}")
            time.sleep(0.2 if copies else 0.02)

    @staticmethod
    def _status(library: namespace.Namespace) -> dict[str, Any]:
        try:
            return library.status()
        except OSError as error:
            return {"error": str(error)}

    def is_whole(self, copies: bool) -> bool:
        told = [self._status(library) for library in self.libraries]
        if any("error" in one for one in told):
            return False
        own = {one["node"] for one in told}
        for one in told:
            nodes = {node["node"]: node for node in one["nodes"]}
            here = [nodes[number] for number in own if number in nodes]
            partitions = one["partitions"]
            whole = len(here) == NODES and all(node["state"] == "up" for node in here)
            whole &= one["engine"]["has_lease"]
            for keeps in ("primary_of", "backup_of"):
                whole &= sum(node[keeps] for node in here) == partitions
            if not whole or (copies and one["waits_for_copies"] + one["waits_for_checksums"]):
                return False
        return True

    def kill(self, node: int) -> float:
        self.tool("testbed", "kill", node, "--dir", self.bed)
        self.kills += 1
        self.journal.event(f"n{node} was killed, kill {self.kills}")
        return time.monotonic()

    def revive(self, node: int) -> None:
        self.journal.event(f"n{node} is started")
        self.tool("testbed", "revive", node, "--dir", self.bed)
        self.journal.event(f"n{node} is back")

    def strike(self, together: bool) -> None:
        count = self.chance.choices([1, 2, NODES], [85, 10, 5])[0] if together else 1
        nodes = self.chance.sample(range(NODES), count)
        time.sleep(self.chance.uniform(0, 0.5))
        killed = min([self.kill(node) for node in nodes])
        away = count == 1 and self.chance.random() < 0.25
        if away:
            self.back["away"].append(self.probe(nodes, killed))
        else:
            time.sleep(self.chance.uniform(0, 1))
        for node in nodes:
            self.revive(node)
            if self.chance.random() < 0.1:
                time.sleep(self.chance.uniform(0, 0.5))
                killed = self.kill(node)
                self.revive(node)
        returned = time.monotonic()
        if not away:
            self.back["restarted" if count == 1 else "together"].append(self.probe(nodes, killed))
        self.await_whole()
        self.caught_up.append(time.monotonic() - returned)

    def strike_disk(self, programs: list[Program]) -> None:
        """A node dies with its disk while no program changes anything."""
        for program in programs:
            program.rest.set()
        for program in programs:
            if not program.rests.wait(OPERATION_S):
                raise Stuck(f"{program.name} does not come to rest: {program.busy}")
        self.await_whole(copies=True)
        node = self.chance.randrange(NODES)
        killed = self.kill(node)
        shutil.rmtree(self.bed / f"n{node}" / "namespace")
        self.journal.event(f"n{node} lost its disk")
        for program in programs:
            program.lose_disk(node)
            program.rest.clear()
        self.disks += 1
        self.back["away"].append(self.probe([node], killed))
        self.revive(node)
        self.await_whole()


def keep(tool: Tool, bed: Path, journal: Path) -> Path:
    """Copies what the nodes have, after they were killed, so that somebody can look at it."""
    socket = json.loads((bed / "testbed.json").read_text())["nodes"][0]["socket"]
    try:
        status = tool("namespace", "status", "--json", "--socket", socket)
    except RuntimeError as error:
        status = str(error)
    for node in range(NODES):
        with contextlib.suppress(RuntimeError):
            tool("testbed", "kill", node, "--dir", bed)
    kept = Path(tempfile.mkdtemp(prefix="namespace-kills-")) / "bed"
    shutil.copytree(bed, kept, ignore=lambda _, names: [name for name in names if name.endswith("sock")])
    (kept / "status").write_text(status)
    shutil.copy(journal, kept / "journal")
    return kept


def prepare(trees: list[Tree], programs: list[Program]) -> None:
    """Folders, and the shared files."""
    library = trees[-1].library
    assert library is not None
    for name in ("copies", "plain", "chunks", "probe"):
        library.mkdir(f"/{name}")
    for name in ("copies", "chunks"):
        library.setxattr(f"/{name}", "user.zazen.copies", b"2")
    library.setxattr("/chunks", "user.zazen.chunks", b"1")
    for program in programs:
        for path in program.folders:
            library.mkdir(f"/{path}")
    # What a directory says holds for files that are made two seconds later.
    time.sleep(2.5)
    library.create_many("/chunks", [f"s{number}" for number in range(SHARED_FILES)])
    for tree in trees:
        for name in ("copies", "plain", "chunks"):
            within(BACK_S, lambda tree=tree, name=name: tree.names(name))


def plant(programs: list[Program]) -> None:
    """Has the oracle expect another byte than was written: the run must fail."""
    for program in programs:
        for folder in program.folders.values():
            for file in folder.files.values():
                if file.is_sure and file.data and not file.is_lost:
                    file.data = bytes([file.data[0] ^ 1]) + file.data[1:]
                    return


def a_round(
    folder: Path, options: argparse.Namespace, kills: int, level: str, seed: int, stop: threading.Event
) -> dict:
    """A namespace, work and `kills` kills, and the comparison."""
    bed, mounts = folder / "bed", folder / "m"
    up = ["--namespace", "--mounts", mounts, "--replicas", 2, "--durability", level]
    began, tool = time.monotonic(), Tool()
    tool("testbed", "up", NODES, "--dir", bed, *up)
    programs: list[Program] = []
    problems: list[dict[str, Any]] = []
    killer: Killer | None = None
    bytes_compared = 0
    with Journal(folder / "journal") as journal:
        try:
            record = json.loads((bed / "testbed.json").read_text())
            sockets = [node["socket"] for node in record["nodes"]]
            trees = [Tree(number, mounts / str(number), None) for number in range(NODES)]
            trees += [Tree(number, mounts / str(number), sockets[number]) for number in range(NODES)]
            programs = [Program(number, trees, seed, journal) for number in range(WORKERS)]
            prepare(trees, programs)
            killer = Killer(tool, bed, trees, random.Random(seed), journal)
            killer.await_whole()
            for program in programs:
                program.start()
            try:
                while killer.kills < kills - (not options.keep_disks) and not stop.is_set():
                    killer.strike(options.together)
                    if any(program.problems for program in programs):
                        break
                if not (stop.is_set() or options.keep_disks or any(one.problems for one in programs)):
                    killer.strike_disk(programs)
            except Stuck as stuck:
                problems.append({"at": journal.now(), "who": "killer", "path": "", "what": str(stuck)})
            for program in programs:
                program.halt.set()
                program.rest.clear()
            for program in programs:
                program.join(OPERATION_S)
                if program.is_alive():
                    program.wrong(f"a call hangs though all nodes are back: {program.busy}")
            if options.plant:
                plant(programs)
            ended = [program for program in programs if not program.is_alive()]
            # Side by side: a file whose only disk was lost takes long to fail.
            with ThreadPoolExecutor(WORKERS) as pool:
                bytes_compared = sum(pool.map(Program.check, ended))
        finally:
            for program in programs:
                program.halt.set()
            problems += [one for program in programs for one in program.problems]
            if (problems and not options.plant) or sys.exc_info()[0]:
                kept = keep(tool, bed, journal.path)
                print(f"the nodes' folders, logs and the journal are kept in {kept}", flush=True)
            tool("testbed", "down", "--dir", bed)
            tool.end()
    return {
        "seed": seed,
        "level": level,
        "kills": killer.kills,
        "disks_lost": killer.disks,
        "seconds": round(time.monotonic() - began, 1),
        "acknowledged": sum(sum(program.acknowledged.values()) for program in programs),
        "kinds": dict(sum((program.acknowledged for program in programs), Counter())),
        "failed": dict(sum((program.failed for program in programs), Counter())),
        "longest": max(program.longest for program in programs),
        "bytes_compared": bytes_compared,
        "back_s": {how: [round(one, 3) for one in took] for how, took in killer.back.items()},
        "caught_up_s": [round(one, 3) for one in killer.caught_up],
        "problems": problems,
    }


def show(rounds: list[dict]) -> None:
    """The table at the end."""
    print(f"{'':32} {'count':>6} {'median':>8} {'p99':>8} {'max':>8}  seconds")
    rows = [(f"served again, node {how}", [t for r in rounds for t in r["back_s"][how]])
            for how in ("away", "restarted", "together")]  # fmt: skip
    rows.append(("backups after the return", [t for r in rounds for t in r["caught_up_s"]]))
    for title, took in rows:
        if took:
            found = spread(took)
            print(
                f"{title:32} {found['count']:6} {found['median']:8} {found['p99']:8} {found['max']:8}"
                f"{'  over the goal' if not title.startswith('backups') and max(took) > BACK_GOAL_S else ''}"
            )
    for level in LEVELS:
        these = [one for one in rounds if one["level"] == level]
        if these:
            print(
                f"{level}: {sum(one['kills'] for one in these)} kills "
                f"({sum(one['disks_lost'] for one in these)} with the disk) in {len(these)} rounds, "
                f"{sum(one['acknowledged'] for one in these)} operations acknowledged, "
                f"{sum(sum(one['failed'].values()) for one in these)} failed, "
                f"{sum(one['bytes_compared'] for one in these)} bytes compared at the ends, "
                f"longest operation {max(one['longest'][0] for one in these)} s, "
                f"{sum(len(one['problems']) for one in these)} problems"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Random kills of a namespace's nodes; no acknowledged byte is lost."
    )
    parser.add_argument("--kills", type=int, default=1000, help="in all rounds together")
    parser.add_argument("--round", type=int, default=40, help="kills in one round")
    parser.add_argument("--level", choices=LEVELS, help="default: each in turn")
    parser.add_argument("--together", action="store_true", help="also kill several nodes at once")
    parser.add_argument("--keep-disks", action="store_true", help="no node loses its disk")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, metavar="FILE")
    parser.add_argument("--plant", action="store_true", help="expect a byte that was not written: must fail")
    options = parser.parse_args()
    levels = (
        [options.level]
        if options.level
        else [one for one in LEVELS if one != "memory" or not options.together]
    )
    options.keep_disks |= options.together
    if options.together and "memory" in levels:
        parser.error("--together: with level memory, what only two nodes have is lost with both")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    stop = threading.Event()

    def interrupted(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        print("ends after this kill; once more ends at once", flush=True)
        stop.set()

    signal.signal(signal.SIGINT, interrupted)
    rounds = []
    if options.report and options.report.exists():
        rounds = [json.loads(line) for line in options.report.read_text().splitlines()]
    while not stop.is_set() and not any(one["problems"] for one in rounds):
        left = options.kills - sum(one["kills"] for one in rounds)
        if left <= 0:
            break
        level = levels[len(rounds) % len(levels)]
        with tempfile.TemporaryDirectory(prefix="namespace-kills-") as folder:
            Path(folder).chmod(0o755)
            kills = min(options.round, left)
            try:
                one = a_round(Path(folder), options, kills, level, seed + len(rounds), stop)
            except KeyboardInterrupt:
                print("the last round was ended before its comparison, and does not count")
                break
        rounds.append(one)
        if options.report:
            with options.report.open("a") as file:
                file.write(json.dumps(one) + "\n")
        shown = {
            key: one[key] for key in ("seed", "level", "kills", "seconds", "acknowledged", "bytes_compared")
        }
        print(f"{shown} failed {sum(one['failed'].values())}", flush=True)
        for problem in one["problems"]:
            print(f"problem at {problem['at']} s, {problem['who']}: {problem['path']} {problem['what']}")
            for line in problem.get("journal", ()):
                print(f"    {line}")
    if rounds:
        show(rounds)
    return 1 if any(one["problems"] for one in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
