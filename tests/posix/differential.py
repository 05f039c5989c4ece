"""The same random operations, direct and forwarded: results, errno, contents and metadata must be
equal.

`play` runs the operations of a seed, some of them in forked processes that take turns, and prints
one line for each. `compare` plays a seed in two environments and compares the lines; a seed that
differs is shrunk by leaving operations out, and printed.
"""

import argparse
import contextlib
import errno
import fcntl
import json
import os
import random
import stat
import struct
import subprocess
import sys

import meanwhile
import operations as more

NAMES = [
    "a",
    "b",
    "c",
    "d/a",
    "d/b",
    "d/e/f",
    "d",
    "d/e",
    "l",
    "d/l",
    "n",
    "../a",
    "d/../b",
    ".",
    "d/",
    "missing/x",
]
OPEN_FLAGS = [
    os.O_RDONLY,
    os.O_RDWR | os.O_CREAT,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_APPEND | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDONLY | os.O_DIRECTORY,
    os.O_WRONLY,
    os.O_RDWR | os.O_NOFOLLOW,
    os.O_PATH,
]
SLOTS = 6
# An interpreter that another user can run.
ANYBODYS = "/usr/bin/python3"
EXEC = (
    "import os,sys,stat\n"
    "for fd in map(int, sys.argv[1:]):\n"
    "    try:\n"
    "        s = os.fstat(fd); p = os.lseek(fd, 0, 1) if stat.S_ISREG(s.st_mode) else -1\n"
    "        w = os.write(fd, b'exec') if stat.S_ISREG(s.st_mode) else 0\n"
    "        print(fd, s.st_size, p, w)\n"
    "    except OSError as e: print(fd, e.errno)\n"
)


def operations(seed: int, steps: int, processes: int, with_others: bool = False) -> list[dict]:
    """Independent of what any operation gives, so that some can be left out. `with_others`: those
    in which somebody else changes files, and none that starts a process."""
    rng, often = random.Random(seed), random.Random(~seed)
    kinds = [
        ("open", 14), ("close", 6), ("read", 8), ("write", 12), ("pread", 6), ("pwrite", 6), ("seek", 8),
        ("truncate", 4), ("ftruncate", 4), ("dup", 3), ("dup2", 3), ("readv", 3), ("writev", 3), ("stat", 6),
        ("fstat", 5), ("lstat", 4), ("rename", 5), ("link", 3), ("symlink", 4), ("readlink", 3),
        ("unlink", 5),
        ("mkdir", 4), ("rmdir", 3), ("chmod", 3), ("fchmod", 2), ("utime", 3), ("access", 3), ("list", 4),
        ("chdir", 3), ("fchdir", 2), ("getcwd", 3), ("lock", 8), ("getlk", 4), ("flock", 3), ("openat", 4),
        ("statat", 3), ("fallocate", 2), ("fsync", 1), ("setfl", 2), ("cloexec", 2), ("xattr", 3),
        ("copy", 2),
        ("sendfile", 2), ("realpath", 2), ("mkfifo", 1), ("statvfs", 1), ("umask", 1),
        ("exec", 1), ("spawn", 1),
        ("lines", 3), ("hole", 2), ("unlinkat", 2), ("renameat", 2), ("walk", 1), ("chown", 1), ("tmp", 1),
        ("map", 5), ("unmap", 1), ("map_read", 4), ("map_write", 4), ("map_sync", 1),
        ("stream", 5), ("stream_write", 4), ("stream_read", 3), ("stream_line", 2), ("stream_seek", 3),
        ("stream_wide", 2), ("stream_flush", 2), ("stream_close", 2),
        ("wait_lock", 2), ("wait_flock", 1), ("wait_fifo", 1), ("broken_pipe", 1), ("long_file", 1),
        ("few_descriptors", 2), ("cwd_name", 2), ("by_cwd", 2), ("by_number", 2), ("gone_folder", 1),
    ]  # fmt: skip
    names = [name for name, weight in kinds for _ in range(weight)]
    result = []
    for index in range(steps):
        step = {"i": index, "p": rng.randrange(processes), "op": rng.choice(names)}
        step["s"], step["t"] = rng.randrange(SLOTS), rng.randrange(SLOTS)
        step["n"], step["m"] = rng.choice(NAMES), rng.choice(NAMES)
        step["flags"] = rng.choice(OPEN_FLAGS)
        step["size"] = rng.choice([0, 1, 3, 100, 1000, 4096, 5000, 70000])
        step["at"] = rng.choice([0, 1, 10, 500, 4096, 10000, 100000])
        step["whence"] = rng.randrange(3)
        step["mode"] = rng.choice([0o600, 0o644, 0o400, 0o755, 0o777, 0o1777, 0])
        step["pick"] = rng.randrange(1000)
        if with_others:
            step["op"] = "others"
        elif often.randrange(60) == 0:
            step["op"] = "in_order"
        result.append(step)
    return result


