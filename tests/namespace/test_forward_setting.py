"""`forward = PATH` in `[namespace]`: any user's programs reach the namespace by `zazen run
--forward`, and the machine has no mount and nothing at that path."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import forwarded_programs as programs
import pytest
import zazen.testing
from zazen import namespace

# Nothing is there.
JOB = "/zazen-job-of-a-test"
FORWARD = ("--namespace-forward", JOB)
GROUP = 64_242
# One that every user may run.
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
needs_python = pytest.mark.skipif(PYTHON is None, reason="needs a Python that every user may run")

# What names a program sees of its files. `sys.argv[1]` is a folder.
NAMES = """
import os, sys, tempfile
top = sys.argv[1]
os.chdir(top)
os.makedirs("a/b")
open("a/f", "w").write("f")
print(os.getcwd(), os.path.realpath("a/../a/f"), os.path.realpath(top + "/a"))
os.symlink(top + "/a/f", "absolute")
os.symlink("a/f", "relative")
os.symlink(top + "/a", "folder")
print(os.readlink("absolute"), os.readlink("relative"), open("absolute").read(), open(top + "/relative").read())
print(sorted(os.listdir("folder")), os.stat(top + "/folder/f").st_size, os.path.realpath("folder/b/.."))
os.rename("folder/f", "folder/g")
os.rename("a/g", "a/f")
os.chdir("a/b")
print(os.getcwd(), sorted(os.listdir("../..")), os.path.exists("../../../no such"))
print(os.readlink("/proc/self/cwd"))
f = open("x", "w")
print(os.readlink(f"/proc/self/fd/{f.fileno()}"))
d = os.open(top, os.O_RDONLY)
print(os.readlink(f"/proc/self/fd/{d}"), os.stat("a/f", dir_fd=d).st_size, sorted(os.listdir(d)))
os.chdir("../..")
os.rename("a/f", top + "/h")
os.link(top + "/h", "i")
print(os.stat("i").st_nlink, [(a, sorted(b), sorted(c)) for a, b, c in os.walk(top)])
os.fchdir(d)
print(os.getcwd())
os.chdir("..")
print(os.getcwd() == os.path.dirname(top))
try:
    os.stat(top + "/missing")
except OSError as error:
    print(error)
fd, name = tempfile.mkstemp(dir=top)
os.write(fd, b"x" * 100_000)
print(os.pread(fd, 3, 50_000), os.fstat(fd).st_size, os.stat(name).st_size)
os.ftruncate(fd, 7)
os.setxattr(name, "user.a", b"b")
print(os.fstat(fd).st_size, os.listxattr(name), os.getxattr(fd, "user.a"))
os.chmod(name, 0o640)
os.utime(name, (1, 2))
print(oct(os.stat(name).st_mode), os.stat(name).st_mtime)
"""


def run_words(node, *flags: object) -> list[object]:
    """`zazen run` with this machine's daemon, unless the flags say another one."""
    where = () if "--node" in flags else ("--socket", node.daemon.socket)
    return [zazen.testing.program("zazen"), "run", "--forward", JOB, *where, *flags, "--"]


