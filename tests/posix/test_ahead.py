"""Answers that come along with earlier ones, from another node: how many messages programs take,
and that no answer outlives what the program can have heard of a change."""

import contextlib
import ctypes
import fcntl
import inspect
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from harness import PREFIX, Daemon, calls, python

HERE = Path(__file__).parent
FILES = 240
FOLDERS = 12
libc = ctypes.CDLL(None)
libc.shmat.restype = libc.sem_open.restype = ctypes.c_void_p


@pytest.fixture(scope="module")
def node(programs):
    with Daemon(programs, isolated=True, listen=True, name="zza-") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def tree(node):
    """Files in folders: a program's name for them, and their real place."""
    for number in range(FILES):
        place = node.far / "tree" / f"d{number % FOLDERS}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}").write_text(f"line {number}\n" * 40)
    return node.far / "tree"


def waited_for(cost: dict[str, int]) -> int:
    """The calls for whose answers the program waits."""
    not_waited_for = ("px_close", "px_close_several", "px_advise")
    return sum(cost.values()) - sum(cost.get(name, 0) for name in not_waited_for)


def spent(node: Daemon, script: str, fits) -> dict[str, int]:
    """The calls that a script takes: those of a run that `fits`, or of the best of some runs,
    because what is kept goes when the machine gives its processors to others."""
    best = None
    for _ in range(120):
        before = calls(node)
        there = node.run("bash", "-c", f"cd {PREFIX}/tree && {script}")
        after = calls(node)
        words = ["bash", "-c", f"cd {node.far}/tree && {script}"]
        here = subprocess.run(words, capture_output=True, text=True)
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout), there.stderr
        cost = {name: count - before[name] for name, count in after.items() if count != before[name]}
        if best is None or waited_for(cost) < waited_for(best):
            best = cost
        if fits(cost):
            return cost
    return best


@pytest.mark.parametrize(
    ("script", "most", "waited"),
    [
        # A close for each file, and opens of many at once, where there were five calls.
        ("grep -r nothing-has-this .", 3.0, 0.8),
        ("cat d*/f* | md5sum", 3.5, 0.9),
        # Looks at many names at once, where there were one (find) and three (ls -l).
        ("find . -type f -size +1M", 0.8, 0.8),
        ("ls -lR . | md5sum", 1.2, 1.2),
        ("tar cf - . | md5sum", 3.0, 0.8),
    ],
)
def test_programs_take_few_messages(node, tree, script, most, waited):
    """`most` calls a file, and so many for whose answer the program waits."""

    def fits(cost: dict[str, int]) -> bool:
        return sum(cost.values()) <= most * FILES and waited_for(cost) <= waited * FILES

    cost = spent(node, script, fits)
    assert fits(cost), cost


def test_names_in_order_come_along_and_leave_no_trace(node, tree):
    """A program that looks at names in their order, as git does, and has not listed the folder."""
    program = f"""
        import os, sys
        print(sum(os.lstat("{PREFIX}/tree/d1/" + name).st_size for name in sys.argv[1:]))
    """
    names = sorted(os.listdir(tree / "d1"))
    os.utime(tree / "d1", (1, 1))
    before = calls(node)
    done = node.run(python(), "-S", "-c", textwrap.dedent(program), *names)
    after = calls(node)
    assert (tree / "d1").stat().st_atime == 1
    assert int(done.stdout) == sum((tree / "d1" / name).stat().st_size for name in names), done.stderr
    assert after["px_stat_several"] > before["px_stat_several"]
    assert after["px_stat"] - before["px_stat"] < FILES / FOLDERS


@pytest.fixture(scope="module")
def looker(tmp_path_factory):
    program = tmp_path_factory.mktemp("ahead") / "ahead"
    # The library finds the program's own clock.
    words = ["cc", "-O1", "-Wall", "-rdynamic", "-o", program, HERE / "ahead.c", "-pthread"]
    subprocess.run([*words, "-lrt", "-ldl"], check=True)
    return program