class Player(
    more.Orders, more.Mappings, more.Streams, more.Signals, more.Limits, more.Place, meanwhile.Meanwhile
):
    """One process's part. `without` names what is left out, by a stated limit."""

    def __init__(self, root: str, without: frozenset[str] = frozenset()) -> None:
        self.root, self.without = root, without
        self.left_out = os.O_PATH if "path-only" in without else 0
        self.slots = [-1] * SLOTS
        self.maps, self.streams = {}, {}

    def path(self, name: str, step: dict) -> str:
        return name if step["pick"] % 3 == 0 else os.path.join(self.root, name)

    def said(self, value):
        if isinstance(value, bytes):
            text = value if len(value) <= 24 else value[:24] + b"#%d" % (hash_of(value))
            return text.decode("latin-1")
        if isinstance(value, str):
            return value.replace(self.root, "ROOT").replace(os.path.dirname(self.root), "BASE")
        if isinstance(value, os.stat_result):
            return self.stat(value)
        if isinstance(value, list | tuple):
            return [self.said(item) for item in value]
        return value

    def stat(self, s: os.stat_result):
        # What was set is compared; what the clock gave is not.
        old = [round(t) if t < 1e9 else "now" for t in (s.st_mtime,)]
        # A link's length is that of its target at the far side, where the root has another name.
        size = s.st_size if stat.S_ISREG(s.st_mode) else None
        return [stat.filemode(s.st_mode), s.st_nlink, s.st_uid, s.st_gid, size, *old]

    def play(self, step: dict):
        if step["op"] in self.without:
            return "left out"
        try:
            result = getattr(self, "do_" + step["op"])(step)
        except OSError as error:
            return "E" + errno.errorcode.get(error.errno, str(error.errno))
        except ValueError as error:
            return f"V{error}"
        return self.said(result)

    # Descriptors: a slot holds the number that the kernel gave.

    def fd(self, step: dict, slot: str = "s") -> int:
        return self.slots[step[slot]] if self.slots[step[slot]] >= 0 else 4444

    def keep(self, step: dict, fd: int) -> int:
        if self.slots[step["s"]] >= 0:
            os.close(self.slots[step["s"]])
        self.slots[step["s"]] = fd
        return fd

    def do_open(self, step):
        return self.keep(
            step, os.open(self.path(step["n"], step), step["flags"] & ~self.left_out, step["mode"])
        )

    def do_openat(self, step):
        flags = step["flags"] & ~self.left_out
        fd = os.open(step["n"], flags, step["mode"], dir_fd=self.fd(step, "t"))
        return self.keep(step, fd)

    def do_tmp(self, step):
        return self.keep(step, os.open(self.root, os.O_TMPFILE | os.O_RDWR, 0o600))

    def do_close(self, step):
        fd, self.slots[step["s"]] = self.fd(step), -1
        for at, other in enumerate(self.slots):
            if other == fd:
                self.slots[at] = -1
        os.close(fd)
        return fd

    def do_dup(self, step):
        return self.keep(step, os.dup(self.fd(step, "t")))

    def do_dup2(self, step):
        target = 40 + step["pick"] % 5
        fd = os.dup2(self.fd(step, "t"), target, inheritable=bool(step["pick"] & 1))
        for at, other in enumerate(self.slots):
            if other == target:
                self.slots[at] = -1
        return self.keep(step, fd)

    def do_cloexec(self, step):
        os.set_inheritable(self.fd(step), bool(step["pick"] & 1))
        return fcntl.fcntl(self.fd(step), fcntl.F_GETFD)

    def do_setfl(self, step):
        flags = fcntl.fcntl(self.fd(step), fcntl.F_GETFL)
        fcntl.fcntl(self.fd(step), fcntl.F_SETFL, flags ^ os.O_APPEND)
        return [flags, fcntl.fcntl(self.fd(step), fcntl.F_GETFL)]

    # Data.

    def data(self, step: dict, size: int | None = None) -> bytes:
        size = step["size"] if size is None else size
        return bytes((step["i"] * 7 + at * 13) % 251 for at in range(size))

    def do_read(self, step):
        return os.read(self.fd(step), step["size"])

    def do_write(self, step):
        return os.write(self.fd(step), self.data(step))

    def do_pread(self, step):
        return os.pread(self.fd(step), step["size"], step["at"])

    def do_pwrite(self, step):
        return os.pwrite(self.fd(step), self.data(step), step["at"])

    def do_readv(self, step):
        parts = [bytearray(3), bytearray(step["size"]), bytearray(7)]
        return [os.readv(self.fd(step), parts), *map(bytes, parts)]

    def do_writev(self, step):
        return os.writev(self.fd(step), [b"one", self.data(step), b"three"])

    def do_seek(self, step):
        offset = step["at"] if step["whence"] == 0 else step["at"] - 600
        return os.lseek(self.fd(step), offset, step["whence"])

    def do_hole(self, step):
        return [os.lseek(self.fd(step), 0, os.SEEK_DATA), os.lseek(self.fd(step), 0, os.SEEK_HOLE)]

    def do_truncate(self, step):
        return os.truncate(self.path(step["n"], step), step["at"])

    def do_ftruncate(self, step):
        return os.ftruncate(self.fd(step), step["at"])

    def do_fallocate(self, step):
        return os.posix_fallocate(self.fd(step), step["at"], step["size"])

    def do_fsync(self, step):
        return [os.fsync(self.fd(step)), os.fdatasync(self.fd(step))]

    def do_copy(self, step):
        return os.copy_file_range(self.fd(step), self.fd(step, "t"), step["size"])

    def do_sendfile(self, step):
        return os.sendfile(self.fd(step), self.fd(step, "t"), step["at"] % 600, step["size"])

    def do_lines(self, step):
        path = self.path(step["n"], step)
        with open(path, "a+") as file:
            file.write("".join(f"line {step['i']} {at}\n" for at in range(step["size"] % 50)))
            file.seek(0)
            return [file.read().encode(), file.tell()]

    # Metadata.

    def do_stat(self, step):
        return os.stat(self.path(step["n"], step))

    def do_lstat(self, step):
        return os.lstat(self.path(step["n"], step))

    def do_fstat(self, step):
        return os.fstat(self.fd(step))

    def do_statat(self, step):
        return os.stat(step["n"], dir_fd=self.fd(step), follow_symlinks=bool(step["pick"] & 1))

    def do_statvfs(self, step):
        found = os.statvfs(self.path(step["n"], step))
        return [found.f_bsize, found.f_namemax]

    def do_chmod(self, step):
        return os.chmod(self.path(step["n"], step), step["mode"])

    def do_fchmod(self, step):
        return os.fchmod(self.fd(step), step["mode"])

    def do_chown(self, step):
        return os.chown(self.path(step["n"], step), -1, step["pick"] % 5, follow_symlinks=False)

    def do_utime(self, step):
        return os.utime(self.path(step["n"], step), (step["at"], step["at"] + 5), follow_symlinks=False)

    def do_access(self, step):
        return os.access(self.path(step["n"], step), step["pick"] % 8)

    def do_xattr(self, step):
        path = self.path(step["n"], step)
        if step["pick"] % 4 == 0:
            return sorted(os.listxattr(path))
        if step["pick"] % 4 == 1:
            return os.getxattr(path, "user.zazen")
        if step["pick"] % 4 == 2:
            return os.removexattr(path, "user.zazen")
        return os.setxattr(path, "user.zazen", self.data(step, step["size"] % 200))

    # Names.

    def do_rename(self, step):
        return os.rename(self.path(step["n"], step), self.path(step["m"], step))

    def do_renameat(self, step):
        return os.rename(step["n"], step["m"], src_dir_fd=self.fd(step), dst_dir_fd=self.fd(step, "t"))

    def do_link(self, step):
        return os.link(self.path(step["n"], step), self.path(step["m"], step), follow_symlinks=False)

    def do_symlink(self, step):
        target = step["m"] if step["pick"] & 1 else os.path.join(self.root, step["m"])
        return os.symlink(target, self.path(step["n"], step))

    def do_readlink(self, step):
        return os.readlink(self.path(step["n"], step))

    def do_unlink(self, step):
        return os.unlink(self.path(step["n"], step))

    def do_unlinkat(self, step):
        return os.unlink(step["n"], dir_fd=self.fd(step))

    def do_mkdir(self, step):
        return os.mkdir(self.path(step["n"], step), step["mode"] | 0o300)

    def do_rmdir(self, step):
        return os.rmdir(self.path(step["n"], step))

    def do_mkfifo(self, step):
        return os.mkfifo(self.path("fifo", step), step["mode"])

    def do_list(self, step):
        if step["pick"] % 3 == 1:
            return sorted(os.listdir(self.fd(step)))
        path = self.path(step["n"], step)
        return sorted([entry.name, entry.is_dir(), entry.is_symlink()] for entry in os.scandir(path))

    def do_walk(self, step):
        return sorted([top, sorted(dirs), sorted(files)] for top, dirs, files in os.walk(self.root))

    def do_chdir(self, step):
        return os.chdir(self.path(step["n"], step))

    def do_fchdir(self, step):
        return os.fchdir(self.fd(step))

    def do_getcwd(self, step):
        return os.getcwd()

    def do_realpath(self, step):
        return os.path.realpath(self.path(step["n"], step))

    def do_umask(self, step):
        return os.umask(step["mode"] & 0o27)

    # Locks.

    def lock(self, step: dict, kind: int) -> bytes:
        return struct.pack("hhqqi4x", kind, step["whence"], step["at"] % 600, step["size"], 0)

    def do_lock(self, step):
        kind = [fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK][step["pick"] % 3]
        fcntl.fcntl(self.fd(step), fcntl.F_SETLK, self.lock(step, kind))

    def do_getlk(self, step):
        kind = [fcntl.F_RDLCK, fcntl.F_WRLCK][step["pick"] % 2]
        found = fcntl.fcntl(self.fd(step), fcntl.F_GETLK, self.lock(step, kind))
        kind, whence, start, length, pid = struct.unpack("hhqqi4x", found)
        return [kind, whence, start, length, pid != 0]

    def do_flock(self, step):
        kind = [fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN][step["pick"] % 3]
        fcntl.flock(self.fd(step), kind | fcntl.LOCK_NB)

    # Other programs.

    def do_exec(self, step):
        """In a child: what survives exec."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(writer, 1)
            os.execv(sys.executable, [sys.executable, "-S", "-c", EXEC, *map(str, self.slots)])
        os.close(writer)
        with os.fdopen(reader) as file:
            said = file.read()
        return [said, os.waitpid(pid, 0)[1]]

    def do_spawn(self, step):
        path = self.path(step["n"], step)
        command = f"cat {path} | head -c 40; echo done >> {path}; wc -c < {path}; pwd"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        return [done.stdout, done.returncode]


def hash_of(data: bytes) -> int:
    result = 0
    for byte in data:
        result = (result * 31 + byte) % 1000003
    return result


def tree(root: str) -> list:
    """What is on the disk in the end."""
    player = Player(root)
    found = []
    for top, dirs, files in sorted(os.walk(root)):
        for name in sorted(dirs + files):
            path = os.path.join(top, name)
            info, content = None, None
            # Who isn't root may have shut it to itself.
            with contextlib.suppress(PermissionError):
                info = player.stat(os.lstat(path))
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as file:
                        content = player.said(file.read())
            found.append([os.path.relpath(path, root), info, content])
    return found


def remove(folder: str) -> None:
    """Also what users that aren't root have shut to themselves."""
    if os.path.isdir(folder):
        subprocess.run(["chmod", "-R", "u+rwX", folder], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", folder], check=True)


def play(root: str, seed: int, steps: int, processes: int, only: set[int] | None,
         without: frozenset[str], channel: str | None) -> None:  # fmt: skip
    sys.stdout.reconfigure(line_buffering=True)
    player = Player(root, without)
    os.chdir(root)
    if channel is not None:
        player.connect(channel)
    all_steps = operations(seed, steps, processes, channel is not None)
    plan = [step for step in all_steps if only is None or step["i"] in only]
    pipes = {}

    def serve(reader: int, writer: int) -> None:
        with os.fdopen(reader) as orders:
            for line in orders:
                answer = player.play(json.loads(line))
                os.write(writer, (json.dumps(answer) + "\n").encode())
        os._exit(0)

    for step in plan:
        number = step["p"]
        if number == 0:
            answer = player.play(step)
        else:
            if number not in pipes:
                # Forked in the middle: it inherits what process 0 has open by now. Far from its
                # numbers.
                ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for fd in (*os.pipe(), *os.pipe())]
                for fd in range(3, 40):
                    if fd not in player.slots and fd < min(ends):
                        try:
                            if stat.S_ISFIFO(os.fstat(fd).st_mode) and not is_far(fd, root):
                                os.close(fd)
                        except OSError:
                            pass
                if os.fork() == 0:
                    for orders, answers in pipes.values():
                        orders.close()
                        answers.close()
                    os.close(ends[1])
                    os.close(ends[2])
                    serve(ends[0], ends[3])
                os.close(ends[0])
                os.close(ends[3])
                pipes[number] = (os.fdopen(ends[1], "w"), os.fdopen(ends[2]))
            orders, answers = pipes[number]
            orders.write(json.dumps(step) + "\n")
            orders.flush()
            line = answers.readline()
            answer = json.loads(line) if line else "DIED"
        print(json.dumps([step["i"], number, step["op"], answer]))


