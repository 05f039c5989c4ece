"""Random operations of differential.py in which somebody else changes files: a program goes through
the files of a folder, one after the other, is told in the middle that some of them are others now,
and goes on.

The other one (`act`) works on the files' real place, in a process of its own, so that the same
happens to the program that runs directly and to the forwarded one. A change is done before the
program is told, and the program does nothing before it is told: so what it must see from then on is
determined. It is told in many ways, and asks again and again, without waiting: a wait would tell
the preload library that something may have happened.
"""

import contextlib
import errno
import fcntl
import io
import json
import mmap
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

# Folders that the other one makes at first: each step has its own, so that nothing in it is new.
FOLDERS = 16
# How long a change is news at the far side, in seconds, and more.
OLD = 3.2
FILES = 24

WALKS = ["listdir", "scandir", "sorted", "by number"]
PATHS = ["absolute", "relative", "folder's descriptor"]
LOOKS = ["none", "lstat", "stat", "lstat and stat", "access", "attribute", "lacking"]
USES = ["read", "in parts", "from the end", "at once", "map", "later", "nothing", "twice", "stream", "copy"]
CHANNELS = [
    "pipe", "name", "lock", "size", "end", "signal",
    "far stat", "far lstat", "far access", "far open", "far size", "far end", "far listing", "far rename",
    "far gone", "far mode", "far bytes", "far link",
]  # fmt: skip
KINDS = ["large", "empty", "hole", "link", "lost", "fifo", "folder", "hard", "mode", "32k"]
CHANGES = [
    "append", "cut", "rewrite", "replace", "remove", "mode", "rename", "link", "fifo", "folder", "hard link",
    "times", "swap", "empty", "new", "list", "attribute", "old",
]  # fmt: skip


NOBODYS = (1 << 32) - 1
# A list of who may access a file: its owner, user 1, the group, the mask, others.
ACCESS_LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in ((1, 6, NOBODYS), (2, 4, 1), (4, 4, NOBODYS), (16, 4, NOBODYS), (32, 4, NOBODYS))
)


