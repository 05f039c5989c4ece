"""--direct where this machine's kernel has the daemon's folders: names, freshness, and no calls."""

import json
import os
import shutil
import subprocess

import pytest
from harness import PREFIX, Daemon, python

NAMES = """
import os, sys, glob, tempfile
top = sys.argv[1]
os.chdir(top)
os.makedirs("a/b")
open("a/f", "w").write("f")
print(os.getcwd(), os.path.realpath("a/../a/f"), os.path.realpath(top + "/a"))
os.symlink(top + "/a/f", "absolute")
os.symlink("a/f", "relative")
print(os.readlink("absolute"), os.readlink("relative"), open("absolute").read(), open(top + "/relative").read())
os.chdir("a/b")
print(os.getcwd(), sorted(os.listdir("../..")), os.path.exists("../../../no such"))
print(os.readlink("/proc/self/cwd"))
f = open("x", "w")
print(os.readlink(f"/proc/self/fd/{f.fileno()}"))
d = os.open(top, os.O_RDONLY)
os.symlink(top + "/a", "by number", dir_fd=d)
print(os.readlink("by number", dir_fd=d), os.stat("a/f", dir_fd=d).st_size)
os.chdir("../..")
os.rename("a/f", top + "/g")
os.link(top + "/g", "h")
print(os.stat("h").st_nlink, sorted(glob.glob(top + "/*")))
print([(a, sorted(b), sorted(c)) for a, b, c in os.walk(top)])
name = tempfile.mkdtemp(dir=top)
os.rmdir(name)
fd, name = tempfile.mkstemp(dir=top)
os.unlink(name)
print(os.path.dirname(name))
os.fchdir(d)
print(os.getcwd())
os.chdir("..")
print(os.getcwd() == os.path.dirname(top))
os.chdir("/")
print(os.getcwd())
try:
    os.stat(top + "/missing")
except OSError as error:
    print(error)
"""


def calls(daemon) -> int:
    """How many calls the plug-in has served."""
    words = [daemon.programs / "zazen", "plugin", "stats", "posix", "--socket", daemon.socket, "--json"]
    said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return sum(function["calls"] for plugin in said for function in plugin["functions"])


@pytest.mark.parametrize("mode", ["--direct", "--abort-on-escape"])
def test_names_are_those_of_the_prefix(daemon, mode):
    """The same lines, but for the folder's name."""
    daemon.empty()
    words = [python(), "-c", NAMES]
    plain = subprocess.run([*words, daemon.direct], capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    done = daemon.run(*words, PREFIX, options=[mode])
    assert done.stdout == plain.stdout.replace(str(daemon.direct), PREFIX), done.stderr


def test_a_far_folder_that_is_missing_is_named(programs):
    with Daemon(programs, isolated=True) as daemon:
        assert "warning" not in daemon.run("true").stderr
        daemon.far.rmdir()
        said = daemon.run("true")
        assert said.returncode == 0
        assert f"warning: {daemon.far} is not there, on the daemon's machine" in said.stderr


def test_nothing_is_asked_of_the_daemon(daemon):
    daemon.empty()
    for number in range(200):
        (daemon.far / f"f{number}").write_text(str(number))
    before = calls(daemon)
    script = (
        f"cd {PREFIX}; cat f*; stat f1; tar cf t.tar f*; find {PREFIX} | wc -l; ls -l; rm t.tar; test -e no"
    )
    daemon.run("sh", "-c", script, options=["--direct"])
    # `zazen run` asks about the folder.
    assert calls(daemon) - before < 10


def test_a_change_is_seen_at_once(daemon):
    """However it is made: there is no copy of anything."""
    daemon.empty()
    code = f"""
import os, sys
for line in sys.stdin:
    print(os.path.exists("{PREFIX}/new"), sorted(os.listdir("{PREFIX}")), flush=True)
"""
    words = [*daemon.command("--direct"), python(), "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def ask() -> str:
            child.stdin.write("now\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert ask() == "False []"
        (daemon.far / "new").touch()
        assert ask() == "True ['new']"
        # The folder is another one: the daemon finds it by its name, too.
        os.rename(daemon.far, daemon.folder / "old")
        daemon.far.mkdir()
        assert ask() == "False []"
        child.stdin.close()
    shutil.rmtree(daemon.folder / "old")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_another_mount_namespace_sees_the_daemons_files(daemon):
    """Something else lies at the folder's path there."""
    daemon.empty()
    (daemon.far / "file").write_text("the daemon's\n")
    other = f"{daemon.far}/file"
    script = f"mount -t tmpfs none {daemon.far} && echo other > {other} && cat {other} {PREFIX}/file"
    done = daemon.run("unshare", "-m", "sh", "-c", script, options=["--direct"])
    assert done.stdout == "other\nthe daemon's\n", done.stderr


def test_scripts_and_their_interpreters_below_the_prefix(daemon):
    daemon.empty()
    shutil.copy(shutil.which("cat"), daemon.far / "cat")
    for name, head in (
        ("one", f"#!{PREFIX}/cat"),
        ("shell", "#!/bin/sh\necho $0"),
        ("loop", f"#!{PREFIX}/loop"),
    ):
        (daemon.far / name).write_text(head + "\n")
        (daemon.far / name).chmod(0o755)
    (daemon.far / "plain").write_text("#!/bin/sh\n")
    done = daemon.run(
        "bash",
        "-c",
        f"{PREFIX}/one; {PREFIX}/shell; cd {PREFIX}; ./shell; ./plain; ./loop",
        options=["--direct"],
    )
    assert done.stdout == f"#!{PREFIX}/cat\n{PREFIX}/shell\n./shell\n"
    assert "ermission denied" in done.stderr and "oo many levels" in done.stderr


SOCKETS = """
import os, socket, sys
name = sys.argv[1] + "/socket"
a = socket.socket(socket.AF_UNIX)
a.bind(name)
a.listen()
b = socket.socket(socket.AF_UNIX)
b.connect(name)
c, _ = a.accept()
c.send(b"x")
print(b.recv(1), a.getsockname() == name, b.getpeername() == name, os.listdir(sys.argv[1]))
"""


def test_unix_sockets(daemon):
    daemon.empty()
    done = daemon.run(python(), "-c", SOCKETS, PREFIX, options=["--direct"])
    assert done.stdout == "b'x' True True ['socket']\n", done.stderr


def test_without_the_daemon_nothing_changes(programs):
    """What is open and what is named stays, though the daemon has ended."""
    import harness

    with harness.Daemon(programs) as daemon:
        (daemon.far / "file").write_text("there\n")
        words = [*daemon.command("--direct"), "sh", "-c", f"echo ready; read line; cat {PREFIX}/file"]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        daemon.process.kill()
        daemon.process.wait()
        assert child.communicate("go\n", timeout=90)[0] == "there\n"
