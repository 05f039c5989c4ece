"""The namespace between two users: A has files; B has a library connection, a mount, and messages
made by hand.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
import subprocess
from pathlib import Path

import pytest
import wire
import zazen.testing
from zazen import namespace

NOBODY = 65_534
NAMESPACE = 4
ASK, READ, CLOSE, DESCRIPTOR, WATCH, SCRUB, BALANCE = 2, 3, 9, 10, 11, 14, 16
BETWEEN_DAEMONS = (32, 33, 34, 35, 36, 40)
GET_ATTRIBUTES, READ_DIRECTORY, OPEN, COMMIT, SET_XATTR, LIST_XATTR, BUCKETS = 2, 12, 14, 15, 17, 19, 22
COPIED, TAKE_OVER = 40, 41
EPERM, EACCES, EINVAL, ESTALE = 1, 13, 22, 116
SECRET = b"A's secret"


@pytest.fixture
def node(start_node, ground):
    return start_node("--namespace", ground / "ns", "--namespace-format")


def library(node) -> namespace.Namespace:
    return namespace.Namespace(str(node.socket), umask=0o022)


def prepare(node) -> dict[str, int]:
    """A's files: a closed folder and an open one. The numbers of their inodes."""
    ns = library(node)
    for folder, mode in (("/closed", 0o700), ("/open", 0o755)):
        ns.mkdir(folder)
        ns.write_bytes(f"{folder}/f", SECRET)
        ns.chmod(folder, mode)
    ns.write_bytes("/open/private", SECRET)
    ns.chmod("/open/private", 0o600)
    names = ("/closed", "/closed/f", "/open", "/open/f", "/open/private")
    return {name: ns.stat(name).st_ino for name in names}


def attempts(ns) -> list[tuple[str, bool]]:
    """What B tries, and whether it was refused for want of rights."""

    def write(path):
        with ns.open(path, "r+b") as file:
            file.write(b"B was here")

    tries = {
        "read": lambda: ns.read_bytes("/closed/f"),
        "stat": lambda: ns.stat("/closed/f"),
        "list": lambda: ns.listdir("/closed"),
        "make inside": lambda: ns.write_bytes("/closed/new", b""),
        "read a private file": lambda: ns.read_bytes("/open/private"),
        "write": lambda: write("/open/f"),
        "cut": lambda: ns.truncate("/open/f", 0),
        "replace": lambda: ns.write_bytes("/open/f", b""),
        "make beside": lambda: ns.write_bytes("/open/new", b""),
        "remove": lambda: ns.unlink("/open/f"),
        "take out of a sticky folder": lambda: ns.rename("/open", "/mine"),
        "remove a folder": lambda: ns.rmdir("/closed"),
        "change the mode": lambda: ns.chmod("/open/f", 0o777),
        "take": lambda: ns.chown("/open/f", os.geteuid(), -1),
        "set times": lambda: ns.utime("/open/f", ns=(1, 1)),
        "name": lambda: ns.link("/open/f", "/mine"),
        "wish copies of a file": lambda: ns.setxattr("/open/f", "user.zazen.copies", b"8"),
        "wish copies of a folder": lambda: ns.setxattr("/open", "user.zazen.copies", b"8"),
        "wish copies of all": lambda: ns.setxattr("/", "user.zazen.copies", b"8"),
        "be trusted": lambda: ns.setxattr("/open/f", "trusted.zazen", b"8"),
        "move a file there": lambda: ns.rename("/bait", "/open/f"),
    }
    ns.write_bytes("/bait", b"bait")
    refused = []
    for name, act in tries.items():
        try:
            act()
        except PermissionError:
            refused.append((name, True))
        else:
            refused.append((name, False))
    ns.unlink("/bait")
    return refused


def check_attempts(refused: list[tuple[str, bool]]) -> None:
    assert refused and [name for name, was_refused in refused if not was_refused] == []


def whole(ns) -> None:
    assert ns.read_bytes("/closed/f") == ns.read_bytes("/open/f") == SECRET
    assert ns.listdir("/closed") == ["f"] and sorted(ns.listdir("/open")) == ["f", "private"]
    assert stat.S_IMODE(ns.stat("/open/f").st_mode) == 0o644 and ns.stat("/open/f").st_nlink == 1
    assert ns.listxattr("/open") == ns.listxattr("/open/f") == []


def test_modes_hold_for_a_library_connection(a, b, node):
    a.run(prepare, node)
    check_attempts(b.run(lambda: attempts(library(node))))
    assert b.run(lambda: library(node).read_bytes("/open/f")) == SECRET
    a.run(lambda: whole(library(node)))


