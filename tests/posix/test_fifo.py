"""A forwarded open of a FIFO meets the other end, which is a program of this machine here."""

import os
import select
import subprocess
import sys

import harness
import pytest

ROUNDS = 100

# Waits for a reader, writes at once, and says how that ended.
WRITER = """
import os, sys
for _ in range(int(sys.argv[2])):
    fifo = os.open(sys.argv[1], os.O_WRONLY)
    os.write(fifo, b'through')
    os.close(fifo)
    sys.stdin.buffer.read(1)
"""
READER = """
import os, sys
for _ in range(int(sys.argv[2])):
    fifo = os.open(sys.argv[1], os.O_RDONLY)
    assert os.read(fifo, 100) == b'through'
    assert os.read(fifo, 100) == b''
    os.close(fifo)
    print('read', flush=True)
"""


def test_a_writer_that_waited_finds_a_reader_that_stays(isolated):
    """The daemon's first look at a FIFO opens it, and so wakes the writer: the writer must not find
    it closed."""
    isolated.empty()
    os.mkfifo(isolated.far / "fifo")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, isolated.far / "fifo", str(ROUNDS)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    words = [harness.python(), "-c", READER, f"{harness.PREFIX}/fifo", str(ROUNDS)]
    reader = subprocess.Popen(isolated.command() + words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        for _ in range(ROUNDS):
            assert reader.stdout.readline() == b"read\n", (reader.communicate(timeout=60), writer.poll())
            writer.stdin.write(b"x")
            writer.stdin.flush()
        assert writer.wait(timeout=60) == 0, writer.stderr.read()
        assert reader.wait(timeout=60) == 0, reader.stderr.read()
    finally:
        for process in (writer, reader):
            process.kill()
            process.communicate()


# Holds a FIFO open, and writes only when it is told to.
SILENT = """
import os, sys
fifo = os.open(sys.argv[1], os.O_WRONLY)
sys.stdin.buffer.read(1)
os.write(fifo, b'late')
"""
OPENED = """
import os, sys
fifo = os.open(sys.argv[1], os.O_RDONLY)
print('opened', flush=True)
print(os.read(fifo, 100).decode(), flush=True)
"""


def line(process: subprocess.Popen) -> bytes:
    """The next line of a process, or b"" if there is none within two minutes."""
    ready, _, _ = select.select([process.stdout], [], [], 120)
    return process.stdout.readline() if ready else b""


@pytest.mark.parametrize("which", ["isolated", "node"])
def test_a_reader_does_not_wait_for_bytes(request, which):
    """Its open waited until the writer had written: two programs with a FIFO each way hung."""
    daemon = request.getfixturevalue(which)
    daemon.empty()
    os.mkfifo(daemon.far / "fifo")
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    words = [harness.python(), "-c", OPENED, f"{harness.PREFIX}/fifo"]
    reader = subprocess.Popen(daemon.command() + words, **piped)
    writer = subprocess.Popen([sys.executable, "-c", SILENT, daemon.far / "fifo"], **piped)
    try:
        assert line(reader) == b"opened\n"
        writer.stdin.write(b"x")
        writer.stdin.flush()
        assert line(reader) == b"late\n"
    finally:
        for process in (writer, reader):
            process.kill()
            process.communicate()
