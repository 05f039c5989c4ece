"""The packaged unit: what it allows root's daemon is enough to serve several users, and to keep one
user's flood from the others.

The tests read the unit. The daemon's process has the unit's capabilities and no others, can get no
new privileges, makes no writable memory executable, and the kernel gives it sockets of the unit's
families only, as systemd has it. Not tested: what systemd mounts read-only for the unit.
"""

import ctypes
import os
import re
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest
import zazen

from conftest import Node, read_frames, write_frames

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "packaging" / "zazend.service").read_text()
LIBC = ctypes.CDLL(None, use_errno=True)
# The kernel's numbers: the architecture, and the call socket().
MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 38, 22, 65
EAFNOSUPPORT = 97


def words_of(setting: str) -> list[str]:
    return re.search(rf"^{setting}=(.*)$", UNIT, re.M)[1].split()


def filter_of(families: list[int]) -> bytes:
    """A seccomp program: socket() gives sockets of these families only."""
    load, equal, end = 0x20, 0x15, 0x06
    architecture, call = MACHINES[os.uname().machine]
    count = len(families)
    steps = [
        (load, 0, 0, 4),
        (equal, 0, count + 4, architecture),
        (load, 0, 0, 0),
        (equal, 0, count + 2, call),
        (load, 0, 0, 16),
        *((equal, count - nth, 0, family) for nth, family in enumerate(families)),
        (end, 0, 0, 0x00050000 | EAFNOSUPPORT),
        (end, 0, 0, 0x7FFF0000),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def started_as_in(families: list[str]):
    """subprocess.Popen of a process that has what the unit gives, but sockets of these families."""
    if os.uname().machine not in MACHINES:
        pytest.skip(f"no seccomp numbers of {os.uname().machine} are in this test")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    steps = filter_of([getattr(socket, name) for name in families])
    program = Program(len(steps) // 8, steps)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in words_of("CapabilityBoundingSet"))
    limits = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}"]

    def confine() -> None:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # Kernels before 6.3 have no such thing.
        LIBC.prctl(PR_SET_MDWE, 1, 0, 0, 0)
        if LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) != 0:
            os._exit(70)

    return lambda words, **options: subprocess.Popen([*limits, *words], preexec_fn=confine, **options)


@pytest.fixture
def in_the_unit(ground, programs):
    """Starts root's daemon with more arguments, as the unit does."""
    if os.geteuid() != 0:
        pytest.skip("a daemon for several users needs root")
    nodes = []

    def start(*arguments: object, families: list[str] | None = None) -> Node:
        node = Node(ground, programs, *arguments)
        node.popen = started_as_in(families or words_of("RestrictAddressFamilies"))
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def key(ground):
    """The cluster key's file; `copy(user)` is a user's own."""
    secret = ground / "key"
    secret.write_text("x" * 64)
    secret.chmod(0o600)

    def copy(user) -> str:
        own = ground / f"key-{user.name}"
        own.write_text(secret.read_text())
        return str(user.own(own, 0o600))

    secret_and_copy = (secret, copy)
    return secret_and_copy


def test_frames_of_several_users(a, b, in_the_unit):
    node = in_the_unit()
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    capabilities = int(re.search(r"^CapEff:\t(\w+)", status, re.M)[1], 16)
    assert capabilities.bit_count() == len(words_of("CapabilityBoundingSet"))
    expected = {number: bytes([number + 1]) * 140_000 for number in range(4)}
    for user, other in ((a, b), (b, a)):
        home = node.backing / user.name
        write_frames(home, user, mode=0o600)
        user.own(home, 0o700)
        for _ in range(2):
            assert user.run(read_frames, home, node.socket) == expected
            with pytest.raises(PermissionError):
                other.run(read_frames, home, node.socket)
        # Root's own programs read what root may read.
        assert read_frames(home, node.socket) == expected
    assert "WARN" not in node.log.read_text()


def push(dataset, node, key, number):
    with zazen.Writer(str(dataset), [node], key=key, pattern="f-{n}.bin", on_slow="block") as writer:
        writer.push(number, b"x" * 1000)
    return writer.counters.pushed, writer.problems


def test_a_flood_keeps_no_writer_out(a, b, in_the_unit, key, flood):
    secret, copy = key
    node = in_the_unit("--listen", "127.0.0.1:0", "--key", secret)
    sim = node.backing / "sim"
    sim.mkdir()
    a.own(sim)
    floods = [b.start(flood, "stay", node.address.rsplit(":", 1)[1]) for _ in range(12)]
    try:
        for number in range(6):
            assert a.run(push, sim, node.address, copy(a), number) == (1, [])
        assert all(one.poll() is None for one in floods)
    finally:
        for one in floods:
            one.kill()
            one.communicate()


def test_a_daemon_that_is_not_told_who_connects_says_so(in_the_unit, key):
    families = [name for name in words_of("RestrictAddressFamilies") if name != "AF_NETLINK"]
    node = in_the_unit("--listen", "127.0.0.1:0", "--key", key[0], families=families)
    assert "does not tell which user of this machine connects" in node.log.read_text()


def test_the_page_on_security_names_what_the_unit_gives():
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.split("## What the daemon needs")[1].split("The packaged unit gives")[0]
    assert sorted(re.findall(r"`(CAP_\w+)`", table)) == sorted(words_of("CapabilityBoundingSet"))