def test_root_is_nobody_unless_it_is_trusted(a, node, start_node, tmp_path):
    a.run(prepare, node)
    ns = library(node)
    check_attempts(attempts(ns))
    ns.write_bytes("/roots", b"")
    assert (ns.stat("/roots").st_uid, ns.stat("/roots").st_gid) == (NOBODY, NOBODY)
    with pytest.raises(PermissionError):
        ns.chown("/roots", 0, 0)
    a.run(lambda: whole(library(node)))
    # Root's name does not help either: the daemon speaks for it, but not as root.
    raw = Asker(node.socket)
    assert raw.ask(COMMIT, struct.pack("<QQQQq", 1, 1, 0, 0, 0), (0, 0)) == EPERM
    # Another daemon over the same files.
    node.stop()
    trusting = start_node("--namespace", Path(node.cache).parent / "ns", "--namespace-root", "trust")
    assert library(trusting).read_bytes("/closed/f") == SECRET


class Asker(wire.Raw):
    """A caller that asks operations by hand."""

    def ask(self, operation: int, message: bytes, uid_gid: tuple[int, int] | None = None) -> int:
        """The errno of the answer; 0 if it is none."""
        whom = b"\0" if uid_gid is None else b"\1" + struct.pack("<III", *uid_gid, 0)
        ask = wire.record(whom + bytes([operation]) + wire.record(message))
        self.send(NAMESPACE, ASK, struct.pack("<I", 1) + ask)
        answer = self.reply()
        # The number of answers, a record, the answer's tag, a record.
        assert struct.unpack_from("<I", answer)[0] == 1
        refused = answer[8] == 2
        return struct.unpack_from("<H", answer, 13)[0] if refused else 0


def operations_on(inode: int) -> dict[str, tuple[int, bytes]]:
    number = struct.pack("<Q", inode)
    return {
        "attributes": (GET_ATTRIBUTES, number),
        "names of attributes": (LIST_XATTR, number),
        "open": (OPEN, number + wire.record(b"\1\0\0")),
        "open for writing": (OPEN, number + wire.record(b"\1\1\0")),
        "list": (READ_DIRECTORY, number + struct.pack("<QIB", 0, 65536, 1)),
        "set": (SET_XATTR, number + wire.text("user.zazen.copies") + b"\1" + wire.text("8") + b"\0\0"),
    }


def test_numbers_of_inodes_are_no_way_in(a, b, node):
    inodes = a.run(prepare, node)

    def attack() -> list[str]:
        raw = Asker(node.socket)
        got = []
        for path, inode in inodes.items():
            for near in range(inode - 3, inode + 4):
                for what, (operation, message) in operations_on(near).items():
                    errno = raw.ask(operation, message)
                    root = near == library(node).stat("/").st_ino
                    if errno not in (EACCES, EPERM, ESTALE) and not root:
                        got.append(f"{what} of {path} and {near - inode}: {errno}")
            # In another's name, and in root's.
            for whom in ((a.uid, a.gid), (0, 0)):
                for what, (operation, message) in operations_on(inode).items():
                    if raw.ask(operation, message, whom) != EPERM:
                        got.append(f"{what} of {path} as {whom}")
        # What only daemons say of files.
        inode = struct.pack("<Q", inodes["/open/f"])
        for operation, message in ((COMMIT, inode + struct.pack("<QQQq", 1, 0, 0, 0)), (BUCKETS, inode)):
            if raw.ask(operation, message) not in (EPERM, EACCES):
                got.append(f"operation {operation}")
        return got

    assert b.run(attack) == []
    a.run(lambda: whole(library(node)))


def test_handles_of_others_and_functions_of_daemons(a, b, node, programs):
    a.run(prepare, node)

    def attack() -> list[object]:
        raw = Asker(node.socket)
        got: list[object] = []
        for function in BETWEEN_DAEMONS:
            for payload in (b"", bytes(64), b"\xff" * 200):
                try:
                    raw.send(NAMESPACE, function, payload)
                    raw.reply()
                    got.append(function)
                except wire.Refused as refused:
                    if "other daemons" not in str(refused):
                        got.append(str(refused))
        for function in (SCRUB, BALANCE):
            try:
                raw.send(NAMESPACE, function, bytes(64))
                raw.reply()
                got.append(function)
            except wire.Refused as refused:
                if "only root" not in str(refused):
                    got.append(str(refused))
        return got

    assert b.run(attack) == []
    for words in (("scrub",), ("balance",), ("set", "/open", "--copies", "3")):
        refused = b.call(programs / "zazen", "namespace", *words, "--socket", node.socket)
        assert refused.returncode != 0, refused
        assert (
            "only root" in refused.stderr or "denied" in refused.stderr or "not permitted" in refused.stderr
        )
    a.run(lambda: whole(library(node)))


