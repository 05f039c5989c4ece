"""A rank that fails before MPI_Init ends its job; a command that takes too long tells what it had
said."""

import subprocess
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "bench" / "papers"
sys.path.insert(0, str(PAPERS / "common"))

from process import BenchError, binary, call  # noqa: E402

# Rank 1 cannot import mpi4py; rank 0 waits for it in MPI_Init.
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
if os.environ["PMI_RANK"] == "1":
    sys.modules["mpi4py"] = None
from ranks import MPI, quiet_barrier
quiet_barrier(MPI.COMM_WORLD)
"""


def test_a_rank_without_mpi_ends_the_job(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [binary("mpiexec"), "-n", "2", sys.executable, program, PAPERS / "zazen"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "mpi4py" in ended.stderr


def test_a_command_that_takes_too_long_tells_what_it_said():
    with pytest.raises(BenchError, match="longer than 3 s:\nrank 3: no such file"):
        call(["sh", "-c", "echo rank 3: no such file >&2; exec sleep 60"], timeout=3)
    with pytest.raises(BenchError, match="it said nothing"):
        call(["sleep", "60"], timeout=1)