def done_by(words: list[object], user: int = 0, groups: tuple[int, ...] = ()) -> subprocess.CompletedProcess:
    """The end of a program that this user starts."""
    return subprocess.run(
        list(map(str, words)),
        user=user,
        group=user,
        extra_groups=groups,
        env=zazen.testing.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def forwarded(node, script: str, *flags: object, status: int = 0) -> str:
    """What a shell script of the user `nobody` says whose files in JOB are forwarded."""
    return programs.as_nobody(*run_words(node, *flags), "sh", "-c", script, status=status)


def processes(name: str) -> list[int]:
    """The processes of the test whose command line begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().split(b"\0")[0].decode() == name:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_nobody(process: int) -> bool:
    return f"\nUid:\t{programs.NOBODY}\t" in Path(f"/proc/{process}/status").read_text()


def mounts() -> list[str]:
    """The lines about FUSE in the tables of mounts of all of the test's processes."""
    lines = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines += [line for line in table.read_text().splitlines() if " - fuse." in line]
        except OSError:
            continue
    return lines


def connection(node) -> Path:
    """The kernel's folder for the daemon's mount: it is there as long as the mount is."""
    control = Path("/sys/fs/fuse/connections")
    if not os.path.ismount(control):
        subprocess.run(["mount", "-t", "fusectl", "none", control], check=True)
    return control / str(os.minor(int(forwarded(node, f"stat -c %d {JOB}"))))


def is_same(folder: Path, inode: int) -> bool:
    """Whether it is not gone, and not another mount's that got its number."""
    try:
        return folder.stat().st_ino == inode
    except OSError:
        return False


def until(found, what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def with_a_key(node) -> list[object]:
    """Starts the daemon again, reached from other nodes, too: the flags for the user `nobody`."""
    key, own = node.folder / "key", node.folder / "nobody's key"
    node.zazen("key", "new", key)
    shutil.copy(key, own)
    own.chmod(0o600)
    os.chown(own, programs.NOBODY, programs.NOBODY)
    node.daemon.stop()
    shutil.rmtree(node.folder / "data")
    node.daemon.address = "127.0.0.1:0"
    node.daemon.arguments += ["--key", key]
    node.daemon.start()
    return ["--node", node.daemon.address, "--key", own]


def test_any_user_reaches_the_namespace_and_no_mount_is_there(run_inside):
    def test(node):
        there = with_a_key(node)
        files = namespace.Namespace(str(node.daemon.socket))
        files.write_bytes("/public", b"public\n")
        files.write_bytes("/private", b"private\n")
        files.chmod("/private", 0o600)
        for number, flags in enumerate(([], ["--relay"], ["--direct"], there)):
            said = forwarded(
                node, f"cat {JOB}/public && cd {JOB} && echo mine > mine{number} && cat mine{number}", *flags
            )
            assert said == "public\nmine\n", flags
            assert "Permission denied" in forwarded(node, f"cat {JOB}/private", *flags, status=1)
            assert "Permission denied" in forwarded(
                node, f"echo more >> {JOB}/public || exit 3", *flags, status=3
            )
            assert "not permitted" in forwarded(node, f"rm -f {JOB}/public", *flags, status=1)
            made = files.stat(f"/mine{number}")
            assert (made.st_uid, made.st_gid, made.st_size) == (programs.NOBODY, programs.NOBODY, 5)
        assert processes("zazend-plugin")
        assert mounts() == []
        assert not os.path.lexists(JOB)

    run_inside(test, *FORWARD)


def test_each_user_has_the_rights_of_user_and_groups(run_inside):
    def test(node):
        files = namespace.Namespace(str(node.daemon.socket))
        files.mkdir("/team")
        files.write_bytes("/team/plan", b"plan\n")
        files.chown("/team/plan", 64_001, GROUP)
        files.chmod("/team/plan", 0o640)
        files.chmod("/team", 0o755)

        def read(user: int, *groups: int, flags: list[str]) -> str:
            done = done_by([*run_words(node, *flags), "cat", f"{JOB}/team/plan"], user, groups)
            return done.stdout + done.stderr

        for flags in ([], ["--direct"]):
            assert read(64_001, flags=flags) == "plan\n"
            assert read(64_002, GROUP, flags=flags) == "plan\n"
            assert "Permission denied" in read(64_002, flags=flags)
            assert "Permission denied" in read(64_002, GROUP + 1, flags=flags)

    run_inside(test, *FORWARD)


@needs_python
def test_names_are_those_of_a_mount(run_inside):
    """A program says the same lines with a mount, without it, and from another node."""

    def test(node):
        there = with_a_key(node)
        node.mount()

        def fresh(name: str) -> None:
            programs.as_nobody("mkdir", node.mnt / name)

        fresh("plain")
        words = [PYTHON, "-c", NAMES]
        expected = programs.as_nobody(*words, node.mnt / "plain").replace(str(node.mnt), JOB)
        node.unmount()
        for name, flags in (("here", []), ("relay", ["--relay"]), ("there", there)):
            forwarded(node, f"mkdir {JOB}/{name}", *flags)
            said = programs.as_nobody(*run_words(node, *flags), *words, f"{JOB}/{name}")
            assert said == expected.replace(f"{JOB}/plain", f"{JOB}/{name}"), flags

    run_inside(test, *FORWARD)


def test_another_prefix_and_another_export(run_inside):
    """The path of the setting is the far side's name; other exports are there as ever."""

    def test(node):
        backing = node.folder / "backing"
        (backing / "file").write_text("of the backing store\n")
        node.daemon.stop()
        node.daemon.arguments += ["--plugin", "posix"]
        node.daemon.start()
        words = [zazen.testing.program("zazen"), "run", "--socket", node.daemon.socket]
        words += ["--forward", f"/mine={JOB}", "--forward", f"/there={backing}", "--"]
        script = "cat /there/file && cp /there/file /mine/f && cd /mine && cat f && pwd && readlink -f f"
        said = programs.as_nobody(*words, "sh", "-c", script)
        assert said == "of the backing store\n" * 2 + "/mine\n/mine/f\n"
        # Without posix among its plug-ins, the daemon exports the namespace alone.
        node.daemon.stop()
        node.daemon.arguments = node.daemon.arguments[:-2]
        node.daemon.start()
        said = programs.as_nobody(*words, "cat", "/there/file", status=1)
        assert "the daemon exports " + JOB + ":" in said
        assert "Permission denied" in said

    run_inside(test, *FORWARD)


def test_a_statically_linked_program(run_inside):
    def test(node):
        source, program = node.folder / "first.c", node.folder / "first"
        source.write_text(
            "#include <stdio.h>\n#include <unistd.h>\n"
            'int main(int c, char **v) { char line[80]; FILE *f; chdir(v[1]); f = fopen(v[2], "r");\n'
            "  return !(f && fgets(line, 80, f) && puts(line) > 0 && puts(getcwd(line, 80)) > 0); }\n"
        )
        words = ["cc", "-static", "-o", program, source]
        if shutil.which("cc") is None or subprocess.run(words, capture_output=True, check=False).returncode:
            print("skipped: no C compiler with a static libc")
            return
        forwarded(node, f"mkdir {JOB}/d && echo line > {JOB}/d/f")
        said = programs.as_nobody(*run_words(node, "--seccomp"), program, f"{JOB}/d", "f")
        assert said == f"line\n\n{JOB}/d\n"
        # One that no library can be put into, started by one that is forwarded.
        assert forwarded(node, f"cd {JOB} && {program} d f") == f"line\n\n{JOB}/d\n"

    run_inside(test, *FORWARD)


HOLDS = """
import errno, os, sys
os.chdir(sys.argv[1])
held = os.open("held", os.O_CREAT | os.O_RDWR)
os.write(held, b"before")
def attempt(what, *words):
    try:
        return what(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
for line in sys.stdin:
    print(attempt(os.pread, held, 6, 0), attempt(lambda: open("held").read()), flush=True)
"""


@contextlib.contextmanager
def running(node, *words: object, flags: tuple[str, ...] = ()) -> Iterator[subprocess.Popen]:
    """A forwarded program of the user `nobody`, which ends when the test fails."""
    with subprocess.Popen(
        list(map(str, [*run_words(node, *flags), *words])),
        user=programs.NOBODY,
        group=programs.NOBODY,
        extra_groups=[],
        env=zazen.testing.environment(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        except BaseException:
            program.kill()
            raise


def holding(node, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """A program that has a file open, and says what becomes of it for each line that it gets."""
    return running(node, PYTHON, "-u", "-c", HOLDS, JOB, flags=flags)


def ask(program: subprocess.Popen) -> str:
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


@needs_python
@pytest.mark.parametrize("flags", [[], ["--direct"]], ids=["calls", "direct"])
def test_a_program_goes_on_after_the_daemon_was_killed(run_inside, flags):
    """What was open fails, names work again; nothing of the dead daemon is left."""
    # The kernel itself may read a file that the node holds.
    lost = {"ENOTCONN", "ECONNABORTED", "b'before'"} if flags else {"EIO"}

    def test(node):
        mount = connection(node)
        inode = mount.stat().st_ino
        with holding(node, *flags) as program:
            assert ask(program) == "b'before' before"
            node.daemon.kill()
            until(lambda: not processes("zazend-plugin"), "processes are left")
            held = ask(program).split()
            assert held[0] in lost and held[1] == "EIO", held
            node.daemon.start()
            until(lambda: ask(program).split()[1] == "before", "names do not work again")
            assert ask(program).split()[0] in lost
            program.stdin.close()
            assert program.wait(timeout=60) == 0
        until(lambda: not is_same(mount, inode), "the dead daemon's mount is left")

    run_inside(test, *FORWARD)


@needs_python
def test_a_killed_plug_in_process_costs_its_own_callers_only(run_inside):
    def test(node):
        with holding(node) as program:
            assert ask(program) == "b'before' before"
            for process in processes("zazend-plugin"):
                if is_nobody(process):
                    os.kill(process, signal.SIGKILL)
            until(lambda: ask(program).split()[1] == "before", "names do not work again")
            assert ask(program).split()[0] == "EIO"
            program.stdin.close()
            assert program.wait(timeout=60) == 0
        assert forwarded(node, f"cat {JOB}/held") == "before"

    run_inside(test, *FORWARD)


@needs_python
@pytest.mark.parametrize("flags", [[], ["--direct"]], ids=["calls", "direct"])
def test_a_daemon_that_stops_leaves_nothing(run_inside, flags):
    """Also while a program has a file open."""

    def test(node):
        mount = connection(node)
        inode, socket = mount.stat().st_ino, node.daemon.socket
        with holding(node, *flags) as program:
            assert ask(program) == "b'before' before"
            assert node.daemon.stop() == 0
            assert processes("zazend-plugin") == []
            assert list(socket.parent.glob(f"{socket.name}.namespace")) == []
            assert list(socket.parent.glob(f"{socket.name}.plugin*")) == []
            program.stdin.close()
            assert program.wait(timeout=60) == 0
        until(lambda: not is_same(mount, inode), "a mount is left")
        assert mounts() == []

    run_inside(test, *FORWARD)


def test_calls_that_wait_keep_nobody_else_out(run_inside):
    """More programs wait for a lock than the mount has threads."""
    if shutil.which("flock") is None:
        pytest.skip("needs flock (package util-linux)")

    def test(node):
        forwarded(node, f"echo x > {JOB}/lock")
        script = f"""
            cd {JOB}
            flock lock sh -c 'echo > held; until test -e go; do sleep 0.1; done' &
            until test -e held; do sleep 0.1; done
            echo held
            for n in $(seq 24); do flock lock true & done
            wait
        """
        with running(node, "sh", "-c", script) as waiting:
            assert waiting.stdout.readline() == "held\n"
            until(lambda: len(processes("flock")) == 25, "the programs do not run")
            assert forwarded(node, f"echo other > {JOB}/f && cat {JOB}/f") == "other\n"
            assert len(processes("flock")) == 25
            forwarded(node, f"echo > {JOB}/go")
            assert waiting.wait(timeout=120) == 0

    run_inside(test, *FORWARD)


@needs_python
def test_what_a_program_gets_leads_nowhere_else(run_inside):
    """Neither `..` of the mount's root nor the process that acts for the user."""

    def test(node):
        code = f"""
import os
d = os.open("{JOB}", os.O_RDONLY | os.O_DIRECTORY)
up = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=d)
upper = os.open("../../..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=d)
print(os.listdir(up), os.stat(up) == os.stat(upper))
"""
        said = programs.as_nobody(*run_words(node, "--direct"), PYTHON, "-c", code)
        assert said in (f"[{JOB[1:]!r}] True\n",) or "Permission denied" in said, said
        found = [process for process in processes("zazend-plugin") if is_nobody(process)]
        assert found
        for name in ("root", "cwd", "fd", "ns/mnt", "mem"):
            said = programs.as_nobody("ls", "-l", f"/proc/{found[0]}/{name}/", status=2)
            assert "Permission denied" in said or "Not a directory" in said, said

    run_inside(test, *FORWARD)


def test_root_is_nobody_unless_it_is_trusted(run_inside):
    def test(node):
        node.daemon.stop()
        at = node.daemon.arguments.index("trust")
        node.daemon.arguments[at] = "squash"
        node.daemon.start()
        done = done_by([*run_words(node), "sh", "-c", f"echo x > {JOB}/made; stat -c %u {JOB}/made"])
        assert done.stdout == "65534\n", done
        words = [*run_words(node), "sh", "-c", f"umask 077; echo his > {JOB}/his"]
        assert done_by(words, 64_001).returncode == 0
        done = done_by([*run_words(node), "cat", f"{JOB}/his"])
        assert done.returncode == 1 and "Permission denied" in done.stderr, done

    run_inside(test, *FORWARD)


def test_a_daemon_that_may_not_mount_says_so(folder):
    """Before it serves; `--check` too."""
    (folder / "backing").mkdir()
    command = [zazen.testing.program("zazend"), "--cache", folder / "cache", "--backing", folder / "backing"]
    command += ["--socket", folder / "s", "--namespace", folder / "data", "--namespace-format", *FORWARD]

    def refused(words: list[object], user: int = 0) -> str:
        done = done_by(words, user)
        assert done.returncode == 1, done
        said = done.stdout + done.stderr
        assert f"namespace forward {JOB}: " in said, said
        assert f"`zazen mount {JOB}`" in said and f"--export {JOB}" in said, said
        return said

    if shutil.which("setpriv"):
        for more in ([], ["--check"]):
            assert "CAP_SYS_ADMIN" in refused(["setpriv", "--bounding-set", "-sys_admin", *command, *more])
    os.chown(folder, programs.NOBODY, programs.NOBODY)
    shutil.rmtree(folder / "data", ignore_errors=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    refused(command, programs.NOBODY)
    assert not (folder / "s").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--namespace-forward", "job"], "give an absolute path"),
        ([*FORWARD, "--export", f"{JOB}/below"], "is, holds or lies in the same folder"),
        ([*FORWARD, "--export", "/"], "is, holds or lies in the same folder"),
        ([*FORWARD, "--plugin", "posix:in-process"], "leave :in-process out"),
    ],
)
def test_bad_settings_are_refused(folder, flags, says):
    (folder / "backing").mkdir()
    command = [zazen.testing.program("zazend"), "--cache", folder / "cache", "--backing", folder / "backing"]
    command += ["--socket", folder / "s", "--namespace", folder / "data", "--namespace-format", *flags]
    done = done_by(command)
    assert done.returncode == 1 and says in done.stderr, done


def test_a_testbed(folder, alone):
    """What one node's programs write, another node's read."""

    def test():
        zazen_program, testbed = zazen.testing.program("zazen"), folder / "testbed"

        def run(*words: object) -> str:
            done = done_by(list(words))
            assert done.returncode == 0, done
            return done.stdout

        up = [zazen_program, "testbed", "up", "2", "--namespace", "--forward", JOB, "--dir", testbed]
        assert f"zazen run --forward {JOB}" in run(*up)
        try:
            state = json.loads((testbed / "testbed.json").read_text())
            sockets = [node["socket"] for node in state["nodes"]]
            forward = [zazen_program, "run", "--forward", JOB, "--socket"]
            run(*forward, sockets[0], "--", "sh", "-c", f"mkdir {JOB}/run1 && echo hello > {JOB}/run1/f")
            assert run(*forward, sockets[1], "--", "cat", f"{JOB}/run1/f") == "hello\n"
            assert mounts() == []
        finally:
            run(zazen_program, "testbed", "down", "--dir", testbed)
        assert processes("zazend-plugin") == []

    alone(test)


def test_a_file_type_that_is_no_regular_one(run_inside):
    """FIFOs and sockets in the namespace join forwarded programs, as on a mount."""

    def test(node):
        script = f"cd {JOB} && mkfifo p && (echo through > p &) && cat p && test -p p"
        assert forwarded(node, script) == "through\n"
        mode = namespace.Namespace(str(node.daemon.socket)).stat("/p").st_mode
        assert stat.S_ISFIFO(mode)

    run_inside(test, *FORWARD)