def prepare(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "folder").mkdir(parents=True)
    # In the order in which the program looks, whatever the order of the listing.
    for name in [*(f"a{number}" for number in range(6)), *(f"n{number}" for number in range(8))]:
        (folder / name).write_text(name)
        (folder / name).chmod(0o644)
    (folder / "file").write_text("short\n")
    (folder / "folder" / "one").touch()
    (folder / "opens").mkdir()
    for number in range(20):
        (folder / "opens" / str(number)).write_text("old")


def change(folder: Path) -> None:
    """What somebody else does meanwhile."""
    (folder / "file").write_text("much longer\n")
    (folder / "file").chmod(0o640)
    (folder / "n5").chmod(0o600)
    (folder / "n6").unlink()
    (folder / "n7").rename(folder / "other")
    (folder / "folder" / "two").touch()
    for number in range(20):
        name = folder / "opens" / str(number)
        if number % 4 == 0:
            name.write_text("written anew")
        elif number % 4 == 1:
            name.with_name("new").write_text("replaced")
            name.with_name("new").rename(name)
        elif number % 4 == 2:
            name.unlink()


CHANGED = "file 12 640 much longer\nn0 644\nn1 644\nn2 644\nn3 644\nn4 644\nn5 600\nn6 0\nn7 0\nnames 2\n"
CHANGED += "20 opens, 0 wrong\n"
BY_CHILD = CHANGED.replace("640", "644").replace("names 2", "names 1")