def test_an_open_file_is_its_callers_own(a, b, node):
    """B names the numbers of A's handles, while A has a file open."""
    a.run(prepare, node)
    mine, theirs = os.pipe()
    end, ended = os.pipe()
    child = os.fork()
    if child == 0:
        a._become()
        with library(node).open("/closed/f", "r+b"):
            os.write(theirs, b"x")
            os.read(end, 1)
        os._exit(0)
    try:
        assert os.read(mine, 1) == b"x"

        def attack() -> list[int]:
            raw = Asker(node.socket)
            # B's own handle: numbers near it are those of others.
            library(node).write_bytes("/of-b", b"b")
            inode = library(node).stat("/of-b").st_ino
            raw.send(NAMESPACE, ASK, b"")
            with pytest.raises(wire.Refused):
                raw.reply()
            own = library(node).open("/of-b", "rb")
            got = []
            calls = itertools.count(1)
            for handle in (*range(200), 1 << 63, inode):
                for function in (READ, CLOSE, DESCRIPTOR):
                    call = struct.pack("<QQQIQI", handle, 0, 10, 0, next(calls), 0)
                    raw.send(NAMESPACE, function, call)
                    answer = raw.reply()
                    if answer[0] == 0:
                        got.append(handle)
            own.close()
            return got

        assert b.run(attack) == []
    finally:
        os.write(ended, b"x")
        assert os.waitpid(child, 0)[1] == 0
        for descriptor in (mine, theirs, end, ended):
            os.close(descriptor)


def test_watching_tells_nothing_of_a_closed_folder(a, b, node):
    a.run(prepare, node)

    def attack() -> tuple[int, list[bytes]]:
        raw = Asker(node.socket)
        raw.send(NAMESPACE, WATCH, struct.pack("<Q", 0))
        first = raw.reply()
        after = struct.unpack_from("<Q", first)[0]
        # A works meanwhile, in a process of its own.
        os.write(ready[1], b"x")
        answers = []
        for _ in range(2):
            raw.send(NAMESPACE, WATCH, struct.pack("<Q", after))
            answer = raw.reply()
            after = struct.unpack_from("<Q", answer)[0]
            answers.append(answer[9:])
        return after, answers

    ready = os.pipe()
    worker = os.fork()
    if worker == 0:
        status = 1
        try:
            a._become()
            os.read(ready[0], 1)
            ns = library(node)
            for number in range(20):
                ns.write_bytes(f"/closed/n{number}", b"x")
                ns.unlink(f"/closed/n{number}")
            status = 0
        finally:
            os._exit(status)
    try:
        _, answers = b.run(attack)
    finally:
        assert os.waitpid(worker, 0)[1] == 0
        for descriptor in ready:
            os.close(descriptor)
    # Two empty lists: no inodes, no names.
    assert answers == [bytes(8)] * 2


def test_messages_are_bounded(b, node):
    def attack() -> list[object]:
        got: list[object] = []
        ask = wire.record(b"\0" + bytes([GET_ATTRIBUTES]) + wire.record(struct.pack("<Q", 1)))
        for payload in (struct.pack("<I", 1025) + 1025 * ask, struct.pack("<I", 2**32 - 1), b"\xff" * 5000):
            raw = Asker(node.socket)
            try:
                raw.send(NAMESPACE, ASK, payload)
                raw.reply()
                got.append(len(payload))
            except wire.Refused:
                pass
        raw = Asker(node.socket)
        groups = b"\1" + struct.pack("<III", os.geteuid(), os.getegid(), 2**32 - 1)
        many = wire.record(groups + bytes([GET_ATTRIBUTES]) + wire.record(struct.pack("<Q", 1)))
        try:
            raw.send(NAMESPACE, ASK, struct.pack("<I", 1) + many)
            raw.reply()
            got.append("groups")
        except wire.Refused:
            pass
        return got

    assert b.run(attack) == []
    assert b.run(lambda: library(node).listdir("/")) == []


