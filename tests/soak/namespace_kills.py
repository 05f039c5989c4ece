"""Nodes of a namespace are killed at random while programs change files on all of them; afterwards
each acknowledged change is looked for.

Usage: namespace_kills.py [--kills N] [--round N] [--level LEVEL] [--seed SEED] [--report FILE]

As root. Four nodes with two replicas, each mounted. Eight programs, half of them through mounts and
half through the library, make, append to, overwrite, rename and remove files in directories of
their own. Meanwhile daemons get SIGKILL: mostly one, at times two or all four, a few also just
after they start again. After each round of kills all nodes come back, and every file is compared
with what its program was told.

Held: a change that was acknowledged is there, with all its bytes; nothing else is. A change that
failed may have happened or not; of an append that failed, the bytes before it are there.

A round begins with a new namespace. With --report each round adds a line to FILE, and a later call
goes on where the last one ended. The exit status is 0 if all held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import zazen.testing
from zazen import namespace

NODES = 4
WORKERS = 8
FILES_MAX = 60
BYTES_MAX = 40_000
# What another node changed may be seen late by so much while daemons die.
SETTLED_S = 5.0
# All nodes are back: from then on no call may fail any more after this time.
BACK_S = 120.0


@dataclass
class File:
    """What a program knows of one of its files."""

    data: bytes
    # Other bytes may follow: an append failed.
    may_be_longer: bool = False
    changed: float = field(default_factory=time.monotonic)

    def is_like(self, found: bytes) -> bool:
        return found.startswith(self.data) if self.may_be_longer else found == self.data


class Tree:
    """A directory as one node sees it: through its mount, or through the library."""

    def __init__(self, mount: Path, socket: str | None) -> None:
        self.mount, self.library = mount, namespace.Namespace(socket) if socket else None

    def write(self, path: str, data: bytes, mode: str) -> None:
        if self.library is not None:
            with self.library.open(f"/{path}", mode) as file:
                file.write(data)
            return
        flags = {
            "xb": os.O_CREAT | os.O_EXCL,
            "wb": os.O_CREAT | os.O_TRUNC,
            "ab": os.O_APPEND,
        }[mode]
        descriptor = os.open(self.mount / path, flags | os.O_WRONLY, 0o644)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError("a short write")
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)

    def read(self, path: str) -> bytes:
        return (
            (self.mount / path).read_bytes() if self.library is None else self.library.read_bytes(f"/{path}")
        )

    def rename(self, old: str, new: str) -> None:
        if self.library is None:
            os.rename(self.mount / old, self.mount / new)
        else:
            self.library.rename(f"/{old}", f"/{new}")

    def remove(self, path: str) -> None:
        if self.library is None:
            os.unlink(self.mount / path)
        else:
            self.library.unlink(f"/{path}")

    def make_many(self, folder: str, names: list[str]) -> None:
        if self.library is not None:
            self.library.create_many(f"/{folder}", names)
            return
        for name in names:
            self.write(f"{folder}/{name}", b"", "xb")

    def names(self, folder: str) -> set[str]:
        return set(
            os.listdir(self.mount / folder) if self.library is None else self.library.listdir(f"/{folder}")
        )


class Program(threading.Thread):
    """Changes files of its own, and remembers what it was told."""

    def __init__(self, number: int, trees: list[Tree], seed: int) -> None:
        super().__init__(name=f"program {number}", daemon=True)
        self.chance = random.Random(f"{seed} {number}")
        self.trees, self.folder = trees, f"p{number}"
        self.tree = trees[number % NODES + (NODES if number >= WORKERS // 2 else 0)]
        self.halt = threading.Event()
        self.files: dict[str, File] = {}
        # What failed: these names may be there, with whatever bytes.
        self.unknown: set[str] = set()
        # A rename that failed: exactly one of the two names is there.
        self.either: list[tuple[str, str, File]] = []
        self.made = 0
        self.acknowledged: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        actions = [self.make, self.make, self.many, self.append, self.append, self.overwrite]
        actions += [self.move, self.move, self.remove, self.look, self.look]
        while not self.halt.is_set():
            action = self.chance.choice(actions)
            if len(self.files) > FILES_MAX:
                action = self.remove
            try:
                action()
            except Exception as error:
                # A program would end here; the check of all files would then say little.
                self.wrong.append(f"{self.folder}: {action.__name__}: {error!r}")
                return
            time.sleep(self.chance.uniform(0, 0.02))

    def fresh(self) -> str:
        self.made += 1
        return f"f{self.made}"

    def bytes(self) -> bytes:
        return self.chance.randbytes(self.chance.choice([10, 3000, BYTES_MAX]))

    def pick(self) -> str | None:
        return self.chance.choice(list(self.files)) if self.files else None

    def did(self, what: str, work) -> bool:
        """Whether `work` was acknowledged."""
        try:
            work()
        except OSError as error:
            self.failed[f"{what}: {os.strerror(error.errno) if error.errno else error}"] += 1
            return False
        self.acknowledged[what] += 1
        return True

    def make(self) -> None:
        name, data = self.fresh(), self.bytes()
        if self.did("make", lambda: self.tree.write(f"{self.folder}/{name}", data, "xb")):
            self.files[name] = File(data)
        else:
            self.unknown.add(name)

    def many(self) -> None:
        names = [self.fresh() for _ in range(self.chance.randrange(1, 12))]
        if self.did("make many", lambda: self.tree.make_many(self.folder, names)):
            self.files |= {name: File(b"") for name in names}
        else:
            self.unknown |= set(names)

    def append(self) -> None:
        name, more = self.pick(), self.bytes()
        if name is None or self.files[name].may_be_longer:
            return
        # From any node: who holds the file has its bytes.
        tree = self.chance.choice(self.trees) if self.settled(name) else self.tree
        if self.did("append", lambda: tree.write(f"{self.folder}/{name}", more, "ab")):
            self.files[name] = File(self.files[name].data + more)
        else:
            self.files[name] = File(self.files[name].data, may_be_longer=True)

    def overwrite(self) -> None:
        name, data = self.pick(), self.bytes()
        if name is None:
            return
        if self.did("overwrite", lambda: self.tree.write(f"{self.folder}/{name}", data, "wb")):
            self.files[name] = File(data)
        else:
            del self.files[name]
            self.unknown.add(name)

    def move(self) -> None:
        name, new = self.pick(), self.fresh()
        if name is None:
            return
        file = self.files.pop(name)
        if self.did("rename", lambda: self.tree.rename(f"{self.folder}/{name}", f"{self.folder}/{new}")):
            self.files[new] = File(file.data, file.may_be_longer)
        else:
            self.either.append((name, new, file))

    def remove(self) -> None:
        name = self.pick()
        if name is None:
            return
        del self.files[name]
        if not self.did("remove", lambda: self.tree.remove(f"{self.folder}/{name}")):
            self.unknown.add(name)

    def settled(self, name: str) -> bool:
        return time.monotonic() - self.files[name].changed > SETTLED_S

    def look(self) -> None:
        """Reads a file, from any node if it has been as it is for a while."""
        name = self.pick()
        if name is None:
            return
        tree = self.chance.choice(self.trees) if self.settled(name) else self.tree
        try:
            found = tree.read(f"{self.folder}/{name}")
        except FileNotFoundError:
            self.wrong.append(f"{self.folder}/{name} is gone")
        except OSError as error:
            self.failed[f"read: {os.strerror(error.errno) if error.errno else error}"] += 1
        else:
            self.acknowledged["read"] += 1
            self.compare(name, self.files[name], found, "while nodes are killed")

    def compare(self, name: str, file: File, found: bytes, when: str) -> None:
        if not file.is_like(found):
            at = next(
                (n for n, (a, b) in enumerate(zip(file.data, found, strict=False)) if a != b), "the end"
            )
            self.wrong.append(
                f"{self.folder}/{name} {when}: {len(found)} bytes, not the {len(file.data)} that were "
                f"acknowledged, differing from byte {at} on"
            )

    def check(self) -> int:
        """All nodes are back: compares everything.

        Returns how many bytes were compared.
        """
        tree, bytes_compared = self.chance.choice(self.trees), 0
        names = within(BACK_S, lambda: tree.names(self.folder))
        for old, new, file in self.either:
            there = {old, new} & names
            if len(there) != 1:
                self.wrong.append(f"{self.folder}: a rename left {sorted(there)} of {old} and {new}")
            self.files |= {name: file for name in there}
        lost = set(self.files) - names
        self.wrong += [f"{self.folder}/{name} is lost" for name in sorted(lost)]
        self.wrong += [
            f"{self.folder}/{name} came back" for name in sorted(names - set(self.files) - self.unknown)
        ]
        for name, file in self.files.items():
            if name not in lost:
                tree = self.chance.choice(self.trees)
                try:
                    found = within(BACK_S, lambda name=name, tree=tree: tree.read(f"{self.folder}/{name}"))
                except OSError as error:
                    known = f"{len(file.data)} bytes{' or more' if file.may_be_longer else ''}"
                    self.wrong.append(f"{self.folder}/{name} ({known}) cannot be read: {error}")
                    continue
                self.compare(name, file, found, "at the end")
                bytes_compared += len(file.data)
        return bytes_compared


def within(seconds: float, work):
    """What `work` returns; it may fail for so long with an error of the system."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def tool(*words: object) -> str:
    command = [zazen.testing.program("zazen"), *map(str, words)]
    done = subprocess.run(
        command, env=zazen.testing.environment(), text=True, capture_output=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


class Killer:
    """Kills nodes of a testbed and starts them again."""

    def __init__(self, bed: Path, chance: random.Random) -> None:
        self.bed, self.chance = bed, chance
        self.kills = 0

    def kill(self, node: int) -> None:
        self.kills += 1
        tool("testbed", "kill", node, "--dir", self.bed)

    def strike(self) -> None:
        count = self.chance.choices([1, 2, NODES], [85, 10, 5])[0]
        nodes = self.chance.sample(range(NODES), count)
        for node in nodes:
            self.kill(node)
        # Within a lease, about as long, or long enough for others to take over.
        time.sleep(
            self.chance.choices([0, self.chance.uniform(0, 3), self.chance.uniform(4, 9)], [45, 40, 15])[0]
        )
        for node in nodes:
            tool("testbed", "revive", node, "--dir", self.bed)
            if self.chance.random() < 0.15:
                time.sleep(self.chance.uniform(0, 0.5))
                self.kill(node)
                tool("testbed", "revive", node, "--dir", self.bed)
        time.sleep(self.chance.uniform(0.2, 2))


def keep(bed: Path) -> Path:
    """Copies what the nodes have, after they were killed, so that somebody can look at it."""
    record = json.loads((bed / "testbed.json").read_text())
    socket = record["nodes"][0]["socket"]
    words = [zazen.testing.program("zazen"), "namespace", "status", "--socket", socket]
    status = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    for node in range(NODES):
        with contextlib.suppress(RuntimeError):
            tool("testbed", "kill", node, "--dir", bed)
    kept = Path(tempfile.mkdtemp(prefix="namespace-kills-")) / "bed"
    shutil.copytree(bed, kept, ignore=lambda _, names: [name for name in names if name.endswith("sock")])
    (kept / "status").write_text(status.stdout + status.stderr)
    return kept


def a_round(folder: Path, level: str, kills: int, seed: int) -> dict:
    """A namespace, work and `kills` kills, and the comparison."""
    bed, mounts = folder / "bed", folder / "m"
    up = ["--namespace", "--mounts", mounts, "--replicas", 2, "--durability", level]
    began = time.monotonic()
    tool("testbed", "up", NODES, "--dir", bed, *up)
    programs: list[Program] = []
    try:
        record = json.loads((bed / "testbed.json").read_text())
        sockets = [node["socket"] for node in record["nodes"]]
        trees = [Tree(mounts / str(number), None) for number in range(NODES)]
        trees += [Tree(mounts / str(number), sockets[number]) for number in range(NODES)]
        programs = [Program(number, trees, seed) for number in range(WORKERS)]
        for program in programs:
            (mounts / "0" / program.folder).mkdir()
        for tree in trees:
            for program in programs:
                within(BACK_S, lambda tree=tree, program=program: tree.names(program.folder))
        for program in programs:
            program.start()
        killer = Killer(bed, random.Random(seed))
        while killer.kills < kills and not any(program.wrong for program in programs):
            killer.strike()
        for program in programs:
            program.halt.set()
        for program in programs:
            program.join(BACK_S)
            if program.is_alive():
                program.wrong.append(
                    f"{program.folder}: a call hangs {BACK_S:.0f} s after all nodes came back"
                )
        bytes_compared = sum(program.check() for program in programs if not program.is_alive())
    finally:
        for program in programs:
            program.halt.set()
        wrong = [what for program in programs for what in program.wrong]
        if wrong or sys.exc_info()[0]:
            kept = keep(bed)
            print(f"the nodes' folders and logs are kept in {kept}", flush=True)
        tool("testbed", "down", "--dir", bed)
    return {
        "seed": seed,
        "level": level,
        "kills": killer.kills,
        "seconds": round(time.monotonic() - began, 1),
        "acknowledged": sum(sum(program.acknowledged.values()) for program in programs),
        "kinds": dict(sum((program.acknowledged for program in programs), Counter())),
        "failed": dict(sum((program.failed for program in programs), Counter())),
        "files": sum(len(program.files) for program in programs),
        "bytes_compared": bytes_compared,
        "problems": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Random kills of a namespace's nodes; no acknowledged byte is lost."
    )
    parser.add_argument("--kills", type=int, default=1000, help="in all rounds together")
    parser.add_argument("--round", type=int, default=25, help="kills in one round")
    parser.add_argument("--level", choices=["written", "synced"], default="written")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, metavar="FILE")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    rounds = []
    if options.report and options.report.exists():
        rounds = [json.loads(line) for line in options.report.read_text().splitlines()]
    while sum(one["kills"] for one in rounds) < options.kills and not any(one["problems"] for one in rounds):
        with tempfile.TemporaryDirectory(prefix="namespace-kills-") as folder:
            Path(folder).chmod(0o755)
            one = a_round(Path(folder), options.level, options.round, seed + len(rounds))
        rounds.append(one)
        if options.report:
            with options.report.open("a") as file:
                file.write(json.dumps(one) + "\n")
        shown = {
            key: one[key] for key in ("seed", "kills", "seconds", "acknowledged", "files", "bytes_compared")
        }
        print(f"{shown} failed {sum(one['failed'].values())}", flush=True)
        for problem in one["problems"]:
            print(f"problem: {problem}")
    problems = sum(len(one["problems"]) for one in rounds)
    print(
        f"{sum(one['kills'] for one in rounds)} kills in {len(rounds)} rounds, "
        f"{sum(one['acknowledged'] for one in rounds)} calls acknowledged, "
        f"{sum(sum(one['failed'].values()) for one in rounds)} failed, "
        f"{sum(one['bytes_compared'] for one in rounds)} bytes compared at the ends, {problems} problems"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
