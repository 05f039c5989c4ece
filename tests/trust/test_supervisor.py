"""`zazen run --seccomp` under root: programs that confine themselves stay confined, and nobody
waits for another."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECRET = "outside of all that confines the program"

# What programs begin with; `far` is the prefix, `tell` prints for the test.
PROLOGUE = """
import ctypes, errno, json, os, signal, struct, sys, time
far, ground = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
def tell(**what): os.write(1, (json.dumps(what) + "\\n").encode())
def read(path):
    try:
        with open(path) as file: return file.read()
    except OSError as error: return errno.errorcode[error.errno]
"""


class Supervised:
    """Root's daemon with the posix plug-in, and programs whose prefix `p` is its backing store's
    folder `far`."""

    def __init__(self, node, ground: Path, programs: Path) -> None:
        self.node, self.ground, self.programs = node, ground, programs
        self.far = node.backing / "far"
        self.far.mkdir()
        (self.far / "a").write_text("far away")
        self.prefix = ground / "p"
        self.secret = ground / "secret"
        self.secret.write_text(SECRET)

    def command(self, text: str, *arguments: object) -> list[str]:
        words = [self.programs / "zazen", "run", "--socket", self.node.socket]
        words += ["--forward", f"{self.prefix}={self.far}", "--seccomp", "--"]
        words += [sys.executable, "-c", PROLOGUE + text, self.prefix, self.ground, *arguments]
        return [*map(str, words)]

    def start(self, text: str, *arguments: object) -> subprocess.Popen:
        pipe = subprocess.PIPE
        command = self.command(text, *arguments)
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/")

    def run(self, text: str, *arguments: object) -> list[dict]:
        """What the program told."""
        with self.start(text, *arguments) as program:
            try:
                out, err = program.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                program.kill()
                raise
        assert program.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def supervised(start_node, ground, programs):
    node = start_node("--plugin", programs / "libzazen_posix.so")
    return Supervised(node, ground, programs)


def test_what_begins_below_the_prefix_and_leaves_it_is_the_kernels(supervised):
    """Where the prefix is a folder of this machine, too, the path leads where it would lead without
    us."""
    supervised.prefix.mkdir()
    (told,) = supervised.run("tell(far=read(far + '/a'), out=read(far + '/../secret'))")
    assert told == {"far": "far away", "out": SECRET}
    supervised.prefix.rmdir()
    (told,) = supervised.run("tell(far=read(far + '/a'), out=read(far + '/../secret'))")
    assert told == {"far": "far away", "out": "ENOENT"}


def test_a_program_in_a_chroot_stays_there(supervised):
    jail = supervised.ground / "jail"
    inside = jail / str(supervised.prefix).lstrip("/")
    inside.mkdir(parents=True)
    (inside / "a").write_text("in jail")
    (inside.parent / "secret").write_text("the jail's")
    told = supervised.run("""
os.chdir(far)
os.chroot(ground + "/jail")
# As it was before: what is relative begins below the prefix, of another view.
tell(relative=read("a"), climbing=read("../../secret"))
os.chdir("/")
tell(far=read(far + "/a"), out=read(far + "/../secret"), deep=read(far + "/../../.." + ground + "/secret"))
tell(stat=os.stat(far + "/../secret").st_size, listed=sorted(os.listdir(far + "/..")), cwd=os.getcwd())
try:
    os.unlink(far + "/../../backing/far/a")
except OSError as error:
    tell(unlinked=errno.errorcode[error.errno])
""")
    assert told[0]["relative"] in ("EXDEV", "ENOENT") and told[0]["climbing"] in ("EXDEV", "ENOENT")
    assert told[1]["far"] == "in jail" and told[1]["out"] == "the jail's"
    assert SECRET not in told[1].values()
    assert told[2] == {"stat": len("the jail's"), "listed": ["p", "secret"], "cwd": "/"}
    assert told[3] == {"unlinked": "ENOENT"} and (supervised.far / "a").exists()


def test_a_program_under_landlock_stays_there(supervised):
    supervised.prefix.mkdir()
    told = supervised.run("""
READ = 1 << 2 | 1 << 3
ruleset = libc.syscall(444, struct.pack("Q", READ), 8, 0)
if ruleset < 0:
    tell(no_landlock=True)
    sys.exit()
for folder in ("/usr", "/lib", "/proc", sys.prefix):
    fd = os.open(folder, os.O_PATH)
    assert libc.syscall(445, ruleset, 1, struct.pack("=Qi", READ, fd), 0) == 0
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.syscall(446, ruleset, 0) == 0
tell(plain=read(ground + "/secret"), out=read(far + "/../secret"))
os.chdir(far)
tell(relative=read("../secret"), far=read("a"))
""")
    if told == [{"no_landlock": True}]:
        pytest.skip("this kernel has no Landlock")
    assert told == [{"plain": "EACCES", "out": "EACCES"}, {"relative": "EXDEV", "far": "far away"}]


def test_a_program_with_mounts_of_its_own_stays_among_them(supervised):
    covered = supervised.ground / "covered"
    covered.mkdir()
    (covered / "secret").write_text(SECRET)
    supervised.prefix.mkdir()
    told = supervised.run("""
PRIVATE, NEWNS = 1 << 18 | 1 << 14, 0x20000
if libc.unshare(NEWNS) or libc.mount(b"none", b"/", None, PRIVATE, None) or libc.mount(
        b"none", (ground + "/covered").encode(), b"tmpfs", 0, None):
    tell(no_mounts=True)
    sys.exit()