@pytest.mark.parametrize("who", ["there", "another program"])
@pytest.mark.parametrize(
    "channel", ["read", "stream", "socket", "poll", "name", "memory", "segment", "thread", "child", "time"]
)
def test_what_a_program_heard_of_it_sees(node, looker, tmp_path, channel, who):
    folder = node.far / "changing"
    prepare(folder)
    with contextlib.ExitStack() as stack:
        word, listener = "", None
        if channel == "socket":
            word = str(tmp_path / "socket")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(word)
            listener.listen()
            listener.settimeout(60)
        elif channel == "memory":
            word = str(tmp_path / "memory")
            Path(word).write_bytes(b"\0" * 4096)
        elif channel == "segment":
            word = str(libc.shmget(0, 4096, 0o1600))
            stack.callback(libc.shmctl, int(word), 0, None)
        elif channel == "name":
            word = str(tmp_path / "name")
        elif channel == "time":
            word = "2"
        words = [*node.command(), looker, f"{PREFIX}/changing", channel, word]
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        program = stack.enter_context(subprocess.Popen(words, text=True, **pipes))
        stack.callback(program.kill)
        wire = listener.accept()[0] if listener else None
        assert program.stdout.readline() == "ready\n"
        if channel != "child" and who == "there":
            change(folder)
        elif channel != "child":
            source = f"from pathlib import Path\n{inspect.getsource(change)}\n"
            source += f"change(Path({PREFIX + '/changing'!r}))"
            done = node.run(python(), "-c", source)
            assert done.returncode == 0, done.stderr
        changed_at = time.monotonic()
        if channel == "socket":
            wire.sendall(b"x")
        elif channel == "memory":
            with open(word, "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
                memory[0] = 1
        elif channel == "segment":
            segment = libc.shmat(int(word), None, 0)
            ctypes.memset(segment, 1, 1)
            libc.shmdt(ctypes.c_void_p(segment))
        elif channel == "name":
            Path(word).touch()
        said, told = program.communicate("x\n", timeout=60)
        assert program.returncode == 0, told
        if channel == "time" and float(told) < changed_at:
            pytest.skip("the change took longer than the program waited")
        assert said == (BY_CHILD if channel == "child" else CHANGED)


class Channel:
    """How a program is told: its word for it, what goes before the program, and the telling."""

    def __init__(self, name: str, node: Daemon, folder: Path, stack: contextlib.ExitStack) -> None:
        self.before: list[str] = []
        self.is_missing = False
        self.word = str(folder / name)
        kind, _, what = name.rpartition("-")
        if kind == "far":
            (node.far / "told").mkdir(exist_ok=True)
            self.word = f"{PREFIX}/told/{name}"
        path = node.far / "told" / name if kind == "far" else Path(self.word)
        getattr(self, f"by_{what}")(path, stack)

    def by_flock(self, path, stack) -> None:
        file = stack.enter_context(path.open("w"))
        fcntl.flock(file, fcntl.LOCK_EX)
        self.tell = file.close

    def by_lock(self, path, stack) -> None:
        file = stack.enter_context(path.open("w"))
        fcntl.lockf(file, fcntl.LOCK_EX)
        self.tell = file.close

    by_tested = by_lock

    def by_size(self, path, stack) -> None:
        path.touch()
        self.tell = lambda: path.write_text("told")

    by_end = by_size

    def by_names(self, path, stack) -> None:
        path.mkdir()
        self.tell = (path / "one").touch

    def by_bytes(self, path, stack) -> None:
        path.write_text("not yet")
        self.tell = lambda: path.write_text("told, and longer")

    def by_access(self, path, stack) -> None:
        self.tell = path.touch

    by_stat = by_lstat = by_path = by_open = by_access

    def by_gone(self, path, stack) -> None:
        path.touch()
        self.tell = path.unlink

    def by_mode(self, path, stack) -> None:
        path.touch(0o644)
        self.tell = lambda: path.chmod(0o600)

    def by_link(self, path, stack) -> None:
        self.tell = lambda: path.symlink_to("anywhere")


class LocalChannel(Channel):
    """Those of this machine that are no files."""

    def by_available(self, path, stack) -> None:
        self.tell = None  # What the test writes in any case.

    def by_connect(self, path, stack) -> None:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(self.word)
        self.tell = listener.listen

    def by_exit(self, path, stack) -> None:
        os.mkfifo(path)
        # It ends when the test has opened the other end; the program has not started it itself.
        self.before = ["sh", "-c", f'cat < "{path}" & exec "$@"', "-"]

        def tell() -> None:
            with path.open("w"):
                pass

        self.tell = tell

    def by_gone(self, path, stack) -> None:
        sleeper = subprocess.Popen(["sleep", "120"])
        stack.callback(sleeper.kill)
        self.word = str(sleeper.pid)

        def tell() -> None:
            sleeper.kill()
            sleeper.wait()

        self.tell = tell

    by_group = by_gone

    def by_signal(self, path, stack) -> None:
        self.tell = "USR1"

    by_pending = by_signal

    def by_semaphore(self, path, stack) -> None:
        number = libc.semget(0, 1, 0o1600)
        self.word = str(number)
        stack.callback(libc.semctl, number, 0, 0)
        up = struct.pack("Hhh", 0, 1, 0)
        self.tell = lambda: libc.semop(number, up, 1)

    def by_queue(self, path, stack) -> None:
        number = libc.msgget(0, 0o1600)
        self.word = str(number)
        stack.callback(libc.msgctl, number, 0, None)
        self.tell = lambda: libc.msgsnd(number, struct.pack("l8s", 1, b"told"), 8, 0)

    def by_named(self, path, stack) -> None:
        self.word = f"/zazen-{os.getpid()}"
        name = self.word.encode()
        made = libc.sem_open(name, os.O_CREAT | os.O_EXCL, 0o600, 0)
        assert made, "no semaphores with names here"
        stack.callback(libc.sem_unlink, name)
        self.tell = lambda: libc.sem_post(ctypes.c_void_p(made))

    def by_messages(self, path, stack) -> None:
        self.word = f"/zazen-{os.getpid()}"
        name = self.word.encode()
        made = libc.mq_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, None)
        self.is_missing = made < 0
        if self.is_missing:
            return
        stack.callback(os.close, made)
        stack.callback(libc.mq_unlink, name)
        self.tell = lambda: libc.mq_send(made, b"told", 4, 0)


OF_FILES = ["flock", "lock", "tested", "size", "end", "names"]
OF_OTHERS = ["available", "connect", "exit", "gone", "signal", "pending", "semaphore", "queue", "named"]
OF_OTHERS += ["messages", "group"]
OF_FAR = ["access", "stat", "lstat", "open", "path", "link", "gone", "mode", "size", "end", "names", "bytes"]
MORE = [*OF_FILES, *OF_OTHERS, *(f"far-{name}" for name in OF_FAR)]


