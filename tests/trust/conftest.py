"""Two ordinary users on a machine whose daemon is root's: A owns data, B attacks.

The users are numbers that no account of this machine has: the kernel asks for no more. A test acts
for one of them in a child process that has fully become that user (`User.run`) or in a program
(`User.start`). What needs several users is skipped without root, and says so.
"""

from __future__ import annotations

import itertools
import os
import pickle
import pwd
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zazen
import zazen.testing

SECONDS_MAX = 120


class User:
    """One user without an account; `groups` are its supplementary groups."""

    def __init__(self, name: str, uid: int, groups: tuple[int, ...] = ()) -> None:
        self.name, self.uid, self.gid, self.groups = name, uid, uid, groups

    def _become(self) -> None:
        os.setgroups(list(self.groups))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def run(self, function: Callable[..., Any], *arguments: Any, seconds: int = SECONDS_MAX) -> Any:
        """What `function(*arguments)` returns, run as this user in a forked child; its exception is
        raised here.

        The child does not import from folders that this user may not search: import what it needs
        before.
        """
        result, told = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(result)
                signal.alarm(seconds)
                self._become()
                try:
                    answer = (True, function(*arguments))
                except BaseException as error:
                    answer = (False, (error, traceback.format_exc()))
                try:
                    text = pickle.dumps(answer)
                except Exception:
                    text = pickle.dumps((False, (RuntimeError(repr(answer[1])), "")))
                with os.fdopen(told, "wb") as pipe:
                    pipe.write(text)
                status = 0
            finally:
                os._exit(status)
        os.close(told)
        with os.fdopen(result, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        assert text, f"{self.name}'s process ended with wait status {status} and without an answer"
        succeeded, answer = pickle.loads(text)
        if succeeded:
            return answer
        error, trace = answer
        error.add_note(f"raised in the process of user {self.name}:\n{trace}")
        raise error

    def start(self, *words: object, **options: Any) -> subprocess.Popen:
        """Starts a program as this user; outputs are pipes of text unless `options` say
        otherwise."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": "/"} | options
        return subprocess.Popen(
            [*map(str, words)], user=self.uid, group=self.gid, extra_groups=list(self.groups), **options
        )

    def popen(self, words: list[str], **options: Any) -> subprocess.Popen:
        """`start` in the place of subprocess.Popen, for `zazen.testing.Daemon`."""
        return self.start(*words, **options)

    def call(self, *words: object, **options: Any) -> subprocess.CompletedProcess:
        """Runs a program as this user to its end; the exit code is the caller's to check."""
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def own(self, path: Path, mode: int | None = None) -> Path:
        """Gives `path` to this user."""
        os.chown(path, self.uid, self.gid)
        if mode is not None:
            path.chmod(mode)
        return path


def _is_free(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return True
    return False


@pytest.fixture(scope="session")
def users() -> tuple[User, User]:
    """(A, B). They share the supplementary group `A.groups[0]`, and no other."""
    if os.geteuid() != 0:
        pytest.skip("acting as two users needs root")
    # Tests that run side by side (pytest-xdist) have users of their own.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    uids = list(itertools.islice(filter(_is_free, itertools.count(64_101 + 100 * worker)), 2))
    shared = (64_900 - worker,)
    return User("A", uids[0], shared), User("B", uids[1], shared)


@pytest.fixture(scope="session")
def a(users) -> User:
    """The owner of data."""
    return users[0]


@pytest.fixture(scope="session")
def b(users) -> User:
    """The attacker."""
    return users[1]


@pytest.fixture
def ground():
    """A folder that every user may search, with a short path; root's and without others' write
    permission."""
    folder = Path(tempfile.mkdtemp(prefix="zzt-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def programs():
    """A folder that every user may search with copies of `zazen` and `zazend`."""
    folder = Path(tempfile.mkdtemp(prefix="zzp-"))
    folder.chmod(0o755)
    for name in ("zazen", "zazend"):
        shutil.copy(zazen.testing.program(name), folder / name)
        (folder / name).chmod(0o755)
    libraries = Path(zazen.__file__).parent / "lib"
    (folder / "lib").mkdir()
    for library in libraries.glob("*.so"):
        shutil.copy(library, folder / library.name)
        (folder / library.name).chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def flood(programs):
    """A program that opens connections as fast as it can."""
    flood = programs / "flood"
    subprocess.run(["cc", "-O2", "-o", flood, Path(__file__).with_name("flood.c")], check=True)
    return flood


class Node(zazen.testing.Daemon):
    """Root's daemon over `ground`/backing, whose socket every user may reach."""

    def __init__(self, ground: Path, programs: Path, *arguments: object) -> None:
        backing = ground / "backing"
        backing.mkdir(exist_ok=True)
        backing.chmod(0o755)
        super().__init__(ground, backing, arguments, zazend=programs / "zazend")


@pytest.fixture
def start_node(ground, programs):
    """Starts root's daemon with more arguments; ends it with the test."""
    if os.geteuid() != 0:
        pytest.skip("a daemon for several users needs root")
    nodes: list[Node] = []

    def start(*arguments: object) -> Node:
        nodes.append(Node(ground, programs, *arguments))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def node(start_node) -> Node:
    """Root's daemon."""
    return start_node()


def write_frames(folder: Path, owner: User | None = None, mode: int = 0o644,
                 count: int = 4, name: str = "f-{}.bin",
                 size: int = 140_000) -> list[Path]:  # fmt: skip
    """Frames 0 … count - 1 in `folder`, each full of its own byte; `owner` owns them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(count):
        file = folder / name.format(number)
        file.write_bytes(bytes([number + 1]) * size)
        file.chmod(mode)
        if owner is not None:
            owner.own(file)
        files.append(file)
    return files


def read_frames(dataset: Path, socket: Path, **options: Any) -> dict[int, bytes]:
    """All frames of `dataset` through the daemon at `socket`: their numbers and bytes."""
    with zazen.open(str(dataset), socket=str(socket), **options) as opened:
        return {number: bytes(data) for number, data, _ in opened.frames()}