def is_far(fd: int, root: str) -> bool:
    """A FIFO below the root, not one of our own pipes."""
    return os.fstat(fd).st_nlink > 0 and not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")


class Comparison:
    """Plays seeds in two environments: plainly in `direct`, and forwarded in `there`, which `here`
    names."""

    def __init__(
        self, direct: str, here: str, there: str, command: list[str], environment: dict,
        with_others: bool = False, user: int | None = None,
    ) -> None:  # fmt: skip
        self.direct, self.here, self.there = direct, here, there
        self.with_others, self.user = with_others, user
        self.command, self.environment = command, environment
        # The supervisor can't hand on what is open by O_PATH, and creates a file before it finds no
        # number for it. The kernel's name of a far working directory is another one.
        without = []
        if "--seccomp" in command:
            without += ["path-only", "create-at-limit", "cwd_name", "by_cwd", "gone_folder"]
        if "--direct" not in command:
            without += ["list-gone"]
        # The detector of escapes takes a second number for each placeholder, for a moment.
        without += ["few_descriptors"] if "--abort-on-escape" in command else []
        # Mappings of another node's files are copies.
        without += ["shared-maps"] if "--node" in command else []
        self.more = ["--without", ",".join(without)] if without else []

    def run(self, forwarded: bool, seed: int, steps: int, processes: int, only) -> list[str]:
        # Outside of what is compared, so that `..` at the root finds the same.
        base = self.there if forwarded else self.direct
        remove(base)
        os.makedirs(base + "/root")
        root = (self.here if forwarded else self.direct) + "/root"
        words = ["--seed", str(seed), "--steps", str(steps), "--processes", str(processes)]
        if only is not None:
            words += ["--only", ",".join(map(str, sorted(only)))]
        program = [
            sys.executable if self.user is None else ANYBODYS,
            "-S",
            os.path.abspath(__file__),
            "play",
            "--root",
            root,
            *words,
            *self.more,
        ]
        environment = {**os.environ, **(self.environment if forwarded else {})}
        command = (self.command if forwarded else []) + program
        with contextlib.ExitStack() as stack:
            if self.with_others:
                channel = stack.enter_context(meanwhile.acting(base + "/root", seed))
                command += ["--channel", channel]
            run = {"capture_output": True, "text": True, "timeout": 120}
            if self.user is not None:
                run |= {"user": self.user, "group": self.user, "extra_groups": []}
            done = subprocess.run(command, env=environment, **run)
        lines = done.stdout.splitlines()
        if done.returncode != 0 or done.stderr:
            lines.append(f"exit {done.returncode}: {done.stderr[-2000:]}")
        return lines + [json.dumps(entry) for entry in tree(base + "/root")]

    def differs(self, seed: int, steps: int, processes: int, only=None) -> list[str]:
        one = self.run(False, seed, steps, processes, only)
        two = self.run(True, seed, steps, processes, only)
        wrong = [f"  direct    {a}\n  forwarded {b}" for a, b in zip(one, two, strict=False) if a != b]
        if len(one) != len(two):
            wrong.append(f"  {len(one)} lines direct, {len(two)} forwarded: {(one + two)[-1]}")
        return wrong

    def shrink(self, seed: int, steps: int, processes: int) -> tuple[list[int], list[str]]:
        """A small set of steps that still differs."""
        left = list(range(steps))
        wrong = self.differs(seed, steps, processes)
        size = len(left) // 2
        while size >= 1:
            at = 0
            while at < len(left):
                fewer = left[:at] + left[at + size :]
                now = self.differs(seed, steps, processes, set(fewer))
                if now:
                    left, wrong = fewer, now
                else:
                    at += size
            size //= 2
        return left, wrong


