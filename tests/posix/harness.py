"""What the tests of forwarding share: the programs, built if need be, and daemons with the posix
plug-in.

The Python package zazen must be installed: it starts the daemons.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import differential
import zazen.testing

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/zazen-forwarded"  # nothing is there on this machine: what isn't forwarded fails


def build() -> Path:
    """The folder with zazen, zazend, the plug-in and the preload library: $ZAZEN_TEST_PROGRAMS, or
    cargo's."""
    if given := os.environ.get("ZAZEN_TEST_PROGRAMS"):
        return Path(given)
    # As `make install` builds them, so that nothing is compiled here that is there already.
    others = ("zazen-bench", "zazen-fuzz", "zazen-namespace-planted", "zazen-vopr")
    left_out = [word for package in others for word in ("--exclude", package)]
    subprocess.run(["cargo", "build", "--quiet", "--locked", "--workspace", *left_out], cwd=ROOT, check=True)
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(json.loads(metadata.stdout)["target_directory"]) / "debug"


class Daemon(zazen.testing.Daemon):
    """A daemon with the posix plug-in, in a folder of its own; a context manager."""

    def __init__(
        self,
        programs: Path,
        isolated: bool = False,
        listen: bool | str = False,
        name: str = "zzf-",
        zazend: Path | None = None,
    ) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix=name))
        self.far = self.folder / "far"
        self.direct = self.folder / "direct"
        self.escapes = self.folder / "escapes"
        backing = self.folder / "backing"
        for folder in (self.far, self.direct, backing):
            folder.mkdir()
        # Programs that become another user pass through it, and load the library.
        self.folder.chmod(0o755)
        self.library = Path(shutil.copy(programs / "libzazen_preload.so", self.folder))
        self.key = self.folder / "key" if listen else None
        if self.key:
            subprocess.run([programs / "zazen", "key", "new", self.key], check=True, capture_output=True)
        plugin = str(programs / "libzazen_posix.so") + ("" if isolated else ":in-process")
        super().__init__(
            self.folder,
            backing,
            ["--plugin", plugin, "--export", self.folder],
            key=self.key,
            listen="127.0.0.1:0" if listen is True else listen or None,
            zazend=zazend or programs / "zazend",
        )

    @property
    def node(self) -> str | None:
        """Where it listens for other nodes, if it does."""
        return self.address

    def command(self, *options: str) -> list[str]:
        """What to put before a program to forward PREFIX to `far`: each call of it, unless
        `options` say so."""
        where = ["--socket", str(self.socket)]
        if not {"--direct", "--seccomp", "--abort-on-escape"}.intersection(options):
            where.append("--relay")
        if self.node is not None:
            where = ["--node", self.node, "--key", str(self.key)]
        run = [str(self.programs / "zazen"), "run", *where, "--forward", f"{PREFIX}={self.far}"]
        return [*run, "--library", str(self.library), *options, "--"]

    def run(self, *words: str, options=(), **more) -> subprocess.CompletedProcess:
        command = [*self.command(*options), *map(str, words)]
        more = {"capture_output": True, "text": True, "timeout": 120} | more
        return subprocess.run(command, **more)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def count_escapes(self) -> int:
        """How often the detector of escapes ended a program that had ZAZEN_FORWARD_ESCAPES in its
        environment."""
        return len(self.escapes.read_text().splitlines()) if self.escapes.exists() else 0

    def empty(self) -> None:
        for folder in (self.far, self.direct):
            differential.remove(str(folder))
            folder.mkdir()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.folder, ignore_errors=True)


def calls(daemon: Daemon) -> dict[str, int]:
    """Calls that the plug-in has served, by function."""
    words = [daemon.programs / "zazen", "plugin", "stats", "posix", "--socket", daemon.socket, "--json"]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    return {function["name"]: function["calls"] for function in json.loads(said)[0]["functions"]}


def python() -> str:
    """The interpreter itself, not a wrapper of it."""
    return os.path.realpath(sys.executable)
