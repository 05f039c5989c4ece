"""What the figures run: programs of this folder, compiled, and daemons with plug-ins."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import zazen.testing
from process import ROOT, BenchError, call, environment, stop

HERE = Path(__file__).resolve().parent


def found(name: str, *places: Path) -> Path | None:
    """A program or library of ours: in one of `places`, installed, or built by cargo for
    measuring."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    packages = [Path(folder) / "zazen" / "lib" for folder in sys.path]
    all_places = [*places, Path(sys.executable).parent, *packages, target / "release"]
    return next((place / name for place in all_places if (place / name).is_file()), None)


def program(name: str) -> Path:
    """`zazen` or `zazend`: what $ZAZEN or $ZAZEND names, installed, or built by cargo for
    measuring."""
    named = os.environ.get(name.upper())
    path = Path(named) if named else found(name)
    if path is None and (on_path := shutil.which(name)):
        path = Path(on_path)
    if path is None:
        raise BenchError(f"no {name}: run `make install`, or set ${name.upper()}")
    return path


@dataclass
class Programs:
    """The compiled programs, and the libraries that they use."""

    folder: Path
    zazen: Path
    zazend: Path
    # The plug-in of rates.h.
    rates: Path
    # The posix plug-in and the preload library; None where they are not built.
    posix: Path | None
    preload: Path | None

    @functools.cache  # noqa: B019 - lives as long as the bench
    def tool(self, name: str, *libraries: str) -> Path:
        """The program of NAME.c, which needs nothing of ours."""
        made = self.folder / name
        call([*compiler(), HERE / f"{name}.c", "-o", made, "-pthread", *libraries])
        return made

    @functools.cache  # noqa: B019 - likewise
    def client(self, name: str) -> Path:
        """The program of NAME.c, a client of the rates plug-in."""
        made, sdk, generated = self.folder / name, self.folder / "sdk", self.folder / "generated"
        include = [f"-I{path}" for path in (sdk, generated, HERE)]
        link = ["-L", sdk, "-lzazen_stub", f"-Wl,-rpath,{sdk}"]
        call([*compiler(), *include, HERE / f"{name}.c", generated / "rates_client.c", *link, "-o", made])
        return made

    @property
    def calls(self) -> Path:
        """The client that measures."""
        return self.client("calls")

    def __hash__(self) -> int:
        return hash(self.folder)


