"""The packaged unit: what it allows root's daemon is enough to serve several users, and to keep one
user's flood from the others.

The tests read the unit. The daemon's process has the unit's capabilities and no others, can get no
new privileges, makes no writable memory executable, sees the kernel's settings read-only, and makes
no namespace; the kernel gives it sockets of the unit's families only. That is what systemd does for
the settings of the unit. A setting that is new there must be imitated here.
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
from forwarding import PREFIX, forwarded, needs_python

from conftest import Node, read_frames, write_frames

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "packaging" / "zazend.service").read_text()
LIBC = ctypes.CDLL(None, use_errno=True)
# The kernel's numbers: the architecture, and those of calls.
MACHINES = {
    "x86_64": (
        0xC000003E,
        {"socket": 41, "clone": 56, "clone3": 435, "unshare": 272, "setns": 308, "personality": 135},
    ),
    "aarch64": (
        0xC00000B7,
        {"socket": 198, "clone": 220, "clone3": 435, "unshare": 97, "setns": 268, "personality": 92},
    ),
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 38, 22, 65
# Namespaces: cgroup, uts, ipc, user, pid, net, mount; mounts, and which of them reach others.
CLONE_NEW, CLONE_NEWNS = 0x7E020000, 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
# What the unit's settings make read-only, and what they hide (systemd.exec(5)).
READ_ONLY = {
    "ProtectKernelTunables": [
        "/proc/sys",
        "/proc/sysrq-trigger",
        "/proc/latency_stats",
        "/proc/acpi",
        "/proc/timer_stats",
        "/proc/fs",
        "/proc/irq",
        "/sys",
    ],
    "ProtectControlGroups": ["/sys/fs/cgroup"],
}
# Settings that the tests imitate, and those that change nothing for the daemon's work.
IMITATED = {
    "CapabilityBoundingSet",
    "NoNewPrivileges",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "LockPersonality",
    "MemoryDenyWriteExecute",
}
PLAIN = {
    "Type",
    "ExecStartPre",
    "ExecStart",
    "ExecReload",
    "KillSignal",
    "TimeoutStopSec",
    "Restart",
    "RestartSec",
    "RuntimeDirectory",
    "RuntimeDirectoryMode",
    "LimitNOFILE",
    "SystemCallArchitectures",
}


def words_of(setting: str) -> list[str]:
    return re.search(rf"^{setting}=(.*)$", UNIT, re.M)[1].split()


def filter_of(families: list[int]) -> bytes:
    """A seccomp program: socket() gives sockets of these families only; nobody makes or enters a
    namespace, or changes how the kernel reads a program."""
    load, equal, any_bit, end = 0x20, 0x15, 0x45, 0x06
    architecture, calls = MACHINES[os.uname().machine]
    allow, refuse = 0x7FFF0000, 0x00050000

    def on(call: str, steps: list) -> list:
        """`steps` of this call; other calls go on behind them."""
        return [(load, 0, 0, 0), (equal, 0, len(steps), calls[call]), *steps]

    count = len(families)
    steps = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (end, 0, 0, allow),
        *on(
            "socket",
            [
                (load, 0, 0, 16),
                *((equal, count - nth, 0, family) for nth, family in enumerate(families)),
                (end, 0, 0, refuse | EAFNOSUPPORT),
                (end, 0, 0, allow),
            ],
        ),
        *on("clone", [(load, 0, 0, 16), (any_bit, 0, 1, CLONE_NEW), (end, 0, 0, refuse | EPERM)]),
        *on("unshare", [(load, 0, 0, 16), (any_bit, 0, 1, CLONE_NEW), (end, 0, 0, refuse | EPERM)]),
        *on("clone3", [(end, 0, 0, refuse | ENOSYS)]),
        *on("setns", [(end, 0, 0, refuse | EPERM)]),
        *on("personality", [(end, 0, 0, refuse | EPERM)]),
        (end, 0, 0, allow),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def mount_as_in_the_unit() -> None:
    """Mounts of this process's own: what the unit protects is read-only or hidden."""
    if LIBC.unshare(CLONE_NEWNS) != 0 or LIBC.mount(None, b"/", None, MS_REC | MS_SLAVE, None) != 0:
        os._exit(71)
    for setting, paths in READ_ONLY.items():
        assert words_of(setting) == ["yes"]
        for path in filter(os.path.exists, paths):
            name = path.encode()
            if LIBC.mount(name, name, None, MS_BIND, None) != 0:
                os._exit(72)
            if LIBC.mount(None, name, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None) != 0:
                os._exit(73)
    assert words_of("ProtectKernelModules") == ["yes"]
    for path in filter(os.path.exists, ("/usr/lib/modules", "/lib/modules")):
        if LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", MS_RDONLY, b"mode=000") != 0:
            os._exit(74)


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
        mount_as_in_the_unit()
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
    mounts = Path(f"/proc/{node.process.pid}/mountinfo").read_text()
    assert re.search(r" /proc/sys ro[, ]", mounts) and re.search(r" /sys ro[, ]", mounts), mounts
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


@needs_python
def test_forwarded_files_of_several_users(a, b, in_the_unit, ground, programs):
    far = ground / "far"
    far.mkdir()
    far.chmod(0o1777)
    node = in_the_unit("--plugin", programs / "libzazen_posix.so", "--export", far)
    node.far, node.programs = far, programs
    write = """
open(sys.argv[1], 'w').write('x' * 100_000)
os.chmod(sys.argv[1], 0o600)
print(len(open(sys.argv[1]).read()))
"""
    look = "attempt('other', open, sys.argv[1])"
    for user, other in ((a, b), (b, a)):
        assert forwarded(user, node, write, f"{PREFIX}/{user.name}") == ["100000"]
        found = (far / user.name).stat()
        assert (found.st_uid, found.st_gid, found.st_size) == (user.uid, user.gid, 100_000)
        assert forwarded(other, node, look, f"{PREFIX}/{user.name}") == ["other EACCES"]
    assert "WARN" not in node.log.read_text()


def test_every_setting_of_the_unit_is_imitated():
    service = UNIT.split("[Service]")[1].split("[Install]")[0]
    settings = set(re.findall(r"^(\w+)=", service, re.M))
    assert settings == IMITATED | PLAIN
    # It is a unit for systemd, too.
    for name in ("RestrictNamespaces", "LockPersonality", "NoNewPrivileges", "MemoryDenyWriteExecute"):
        assert words_of(name) == ["yes"]


def test_systemd_takes_the_unit(tmp_path, programs):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "zazend.service"
    unit.write_text(UNIT.replace("/usr/bin/zazend", str(programs / "zazend")))
    words = ["systemd-analyze", "verify", "--man=no", unit]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    of_ours = [line for line in done.stderr.splitlines() if "zazend" in line]
    assert (done.returncode, of_ours) == (0, []), done


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