def content(rng: random.Random, name: str, size: int) -> bytes:
    start = os.fsencode(f"{name} {rng.randrange(1 << 30)}\n")
    return (start * (size // len(start) + 1))[:size]


def make(root: str, seed: int) -> None:
    """Folders with files of many kinds."""
    rng = random.Random(seed)
    flags = os.path.join(root, "flags")
    os.makedirs(flags)
    for number in range(FOLDERS):
        # What a program asks for before it is told must be old, too.
        for kind in ("log", "there", "early"):
            write(os.path.join(flags, f"{number}-{kind}"), b"")
            os.chmod(os.path.join(flags, f"{number}-{kind}"), 0o644)
        folder = os.path.join(root, f"walk{number}")
        os.makedirs(folder)
        # In some of them one walk comes far, in others nothing goes with anything.
        odd = rng.choice([0.0, 0.05, 0.4])
        for at in range(FILES):
            name = f"f{at:02}" if rng.random() > 0.1 else os.fsdecode(b"f%02d \xff\n" % at)
            path = os.path.join(folder, name)
            if rng.random() > odd:
                write(path, content(rng, name, rng.choice([1, 10, 200, 3000, 20_000])))
                continue
            kind = rng.choice(KINDS)
            if kind == "large":
                write(path, content(rng, name, 100_000))
            elif kind == "32k":
                write(path, content(rng, name, (32 << 10) - rng.randrange(2)))
            elif kind in ("empty", "hole"):
                write(path, b"")
                os.truncate(path, 9000 if kind == "hole" else 0)
            elif kind in ("link", "lost"):
                os.symlink(f"f{rng.randrange(at + 1):02}" if kind == "link" else "nowhere", path)
            elif kind == "fifo":
                os.mkfifo(path)
            elif kind == "folder":
                os.mkdir(path)
            elif kind == "hard":
                write(path, b"two names")
                os.link(path, os.path.join(folder, f"z{at:02}"))
            else:
                write(path, b"nobody's")
                os.chmod(path, rng.choice([0, 0o200, 0o444, 0o4755]))


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def change(root: str, folder: str, name: str, what: str, seed: int) -> None:
    """One change. What cannot be done is left out: the same in both runs."""
    rng = random.Random(seed)
    place = os.path.join(root, folder)
    path = os.path.join(place, name)
    spare = os.path.join(root, "spare")
    is_file = os.path.isfile(path) and not os.path.islink(path)
    with contextlib.suppress(OSError):
        if what in ("append", "cut", "rewrite", "empty") and is_file:
            size = os.path.getsize(path)
            with open(path, "r+b") as file:
                if what == "append":
                    file.seek(0, 2)
                    file.write(content(rng, "more", rng.choice([1, 500])))
                elif what == "rewrite":
                    # As long as it was.
                    file.write(content(rng, "anew", size))
                else:
                    file.truncate(0 if what == "empty" else size // 2)
        elif what == "replace":
            write(spare, content(rng, "other", rng.choice([0, 5, 700, 50_000])))
            os.rename(spare, path)
        elif what == "remove":
            os.unlink(path)
        elif what == "mode":
            os.chmod(path, rng.choice([0, 0o600, 0o666]))
        elif what == "rename":
            os.rename(path, path + "-away")
        elif what in ("link", "fifo", "folder", "hard link"):
            os.unlink(path)
            if what == "link":
                os.symlink(rng.choice(["f00", "nowhere"]), path)
            elif what == "fifo":
                os.mkfifo(path)
            elif what == "folder":
                os.mkdir(path)
            else:
                os.link(os.path.join(place, "f01"), path)
        elif what == "times":
            os.utime(path, (1000, 2000), follow_symlinks=False)
        elif what == "list":
            os.setxattr(path, "system.posix_acl_access", ACCESS_LIST)
        elif what == "attribute":
            os.setxattr(path, "user.zazen", b"x", follow_symlinks=False)
        elif what == "old":
            # A file that was there before takes the place.
            os.rename(os.path.join(root, "flags", "0-early"), path)
        elif what == "new":
            write(os.path.join(place, "f99"), b"new")
        elif what == "swap":
            # Another folder by the same name; files of the same names in it.
            names = sorted(os.listdir(place))
            os.rename(place, place + f"-{seed}")
            os.mkdir(place)
            for other in names:
                write(os.path.join(place, other), content(rng, "swapped", rng.choice([3, 900])))


def act(root: str, seed: int, channel: str) -> None:
    """The other one: does what is ordered, and tells."""
    make(root, seed)
    time.sleep(OLD)
    lock = os.open(os.path.join(channel, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(lock, 0o666)
    fcntl.flock(lock, fcntl.LOCK_EX)
    flags = os.path.join(root, "flags")
    with (
        open(os.path.join(channel, "orders")) as orders,
        open(os.path.join(channel, "answers"), "wb", 0) as answers,
    ):
        answers.write(b"x")
        for line in orders:
            order = json.loads(line)
            number, by = order["number"], order["by"]
            flag = os.path.join(flags, f"{number}-")
            for name, what, at in order.get("changes", []):
                change(root, order["folder"], name, what, at)
            if by == "pipe":
                answers.write(b"x")
            elif by == "retake":
                fcntl.flock(lock, fcntl.LOCK_EX)
                answers.write(b"x")
            elif by == "name":
                write(os.path.join(channel, str(number)), b"")
            elif by == "lock":
                fcntl.flock(lock, fcntl.LOCK_UN)
            elif by in ("size", "end"):
                with open(os.path.join(channel, "log"), "ab", 0) as log:
                    log.write(b"x")
            elif by == "signal":
                os.kill(order["pid"], signal.SIGUSR1)
            else:
                tell_far(by, flag)


def tell_far(by: str, flag: str) -> None:
    if by in ("far size", "far end"):
        with open(flag + "log", "ab", 0) as log:
            log.write(b"x")
    elif by == "far bytes":
        write(flag + "there", b"told")
    elif by == "far gone":
        os.unlink(flag + "there")
    elif by == "far mode":
        os.chmod(flag + "there", 0o600)
    elif by == "far rename":
        os.rename(flag + "early", flag + "new")
    elif by == "far link":
        os.symlink("told", flag + "new")
    else:
        write(flag + "new", b"")


class Meanwhile:
    """The program's part; a class of differential.Player. `channel`: a folder of this machine."""

    def connect(self, channel: str) -> None:
        self.channel, self.number = channel, -1
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        self.orders = os.open(os.path.join(channel, "orders"), os.O_WRONLY)
        self.answers = os.open(os.path.join(channel, "answers"), os.O_RDONLY)
        # Its folders are there, and old enough.
        os.read(self.answers, 1)
        self.lock_fd = os.open(os.path.join(channel, "lock"), os.O_RDWR)
        self.log = os.open(os.path.join(channel, "log"), os.O_RDONLY | os.O_CREAT, 0o600)

    def order(self, **words) -> None:
        os.write(self.orders, (json.dumps({"number": self.number, **words}) + "\n").encode())

    def prepare(self, by: str) -> None:
        """Before the walk: afterwards, nothing is opened for the channel."""
        self.number += 1
        kind = "new"
        if by in ("far size", "far end"):
            kind = "log"
        elif by in ("far gone", "far mode", "far bytes"):
            kind = "there"
        self.flag = os.path.join(self.root, "flags", f"{self.number}-{kind}")
        self.far_log = os.open(self.flag, os.O_RDONLY) if by in ("far size", "far end") else -1
        self.known = os.fstat(self.log).st_size

    def told(self, by: str) -> bool:
        flag = self.flag
        if by == "name":
            return os.path.exists(os.path.join(self.channel, str(self.number)))
        if by == "lock":
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True
        if by == "size":
            return os.fstat(self.log).st_size > self.known
        if by == "end":
            return os.lseek(self.log, 0, os.SEEK_END) > self.known
        if by == "signal":
            return signal.sigtimedwait([signal.SIGUSR1], 0) is not None
        if by == "far size":
            return os.fstat(self.far_log).st_size > 0
        if by == "far end":
            return os.lseek(self.far_log, 0, os.SEEK_END) > 0
        if by == "far listing":
            return os.path.basename(flag) in os.listdir(os.path.dirname(flag))
        if by == "far access":
            return os.access(flag, os.F_OK)
        try:
            if by == "far mode":
                return stat.S_IMODE(os.stat(flag).st_mode) == 0o600
            if by == "far gone":
                os.stat(flag)
                return False
            if by == "far link":
                return os.readlink(flag) == "told"
            if by in ("far open", "far bytes"):
                fd = os.open(flag, os.O_RDONLY)
                told = by == "far open" or os.read(fd, 10) == b"told"
                os.close(fd)
                return told
            (os.lstat if by == "far lstat" else os.stat)(flag)
        except FileNotFoundError:
            return by == "far gone"
        return True

    def hear(self, by: str, changes: list, folder: str) -> None:
        self.order(by=by, changes=changes, folder=folder, pid=os.getpid())
        if by == "pipe":
            os.read(self.answers, 1)
            return
        while not self.told(by):
            pass

    def do_others(self, step):
        rng = random.Random(step["pick"] + 1000 * step["i"])
        folder = f"walk{step['i'] % FOLDERS}"
        place = os.path.join(self.root, folder)
        by = rng.choice(CHANNELS)
        self.prepare(by)
        walk, how, look, use = (rng.choice(all_) for all_ in (WALKS, PATHS, LOOKS, USES))
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        flags |= rng.choice([0, 0, os.O_NOFOLLOW, os.O_NOATIME, os.O_NOFOLLOW | os.O_NOATIME, os.O_SYNC])
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        dir_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        said, later = [by, walk, how, look, use, flags], []
        try:
            if how == "relative":
                os.chdir(place)
            names = self.names(walk, place, dir_fd)
            said.append(names)
            when = rng.randrange(3, FILES)
            # Of those that come next, and of those that were there before.
            near = [at for at in (when - 3, when - 1, *range(when, when + 7)) if at < len(names)]
            changes = [
                (names[at], rng.choice(CHANGES), rng.randrange(1 << 30))
                for at in rng.sample(near, min(len(near), rng.randrange(1, 4)))
            ]
            said.append(changes)
            where = dir_fd if how == "folder's descriptor" else None
            for at, name in enumerate(names):
                if at == when:
                    self.hear(by, changes, folder)
                    said.append([self.finish(one) for one in later])
                    later = []
                path = name if how != "absolute" else os.path.join(place, name)
                said.append([at, *self.visit(path, where, look, flags, use, later)])
            said.append([self.finish(one) for one in later])
            said.append(sorted(os.listdir(place)))
        finally:
            os.fchdir(here)
            for fd in (here, dir_fd):
                os.close(fd)
            if self.far_log >= 0:
                os.close(self.far_log)
        if by == "lock":
            fcntl.flock(self.lock_fd, fcntl.LOCK_UN)
            self.order(by="retake")
            os.read(self.answers, 1)
        return said

    def names(self, walk: str, place: str, dir_fd: int) -> list[str]:
        if walk == "listdir":
            return os.listdir(place)
        if walk == "by number":
            return os.listdir(dir_fd)
        if walk == "scandir":
            with os.scandir(place) as entries:
                return [entry.name for entry in entries]
        return sorted(os.listdir(place))

    def visit(self, path: str, where: int | None, look: str, flags: int, use: str, later: list) -> list:
        """What the program learns of a file."""
        said = []

        def see(what) -> None:
            try:
                said.append(self.said(what()))
            except OSError as error:
                said.append(errno.errorcode[error.errno])

        if look in ("lstat", "lstat and stat"):
            see(lambda: os.stat(path, dir_fd=where, follow_symlinks=False))
        if look in ("stat", "lstat and stat"):
            see(lambda: os.stat(path, dir_fd=where))
        if look == "access":
            see(lambda: os.access(path, os.W_OK, dir_fd=where))
        if look == "attribute" and where is None:
            see(lambda: os.listxattr(path))
        if look == "lacking" and where is None:
            see(lambda: os.lstat(path))
            see(lambda: os.getxattr(path, "system.posix_acl_access"))
        try:
            fd = os.open(path, flags, dir_fd=where)
        except OSError as error:
            return [*said, errno.errorcode[error.errno]]
        if use == "later" and len(later) < 6:
            later.append(fd)
            return [*said, fd]
        return [*said, self.finish(fd, use)]

    def finish(self, fd: int, use: str = "read") -> list:
        """What the program learns of an open file, which it closes."""
        said = [fd, self.said(os.fstat(fd)), fcntl.fcntl(fd, fcntl.F_GETFL)] if use != "nothing" else [fd]
        kept = None
        try:
            if use in ("read", "later", "twice"):
                said += [os.read(fd, 1 << 17), os.read(fd, 10), os.lseek(fd, 0, os.SEEK_CUR)]
            if use == "twice":
                kept = os.dup(fd)
                said += [os.lseek(kept, 2, os.SEEK_SET), os.read(fd, 5), os.read(kept, 5)]
            elif use == "in parts":
                said += [os.read(fd, 3), os.pread(fd, 4, 2), os.readv(fd, [bytearray(2), bytearray(5)])]
                said += [os.lseek(fd, 0, os.SEEK_CUR), os.read(fd, 1 << 17)]
            elif use == "from the end":
                said += [os.lseek(fd, 0, os.SEEK_END), os.lseek(fd, -1, os.SEEK_CUR), os.read(fd, 9)]
            elif use == "at once":
                said += [os.pread(fd, 1 << 17, 0)]
            elif use == "map":
                with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
                    said += [mapped[:]]
            elif use == "copy":
                path = os.path.join(self.channel, "copy")
                copied = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    said += [os.sendfile(copied, fd, 1, 50), os.lseek(fd, 0, os.SEEK_CUR)]
                    said += [os.pread(copied, 99, 0)]
                finally:
                    os.close(copied)
            elif use == "stream":
                with open(fd, "rb", closefd=False) as file:
                    said += [file.readline(), file.tell(), file.read(), file.seek(1), file.read(3)]
        except io.UnsupportedOperation:
            said.append("unsupported")
        except OSError as error:
            said.append(errno.errorcode[error.errno])
        except ValueError as error:
            said.append(str(error))
        for each in (fd, kept):
            if each is not None:
                os.close(each)
        return [self.said(one) for one in said]


@contextlib.contextmanager
def acting(root: str, seed: int) -> Iterator[str]:
    """The other one, for the files below a root; gives the folder of its channel."""
    channel = tempfile.mkdtemp(prefix="zzc-")
    # The program may be another user's.
    os.chmod(channel, 0o777)
    for name in ("orders", "answers"):
        os.mkfifo(os.path.join(channel, name))
        os.chmod(os.path.join(channel, name), 0o666)
    words = [sys.executable, "-S", os.path.abspath(__file__), root, str(seed), channel]
    run = subprocess.Popen(words)
    try:
        yield channel
    finally:
        run.kill()
        run.wait()
        shutil.rmtree(channel)


if __name__ == "__main__":
    act(sys.argv[1], int(sys.argv[2]), sys.argv[3])
