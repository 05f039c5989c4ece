"""What the tests of forwarding share: the programs, built if need be, and daemons with the posix plug-in."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import differential

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/zazen-forwarded"  # nothing is there on this machine: what isn't forwarded fails


def build() -> Path:
    """The folder with zazen, zazend, the plug-in and the preload library: $ZAZEN_TEST_PROGRAMS, or cargo's."""
    if given := os.environ.get("ZAZEN_TEST_PROGRAMS"):
        return Path(given)
    packages = ["zazen-preload", "zazen-posix", "zazen-cli", "zazend"]
    words = [word for package in packages for word in ("-p", package)]
    subprocess.run(["cargo", "build", "--quiet", *words], cwd=ROOT, check=True)
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(json.loads(metadata.stdout)["target_directory"]) / "debug"


class Daemon:
    """A daemon with the posix plug-in; a context manager."""

    def __init__(
        self, programs: Path, isolated: bool = False, listen: bool = False, name: str = "zzf-"
    ) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix=name))
        self.socket = self.folder / "s"
        self.key = self.folder / "key"
        self.far = self.folder / "far"
        self.direct = self.folder / "direct"
        self.escapes = self.folder / "escapes"
        for folder in (self.far, self.direct, self.folder / "backing"):
            folder.mkdir()
        # Programs that become another user pass through it, and load the library.
        self.folder.chmod(0o755)
        self.library = Path(shutil.copy(programs / "libzazen_preload.so", self.folder))
        plugin = str(programs / "libzazen_posix.so") + ("" if isolated else ":in-process")
        words = [programs / "zazend", "--cache", self.folder / "cache", "--backing", self.folder / "backing"]
        words += ["--socket", self.socket, "--plugin", plugin, "--export", self.folder]
        self.node = None
        if listen:
            subprocess.run([programs / "zazen", "key", "new", self.key], check=True, capture_output=True)
            words += ["--key", self.key, "--listen", "127.0.0.1:0"]
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, stderr=log)
        self.wait(listen)

    def wait(self, listen: bool) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"zazend ended:\n{self.log.read_text()}")
            text = self.log.read_text()
            if self.socket.exists() and "listens to" in text:
                if listen:
                    self.node = text.split("listens to ")[1].split()[0].rstrip(",")
                return
            time.sleep(0.02)
        raise RuntimeError(f"zazend did not get ready:\n{self.log.read_text()}")

    def command(self, *options: str) -> list[str]:
        """What to put before a program to forward PREFIX to `far`."""
        where = ["--socket", str(self.socket)]
        if self.node is not None:
            where = ["--node", self.node, "--key", str(self.key)]
        run = [str(self.programs / "zazen"), "run", *where, "--forward", f"{PREFIX}={self.far}"]
        return [*run, "--library", str(self.library), *options, "--"]

    def run(self, *words: str, options=(), **more) -> subprocess.CompletedProcess:
        command = [*self.command(*options), *map(str, words)]
        more = {"capture_output": True, "text": True, "timeout": 120} | more
        return subprocess.run(command, **more)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def count_escapes(self) -> int:
        """How often the detector of escapes ended a program that had ZAZEN_FORWARD_ESCAPES in its environment."""
        return len(self.escapes.read_text().splitlines()) if self.escapes.exists() else 0

    def empty(self) -> None:
        for folder in (self.far, self.direct):
            differential.remove(str(folder))
            folder.mkdir()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def python() -> str:
    """The interpreter itself, not a wrapper of it."""
    return os.path.realpath(sys.executable)
