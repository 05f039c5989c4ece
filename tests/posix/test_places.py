"""Where things land: working directories, programs without libc's calls, and watches."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX, python

PROGRAM = Path(__file__).parent / "programs" / "place.c"
KINDS = {"static": ["-static"], "static-pie": ["-static-pie"], "dynamic": [], "profiled": ["-pg"]}


@pytest.fixture(scope="session")
def programs_of_kinds(tmp_path_factory):
    """place.c, compiled in each way."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    folder = tmp_path_factory.mktemp("kinds")
    folder.chmod(0o755)
    for name, options in KINDS.items():
        subprocess.run(["cc", *options, "-o", folder / name, PROGRAM], check=True)
    return folder


@pytest.fixture
def launch(tmp_path):
    """The folder in which programs are started; nothing may land in it."""
    folder = tmp_path / "launch"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


SCRIPT = 'cd {} && "$0" "$1" < in > out; echo status $?; cat out landed; pwd | sed "s/.*[/]/at /"'


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_programs_in_a_far_folder(daemon, programs_of_kinds, launch, kind, options, shell):
    """With redirected streams, relative paths, and a file given by its far name."""
    daemon.empty()
    outcomes = []
    for folder, name in ((daemon.direct, daemon.direct), (daemon.far, PREFIX)):
        (folder / "in").write_text("from in\n")
        (folder / "other").write_text("from other\n")
        words = [shell, "-c", SCRIPT.format(name), programs_of_kinds / kind, f"{name}/other"]
        if folder == daemon.direct:
            done = subprocess.run(words, capture_output=True, text=True, cwd=launch)
        else:
            done = daemon.run(*words, options=options, cwd=launch)
        text = done.stdout.replace(str(name), "NAME").replace(f"at {os.path.basename(name)}", "at F")
        outcomes.append(text)
    outcomes[1] = outcomes[1].replace("preload yes", "preload no")
    assert outcomes[0] == outcomes[1]
    assert "status 3" in outcomes[1] and "from in" in outcomes[1] and "from other" in outcomes[1]
    assert (daemon.far / "landed").read_text() == "x\n"


@pytest.mark.parametrize("kind", ["static", "static-pie"])
def test_a_far_program_that_is_statically_linked(daemon, programs_of_kinds, launch, kind):
    daemon.empty()
    shutil.copy(programs_of_kinds / kind, daemon.far / "program")
    done = daemon.run("sh", "-c", f"cd {PREFIX} && echo in | ./program; echo $?", cwd=launch)
    assert done.stdout.splitlines() == [f"program at {PREFIX}", "landed 1 2", "preload no", "in", "3"]


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
def test_a_far_program_that_is_executed_by_descriptor(daemon, programs_of_kinds, launch, options):
    """It ran past the supervisor, in this machine's folder."""
    daemon.empty()
    shutil.copy(programs_of_kinds / "static", daemon.far / "program")
    code = "import os; fd = os.open('program', os.O_RDONLY); os.execve(fd, ['program'], os.environ)"
    words = [python(), "-c", f"import os; os.chdir({PREFIX!r}); {code}"]
    done = daemon.run(*words, options=options, cwd=launch, input="in\n")
    said = [f"program at {PREFIX}", "landed 1 2", "preload no", "in"]
    assert (done.returncode, done.stdout.splitlines()) == (3, said), done.stderr
    assert (daemon.far / "landed").exists()


def test_a_script_whose_interpreter_is_statically_linked(daemon, programs_of_kinds, launch):
    daemon.empty()
    script = launch.parent / "script"
    script.write_text(f"#!{programs_of_kinds / 'static'}\n")
    script.chmod(0o755)
    done = daemon.run("sh", "-c", f"cd {PREFIX} && {script} < /dev/null", cwd=launch)
    assert f"at {PREFIX}" in done.stdout and (daemon.far / "landed").exists()


