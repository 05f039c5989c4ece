"""Processes of a bench: their environment, how they end, and progress messages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class BenchError(Exception):
    """The bench cannot go on; the message says what to do."""


STARTED = time.monotonic()


def say(text: str) -> None:
    """Progress, on stderr, with minutes and seconds since the start."""
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    print(f"bench: {minutes:2}:{seconds:02} {text}", file=sys.stderr, flush=True)


def binary(name: str) -> Path:
    """A program of ours or of the virtual environment: beside the interpreter, else on the search
    path."""
    beside = Path(sys.executable).parent / name
    found = beside if beside.is_file() else shutil.which(name)
    if not found:
        raise BenchError(f"{name}: not found; run `make install`")
    return Path(found)


def environment() -> dict[str, str]:
    """Without settings of the caller's shell, with the virtual environment's programs first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # Ranks share the cores, so libraries must not start threads of their own.
    return kept | {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def call(command: Iterable[object], *, timeout: float = 600) -> str:
    """Run to the end and return stdout; a failure or a timeout carries what the command said."""
    words = [str(word) for word in command]
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = child.communicate(timeout=timeout)
    except BaseException as error:
        stop(child)
        if isinstance(error, subprocess.TimeoutExpired):
            # What a dead rank said is the only hint at why the others wait.
            said = (error.stderr or b"").decode(errors="replace").strip()[-2000:]
            told = f":\n{said}" if said else "; it said nothing"
            raise BenchError(f"`{' '.join(words)}` took longer than {timeout:.0f} s{told}") from None
        raise
    if child.returncode != 0:
        raise BenchError(
            f"`{' '.join(words)}` failed ({child.returncode}):\n{(errors or out).strip()[-2000:]}"
        )
    return out


def stop(child: subprocess.Popen, grace: float = 10) -> None:
    """End a process that `call` or `popen` started, and its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        os.killpg(child.pid, number)
        try:
            child.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            continue
