"""Daemons of one namespace on this machine, and what they cost."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zazen.testing
from process import ROOT, BenchError


class Space:
    """`nodes` daemons of one namespace below `folder`; a context manager."""

    def __init__(self, folder: Path, nodes: int = 1, *arguments: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        (folder / "backing").mkdir()
        key, self._list = folder / "key", folder / "nodes"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        self.daemons = []
        for number in range(nodes):
            place = folder / f"n{number}"
            place.mkdir()
            words = [
                "--namespace",
                place / "data",
                "--namespace-format",
                "--namespace-root",
                "trust",
                *arguments,
            ]
            words += ["--namespace-nodes", self._list] if nodes > 1 else []
            self.daemons.append(
                zazen.testing.Daemon(
                    place, folder / "backing", words, listen="127.0.0.1:0", key=key, name=f"n{number}"
                )
            )

    def __enter__(self) -> Space:
        try:
            for daemon in self.daemons:
                daemon.start()
            fresh = self._list.with_suffix(".new")
            fresh.write_text("".join(f"{daemon.address}\n" for daemon in self.daemons))
            fresh.rename(self._list)
            for number in range(len(self.daemons)):
                self.await_serving(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        for daemon in self.daemons:
            daemon.kill()

    def socket(self, number: int = 0) -> str:
        return str(self.daemons[number].socket)

    def zazen(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [zazen.testing.program("zazen"), *map(str, words)]
        return subprocess.run(
            command, env=zazen.testing.environment(), check=check, capture_output=True, text=True, timeout=120
        )

    def await_serving(self, number: int) -> None:
        until = time.monotonic() + 60
        words = ("namespace", "status", "--socket", self.socket(number), "--json")
        while True:
            done = self.zazen(*words, check=False)
            if done.returncode == 0 and json.loads(done.stdout)["node"] is not None:
                return
            if time.monotonic() > until:
                raise BenchError(f"node {number} did not join: {done.stderr}")
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        """What all daemons have used."""
        ticks = 0
        for daemon in self.daemons:
            fields = Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def mounted(self, number: int = 0, *words: object) -> Iterator[Path]:
        place = self.folder / f"m{number}"
        place.mkdir(exist_ok=True)
        self.zazen("mount", place, "--socket", self.socket(number), *words)
        try:
            yield place
        finally:
            self.zazen("unmount", place)


def rates_program() -> Path:
    """The example `rates`, as the newest build has it."""
    found = [ROOT / "target" / profile / "examples" / "rates" for profile in ("release", "debug")]
    there = [program for program in found if program.is_file()]
    if not there:
        raise BenchError("no program rates: cargo build --release -p zazen-namespace-client --example rates")
    return there[0]


def rates(socket: str, directory: str, count: int) -> list[dict]:
    """Runs `rates`: its rows."""
    done = subprocess.run(
        [rates_program(), socket, directory, str(count)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