@pytest.fixture(scope="module")
def channels(node, tmp_path_factory):
    """All of them, and a folder for each, so old that nothing in them is news."""
    place = tmp_path_factory.mktemp("channels")
    with contextlib.ExitStack() as stack:
        all_ = {}
        for name in MORE:
            kind = LocalChannel if name in OF_OTHERS else Channel
            all_[name] = kind(name, node, place, stack)
            prepare(node.far / f"changing-{name}")
        time.sleep(3.2)
        yield all_


@pytest.mark.parametrize("channel", MORE)
def test_what_a_program_is_told_without_waiting_it_sees(node, looker, channels, channel):
    by, folder = channels[channel], node.far / f"changing-{channel}"
    if by.is_missing:
        pytest.skip("this machine has no such channel")
    with contextlib.ExitStack() as stack:
        words = [*node.command(), *by.before, looker, f"{PREFIX}/changing-{channel}", channel, by.word]
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        program = stack.enter_context(subprocess.Popen(words, text=True, **pipes))
        stack.callback(program.kill)
        assert program.stdout.readline() == "ready\n", program.stderr.read()
        change(folder)
        if by.tell == "USR1":
            program.send_signal(signal.SIGUSR1)
        elif by.tell is not None:
            by.tell()
        said, told = program.communicate("x\n", timeout=60)
        assert program.returncode == 0, told
        assert said == CHANGED


PLACES = """
    import ctypes, fcntl, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(sys.argv[1])

    def held(flags=0):
        return os.open("file", os.O_RDONLY | flags)

    def say(*what):
        print(*what, flush=True)

    say("reads", [os.read(held(), size) for size in (0, 1, 10, 100000)])
    fd = held()
    say("in parts", os.read(fd, 3), os.read(fd, 4), os.lseek(fd, 0, 1), os.pread(fd, 3, 1), os.read(fd, 2))
    say("seek", os.lseek(fd, -5, 2), os.read(fd, 100), os.read(fd, 1), os.lseek(fd, 1000, 0), os.read(fd, 1))
    for offset, whence in ((-1, 0), (-2000, 1), (1 << 62, 0), (0, 7), (1, 3), (3, 4), (-1000000, 2)):
        try:
            say(offset, whence, os.lseek(fd, offset, whence), os.lseek(fd, 0, 1))
        except OSError as error:
            say(offset, whence, error.errno, os.lseek(fd, 0, 1))

    fd = held()
    os.read(fd, 3)
    other = os.dup(fd)
    say("dup", os.read(other, 3), os.read(fd, 3))
    os.close(fd)
    say("one closed", os.read(other, 3), os.fstat(other).st_size)

    fd = held()
    os.read(fd, 5)
    writer = os.open("copy", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    say("copied", os.copy_file_range(fd, writer, 4), os.lseek(fd, 0, 1), os.pread(writer, 10, 0))
    fd = held()
    os.read(fd, 5)
    say("sent", os.sendfile(writer, fd, None, 4), os.lseek(fd, 0, 1), os.pread(writer, 10, 0))

    fd = held()
    os.read(fd, 2)
    writer = os.open("file", os.O_WRONLY)
    os.write(writer, b"NEW!")
    say("written", os.read(fd, 3), os.fstat(fd).st_size)
    os.ftruncate(writer, 4)
    say("cut", os.fstat(fd).st_size, os.read(fd, 3), os.pread(fd, 9, 0))
    os.write(writer, b" and more")
    say("grown", os.fstat(fd).st_size, os.read(fd, 30), os.read(fd, 3), os.lstat("file").st_size)
    again = held()
    os.chmod("file", 0o600)
    say("mode", oct(os.fstat(again).st_mode), oct(os.lstat("file").st_mode))
    os.link("file", "link")
    say("links", os.fstat(again).st_nlink)
    os.rename("link", "file2")
    os.unlink("file2")
    say("links", os.fstat(again).st_nlink, os.path.exists("file2"))
    os.utime("file", (1000, 2000))
    say("times", os.fstat(again).st_mtime, os.lstat("file").st_mtime)

    listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    first = sorted(os.listdir(listing))
    open("new", "w").close()
    say("listings", first, sorted(os.listdir(listing)), sorted(os.listdir(".")))

    # The place in a directory, for other calls and for a child.
    libc.opendir.restype = libc.readdir.restype = libc.telldir.restype = ctypes.c_void_p
    libc.readdir.argtypes = libc.telldir.argtypes = libc.dirfd.argtypes = [ctypes.c_void_p]
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    libc.rewinddir.argtypes = [ctypes.c_void_p]

    def name(stream):
        entry = libc.readdir(stream)
        return ctypes.string_at(entry + 19) if entry else None

    stream = libc.opendir(b"many")
    names = [name(stream) for _ in range(5)]
    place = libc.telldir(stream)
    rest = []
    while one := name(stream):
        rest.append(one)
    libc.seekdir(stream, place)
    say("seekdir", name(stream) == rest[0], len(names) + len(rest))
    libc.rewinddir(stream)
    say("rewinddir", [name(stream) for _ in range(5)] == names)
    fd = os.open("many", os.O_RDONLY | os.O_DIRECTORY)
    data = ctypes.create_string_buffer(256)
    got = libc.getdents64(fd, data, 256)
    total = 0
    while got > 0:
        total += got
        got = libc.getdents64(fd, data, 256)
    os.lseek(fd, 0, 0)
    whole = ctypes.create_string_buffer(1 << 20)
    say("getdents", total == libc.getdents64(fd, whole, 1 << 20), libc.getdents64(fd, whole, 1 << 20))
    os.lseek(fd, 0, 0)
    say("too small", libc.getdents64(fd, data, 10), ctypes.get_errno() or "-")

    fd = held()
    os.read(fd, 2)
    say("lock", fcntl.lockf(os.open("file", os.O_RDWR), fcntl.LOCK_EX, 1, 0, 1), os.read(fd, 1))
    fd = os.dup2(held(), 7)
    listing = os.open("many", os.O_RDONLY | os.O_DIRECTORY)
    say("before", os.read(fd, 2), libc.getdents64(listing, data, 256) > 0)
    if sys.argv[2] == "exec":
        os.execvp("sh", ["sh", "-c", "head -c 2 <&7; echo; ls many | wc -l"])
    elif sys.argv[2] == "spawn":
        say(os.system("head -c 2 <&7; echo; ls many | wc -l"))
    elif os.fork() == 0:
        say("child", os.read(fd, 1), libc.getdents64(listing, data, 256) > 0)
        os._exit(0)
    else:
        os.wait()
    got = 1
    while got > 0:
        got = libc.getdents64(listing, data, 256)
        total -= max(got, 0)
    say("parent", os.read(fd, 1), total)
"""


