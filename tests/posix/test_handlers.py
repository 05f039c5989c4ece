"""Forwarded calls in a signal's handler, in the middle of other forwarded calls: each gets its own
answer, and the program's own changes are seen. From another node, where a call's answer can be kept
back on its way until the handler has run."""

import contextlib
import os
import select
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from harness import PREFIX
from held_back import Wire

HERE = Path(__file__).parent
# More names than go along with two looks.
NAMES, ROUNDS = 40, 4


@pytest.fixture
def wire(node):
    wire = Wire(node.node)
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("handlers") / "handlers"
    subprocess.run(["cc", "-O1", "-Wall", "-o", program, HERE / "handlers.c"], check=True)
    return program


@pytest.fixture
def folder(node):
    return make(node)


def make(node):
    """Files whose sizes say their names."""
    folder = node.far / "handlers"
    shutil.rmtree(folder, ignore_errors=True)
    text = "0123456789" * 200
    for name in [*map(str, range(ROUNDS)), "here"]:
        (folder / name).mkdir(parents=True)
        for at in range(NAMES):
            file = folder / name / f"{'a' if at < 2 else 'held'}-{at:02}"
            file.write_text(text[: 1000 + at])
            file.chmod(0o644)
    (folder / "here" / "whole").write_text(text[: 1000 + NAMES])
    os.mkfifo(folder / "fifo")
    return folder


class Run:
    """The program, through the wire; a context manager."""

    def __init__(self, node, wire, program, mode) -> None:
        words = node.command()
        if wire is not None:
            words[words.index("--node") + 1] = wire.address
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        words = [*words, program, mode, f"{PREFIX}/handlers"]
        self.run = subprocess.Popen(words, **pipes)
        self.rest = b""
        self.pid = int(self.line().removeprefix("ready "))

    def line(self) -> str:
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.run.stdout], [], [], 30)
            data = os.read(self.run.stdout.fileno(), 1 << 16) if ready else b""
            assert data, ("it says nothing", self.rest, self.run.poll())
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def go_on(self) -> None:
        self.run.stdin.write(b"x")
        self.run.stdin.flush()

    def handle(self, wire: Wire) -> None:
        """Lets the handler run while the answer is kept back."""
        assert wire.kept.wait(30), "no such call"
        os.kill(self.pid, signal.SIGUSR1)
        try:
            assert self.line() == "handled"
        finally:
            wire.goes_on.set()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        if self.run.poll() is None:
            # The program too: it may be in a loop.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.run.kill()
        self.run.communicate()


EXPECTED = {
    # What the handler saw; the attributes that differ from what was there before.
    "looks": ("1004", {}),
    "change": ("0", {5: "1005:600"}),
    "write": ("4", {5: "1009:644"}),
}


@pytest.mark.parametrize("mode", EXPECTED)
def test_a_handler_while_attributes_of_many_names_are_asked_for(node, wire, program, folder, mode):
    seen, changed = EXPECTED[mode]
    with Run(node, wire, program, mode) as run:
        for _ in range(ROUNDS):
            run.go_on()
            assert run.line() == "half"
            wire.keep_back(b"held-03\0held-04\0held-05\0held-06\0", least=600)
            run.go_on()
            run.handle(wire)
            sizes = [changed.get(at, f"{1000 + at}:644") for at in range(NAMES)]
            assert run.line() == " ".join([seen, *sizes])
        assert run.run.wait(60) == 0


def test_a_handler_while_files_are_opened_together(node, wire, program, folder):
    with Run(node, wire, program, "opens") as run:
        run.go_on()
        assert run.line() == "half"
        wire.keep_back(b"held-02\0held-03\0held-04\0", least=2000)
        run.go_on()
        run.handle(wire)
        sizes = [7 if at == 3 else 1000 + at for at in range(NAMES)]
        assert run.line() == " ".join(f"{size}:{size}" for size in sizes) + " 0"
        assert run.run.wait(60) == 0


def test_a_handler_while_the_first_connection_is_greeted(node, wire, program, folder):
    with Run(node, wire, program, "greeting") as run:
        mask = int(next(line for line in Path(f"/proc/{run.pid}/status").read_text().splitlines()
                        if line.startswith("Umask:")).split()[1], 8)  # fmt: skip
        # The last four fields of struct px_hello: a new session of this process.
        wire.keep_back(struct.pack("<IIII", 0, run.pid, mask, 0))
        run.go_on()
        run.handle(wire)
        assert run.line() == "1004 1003 1004"
        assert run.run.wait(60) == 0


def test_a_handler_at_any_moment(node, wire, program, folder):
    """Seldom enough that the program gets on, often enough that it hits what takes microseconds."""
    with Run(node, wire, program, "flood") as run:
        run.go_on()
        assert run.line() == "0 wrong, 0 of the handler's; it ran often: 1"
        assert run.run.wait(60) == 0


def test_jumps_out_of_calls_keep_no_connections(node, wire, program, folder):
    with Run(node, wire, program, "jumps") as run:
        run.go_on()
        words = run.line().replace(",", "").split()
        # A jump out of the very moment of connecting may lose one.
        assert words[0] == "had" and int(words[3]) <= int(words[1]) + 5, words
        assert run.run.wait(60) == 0


@pytest.mark.parametrize("where", ["daemon", "isolated", "node"])
def test_a_jump_out_of_a_call_that_waits(request, program, where):
    """What comes later is the next reader's, not the call's that is not there any more."""
    daemon = request.getfixturevalue(where)
    folder = make(daemon)
    with Run(daemon, None, program, "jump") as run:
        run.go_on()
        assert run.line() == "waits"
        # Long enough for the call to get there.
        time.sleep(0.3)
        os.kill(run.pid, signal.SIGUSR1)
        assert run.line() == "left"
        writer = os.open(folder / "fifo", os.O_WRONLY)
        os.write(writer, b"for the next")
        # Long enough for a reader that should not be there any more.
        time.sleep(0.2)
        run.go_on()
        assert run.line() == "12 for the next"
        os.close(writer)
        assert run.run.wait(60) == 0