tell(plain=read(ground + "/covered/secret"), out=read(far + "/../covered/secret"))
""")
    if told == [{"no_mounts": True}]:
        pytest.skip("this root may not mount")
    assert told == [{"plain": "ENOENT", "out": "ENOENT"}]


def test_a_far_working_directory_is_left_for_good(supervised):
    """From then on the kernel resolves relative paths, for children, too."""
    (supervised.ground / "sub").mkdir()
    told = supervised.run("""
os.chdir(ground)
os.chdir(far)
tell(far=read("a"), climbing=read("../secret"), cwd=os.getcwd())
for bad in (ground + "/nowhere", ground + "/secret"):
    try:
        os.chdir(bad)
    except OSError as error:
        tell(failed=errno.errorcode[error.errno], still=read("a"))
os.chdir(ground)
tell(left=read("secret"), kernel=os.readlink("/proc/self/cwd"), cwd=os.getcwd(), far=read("a"))
child = os.fork()
if child == 0:
    tell(child=read("secret"), cwd=os.getcwd())
    os.chdir(far)
    tell(child=read("a"), cwd=os.getcwd())
    os._exit(0)
os.waitpid(child, 0)
tell(parent=read("secret"), cwd=os.getcwd())
os.chdir(far)
sub = os.open(ground + "/sub", os.O_DIRECTORY)
child = os.fork()
if child == 0:
    time.sleep(0)
    tell(child=read("a"), cwd=os.getcwd())
    os._exit(0)
os.waitpid(child, 0)
os.fchdir(sub)
tell(left=read("../secret"), cwd=os.getcwd())
back = os.open(far, os.O_DIRECTORY)
os.chdir(far)
os.fchdir(back)
tell(back=read("a"))
""")
    far, ground = str(supervised.prefix), str(supervised.ground)
    assert told == [
        {"far": "far away", "climbing": "EXDEV", "cwd": far},
        {"failed": "ENOENT", "still": "far away"},
        {"failed": "ENOTDIR", "still": "far away"},
        {"left": SECRET, "kernel": ground, "cwd": ground, "far": "ENOENT"},
        {"child": SECRET, "cwd": ground},
        {"child": "far away", "cwd": far},
        {"parent": SECRET, "cwd": ground},
        {"child": "far away", "cwd": far},
        {"left": SECRET, "cwd": ground + "/sub"},
        {"back": "far away"},
    ]


def test_what_a_user_may_not_do_is_not_done_for_him(supervised, b):
    """Root's supervisor acts for a program that became another user: FIFOs, directories, files."""
    for name, mode in [("closed", 0o600), ("open", 0o666)]:
        os.mkfifo(supervised.far / name)
        (supervised.far / name).chmod(mode)
    (supervised.far / "private").mkdir(mode=0o700)
    (supervised.far / "hidden").write_text(SECRET)
    (supervised.far / "hidden").chmod(0o600)
    (supervised.ground / "private").mkdir(mode=0o700)
    program = supervised.start(
        """
os.setgroups([]); os.setresgid(*3 * [int(sys.argv[3])]); os.setresuid(*3 * [int(sys.argv[3])])
os.chdir(far)
def change(path):
    try: os.chdir(path)
    except OSError as error: return errno.errorcode[error.errno]
tell(closed=read("closed"), hidden=read("hidden"), near=change(ground + "/private"), far=change("private"))
tell(open=read("open"))
""",
        b.uid,
    )
    first = json.loads(program.stdout.readline())
    assert first == {"closed": "EACCES", "hidden": "EACCES", "near": "EACCES", "far": "EACCES"}
    with open(supervised.far / "open", "w") as fifo:
        fifo.write("through")
    out, err = program.communicate(timeout=60)
    assert json.loads(out) == {"open": "through"} and program.returncode == 0, err


def test_calls_that_wait_hold_nobody_up(supervised, b):
    """Other users' opens wait for a lease; more of them than there are threads to begin with."""
    leased = supervised.far / "leased"
    leased.write_text("leased")
    leased.chmod(0o666)
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(leased, os.O_RDONLY)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        program = supervised.start(
            """
waiting = []
for number in range(12):
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setresgid(*3 * [int(sys.argv[3])]); os.setresuid(*3 * [int(sys.argv[3]) + number % 3])
        try: os.open(far + "/leased", os.O_WRONLY | os.O_TRUNC)
        except OSError: pass
        os._exit(0)
    waiting.append(child)
time.sleep(0.5)
begun = time.monotonic()
for _ in range(100):
    os.stat(far + "/a")
tell(seconds=time.monotonic() - begun, far=read(far + "/a"))
sys.stdin.readline()
for child in waiting[:6]: os.kill(child, signal.SIGKILL)
for child in waiting: os.waitpid(child, 0)
tell(after=read(far + "/a"))
""",
            b.uid,
        )
        first = json.loads(program.stdout.readline())
        assert first["far"] == "far away" and first["seconds"] < 60, first
        program.stdin.write("\n")
        program.stdin.flush()
        time.sleep(0.2)
    finally:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(holder)
        signal.signal(signal.SIGIO, old)
    out, err = program.communicate(timeout=100)
    assert json.loads(out) == {"after": "far away"} and program.returncode == 0, err
    assert leased.read_text() == "", "those that waited have opened it, and as they asked to"