@pytest.mark.parametrize("end", ["fork", "exec", "spawn"])
def test_the_place_in_a_file_is_the_programs(node, end):
    """What a program does directly and forwarded, with files whose bytes came along."""
    said = []
    for folder in (node.direct / "places", node.far / "places"):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "many").mkdir(parents=True)
        (folder / "file").write_text("0123456789" * 10)
        for number in range(300):
            (folder / "many" / f"a-rather-long-name-{number}").touch()
        command = [python(), "-S", "-c", textwrap.dedent(PLACES)]
        if folder.parent == node.direct:
            done = subprocess.run([*command, folder, end], capture_output=True, text=True)
        else:
            done = node.run(*command, f"{PREFIX}/places", end)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


WRITES = """
    import os, sys, time
    place, kind = sys.argv[1:]
    fd = os.open(f"{place}/written", os.O_RDWR | os.O_CREAT)
    os.mkdir(f"{place}/renamed")
    open(f"{place}/renamed/0", "w").close()
    folder = os.open(f"{place}/renamed", os.O_RDONLY)
    times, end = {}, time.monotonic() + 60
    os.pwrite(fd, b"%08d" % 0, 0)
    print("begins", flush=True)
    os.set_blocking(0, False)
    number = 0
    while time.monotonic() < end:
        number += 1
        if kind == "bytes":
            os.pwrite(fd, b"%08d" % number, 0)
        else:
            os.rename(f"{place}/renamed/{number - 1}", f"{place}/renamed/{number}")
        times[number] = os.fstat(fd if kind == "bytes" else folder).st_mtime_ns
        if number % 100 == 0:
            try:
                if os.read(0, 1) == b"":
                    break
            except BlockingIOError:
                pass
    for number, at in times.items():
        print(number, at)
"""

