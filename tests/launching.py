"""What tests share to start programs and to wait for what they do; daemons are started by
`zazen.testing`."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zazen.testing


def mpiexec() -> str:
    """The launcher beside this Python; with another MPI's the ranks would come up as singletons."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec: pip install mpich")
    return found


def mpi_environment() -> dict[str, str]:
    """`zazen.testing.environment()` for a launcher: Open MPI's refuses root unless told twice."""
    environment = zazen.testing.environment()
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
        environment |= {name: "1", f"{name}_CONFIRM": "1"}
    return environment


def run_ranks(command: list[object], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command of a launcher to its end.

    MPICH's launcher can end by SIGPIPE, without a word of its ranks', if these end at once: then it
    is started again."""
    for _ in range(3):
        done = subprocess.run(
            [str(word) for word in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != -signal.SIGPIPE or done.stdout + done.stderr:
            break
    return done


def wait_for(condition: Callable[[], object], what: str = "a condition", seconds: float = 90) -> None:
    """Returns once `condition()` is true; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
