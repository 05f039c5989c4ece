"""`make soak`: four nodes for hours with work of several users and random faults, each frame that a
reader gets compared with the truth.

Usage: soak.py [--hours HOURS] [--seed SEED] [--report FILE] [--other FOLDER]

A simulation writes frames and replaces some of them; `zazen push --watch` pushes them; readers of
two users (as root; else of one) read all again and again through each node. Forwarded programs
write, rename and read files, and the nodes' namespace gets files that are read through other nodes.
Meanwhile daemons are killed, stopped for a while, and restarted, with `--other` by the zazend of
another build in that folder; the key changes; bytes of cached files are flipped; datasets are
evicted, which the small budget also does all the time; the backing store goes away; clocks jump;
and as root, in a network and with mounts of its own, nodes are cut off, disks fill up, and disks
fail and are replaced.

Held all along: no reader gets a byte that no version of the frame had; none gets a version that was
replaced before its pass began; no frame comes twice, and each that was there comes. A forwarded
program reads what it wrote, and fails only while its daemon is down or hangs. A file of the
namespace has the bytes of its last write that succeeded, through whichever node it is read, and at
the end all nodes have all of them. While the
backing store is away, nobody can list its frames or compare copies with it: a reader then fails, or
gets what its node has cached, which may be of an older version. The report counts both. At the end,
a daemon that was never killed has no more memory, descriptors and threads than in the second
quarter, within a bound: the lowest values of the second and of the last quarter are compared.

Prints a line for each fault with what it cost. The exit status is 0 if all held.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import zazen
import zazen.testing
from machine import Machine
from work import Forwarded, Named, Worker

NODES = 4
#: Of two sizes: small frames share files in the cache, large ones have their own.
SIZES = {"small": 3_000, "large": 300_000}
FRAMES_MAX = 120
BUDGET = "16M"
NOBODY = 65534
#: Growth of the daemon that is never killed, from the second quarter to the last one. Its cache has
#: 16 MiB, and what it keeps in memory is less than that.
GROWTH_MAX = {"memory": 12 << 20, "descriptors": 64, "threads": 64}
#: A forwarded program may fail from such a fault of its node on, and so long after it.
DOWN, FORWARDED_AFTER_S = ("kill", "restart", "pause", "break_disk"), 10
#: Problems and kinds of problems on the screen; the report has all.
PROBLEMS_SHOWN = 50
#: Lines in the report of where the threads of a reader are that hangs.
STACK_LINES_MAX = 400
#: Workers end within this time after they were told to.
WORKER_SECONDS_MAX = 200
#: How long after an outage of the store a pass may still fail, and get what nobody could check.
ERRORS_AFTER_S, UNCHECKED_AFTER_S = 45, 10


def content(kind: str, number: int, version: int) -> bytes:
    """What version `version` of a frame holds."""
    head = f"{kind} {number} {version}\n".encode()
    block = hashlib.sha256(head).digest()
    return (head + block * (SIZES[kind] // len(block) + 1))[: SIZES[kind]]


def name(number: int) -> str:
    return f"f-{number:05d}.bin"


class Truth:
    """What the simulation has written: the version of each frame that is whole on the store."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, versions: dict[str, dict[int, int]]) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(versions))
        part.chmod(0o644)
        part.rename(self.file)

    def read(self) -> dict[str, dict[int, int]]:
        told = json.loads(self.file.read_text())
        return {kind: {int(number): v for number, v in of.items()} for kind, of in told.items()}


class Simulation(threading.Thread):
    """Writes new frames, and replaces old ones, until `stop` is set."""

    def __init__(self, sources: Path, truth: Truth, seed: int) -> None:
        super().__init__(daemon=True)
        self.sources, self.truth, self.chance = sources, truth, random.Random(seed)
        self.stop, self.may_write = threading.Event(), threading.Lock()
        self.versions: dict[str, dict[int, int]] = {kind: {} for kind in SIZES}
        self.written = 0

    def put(self, kind: str, number: int) -> None:
        version = self.versions[kind].get(number, 0) + 1
        hidden = self.sources / kind / f".{name(number)}.part"
        hidden.write_bytes(content(kind, number, version))
        hidden.chmod(0o644)
        hidden.rename(hidden.with_name(name(number)))
        self.versions[kind][number] = version
        self.written += 1

    def run(self) -> None:
        while not self.stop.is_set():
            with self.may_write:
                for kind in SIZES:
                    known = len(self.versions[kind])
                    if known == 0 or (known < FRAMES_MAX and self.chance.random() < 0.7):
                        self.put(kind, known)
                    else:
                        self.put(kind, self.chance.randrange(known))
                self.truth.write(self.versions)
            self.stop.wait(self.chance.uniform(0.05, 0.5))


