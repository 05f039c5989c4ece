"""Debian packages for the peers: installed without starting anything, and only if the caller
may."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from process import BenchError, say

# Debian's maintainer scripts ask this program before they start a service; 101 says no.
POLICY = Path("/usr/sbin/policy-rc.d")
REFUSE = b"#!/bin/sh\n# Placed by a bench while it installs packages; it is taken away again.\nexit 101\n"


def lacking(packages: Sequence[str]) -> list[str]:
    """Those of `packages` that are not installed; all of them where there is no dpkg."""
    if not shutil.which("dpkg-query"):
        return list(packages)
    return [name for name in packages if not _installed(name)]


def command(packages: Sequence[str]) -> str:
    """The command that installs `packages`."""
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def install(packages: Sequence[str]) -> None:
    """Install the missing ones of `packages`; `BenchError` says what to do if that fails."""
    wanted = lacking(packages)
    if not wanted:
        return
    how = f"`{command(wanted)}` as root"
    if not shutil.which("apt-get"):
        raise BenchError(f"no apt-get here; install the equivalent of {', '.join(wanted)}")
    if os.geteuid() != 0:
        raise BenchError(f"needs {how}")
    say(f"installing Debian packages, no service is started: {' '.join(wanted)}")
    with services_stay_down():
        if not _apt("install", "-y", "--no-install-recommends", *wanted):
            # The index is missing or too old: try once more with a new one.
            _apt("update")
            if not _apt("install", "-y", "--no-install-recommends", *wanted):
                raise BenchError(f"installing failed; see what {how} says")


def why_not(wanted: Sequence[str], may_install: bool) -> str | None:
    """Makes the packages `wanted` available; where that can't be, what is missing."""
    missing = lacking(wanted)
    if not missing:
        return None
    if not may_install:
        return f"`{command(missing)}`"
    try:
        install(missing)
    except BenchError as error:
        return str(error)
    return None


@contextlib.contextmanager
def services_stay_down() -> Iterator[None]:
    """While inside, package scripts start no service; the policy that was there is put back."""
    before = POLICY.read_bytes() if POLICY.exists() else None
    mode = POLICY.stat().st_mode & 0o7777 if before is not None else 0o755
    POLICY.write_bytes(REFUSE)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            POLICY.unlink(missing_ok=True)
        else:
            POLICY.write_bytes(before)
            POLICY.chmod(mode)


def _installed(name: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", name]
    return subprocess.run(asked, capture_output=True, text=True).stdout == "installed"


def _apt(*words: str) -> bool:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    ran = subprocess.run(["apt-get", "-q", *words], capture_output=True, env=quiet, stdin=subprocess.DEVNULL)
    return ran.returncode == 0
