"""Work of a soak beside frames: forwarded programs, and files in the namespace.

Each worker is a thread. It knows what it has written, and says in `problems` where it got something
else. Operations may fail while a node is down; then they are counted.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import threading
import time
from pathlib import Path

import zazen.testing
from zazen import namespace

#: A forwarded program that takes longer hangs.
RUN_SECONDS_MAX = 150
#: After the last fault, each file of the namespace must be readable within this time.
SETTLE_SECONDS_MAX = 150
FILES = 12


def payload(who: str, number: int, version: int, length: int) -> bytes:
    head = f"{who} {number} {version}\n".encode()
    block = hashlib.sha256(head).digest()
    return (head + block * (length // len(block) + 1))[:length]


class Worker(threading.Thread):
    """Works until `stop` is set."""

    def __init__(self, node: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.node, self.chance = node, random.Random(seed)
        self.stop = threading.Event()
        self.done = self.failed = 0
        self.problems: list[str] = []
        #: When operations failed: (begin, end, why), on the monotonic clock.
        self.failures: list[tuple[float, float, str]] = []

    def once(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self.once()
            except Exception as failure:  # a worker that ends would look like one that is content
                self.problems.append(f"{type(self).__name__} of n{self.node}: {failure!r}")
            self.stop.wait(self.chance.uniform(0.1, 0.6))


class Forwarded(Worker):
    """Programs whose files are a daemon's: each writes, renames and reads. They are started by the
    build that the daemon is of, as the packages of a node are: another may know other calls, and
    refuses them."""

    def __init__(self, node: int, seed: int, daemon: zazen.testing.Daemon, far: Path) -> None:
        super().__init__(node, seed)
        self.daemon, self.far, self.version = daemon, far, 0

    def program(self) -> Path:
        build = self.daemon.zazend
        return Path(zazen.testing.program("zazen") if build is None else Path(build).with_name("zazen"))

    def once(self) -> None:
        self.version += 1
        number = self.chance.randrange(FILES)
        data = payload(f"far{self.node}", number, self.version, self.chance.choice([100, 200_000]))
        name = f"f{self.node}-{number}"
        script = f"cat > /far/{name}.part && mv /far/{name}.part /far/{name} && cat /far/{name}"
        words = [self.program(), "run", "--socket", self.daemon.socket]
        words += ["--forward", f"/far={self.far}", *self.chance.choice([[], ["--relay"]])]
        begin = time.monotonic()
        try:
            told = subprocess.run(
                [*map(str, words), "--", "sh", "-c", script],
                input=data,
                capture_output=True,
                timeout=RUN_SECONDS_MAX,
                env=zazen.testing.environment(),
            )
        except subprocess.TimeoutExpired:
            self.problems.append(f"a forwarded program of n{self.node} hung for {RUN_SECONDS_MAX} s")
            return
        if told.returncode != 0:
            self.failed += 1
            why = told.stderr.decode(errors="replace").strip()[-200:]
            self.failures.append((begin, time.monotonic(), f"status {told.returncode}: {why}"))
            return
        self.done += 1
        if told.stdout != data:
            self.problems.append(f"n{self.node}: a forwarded program read other bytes than it wrote")
        elif (self.far / name).read_bytes() != data:
            self.problems.append(f"n{self.node}: {name} has other bytes than a forwarded program wrote")


class Named(Worker):
    """Files of the namespace: written through one node, read through any."""

    def __init__(self, node: int, seed: int, sockets: list[Path]) -> None:
        super().__init__(node, seed)
        self.sockets = sockets
        #: What each file holds for sure; none after a write that failed.
        self.known: dict[int, bytes] = {}
        self.version = 0
        self.has_folder = False

    def at(self, node: int) -> namespace.Namespace:
        return namespace.Namespace(str(self.sockets[node]), umask=0o022)

    def path(self, number: int) -> str:
        return f"/w{self.node}/f{number}"

    def once(self) -> None:
        begin = time.monotonic()
        try:
            self.work()
            self.done += 1
        except OSError as failure:
            self.failed += 1
            self.failures.append((begin, time.monotonic(), str(failure)))

    def work(self) -> None:
        here = self.at(self.node)
        if not self.has_folder:
            here.makedirs(f"/w{self.node}", exist_ok=True)
            self.has_folder = True
        if not self.known or self.chance.random() < 0.4:
            self.version += 1
            number = self.chance.randrange(FILES)
            length = self.chance.choice([0, 700, 250_000])
            data = payload(f"ns{self.node}", number, self.version, length)
            self.known.pop(number, None)
            here.write_bytes(self.path(number), data)
            self.known[number] = data
        else:
            number = self.chance.choice(list(self.known))
            self.compare(number, self.chance.randrange(len(self.sockets)))

    def compare(self, number: int, node: int) -> None:
        got = self.at(node).read_bytes(self.path(number))
        if got != self.known[number]:
            head = got.split(b"\n", 1)[0][:60]
            self.problems.append(
                f"n{node}: {self.path(number)} has {len(got)} bytes {head!r}, and not what was written"
            )

    def settle(self) -> None:
        """All nodes are up again: each file that was written must be there, through each node."""
        until = time.monotonic() + SETTLE_SECONDS_MAX
        for number in list(self.known):
            for node in range(len(self.sockets)):
                while True:
                    try:
                        self.compare(number, node)
                        break
                    except OSError as failure:
                        if time.monotonic() > until:
                            said = f"n{node}: {self.path(number)} cannot be read: {failure}"
                            self.problems.append(f"{said}, though all nodes are up")
                            return
                        time.sleep(0.5)