def one_pass(kind: str, dataset: str, socket: str, truth: Truth) -> dict:
    """Reads all frames of a dataset, and says what was wrong with them."""
    before = truth.read()[kind]
    seen: dict[int, int] = {}
    wrong: list[str] = []
    old: list[str] = []
    begin = time.monotonic()
    error = None
    try:
        with warnings.catch_warnings():
            # That no daemon answers is one of the faults.
            warnings.simplefilter("ignore")
            with zazen.open(dataset, socket=socket) as opened:
                for number, data, _ in opened.frames():
                    data = bytes(data)
                    head = data.split(b"\n", 1)[0].split(b" ")
                    version = int(head[2]) if len(head) == 3 and head[2].isdigit() else -1
                    if number in seen:
                        wrong.append(f"frame {number} came twice")
                    elif data != content(kind, number, version):
                        wrong.append(f"frame {number} has bytes of no version ({data[:60]!r})")
                    elif version < before.get(number, 0):
                        old.append(f"frame {number} is of version {version}, replaced by {before[number]}")
                    seen[number] = version
    except (OSError, zazen.Error) as failure:
        error = f"{type(failure).__name__}: {failure}"
    after = truth.read()[kind]
    for number, version in seen.items():
        if version > after.get(number, 0) + 1:
            wrong.append(f"frame {number} is of version {version}, which was not written yet")
    missing = sorted(before.keys() - seen.keys()) if error is None else []
    return {
        "kind": kind,
        "frames": len(seen),
        "seconds": round(time.monotonic() - begin, 3),
        "wrong": wrong[:5],
        "incomplete": old[:5] + [f"frame {number} did not come" for number in missing[:5]],
        "error": error,
    }


def read_for_ever(kind: str, dataset: str, socket: str, truth: str, uid: str) -> None:
    """A reader's process, as the user `uid`: a line of JSON for each pass.

    It becomes that user here, since only root may be able to read Python's own files."""
    if os.geteuid() != int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    while True:
        try:
            told = one_pass(kind, dataset, socket, Truth(Path(truth)))
        except Exception as failure:  # a reader that ends would look like one that is content
            told = {"kind": kind, "frames": 0, "seconds": 0, "wrong": [repr(failure)]}
            told |= {"incomplete": [], "error": None}
        print(json.dumps(told), flush=True)
        time.sleep(0.3)


class Reader:
    """A reader's process, and what it said."""

    def __init__(self, node: int, kind: str, cluster: Cluster, uid: int | None) -> None:
        self.node, self.kind = node, kind
        words = [sys.executable, __file__, "--reader", kind, cluster.sources / kind]
        words += [cluster.nodes[node].socket, cluster.truth.file, os.geteuid() if uid is None else uid]
        environment = zazen.testing.environment() | {"HOME": str(cluster.folder / "home")}
        self.process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, text=True, env=environment
        )
        self.passes: list[tuple[float, dict]] = []
        self.name = f"the reader of {kind} at n{node}"
        threading.Thread(target=self._listen, daemon=True).start()

    def last(self, begin: float) -> float | None:
        """When its last pass ended, in seconds after `begin`."""
        return round(self.passes[-1][0] - begin, 1) if self.passes else None

    def stacks(self) -> list[str]:
        """Where its threads are, as gdb says, or the kernel where there is no gdb."""
        pid = self.process.pid
        words = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 30"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(words, capture_output=True, text=True, timeout=120).stdout
            return told.splitlines()[-STACK_LINES_MAX:]
        tasks = list(Path(f"/proc/{pid}/task").glob("*"))
        return [f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}" for task in tasks]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.passes.append((time.monotonic(), json.loads(line)))


