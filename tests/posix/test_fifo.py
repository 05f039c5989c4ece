"""A forwarded open of a FIFO meets the other end, which is a program of this machine here."""

import os
import subprocess
import sys

import harness

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
