"""Daemons of your own, for tests: each with a cache, a socket and a port, in a folder that the test
owns.

`Daemon` is one; `Cluster` is several over one backing store, with one key.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Cluster", "Daemon", "environment", "program"]

START_SECONDS_MAX = 30.0
#: How long a restart waits for the port that it had.
PORT_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 60.0


def program(name: str) -> str:
    """The path of `zazen` or `zazend`: named by $ZAZEN or $ZAZEND, beside the running Python, or on
    the PATH.

    Raises FileNotFoundError if it is not found.
    """
    beside = Path(sys.executable).parent / name
    found = os.environ.get(name.upper()) or (str(beside) if beside.exists() else shutil.which(name))
    if found is None:
        raise FileNotFoundError(
            f"no program {name}: set ${name.upper()}, or `pip install .` into this environment"
        )
    return found


def environment() -> dict[str, str]:
    """This process's environment without Zazen's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}


def _check_owner(path: Path) -> None:
    """Raises PermissionError if others could change what lies at `path`, or put another folder in
    its place."""
    uid = os.geteuid()
    trusted_gid = os.getegid() if uid else 0
    for at in [path, *path.parents]:
        found = at.lstat()
        others = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and found.st_gid != trusted_gid
        )
        # In a sticky folder others can add names, not replace ours; what we put files into is no
        # such folder.
        if found.st_uid not in (0, uid) or (others and (at == path or not found.st_mode & stat.S_ISVTX)):
            raise PermissionError(
                f"folder {path}: {at} belongs to user {found.st_uid} and has mode "
                f"{found.st_mode & 0o7777:04o}, so others could replace the daemons' key and sockets; "
                "choose a folder of your own"
            )


def _write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Puts a new file in the place of what is there; a link is replaced, not followed."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "w") as file:
        file.write(text)
    fresh.replace(path)