def compiler() -> list[str]:
    return [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-Wall", "-Wextra"]


def compile_programs(folder: Path) -> Programs:
    """Compiles the rates plug-in into `folder`."""
    zazen, zazend = program("zazen"), program("zazend")
    sdk, generated = folder / "sdk", folder / "generated"
    call([zazen, "plugin", "sdk", sdk])
    call([zazen, "plugin", "generate", HERE / "rates.h", "--out", generated])
    include = [f"-I{path}" for path in (sdk, generated, HERE)]
    rates = folder / "rates.so"
    shared = ["-shared", "-fPIC", "-fvisibility=hidden"]
    call([*compiler(), *shared, *include, HERE / "rates.c", generated / "rates_dispatch.c", "-o", rates])
    beside = zazen.parent
    return Programs(
        folder, zazen, zazend, rates,
        found("libzazen_posix.so", beside, beside.parent / "lib"),
        found("libzazen_preload.so", beside, beside.parent / "lib"),
    )  # fmt: skip


@contextlib.contextmanager
def workplace() -> Iterator[Programs]:
    """A folder with a short path (sockets have short names), with the programs compiled in it."""
    with tempfile.TemporaryDirectory(prefix="zc") as folder:
        yield compile_programs(Path(folder))


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """A folder whose files are memory: no disk is measured."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="zc", dir=place) as folder:
        yield Path(folder)


@contextlib.contextmanager
def bound_to(cpus: Iterable[int] | None) -> Iterator[None]:
    """What is started meanwhile runs on these CPUs only (None: on all)."""
    before = os.sched_getaffinity(0)
    if cpus is not None:
        os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Daemon:
    """A zazend with plug-ins, ended with the `with` block."""

    programs: Programs
    plugins: list[str | Path]
    cpus: Iterable[int] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    # A cluster key to share with another daemon; else one of its own.
    key: Path | None = None
    # Folders that forwarded programs may reach.
    exports: list[str | Path] = field(default_factory=list)

    def __enter__(self) -> Daemon:
        self.folder = Path(tempfile.mkdtemp(prefix="d", dir=self.programs.folder))
        (self.folder / "backing").mkdir()
        self.socket, self.log = self.folder / "sock", self.folder / "log"
        if self.key is None:
            self.key = self.folder / "key"
            self.key.touch(mode=0o600)
            self.key.write_text(secrets.token_hex(32))
        self._daemon = zazen.testing.Daemon(
            self.folder, self.folder / "backing",
            ["--budget", "16M", "--connections-max", "4096", *self._plugin_flags()],
            socket=self.socket, log=self.log, name="bench", listen="127.0.0.1:0", key=self.key,
            zazend=self.programs.zazend, variables=environment() | self.variables,
            popen=functools.partial(subprocess.Popen, start_new_session=True),
        )  # fmt: skip
        try:
            with bound_to(self.cpus):
                self._daemon.start()
        except RuntimeError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise BenchError(str(error)[-2000:]) from error
        self.process, self.address = self._daemon.process, self._daemon.address
        return self

    def _plugin_flags(self) -> list[object]:
        plugins = [word for plugin in self.plugins for word in ("--plugin", plugin)]
        return plugins + [word for folder in self.exports for word in ("--export", folder)]

    def __exit__(self, *exception: object) -> None:
        stop(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self) -> list[int]:
        """The daemon and its plug-ins' processes."""
        pids = [self.process.pid]
        for pid in pids:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    pids += [int(child) for child in (task / "children").read_text().split()]
        return pids

    def cpu_s(self) -> float:
        """CPU seconds of all of them."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def report(self, plugin: str) -> dict:
        """The output of `zazen plugin stats` for a plug-in."""
        said = call([self.programs.zazen, "plugin", "stats", plugin, "--socket", self.socket, "--json"])
        return json.loads(said)[0]

    def variables_for(self, *words: object) -> dict[str, str]:
        """The environment that `zazen run WORDS` gives a program, so that `zazen` need not be
        started each time. Each call is forwarded, unless the words say otherwise."""
        how = [] if "--direct" in words else ["--relay"]
        command = [
            self.programs.zazen,
            "run",
            *words,
            *how,
            "--socket",
            self.socket,
            "--",
            shutil.which("env"),
            "-0",
        ]
        said = call(command).split("\0")
        given = dict(line.split("=", 1) for line in said if "=" in line)
        mine = environment()
        return {name: value for name, value in given.items() if mine.get(name) != value}


def measured(
    command: Iterable[object], variables: dict[str, str] | None = None, timeout: float = 120
) -> dict:
    """Runs a program of this folder to its end; the JSON that it prints."""
    return collect([start(command, variables)], timeout)[0]


def start(
    command: Iterable[object], variables: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen:
    """Starts a program of this folder."""
    return subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=stdin, env=environment() | (variables or {}), start_new_session=True,
    )  # fmt: skip


def collect(children: list[subprocess.Popen], timeout: float = 120) -> list[dict]:
    """Waits for all and returns what each printed. If one fails, all are ended."""
    until, said = time.monotonic() + timeout, []
    try:
        for child in children:
            out, errors = child.communicate(timeout=max(1.0, until - time.monotonic()))
            lines = out.strip().splitlines()
            if child.returncode != 0 or not lines:
                what = " ".join(str(word) for word in child.args)
                raise BenchError(f"`{what}` failed ({child.returncode}): {errors.strip()[-1000:]}")
            said.append(json.loads(lines[-1]))
    except BaseException as error:
        for child in children:
            stop(child, grace=1)
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"`{error.cmd}` took longer than {timeout:.0f} s") from None
        raise
    return said


def together(
    commands: list[list[object]], variables: dict[str, str] | None = None, seconds: float = 1.0
) -> list[dict]:
    """Runs clients at the same time: all begin when all are ready."""
    timed = ["--seconds", seconds, "--together"]
    children = [start([*command, *timed], variables, subprocess.PIPE) for command in commands]
    try:
        for child in children:
            if child.stdout.readline() != "ready\n":
                raise BenchError(f"a client did not get ready: {child.stderr.read().strip()[-1000:]}")
        begin = time.monotonic_ns() + 20_000_000 + 200_000 * len(children)
        for child in children:
            child.stdin.write(f"{begin}\n")
            child.stdin.flush()
    except BaseException:
        for child in children:
            stop(child, grace=1)
        raise
    return collect(children)
