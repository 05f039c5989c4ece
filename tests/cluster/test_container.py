"""A daemon and its programs in an unprivileged container: a user namespace of an ordinary user,
with mounts and a network of its own, as rootless containers have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import zazen.testing

NOBODY = 65534

# Python itself may lie where only root can read: what it needs is imported before it becomes
# another user.
ENTER = """
import ctypes, json, os, subprocess, sys
from pathlib import Path
import zazen, zazen.testing

uid = int(sys.argv[2])
if os.geteuid() != uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(4, 1, 0, 0, 0)  # who changed users may write to /proc/self again
NEW = 0x10000000 | 0x00020000 | 0x40000000 | 0x08000000  # users, mounts, network, IPC
gid = os.getegid()
if libc.unshare(NEW) != 0:
    sys.exit(f"no user namespaces: {os.strerror(ctypes.get_errno())}")
try:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
except OSError as error:
    sys.exit(f"no user namespaces: {error}")
assert os.geteuid() == 0 and os.stat("/").st_uid == 65534, "root of the node is nobody in here"
"""

# What docs/operating.md says to do there.
INSIDE = """
folder = Path(sys.argv[1])
(folder / "data/sim").mkdir(parents=True)
for number in range(8):
    (folder / f"data/sim/f-{number}.bin").write_bytes(bytes([number]) * 5000)
os.environ["ZAZEN_SOCKET"] = str(folder / "s")
with zazen.testing.Daemon(folder, folder / "data", socket=folder / "s") as daemon:
    tool = zazen.testing.program("zazen")
    subprocess.run([tool, "load", folder / "data/sim"], check=True)
    with zazen.open(folder / "data/sim") as dataset:
        got = {number: bytes(data) for number, data, _ in dataset.frames()}
        frames = dataset.frames()
        list(frames)
        assert frames.stats.backing_reads == 0, frames.stats
    assert got == {number: bytes([number]) * 5000 for number in range(8)}
    told = subprocess.run([tool, "status"], check=True, capture_output=True, text=True).stdout
    assert " up " in told, told
    subprocess.run([tool, "doctor", "--no-disk", "--json"], stdout=subprocess.DEVNULL)
print("served")
"""


def test_a_daemon_serves_in_an_unprivileged_container():
    # The user of the container must reach the folder, and its path must be short.
    folder = Path(tempfile.mkdtemp(prefix="zc-"))
    user = os.geteuid() or NOBODY
    os.chown(folder, user, -1)
    try:
        told = subprocess.run(
            [sys.executable, "-c", ENTER + INSIDE, str(folder), str(user)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd="/",
            env=zazen.testing.environment() | {"HOME": str(folder)},
        )
        if told.stderr.startswith("no user namespaces"):
            pytest.skip(f"this machine has {told.stderr.strip()}")
        assert told.returncode == 0 and told.stdout.endswith("served\n"), (told.stdout, told.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
