"""File systems to compare forwarding with. Each is a folder with the same file, inside the `with`
block."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import packages
from host import Programs
from process import BenchError, call, environment, stop

MOUNT_SECONDS_MAX = 10
SSH_PACKAGES = ("sshfs", "openssh-server")
SSHD = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/client.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
Subsystem sftp internal-sftp
"""


def why_no_fuse() -> str | None:
    """What is missing for mounting a FUSE file system."""
    if os.geteuid() != 0:
        return "mounting needs root: `sudo make bench-calls`"
    if not Path("/dev/fuse").exists():
        return "this kernel has no /dev/fuse"
    return None


def wait(done, child: subprocess.Popen, what: str) -> None:
    until = time.monotonic() + MOUNT_SECONDS_MAX
    while not done():
        if child.poll() is not None or time.monotonic() > until:
            errors = child.stderr.read() if child.poll() is not None and child.stderr else ""
            raise BenchError(f"{what} does not start: {errors.strip()[-500:]}")
        time.sleep(0.02)


@contextlib.contextmanager
def fuse(programs: Programs, mode: str, file: Path, mountpoint: Path) -> Iterator[Path]:
    """`file` through the program passfs, plain or passthrough."""
    mountpoint.mkdir()
    child = subprocess.Popen(
        [str(programs.tool("passfs")), mode, str(file), str(mountpoint)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        if child.stdout.readline() != "ready\n":
            raise BenchError(f"FUSE: {child.stderr.read().strip()}")
        try:
            # The kernel asks what the server can do only now; a refusal shows here.
            os.close(os.open(mountpoint / "file", os.O_RDWR))
        except OSError as error:
            stop(child)
            raise BenchError(f"FUSE {mode}: {error}: {child.stderr.read().strip()}") from None
        yield mountpoint / "file"
    finally:
        stop(child)
        unmount(mountpoint)


@contextlib.contextmanager
def sshfs(folder: Path, mountpoint: Path, scratch: Path, options: list[str]) -> Iterator[Path]:
    """`folder` by sshfs, over a daemon of our own on the loopback device."""
    scratch.mkdir()
    mountpoint.mkdir()
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name in ("host", "client"):
        call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", scratch / name])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (scratch / "sshd.conf").write_text(SSHD.format(port=port, folder=scratch, user=user))
    # Where sshd separates its privileges; its package's service makes it, which we don't start.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    children: list[subprocess.Popen] = []

    def begin(*command: object) -> subprocess.Popen:
        with (scratch / "log").open("ab") as log:
            child = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,
            )  # fmt: skip
        children.append(child)
        return child

    try:
        server = begin(shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", scratch / "sshd.conf")
        wait(lambda: answers(port), server, "sshd")
        all_options = [f"IdentityFile={scratch / 'client'}", "StrictHostKeyChecking=no", f"Port={port}"]
        all_options += [f"UserKnownHostsFile={scratch / 'known'}", "BatchMode=yes", *options]
        words = [word for option in all_options for word in ("-o", option)]
        client = begin("sshfs", "-f", *words, f"{user}@127.0.0.1:{folder}", mountpoint)
        wait(lambda: is_mount(mountpoint), client, "sshfs")
        yield mountpoint
    finally:
        unmount(mountpoint)
        for child in reversed(children):
            stop(child)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_mount(mountpoint: Path) -> bool:
    return os.path.ismount(mountpoint)


def unmount(mountpoint: Path) -> None:
    if is_mount(mountpoint):
        subprocess.run(["umount", "-l", str(mountpoint)], capture_output=True, check=False)


def sshfs_or_why(install: bool) -> str | None:
    """Makes sshfs available, or says what is missing."""
    if why := why_no_fuse():
        return why
    if shutil.which("sshfs") and Path("/usr/sbin/sshd").exists():
        return None
    why = packages.why_not(SSH_PACKAGES, install)
    return why and f"sshfs: {why}"