class Mounted:
    """What `attempts` asks of a namespace, over a mount."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def open(self, path, mode):
        return open(self._root + path, mode, buffering=0)

    def read_bytes(self, path):
        return Path(self._root + path).read_bytes()

    def write_bytes(self, path, data):
        Path(self._root + path).write_bytes(data)

    def __getattr__(self, name):
        of_os = getattr(os, name)
        two = name in ("rename", "link")
        place = lambda path: self._root + path  # noqa: E731

        def act(path, *rest, **options):
            if two:
                return of_os(place(path), place(rest[0]))
            return of_os(place(path), *rest, **options)

        return act


@pytest.fixture
def mounted(node, ground, programs):
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    place = ground / "mnt"
    place.mkdir()
    words = [programs / "zazen", "mount", place, "--socket", node.socket]
    done = subprocess.run(
        words, env=zazen.testing.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done
    yield place
    subprocess.run(
        [programs / "zazen", "unmount", place], env=zazen.testing.environment(), timeout=120, check=False
    )


def test_modes_hold_in_a_mount_also_for_root(a, b, node, mounted):
    a.run(prepare, node)
    check_attempts(b.run(lambda: attempts(Mounted(mounted))))
    assert b.run(lambda: Mounted(mounted).read_bytes("/open/f")) == SECRET
    check_attempts(attempts(Mounted(mounted)))
    (mounted / "roots").write_bytes(b"")
    assert (mounted / "roots").stat().st_uid == NOBODY
    a.run(lambda: whole(Mounted(mounted)))


def test_root_passes_no_closed_folder_by_names_that_its_owner_looked_up(a, node, mounted):
    """The kernel keeps names for a second, and root passes all folders."""
    a.run(prepare, node)
    a.run(lambda: (mounted / "closed" / "sub").mkdir())
    for _ in range(10):
        a.run(lambda: (mounted / "closed" / "f").read_bytes() and os.stat(mounted / "closed" / "sub"))
        with pytest.raises(PermissionError):
            (mounted / "closed" / "f").read_bytes()
        for act in (os.listdir, os.listxattr):
            with pytest.raises(PermissionError):
                act(mounted / "closed" / "sub")
        # The same in a folder that is open.
        a.run(lambda: (mounted / "open" / "f").read_bytes())
        assert (mounted / "open" / "f").read_bytes() == SECRET
        assert sorted(os.listdir(mounted / "open")) == ["f", "private"]
    a.run(lambda: (mounted / "closed" / "sub").rmdir())
    a.run(lambda: whole(Mounted(mounted)))


def test_the_log_of_a_mount_goes_into_no_file_of_another_user(b, node, ground, programs):
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    shared, victim, place = ground / "shared", ground / "victim", ground / "mnt"
    for folder in (shared, place):
        folder.mkdir()
    shared.chmod(0o1777)
    victim.write_bytes(b"precious")
    b.run(os.symlink, victim, shared / "link")
    b.run((shared / "file").write_bytes, b"B's")
    b.run(os.mkfifo, shared / "fifo")
    (shared / "two").hardlink_to(victim)
    how = {"env": zazen.testing.environment(), "capture_output": True, "text": True, "timeout": 120}

    def mount(log):
        words = [programs / "zazen", "mount", place, "--socket", node.socket, "--log", log]
        return subprocess.run(words, check=False, **how)

    for name in ("link", "file", "fifo", "two", "none/log"):
        done = mount(shared / name)
        assert done.returncode != 0 and str(shared / name) in done.stderr, done
        assert not os.path.ismount(place)
    assert victim.read_bytes() == b"precious" and (shared / "file").read_bytes() == b"B's"
    done = mount(shared / "log")
    assert done.returncode == 0, done
    try:
        assert os.path.ismount(place) and (shared / "log").stat().st_uid == 0
    finally:
        subprocess.run([programs / "zazen", "unmount", place], check=True, **how)


def test_staging_follows_no_link_of_another_user(a, b, node, ground, programs):
    a.run(prepare, node)
    for name in ("own", "target"):
        (ground / name).mkdir()
    own = a.own(ground / "own", 0o700)
    (own / "profile").write_bytes(b"A's own")
    a.own(own / "profile", 0o600)
    target = b.own(ground / "target", 0o777)
    os.symlink(own / "profile", target / "f")
    os.symlink(own / "profile", target / ".f.zazen-part")
    os.lchown(target / "f", b.uid, b.gid)
    done = a.call(programs / "zazen", "stage-out", "/open", target, "--socket", node.socket)
    assert (own / "profile").read_bytes() == b"A's own", done
    for name in ("f", "private"):
        path = target / name
        assert done.returncode != 0 or (not path.is_symlink() and path.read_bytes() == SECRET), done
    # Into the namespace: B's link there leads to A's file.
    b.run(lambda: (library(node).mkdir("/drop"), library(node).chmod("/drop", 0o777)))
    b.run(lambda: library(node).symlink("/closed/f", "/drop/profile"))
    done = a.call(programs / "zazen", "stage-in", own, "/drop", "--socket", node.socket)
    a.run(lambda: whole(library(node)))
    # Bytes of A do not become B's to read.
    with pytest.raises((PermissionError, FileNotFoundError)):
        b.run(lambda: library(node).read_bytes("/drop/profile"))