class Cluster:
    """The daemons, the store and who works with them."""

    def __init__(self, folder: Path, seed: int, other: Path | None) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.machine = Machine(folder)
        #: The programs that nodes are started with.
        self.programs = [None] if other is None else [None, other / "zazend"]
        self.store = folder / "store"
        self.sources = self.store / "run"
        for kind in SIZES:
            (self.sources / kind).mkdir(parents=True)
        (folder / "home").mkdir(mode=0o777)
        (folder / "home").chmod(0o777)
        self.truth = Truth(folder / "truth.json")
        self.key = folder / "key"
        self.new_key()
        self.hosts = [f"127.0.0.{11 + number}" for number in range(NODES)]
        addresses = [f"{host}:{free_port(host)}" for host in self.hosts]
        self.list = folder / "nodes.txt"
        self.list.write_text("\n".join(addresses) + "\n")
        (folder / "far").mkdir()
        self.nodes: list[zazen.testing.Daemon] = []
        for number, address in enumerate(addresses):
            place = folder / f"n{number}"
            place.mkdir()
            words = ["--budget", BUDGET, "--plugin", "posix", "--export", folder / "far"]
            words += ["--namespace", place / "namespace", "--namespace-nodes", self.list]
            words += ["--namespace-format", "--namespace-root", "trust"]
            daemon = zazen.testing.Daemon(
                place,
                self.store,
                words,
                cache=self.machine.disk(place),
                listen=address,
                key=self.key,
                name=f"n{number}",
                variables=self.machine.clock(number),
            )
            daemon.start()
            self.nodes.append(daemon)
        sockets = [daemon.socket for daemon in self.nodes]
        self.workers: list[Worker] = []
        for number, own in enumerate(self.nodes):
            self.workers.append(Forwarded(number, seed + number, own, folder / "far"))
            self.workers.append(Named(number, seed + number, sockets))
        self.simulation = Simulation(self.sources, self.truth, seed)
        self.pushers: list[subprocess.Popen] = []

    def new_key(self) -> None:
        fresh = self.folder / "key.new"
        subprocess.run([zazen.testing.program("zazen"), "key", "new", fresh], check=True, capture_output=True)
        fresh.rename(self.key)

    def push(self) -> None:
        """Starts the pushers, anew if they run."""
        self.stop_pushers()
        for kind in SIZES:
            words = [zazen.testing.program("zazen"), "push", "--watch", self.sources / kind]
            words += ["--nodes", self.list, "--key", self.key]
            log = open(self.folder / f"push-{kind}.log", "ab")
            self.pushers.append(
                subprocess.Popen(
                    [str(word) for word in words],
                    stdout=log,
                    stderr=log,
                    env=zazen.testing.environment(),
                )
            )
            log.close()

    def stop_pushers(self) -> None:
        for pusher in self.pushers:
            pusher.terminate()
        for pusher in self.pushers:
            pusher.wait(120)
        self.pushers.clear()

    # The faults. Each returns a word about what it did. Node 0 is never killed.

    def start(self, node: int) -> str:
        """Starts the node, by one of the builds. Returns which."""
        program = self.chance.choice(self.programs)
        self.nodes[node].zazend = program
        self.nodes[node].start()
        return f"n{node}" if program is None else f"n{node} by the other build"

    def kill(self) -> str:
        node = self.chance.randrange(1, NODES)
        self.nodes[node].kill()
        time.sleep(self.chance.uniform(0, 3))
        return self.start(node)

    def restart(self) -> str:
        node = self.chance.randrange(1, NODES)
        self.nodes[node].stop()
        return self.start(node)

    def pause(self) -> str:
        node = self.chance.randrange(NODES)
        process = self.nodes[node].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        seconds = self.chance.uniform(1, 20)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return f"n{node} for {seconds:.0f} s"

    def change_key(self) -> str:
        self.new_key()
        for node in self.nodes:
            assert node.process is not None
            node.process.send_signal(signal.SIGHUP)
        self.push()
        return "all nodes"

    def evict(self) -> str:
        kind = self.chance.choice(list(SIZES))
        words = [zazen.testing.program("zazen"), "evict", self.sources / kind]
        words += ["--nodes", self.list, "--key", self.key]
        # Who reads or pushes at that moment may keep some of it; the readers say what is wrong.
        subprocess.run(
            [str(word) for word in words], capture_output=True, timeout=120, env=zazen.testing.environment()
        )
        return kind

    def damage(self) -> str:
        """Flips a bit of a cached file, as a bad disk does."""
        node = self.chance.randrange(NODES)
        cache = self.nodes[node].cache
        files = []
        # A disk that fails cannot be listed.
        with contextlib.suppress(OSError):
            files = [
                file for file in cache.rglob("*")
                if file.is_file() and ".zazen" not in file.relative_to(cache).parts[:1]
            ]  # fmt: skip
        if not files:
            return f"n{node} holds nothing"
        file = self.chance.choice(files)
        with contextlib.suppress(OSError), open(file, "r+b") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size:
                at = self.chance.randrange(size)
                byte = os.pread(opened.fileno(), 1, at)
                if byte:
                    os.pwrite(opened.fileno(), bytes([byte[0] ^ 1 << self.chance.randrange(8)]), at)
        return f"{file.relative_to(self.folder)}"

    def lose_store(self) -> str:
        """The store goes away, as when its server dies, and comes back."""
        away = self.folder / "away"
        with self.simulation.may_write:
            self.store.rename(away)
            seconds = self.chance.uniform(1, 10)
            time.sleep(seconds)
            away.rename(self.store)
        return f"for {seconds:.0f} s"

    def jump_clock(self) -> str:
        node = self.chance.randrange(NODES)
        seconds = self.chance.choice([0, 1, -1, 3600, -3600, self.chance.randrange(-10, 10)])
        self.machine.shift(node, seconds)
        return f"n{node} to {seconds:+d} s"

    def cut_off(self) -> str:
        node = self.chance.randrange(NODES)
        seconds = self.chance.uniform(1, 20)
        with self.machine.partition(self.hosts[node]):
            time.sleep(seconds)
        return f"n{node} for {seconds:.0f} s"

    def fill_disk(self) -> str:
        node = self.chance.randrange(NODES)
        seconds = self.chance.uniform(1, 10)
        with self.machine.full_disk(self.folder / f"n{node}"):
            time.sleep(seconds)
        return f"n{node} for {seconds:.0f} s"

    def break_disk(self) -> str:
        """A cache's disk fails, and is replaced."""
        node = self.chance.randrange(1, NODES)
        place = self.folder / f"n{node}"
        self.machine.break_disk(place)
        seconds = self.chance.uniform(1, 10)
        time.sleep(seconds)
        self.nodes[node].kill()
        self.machine.replace_disk(place)
        self.start(node)
        return f"n{node} for {seconds:.0f} s"

    def faults(self) -> list[Callable[[], str]]:
        """What can be done here."""
        kinds = [
            self.kill, self.restart, self.pause, self.change_key, self.evict, self.damage, self.damage,
            self.lose_store,
        ]  # fmt: skip
        if self.machine.clock_library is not None:
            kinds.append(self.jump_clock)
        if self.machine.has_network:
            kinds.append(self.cut_off)
        if self.machine.has_disks:
            kinds += [self.fill_disk, self.break_disk]
        return kinds