READS = """
    import os, sys
    place, kind = sys.argv[1:]
    for _ in range(1500):
        if kind == "bytes":
            fd = os.open(f"{place}/written", os.O_RDONLY)
            at = os.fstat(fd).st_mtime_ns
            print(at, int(os.read(fd, 8)))
        else:
            fd = os.open(f"{place}/renamed", os.O_RDONLY | os.O_DIRECTORY)
            at = os.fstat(fd).st_mtime_ns
            print(at, max(map(int, os.listdir(fd)), default=-1))
        os.close(fd)
"""


@pytest.mark.parametrize("kind", ["bytes", "entries"])
def test_attributes_are_never_newer_than_what_comes_with_them(node, kind):
    """A program that notes a file's time, and then its bytes: later it takes them for those of that
    time, as make and caches do."""
    place = node.far / "versions"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    words = [python(), "-S", "-c", textwrap.dedent(WRITES), str(place), kind]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "begins\n"
        done = node.run(python(), "-S", "-c", textwrap.dedent(READS), f"{PREFIX}/versions", kind)
        said, _ = writer.communicate()
    assert done.returncode == 0, done.stderr
    numbers = [[tuple(map(int, line.split())) for line in text.splitlines()] for text in (said, done.stdout)]
    times, seen = dict(numbers[0]), numbers[1]
    checked = [(at, number) for at, number in seen if number in times]
    assert len(checked) > 100
    wrong = [(at, number) for at, number in checked if at > times[number]]
    # A write moves the file's time a moment before its bytes are there: of 1,500 opens, some meet
    # that in any case, 19 on a busy machine. Where bytes were from before the time, 150 did.
    assert len(wrong) <= (60 if kind == "bytes" else 0), wrong


def test_what_is_appended_is_read_after_the_end(node):
    """A program at the end of a file, as `tail -f` is."""
    program = f"""
        import os, sys
        fd = os.open("{PREFIX}/log", os.O_RDONLY)
        for _ in range(200):
            print(os.read(fd, 4096), os.read(fd, 4096), flush=True)
            os.read(0, 1)
    """
    log = node.far / "log"
    log.write_text("0\n")
    words = [*node.command(), python(), "-S", "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        for number in range(200):
            assert run.stdout.readline() == f"b'{number}\\n' b''\n".replace("\\n", "\\n").encode()
            with log.open("a") as more:
                more.write(f"{number + 1}\n")
            run.stdin.write(b"x")
            run.stdin.flush()
    assert run.returncode == 0


def test_a_close_goes_out_though_no_call_follows(node):
    """It waits for the next call, so that both are one message, but not for long."""
    program = f"""
        import os
        os.chdir("{PREFIX}")
        held = os.open("closed", os.O_RDONLY)
        print("open", flush=True)
        os.read(0, 1)
        os.close(held)
        print("closed", flush=True)
        os.read(0, 1)
    """
    (node.far / "closed").write_text("x")
    words = [*node.command(), python(), "-S", "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"open\n"
        assert calls(node)["px_open_ahead"] > 0
        before = calls(node)["px_close"]
        run.stdin.write(b"x")
        run.stdin.flush()
        assert run.stdout.readline() == b"closed\n"
        deadline = time.monotonic() + 60
        while calls(node)["px_close"] == before:
            assert time.monotonic() < deadline
        run.communicate(b"x")


def test_files_that_come_along_are_small_and_have_blocks(node):
    """No byte is read of a file that has none on its disk, nor of a large one."""
    (node.far / "sparse").write_bytes(b"")
    os.truncate(node.far / "sparse", 4096)
    (node.far / "large").write_bytes(b"x" * 100_000)
    for name in ("sparse", "large"):
        os.utime(node.far / name, (1, 1))
        program = f"import os; print(os.fstat(os.open('{PREFIX}/{name}', 0)).st_size)"
        done = node.run(python(), "-S", "-c", program)
        assert int(done.stdout) == (node.far / name).stat().st_size, done.stderr
        assert (node.far / name).stat().st_atime == 1