class Daemon:
    """One daemon on this machine, over one backing directory; a context manager. Stopped, it can be
    started again.

    Its files are in ``folder``, unless ``cache``, ``socket`` or ``log`` say otherwise. The folder
    must exist and have a short path, because the socket is in it. ``arguments`` are more flags of
    zazend. ``listen``: "host:port" of its TCP listener, which needs a ``key`` file. ``variables``
    are added to its environment, which has none of this process's Zazen settings. ``popen`` starts
    the process, as subprocess.Popen does. Give your own to start the daemon as another user.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        backing: str | os.PathLike[str],
        arguments: Sequence[object] = (),
        *,
        cache: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        key: str | os.PathLike[str] | None = None,
        name: str | None = None,
        free_floor: str | None = "0",
        zazend: str | os.PathLike[str] | None = None,
        variables: Mapping[str, str] | None = None,
        popen: Callable[..., subprocess.Popen[Any]] | None = None,
    ) -> None:
        folder = Path(folder)
        # What is changed here counts at the next start.
        self.backing, self.arguments = Path(backing), list(arguments)
        self.cache = Path(cache or folder / "cache")
        self.socket = Path(socket or folder / "s")
        self.log = Path(log or folder / "log")
        #: "host:port" of its TCP listener: the requested one; once it serves, the actual one.
        self.address = listen
        #: The running process; None before `start` and after `stop` or `kill`.
        self.process: subprocess.Popen[Any] | None = None
        self._ready = self.log.with_suffix(".ready")
        self._has_served = False
        self.popen: Callable[..., subprocess.Popen[Any]] | None = popen
        self.zazend, self._variables = zazend, dict(variables or {})
        self._settings = {"--key": key, "--name": name, "--free-floor": free_floor}

    @property
    def command_line(self) -> list[str]:
        """The command that starts it."""
        words: list[object] = [self.zazend or program("zazend"), "--cache", self.cache]
        words += ["--backing", self.backing, "--socket", self.socket, "--ready-file", self._ready]
        for flag, value in (self._settings | {"--listen": self.address}).items():
            words += [flag, value] if value is not None else []
        return [str(word) for word in [*words, *self.arguments]]

    def start(self) -> None:
        """Starts it, with its former cache and port; returns when it serves. Raises RuntimeError if
        it ends instead.

        A connection of another program may have got its former port: it is waited for."""
        until = time.monotonic() + PORT_SECONDS_MAX
        while True:
            try:
                return self._start()
            except RuntimeError as error:
                last = str(error).strip().rpartition("\n")[2]
                if not (self._has_served and "is in use by another program" in last):
                    raise
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def _start(self) -> None:
        self._ready.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        popen = self.popen or subprocess.Popen
        with open(os.open(self.log, flags, 0o644), "ab") as out:
            self.process = popen(
                self.command_line,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment() | self._variables,
            )
        try:
            self.address = self._await_ready(self.process)["listen"]
            self._has_served = True
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[Any]) -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                serving: dict[str, Any] = json.loads(self._ready.read_text())
                return serving
            except (FileNotFoundError, json.JSONDecodeError):
                if process.poll() is not None:
                    break
                time.sleep(0.01)
        raise RuntimeError(f"zazend did not start:\n{self.log.read_text(errors='replace')}")

    @property
    def pid(self) -> int:
        """Its process id. Raises RuntimeError if it was stopped or killed here."""
        if self.process is None:
            raise RuntimeError(f"the daemon at {self.socket} does not run: start() it")
        return self.process.pid

    def stop(self) -> int:
        """Stops it in good order (SIGTERM); returns its exit status, 0 if it did not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Makes it hang (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it continue after `pause` (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        # A paused daemon ends only when it continues.
        process.send_signal(signal.SIGCONT)
        try:
            return process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None = None,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.stop()


class Cluster:
    """Daemons on this machine, one per node, over one backing directory; a context manager.

    ``folder`` must be writable by nobody else and its path short (sockets live in it);
    ``arguments`` go to every daemon. Not for several threads. Raises PermissionError where others
    could change what is in the folder.
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
        key = self.folder / "key"
        _write_new(key, secrets.token_hex(32), 0o600)
        #: The cluster key file.
        self.key = str(key)
        self._daemons = [self._daemon(node, arguments) for node in range(nodes)]
        #: Each node's socket.
        self.sockets = [str(daemon.socket) for daemon in self._daemons]

    def _daemon(self, node: int, arguments: Sequence[object]) -> Daemon:
        return Daemon(
            self.folder,
            self.backing,
            arguments,
            cache=self.folder / f"cache{node}",
            socket=self.folder / f"node{node}.sock",
            log=self.log(node),
            listen="127.0.0.1:0",
            key=self.key,
            name=f"node{node}",
        )

    @property
    def nodes(self) -> list[str]:
        """Each node's "host:port", for writers."""
        return [str(daemon.address) for daemon in self._daemons]

    @property
    def testbed(self) -> str:
        """A folder for $ZAZEN_TESTBED, with which rank r of a job uses node r modulo the number of
        nodes."""
        return str(self.folder)

    def start(self, node: int) -> None:
        """Starts the node's daemon, with its former cache and port; returns when it serves."""
        self._daemons[node].start()

    def stop(self, node: int) -> int:
        """Stops the node's daemon in good order (SIGTERM); returns its exit status."""
        return self._daemons[node].stop()

    def kill(self, node: int) -> None:
        """Kills the node's daemon (SIGKILL), as a crash would."""
        self._daemons[node].kill()

    def pid(self, node: int) -> int:
        """The process id of the node's daemon. Raises RuntimeError if it was stopped or killed
        here."""
        return self._daemons[node].pid

    def pause(self, node: int) -> None:
        """Makes the node's daemon hang (SIGSTOP)."""
        self._daemons[node].pause()

    def resume(self, node: int) -> None:
        """Lets a paused daemon continue (SIGCONT)."""
        self._daemons[node].resume()

    def log(self, node: int) -> Path:
        """The file that the node's daemon logs to."""
        return self.folder / f"node{node}.log"

    def __enter__(self) -> Cluster:
        try:
            for daemon in self._daemons:
                daemon.start()
        except BaseException:
            self.__exit__()
            raise
        nodes = [
            {"name": f"node{node}", "socket": socket, "addr": address}
            for node, (socket, address) in enumerate(zip(self.sockets, self.nodes, strict=True))
        ]
        _write_new(self.folder / "testbed.json", json.dumps({"version": 1, "nodes": nodes, "backing": None}))
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None = None,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        for daemon in self._daemons:
            daemon.stop()