SPAWN = """
import os, sys
os.chdir(sys.argv[1])
out = os.open("out", os.O_CREAT | os.O_WRONLY)
pid = os.posix_spawn(sys.argv[2], [sys.argv[2]], os.environ, file_actions=[
    (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_OPEN, 0, "in", os.O_RDONLY, 0)])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_posix_spawn_of_a_statically_linked_program(daemon, programs_of_kinds, launch):
    daemon.empty()
    (daemon.far / "in").write_text("spawned\n")
    done = daemon.run(python(), "-c", SPAWN, PREFIX, programs_of_kinds / "static", cwd=launch)
    assert done.stdout == "3\n", done.stderr
    assert (daemon.far / "out").read_text().endswith("landed 1 2\npreload no\nspawned\n")


def test_another_nodes_files_are_not_for_statically_linked_programs(node, programs_of_kinds, launch):
    node.empty()
    done = node.run("bash", "-c", f"cd {PREFIX} && {programs_of_kinds / 'static'}", cwd=launch)
    assert done.returncode == 126
    assert "statically linked" in done.stderr and "another node" in done.stderr.replace("\n", " ")
    assert list(node.far.iterdir()) == []


def test_the_kernels_working_directory_is_nowhere(daemon, launch):
    """What goes past the library finds no file, and leaves none."""
    daemon.empty()
    code = f"""
import os
os.chdir({PREFIX!r})
kernels = f"/proc/self/task/{{os.getpid()}}/cwd"
print(os.readlink(kernels).endswith("(deleted)"), os.listdir(kernels + "/"), os.readlink("/proc/self/cwd"))
os.chdir("/")
print(os.readlink(kernels), os.getcwd())
os.chdir({PREFIX!r})
os.mkdir("d")
os.chdir("d")
print(os.getcwd(), len([n for n in os.listdir("/dev/shm") if "nowhere" in n]))
"""
    done = daemon.run(python(), "-c", code, cwd=launch)
    assert done.stdout.splitlines() == [f"True [] {PREFIX}", "/ /", f"{PREFIX}/d 0"], done.stderr


WATCH = """
import ctypes, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(sys.argv[1])
watcher = libc.inotify_init1(os.O_NONBLOCK)
for name in (b".", sys.argv[1].encode(), b"d", b"link"):
    watch = libc.inotify_add_watch(watcher, name, 0x100 | 0x2)  # IN_CREATE, IN_MODIFY
    print(name == b".", watch > 0, watch if watch > 0 else ctypes.get_errno())
for name in ("a", "d/b"):
    open(name, "w").close()
events = b""
while select.select([watcher], [], [], 0.3)[0]:
    events += os.read(watcher, 65536)
while events:
    watch, mask, cookie, length = struct.unpack("iIII", events[:16])
    print(watch, mask, events[16:16 + length].rstrip(b"\\0"))
    events = events[16 + length:]
print(libc.inotify_add_watch(watcher, b"missing", 2), ctypes.get_errno())
"""


@pytest.mark.parametrize("options", [[], ["--direct"], ["--seccomp"]], ids=["forwarded", "direct", "seccomp"])
def test_watches(daemon, launch, options):
    """With --seccomp, an empty folder of this machine was watched."""
    daemon.empty()
    outcomes = []
    for folder in (daemon.direct, daemon.far):
        (folder / "d").mkdir()
        (folder / "link").symlink_to("d")
    words = [python(), "-c", WATCH]
    outcomes.append(subprocess.run([*words, daemon.direct], capture_output=True, text=True).stdout)
    outcomes.append(daemon.run(*words, PREFIX, cwd=launch, options=options).stdout)
    assert "b'a'" in outcomes[0] and "b'b'" in outcomes[0]
    assert outcomes[0] == outcomes[1]


def test_watches_of_another_node_are_refused(node, launch):
    node.empty()
    (node.far / "d").mkdir()
    done = node.run(python(), "-c", WATCH, PREFIX, cwd=launch)
    assert "True False 28" in done.stdout.splitlines()[0], done.stdout + done.stderr


@pytest.mark.skipif(not os.environ.get("ZAZEN_TEST_GO"), reason="takes a minute at first: set ZAZEN_TEST_GO")
def test_a_go_build_in_a_far_folder(daemon, launch):
    daemon.empty()
    (daemon.far / "a.go").write_text('package main\nfunc main() { println("built") }\n')
    script = f"cd {PREFIX} && GOFLAGS=-mod=mod go build -o a a.go && ./a"
    done = daemon.run("bash", "-c", script, cwd=launch, timeout=300)
    assert done.stderr == "built\n" and (daemon.far / "a").exists()
