"""Which error a call gets that several things refuse: in a mount and by the library as on the
machine's own file system.

An ordinary user asks, in a tree that root made: files and directories that are missing, there,
somebody else's, in directories that may not be searched or written, or are sticky.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zazen.testing
from zazen import namespace

USER = 64_413
NO_REPLACE, EXCHANGE = 1, 2
RENAMEAT2 = {"x86_64": 316, "aarch64": 276}

# What root makes: a path, its mode, and whether it is the user's. With / at the end: a directory.
TREE = [
    ("open/", 0o777, False),
    ("open/f", 0o666, False),
    ("open/d/", 0o777, False),
    ("open/full/", 0o777, False),
    ("open/full/x", 0o666, False),
    ("fixed/", 0o755, False),
    ("fixed/f", 0o666, False),
    ("fixed/d/", 0o777, False),
    ("closed/", 0o700, False),
    ("closed/f", 0o666, False),
    ("sticky/", 0o1777, False),
    ("sticky/theirs", 0o666, False),
    ("sticky/theirs.d/", 0o777, False),
    ("sticky/mine", 0o666, True),
    ("sticky/mine.d/", 0o777, True),
]
PLAIN = [path for path, _, _ in TREE if not path.endswith("/")]
PATHS = [
    *PLAIN,
    *("open", "open/d", "open/full", "fixed/d", "sticky/theirs.d", "sticky/mine.d"),
    *("open/link", "open/none", "open/f/x", "fixed/none", "closed/none", "sticky/none", "none/x"),
    *("open/f/", "open/d/", "open/none/", "open/d/.", "open/d/..", "open/f/."),
]
# Those of which a call takes two: of each kind of reason one.
PAIRED = [
    *("open/f", "open/full", "open/full/x", "open/d", "open/none", "open/f/", "open/d/.", "open/d/.."),
    *("fixed/f", "fixed/none", "fixed/d", "closed/f", "closed/none", "none/x"),
    *("sticky/theirs", "sticky/mine", "sticky/theirs.d", "sticky/mine.d"),
]

Case = tuple[str, ...]


class Kernel:
    """The calls of a kernel, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def make(self, path: str, mode: int, mine: bool) -> None:
        at = self.at(path)
        if path.endswith("/"):
            os.mkdir(at)
        else:
            Path(at).write_bytes(b"bytes")
        os.chmod(at, mode)
        if mine:
            os.chown(at, USER, USER)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self.at(path))

    def rename2(self, source: str, target: str, flags: int) -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        source, target = self.at(source), self.at(target)
        if call(RENAMEAT2[os.uname().machine], -100, source.encode(), -100, target.encode(), flags) != 0:
            raise OSError(ctypes.get_errno(), "")

    def rename(self, source: str, target: str) -> None:
        os.rename(self.at(source), self.at(target))

    def rename_new(self, source: str, target: str) -> None:
        self.rename2(source, target, NO_REPLACE)

    def exchange(self, source: str, target: str) -> None:
        self.rename2(source, target, EXCHANGE)

    def link(self, source: str, target: str) -> None:
        os.link(self.at(source), self.at(target), follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(self.at(path))

    def new_symlink(self, path: str) -> None:
        self.symlink("f", path)

    def fifo(self, path: str) -> None:
        os.mkfifo(self.at(path))

    def read(self, path: str) -> None:
        with open(self.at(path), "rb"):
            pass

    def change(self, path: str) -> None:
        with open(self.at(path), "r+b"):
            pass

    def write(self, path: str) -> None:
        with open(self.at(path), "wb"):
            pass

    def new(self, path: str) -> None:
        with open(self.at(path), "xb"):
            pass

    def stat(self, path: str) -> None:
        os.stat(self.at(path))

    def chmod(self, path: str) -> None:
        os.chmod(self.at(path), 0o600)

    def list(self, path: str) -> None:
        os.listdir(self.at(path))


class Library(Kernel):
    """The calls of `zazen.namespace`."""

    def __init__(self, root: str, socket: Path) -> None:
        super().__init__(Path(root))
        self.socket = socket
        self.connect()

    def connect(self) -> None:
        self.ns = namespace.Namespace(self.socket, umask=0o022)

    def make(self, path: str, mode: int, mine: bool) -> None:
        at = self.at(path)
        if path.endswith("/"):
            self.ns.mkdir(at)
        else:
            self.ns.write_bytes(at, b"bytes")
        self.ns.chmod(at, mode)
        if mine:
            self.ns.chown(at, USER, USER)

    def symlink(self, target: str, path: str) -> None:
        self.ns.symlink(target, self.at(path))

    def rename(self, source: str, target: str) -> None:
        self.ns.rename(self.at(source), self.at(target))

    def link(self, source: str, target: str) -> None:
        self.ns.link(self.at(source), self.at(target))

    def unlink(self, path: str) -> None:
        self.ns.unlink(self.at(path))

    def rmdir(self, path: str) -> None:
        self.ns.rmdir(self.at(path))

    def mkdir(self, path: str) -> None:
        self.ns.mkdir(self.at(path))

    def read(self, path: str) -> None:
        self.ns.open(self.at(path), "rb").close()

    def change(self, path: str) -> None:
        self.ns.open(self.at(path), "r+b").close()

    def write(self, path: str) -> None:
        self.ns.open(self.at(path), "wb").close()

    def new(self, path: str) -> None:
        self.ns.open(self.at(path), "xb").close()

    def stat(self, path: str) -> None:
        self.ns.stat(self.at(path))

    def chmod(self, path: str) -> None:
        self.ns.chmod(self.at(path), 0o600)

    def list(self, path: str) -> None:
        self.ns.listdir(self.at(path))


ON_ONE = (
    "unlink",
    "rmdir",
    "mkdir",
    "new_symlink",
    "read",
    "change",
    "write",
    "new",
    "stat",
    "chmod",
    "list",
)


def kernel_cases() -> list[Case]:
    """All calls that a mount is asked for."""
    on_two = itertools.product(("rename", "rename_new", "exchange", "link"), PAIRED, PAIRED)
    return [*itertools.product((*ON_ONE, "fifo"), PATHS), *on_two]


def library_cases() -> list[Case]:
    """All calls that the library has.

    Without those that the kernel refuses by settings of its own (`protected_hardlinks` and
    `protected_regular`): hard links of what is no file, and opening somebody else's file in a
    sticky directory as one that may be new.
    """
    one = (case for case in itertools.product(ON_ONE, PATHS) if case != ("write", "sticky/theirs"))
    links = itertools.product(("link",), ("open/f", "fixed/f", "closed/f", "sticky/mine"), PAIRED)
    return [*one, *itertools.product(("rename",), PAIRED, PAIRED), *links]


def as_user(work: Callable[[], list[str]]) -> list[str]:
    """What `work` returns in a process of the user's."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            with open(writer, "w", encoding="utf-8") as pipe:
                json.dump(work(), pipe)
            os._exit(0)
        os._exit(1)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        told = pipe.read()
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, told
    return json.loads(told)


def outcomes(fresh: Callable[[str], Kernel], cases: list[Case]) -> Iterator[str]:
    """What each call comes to: `done` or the error's name.

    After a call that did something, the tree is made anew.
    """

    def until_done(side: Kernel, left: list[Case]) -> list[str]:
        if isinstance(side, Library):
            side.connect()
        told: list[str] = []
        for name, *paths in left:
            try:
                getattr(side, name)(*paths)
            except OSError as error:
                told.append(errno.errorcode[error.errno or 0])
            else:
                told.append("done")
                if name not in ("read", "change", "stat", "list"):
                    break
        return told

    at = 0
    while at < len(cases):
        side = fresh(f"tree{at}")
        for path, mode, mine in TREE:
            side.make(path, mode, mine)
        side.symlink("f", "open/link")
        left = cases[at:]
        told = as_user(lambda side=side, left=left: until_done(side, left))
        yield from told
        at += len(told)


def differences(cases: list[Case], fresh: Callable[[str], Kernel]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="zazen-plain-") as plain:
        os.chmod(plain, 0o755)

        def fresh_plain(name: str) -> Kernel:
            folder = Path(plain, name)
            folder.mkdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o755
            return Kernel(folder)

        expected = list(outcomes(fresh_plain, cases))
    got = list(outcomes(fresh, cases))
    told = zip(cases, expected, got, strict=True)
    return [f"{' '.join(case)}: {ours}, not {theirs}" for case, theirs, ours in told if ours != theirs]


def test_a_mount_refuses_as_a_local_file_system_does(run_inside):
    def test(node):
        mnt = node.mount()

        def fresh(name: str) -> Kernel:
            (mnt / name).mkdir()
            return Kernel(mnt / name)

        os.umask(0o022)
        assert differences(kernel_cases(), fresh) == []

    run_inside(test)


#: Where two things are wrong at once, the library may name the other one.
OTHER_REASON = [
    "unlink sticky/theirs.d: EISDIR, not EPERM",
    "rmdir sticky/theirs: ENOTDIR, not EPERM",
    "write open/f/.: EISDIR, not ENOTDIR",
    "new open/d/: EEXIST, not EISDIR",
    "new open/f/.: EISDIR, not ENOTDIR",
    "rename open/f/ closed/f: ENOTDIR, not EACCES",
    "rename open/f/ closed/none: ENOTDIR, not EACCES",
    "rename open/d/. closed/f: EBUSY, not EACCES",
    "rename open/d/. closed/none: EBUSY, not EACCES",
    "rename open/d/. none/x: EBUSY, not ENOENT",
    "rename open/d/.. closed/f: EBUSY, not EACCES",
    "rename open/d/.. closed/none: EBUSY, not EACCES",
    "rename open/d/.. none/x: EBUSY, not ENOENT",
    "rename closed/f open/d/.: EBUSY, not EACCES",
    "rename closed/f open/d/..: EBUSY, not EACCES",
    "rename closed/f none/x: ENOENT, not EACCES",
    "rename closed/none open/d/.: EBUSY, not EACCES",
    "rename closed/none open/d/..: EBUSY, not EACCES",
    "rename closed/none none/x: ENOENT, not EACCES",
    *(
        f"rename sticky/{name} fixed/{to}: EACCES, not EPERM"
        for name in ("theirs", "theirs.d")
        for to in ("f", "none", "d")
    ),
]


def test_the_library_refuses_as_a_local_file_system_does():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    before = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="zns-", dir="/tmp") as folder:
            place = Path(folder)
            place.chmod(0o755)
            for name in ("backing", "node"):
                (place / name).mkdir()
            arguments = ["--namespace", place / "data", "--namespace-format", "--namespace-root", "trust"]
            with zazen.testing.Daemon(place / "node", place / "backing", arguments=arguments) as daemon:
                ns = namespace.Namespace(daemon.socket, umask=0o022)

                def fresh(name: str) -> Kernel:
                    ns.mkdir(f"/{name}")
                    return Library(f"/{name}", daemon.socket)

                different = differences(library_cases(), fresh)
                assert different == OTHER_REASON, "\n".join(different)
    finally:
        os.umask(before)