def report(comparison: Comparison, seed: int, steps: int, processes: int) -> str:
    left, wrong = comparison.shrink(seed, steps, processes)
    every = operations(seed, steps, processes, comparison.with_others)
    plan = [step for step in every if step["i"] in left]
    lines = [f"seed {seed}, {steps} steps, {processes} processes differ; {len(plan)} steps suffice:"]
    lines += [f"  {json.dumps(step)}" for step in plan]
    return "\n".join(lines + wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("play", "compare"):
        action = actions.add_parser(name)
        action.add_argument("--seed", type=int, default=1)
        action.add_argument("--steps", type=int, default=200)
        action.add_argument("--processes", type=int, default=1)
        if name == "play":
            action.add_argument("--root", required=True)
            action.add_argument("--only")
            action.add_argument("--without", default="", help="what is left out, with commas")
            action.add_argument("--channel", help="the folder by which somebody else is told what to change")
        else:
            action.add_argument("--others", action="store_true", help="somebody else changes files meanwhile")
            action.add_argument("--preload", help="a library that the forwarded program loads, too")
            action.add_argument("--count", type=int, default=10)
            action.add_argument("--direct", required=True, help="a folder for the direct runs")
            action.add_argument("--here", required=True, help="the forwarded prefix")
            action.add_argument("--there", required=True, help="the folder that it stands for")
            action.add_argument("command", nargs="+", help="what to put before the program to forward it")
    arguments = parser.parse_args()
    if arguments.action == "play":
        only = {int(i) for i in arguments.only.split(",") if i} if arguments.only is not None else None
        without = frozenset(arguments.without.split(","))
        channel = arguments.channel
        play(arguments.root, arguments.seed, arguments.steps, arguments.processes, only, without, channel)
        return 0
    more_of_it = {"LD_PRELOAD": arguments.preload} if arguments.preload else {}
    comparison = Comparison(
        arguments.direct, arguments.here, arguments.there, arguments.command, more_of_it, arguments.others
    )
    bad = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if comparison.differs(seed, arguments.steps, arguments.processes):
            print(report(comparison, seed, arguments.steps, arguments.processes))
            bad += 1
    print(f"{arguments.count} seeds from {arguments.seed}, {arguments.processes} processes: {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