def measure(pid: int) -> dict[str, int]:
    """Memory that is the process's own, descriptors and threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "memory": int(fields["RssAnon"].split()[0]) << 10,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }


def lowest(samples: list[tuple[float, dict[str, int]]], start: float, end: float) -> dict[str, int] | None:
    """The lowest of each value between two times; None without a sample."""
    found = [sample for at, sample in samples if start <= at <= end]
    return {what: min(sample[what] for sample in found) for what in GROWTH_MAX} if found else None


def judge_growth(samples: list[tuple[float, dict[str, int]]], seconds: float) -> list[str]:
    """What has grown; `samples` are by the time since the beginning."""
    before, after = lowest(samples, seconds / 4, seconds / 2), lowest(samples, 3 * seconds / 4, float("inf"))
    if before is None or after is None:
        return []
    return [
        f"n0 has {after[what]} {what} in the last quarter, and had {before[what]} in the second"
        for what, bound in GROWTH_MAX.items()
        if after[what] > before[what] + bound
    ]


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def judge_workers(workers: list[Worker], faults: list[dict], begin: float) -> list[str]:
    """What workers found, and where forwarded programs failed while nothing was wrong."""
    problems = [problem for worker in workers for problem in worker.problems]
    for worker in workers:
        if not isinstance(worker, Forwarded):
            continue
        down = [
            (fault["at"], fault["done"] + FORWARDED_AFTER_S) for fault in faults
            if fault["fault"] in DOWN and fault["of"].split()[0] == f"n{worker.node}"
        ]  # fmt: skip
        for start, stop, why in worker.failures:
            if not any(start <= up and away <= stop for away, up in down):
                at = start - begin
                problems.append(f"a forwarded program of n{worker.node} failed at {at:.1f} s: {why}")
    return problems


def in_outage(outages: list[tuple[float, float]], at: float, told: dict, after_s: float) -> bool:
    """Whether a pass that ended at `at` ran while the store was away, or `after_s` after that."""
    return any(start <= at and at - told["seconds"] <= stop + after_s for start, stop in outages)


def soak(folder: Path, hours: float, seed: int, other: Path | None) -> dict:
    """Runs it all. Returns the report."""
    chance = random.Random(seed)
    folder.chmod(0o755)
    cluster = Cluster(folder, seed, other)
    for missing in cluster.machine.without:
        print(f"left out here: {missing}", flush=True)
    readers: list[Reader] = []
    faults: list[dict] = []
    problems: list[str] = []
    samples: list[tuple[float, dict[str, int]]] = []
    stacks: dict[str, dict] = {}
    try:
        cluster.simulation.start()
        while not cluster.truth.file.exists():
            assert cluster.simulation.is_alive(), "the simulation ended"
            time.sleep(0.01)
        cluster.push()
        users = [None, NOBODY] if os.geteuid() == 0 else [None]
        for node in range(NODES):
            for kind in SIZES:
                readers.append(Reader(node, kind, cluster, users[len(readers) % len(users)]))
        for worker in cluster.workers:
            worker.start()
        kinds = cluster.faults()
        begin = time.monotonic()
        end = begin + 3600 * hours
        outages: list[tuple[float, float]] = []
        while time.monotonic() < end:
            time.sleep(chance.uniform(1, 8))
            fault = chance.choice(kinds)
            at = time.monotonic()
            what = fault()
            done = time.monotonic()
            if fault == cluster.lose_store:
                outages.append((at, done))
            faults.append({"at": at, "done": done, "fault": fault.__name__, "of": what})
            samples.append((done - begin, measure(cluster.nodes[0].process.pid)))
        # The readers come to rest: a pass of each that began after the last fault.
        quiet = time.monotonic()
        while slow := [one for one in readers if sum(at > quiet for at, _ in one.passes) < 2]:
            if time.monotonic() > quiet + 300:
                for reader in slow:
                    problems.append(f"{reader.name} ended no pass within 300 s after the last fault")
                    stacks[reader.name] = {"last_pass_at": reader.last(begin), "threads": reader.stacks()}
                break
            time.sleep(0.1)
        for worker in cluster.workers:
            worker.stop.set()
        for worker in cluster.workers:
            worker.join(WORKER_SECONDS_MAX)
            if worker.is_alive():
                name = type(worker).__name__
                problems.append(f"{name} of n{worker.node} did not end within {WORKER_SECONDS_MAX} s")
            elif isinstance(worker, Named):
                worker.settle()
        samples.append((time.monotonic() - begin, measure(cluster.nodes[0].process.pid)))
        if not cluster.simulation.is_alive():
            problems.append("the simulation ended early: its frames were not replaced any more")
    finally:
        cluster.simulation.stop.set()
        for worker in cluster.workers:
            worker.stop.set()
        for reader in readers:
            reader.process.kill()
            reader.process.wait()
        cluster.stop_pushers()
        for node in cluster.nodes:
            with contextlib.suppress(Exception):
                node.kill()
        for number in range(NODES):
            with contextlib.suppress(Exception):
                cluster.machine.take_down(folder / f"n{number}")
    problems += judge_workers(cluster.workers, faults, begin)
    errors = unchecked = 0
    for reader in readers:
        for at, told in reader.passes:
            who = f"n{reader.node} {reader.kind} at {at - begin:.1f} s"
            problems += [f"{who}: {wrong}" for wrong in told["wrong"]]
            errors += told["error"] is not None
            unchecked += bool(told["incomplete"])
            if told["error"] is not None and not in_outage(outages, at, told, ERRORS_AFTER_S):
                problems.append(f"{who}: {told['error']}, though the store was there")
            if told["incomplete"] and not in_outage(outages, at, told, UNCHECKED_AFTER_S):
                problems += [f"{who}: {one}, though the store was there" for one in told["incomplete"]]
    problems += judge_growth(samples, 3600 * hours)
    seconds = sorted(told["seconds"] for reader in readers for _, told in reader.passes)
    for fault in faults:
        passes = [
            told["seconds"] for reader in readers for at, told in reader.passes
            if fault["at"] <= at <= fault["done"] + 30 and at - told["seconds"] <= fault["done"]
        ]  # fmt: skip
        fault["slowest_pass_s"] = max(passes, default=None)
        fault["at"], fault["done"] = round(fault["at"] - begin, 1), round(fault["done"] - begin, 1)
    return {
        "seed": seed,
        "hours": hours,
        "written": cluster.simulation.written,
        "passes": len(seconds),
        "frames": sum(told["frames"] for reader in readers for _, told in reader.passes),
        "median_pass_s": seconds[len(seconds) // 2] if seconds else None,
        "left_out": cluster.machine.without,
        "workers": {
            kind.__name__: {
                "done": sum(worker.done for worker in cluster.workers if isinstance(worker, kind)),
                "failed": sum(worker.failed for worker in cluster.workers if isinstance(worker, kind)),
            }
            for kind in (Forwarded, Named)
        },
        "errors": errors,
        "unchecked": unchecked,
        "n0": {
            "second_quarter": lowest(samples, 900 * hours, 1800 * hours),
            "last_quarter": lowest(samples, 2700 * hours, float("inf")),
        },
        "samples": [{"at": round(at, 1), **sample} for at, sample in samples],
        "faults": faults,
        "stacks": stacks,
        "problems": problems,
    }


def kinds_of(problems: list[str]) -> list[tuple[str, int]]:
    """Problems that differ by their numbers only, the most frequent first: what is rare must not be
    hidden by what is not."""
    return Counter(re.sub(r"\d+(\.\d+)?", "N", problem) for problem in problems).most_common(PROBLEMS_SHOWN)


def main() -> int:
    parser = argparse.ArgumentParser(description="Four nodes, work and faults; all compared with the truth.")
    parser.add_argument("--hours", type=float, default=10 / 60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--other", type=Path, metavar="FOLDER", help="programs of another build")
    parser.add_argument("--report", type=Path, metavar="FILE")
    parser.add_argument("--reader", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        read_for_ever(*options.reader)
    for name in ("zazen", "zazend", "libzazen_posix.so") if options.other else ():
        if not (options.other / name).is_file():
            parser.error(
                f"--other {options.other}: it has no {name}; `make native` in the other clone builds all"
            )
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, {60 * options.hours:.1f} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), options.hours, seed, options.other)
    for fault in report["faults"]:
        cost = "-" if fault["slowest_pass_s"] is None else f"{fault['slowest_pass_s']:.2f} s"
        print(f"{fault['at']:8.1f} s  {fault['fault']:<11} {fault['of']:<40} slowest pass near it: {cost}")
    for problem in report["problems"][:PROBLEMS_SHOWN]:
        print(f"problem: {problem}")
    for kind, count in kinds_of(report["problems"]):
        print(f"{count} problems like: {kind}")
    print(
        f"{report['frames']} frames compared in {report['passes']} passes "
        f"(median {report['median_pass_s']} s), {report['written']} written, {len(report['faults'])} faults, "
        f"{report['errors']} passes failed and {report['unchecked']} got what their node had cached "
        f"while the store was away, "
        f"{report['workers']}, {len(report['problems'])} problems; n0: {report['n0']}"
    )
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
