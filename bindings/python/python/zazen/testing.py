"""Daemons of your own, for tests: each with a cache, a socket and a port, in a folder that the test owns.

    with zazen.testing.Cluster(folder, backing, nodes=2) as cluster:
        with zazen.Writer(backing / "sim1", cluster.nodes, key=cluster.key) as writer:
            ...
        with zazen.open(backing / "sim1", socket=cluster.sockets[0]) as dataset:
            ...

The program `zazend` is `$ZAZEND`, or the one beside the running Python, or the one on the PATH.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["Cluster", "program"]

START_SECONDS_MAX = 30.0


def program(name: str) -> str:
    """The path of `zazen` or `zazend`: named by $ZAZEN or $ZAZEND, beside the running Python, or on the PATH.

    Raises FileNotFoundError if it is nowhere.
    """
    beside = Path(sys.executable).parent / name
    found = os.environ.get(name.upper()) or (str(beside) if beside.exists() else shutil.which(name))
    if found is None:
        raise FileNotFoundError(
            f"no program {name}: set ${name.upper()}, or `pip install .` into this environment"
        )
    return found


def _check_owner(path: Path) -> None:
    """Raises PermissionError if others could change what lies at `path`, or put another folder in its place."""
    uid = os.geteuid()
    trusted_gid = os.getegid() if uid else 0
    for at in [path, *path.parents]:
        found = at.lstat()
        others = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and found.st_gid != trusted_gid
        )
        # In a sticky folder others can add names, not replace ours; what we put files into is no such folder.
        if found.st_uid not in (0, uid) or (others and (at == path or not found.st_mode & stat.S_ISVTX)):
            raise PermissionError(
                f"folder {path}: {at} belongs to user {found.st_uid} and has mode {found.st_mode & 0o7777:04o}, so "
                "others could replace the daemons' key and sockets; choose a folder of your own"
            )


def _write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Puts a new file in the place of what is there; a link is replaced, not followed."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "w") as file:
        file.write(text)
    fresh.replace(path)


class Cluster:
    """Daemons on this machine, one per node, over one backing directory; a context manager.

    ``folder`` must be writable by nobody else and its path short (sockets live in it); ``arguments`` go to every
    daemon. Not for several threads. Raises PermissionError where others could change what is in the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        backing: str | os.PathLike[str],
        nodes: int = 1,
        arguments: Sequence[object] = (),
    ) -> None:
        self.folder = Path(folder)
        self.backing = Path(backing)
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _check_owner(self.folder.resolve())
        self._arguments = [str(argument) for argument in arguments]
        key = self.folder / "key"
        _write_new(key, secrets.token_hex(32), 0o600)
        #: The cluster key file.
        self.key = str(key)
        #: Each node's socket.
        self.sockets = [str(self.folder / f"node{node}.sock") for node in range(nodes)]
        self._addresses: list[str] = ["127.0.0.1:0"] * nodes
        self._daemons: list[subprocess.Popen[bytes] | None] = [None] * nodes

    @property
    def nodes(self) -> list[str]:
        """Each node's "host:port", for writers."""
        return list(self._addresses)

    @property
    def testbed(self) -> str:
        """A folder for $ZAZEN_TESTBED, with which rank r of a job uses node r modulo the number of nodes."""
        return str(self.folder)

    def start(self, node: int) -> None:
        """Starts the node's daemon, with its former cache and port; returns when it serves."""
        ready = self.folder / f"node{node}.ready"
        ready.unlink(missing_ok=True)
        command = [program("zazend"), "--cache", str(self.folder / f"cache{node}")]
        command += ["--backing", str(self.backing)]
        command += ["--socket", self.sockets[node], "--listen", self._addresses[node], "--key", self.key]
        command += [
            "--name",
            f"node{node}",
            "--free-floor",
            "0",
            "--ready-file",
            str(ready),
            *self._arguments,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}
        log = self.log(node)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(log, flags, 0o644), "ab") as out:
            daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        self._daemons[node] = daemon
        self._addresses[node] = self._await(daemon, ready, log)["listen"]

    @staticmethod
    def _await(daemon: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, str]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                serving: dict[str, str] = json.loads(ready.read_text())
                return serving
            except (FileNotFoundError, json.JSONDecodeError):
                if daemon.poll() is not None:
                    break
                time.sleep(0.01)
        daemon.kill()
        daemon.wait()
        raise RuntimeError(f"zazend did not start:\n{log.read_text(errors='replace')}")

    def stop(self, node: int) -> int:
        """Stops the node's daemon in good order (SIGTERM); returns its exit status."""
        return self._end(node, signal.SIGTERM)

    def kill(self, node: int) -> None:
        """Kills the node's daemon (SIGKILL), as a crash would."""
        self._end(node, signal.SIGKILL)

    def pid(self, node: int) -> int:
        """The process id of the node's daemon. Raises RuntimeError if it was stopped or killed here."""
        daemon = self._daemons[node]
        if daemon is None:
            raise RuntimeError(f"node {node} has no daemon: start({node}) it")
        return daemon.pid

    def pause(self, node: int) -> None:
        """Makes the node's daemon hang (SIGSTOP)."""
        os.kill(self.pid(node), signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Lets a daemon that hangs go on (SIGCONT)."""
        os.kill(self.pid(node), signal.SIGCONT)

    def _end(self, node: int, how: signal.Signals) -> int:
        daemon = self._daemons[node]
        self._daemons[node] = None
        if daemon is None:
            return 0
        daemon.send_signal(how)
        # One that hangs ends when it goes on.
        daemon.send_signal(signal.SIGCONT)
        try:
            return daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
            raise

    def log(self, node: int) -> Path:
        """The file that the node's daemon logs to."""
        return self.folder / f"node{node}.log"

    def __enter__(self) -> Cluster:
        try:
            for node in range(len(self.sockets)):
                self.start(node)
        except BaseException:
            self.__exit__()
            raise
        names = [f"node{node}" for node in range(len(self.sockets))]
        nodes = [
            {"name": name, "socket": socket, "addr": address}
            for name, socket, address in zip(names, self.sockets, self._addresses, strict=True)
        ]
        _write_new(self.folder / "testbed.json", json.dumps({"version": 1, "nodes": nodes, "backing": None}))
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None = None,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        for node in range(len(self.sockets)):
            self._end(node, signal.SIGTERM)
