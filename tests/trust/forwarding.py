"""Programs of users whose files a daemon has: what the tests of forwarding share."""

import os
import sys
from pathlib import Path

import pytest

PREFIX = "/zf"  # nothing is there on this machine


def interpreter():
    """One that every user may run: the tests' own may lie in a home."""
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        path = Path(os.path.realpath(candidate))
        if path.exists() and all(at.stat().st_mode & 0o005 == 0o005 for at in (path, *path.parents)):
            return str(path)
    return None


PYTHON = interpreter()

# What forwarded programs begin with: each attempt prints its name and "done" or an errno.
ATTEMPTS = """
import errno, os, sys
def attempt(what, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
    else:
        print(what, "done", flush=True)
"""
needs_python = pytest.mark.skipif(PYTHON is None, reason="no Python that every user may run")


def command(node, *words, far=None, options=()):
    run = [
        node.programs / "zazen",
        "run",
        "--socket",
        node.socket,
        "--forward",
        f"{PREFIX}={far or node.far}",
    ]
    if "--direct" not in options:
        # The plug-in is what is attacked, not the user's own kernel.
        run.append("--relay")
    return [*run, "--library", node.programs / "libzazen_preload.so", *options, "--", *words]


def forwarded(user, node, code, *arguments, far=None, options=()):
    """What a Python program of the user prints, line by line, whose files below PREFIX are the
    daemon's."""
    words = command(node, PYTHON, "-c", ATTEMPTS + code, *arguments, far=far, options=options)
    done = user.call(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
