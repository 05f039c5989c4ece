"""Functions of libc that make several calls by themselves, and absurd arguments."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PREFIX

PROGRAM = Path(__file__).parent / "programs" / "others.c"
NUMBERS = Path(__file__).parent / "programs" / "numbers.c"
MEMORY = Path(__file__).parent / "programs" / "memory.c"
THROWN = Path(__file__).parent / "programs" / "thrown.cc"
GIVEN = Path(__file__).parent / "programs" / "given.c"
TREES = Path(__file__).parent / "programs" / "trees.c"


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
def test_functions_that_do_several_things(daemon, tmp_path, options):
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    words = ["cc", "-w", "-O2", "-D_FORTIFY_SOURCE=2", "-o", tmp_path / "others", PROGRAM, "-lutil"]
    subprocess.run(words, check=True)
    daemon.empty()
    words = [tmp_path / "others", daemon.direct, daemon.direct / "by-daemon"]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=60)
    there = daemon.run(tmp_path / "others", PREFIX, f"{PREFIX}/by-daemon", options=options)
    assert direct.stdout.count("\n") > 10
    assert there.stdout == direct.stdout, there.stderr
    for name in ("file", "printed", "by-daemon"):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name
    assert "on the terminal 1" in (daemon.far / "printed").read_text()


@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
def test_calls_by_number_and_processes_past_fork(request, tmp_path, mode):
    """Calls by number named this machine's files, and a child by `clone` died or took its parent's
    replies."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    subprocess.run(["cc", "-O1", "-o", tmp_path / "numbers", NUMBERS], check=True)
    daemon.empty()
    direct = subprocess.run([tmp_path / "numbers", daemon.direct], capture_output=True, text=True, timeout=60)
    options = ["--direct"] if mode == "direct" else []
    there = daemon.run(tmp_path / "numbers", PREFIX, options=options)
    assert direct.stdout.count("script word") == 3 and "status 15" in direct.stdout
    assert there.stdout == direct.stdout, there.stderr
    for name in ("named", "inherited", "by-clone", "by-clone3", "by-function"):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes(), name


@pytest.mark.parametrize("handles", ["", "handles"], ids=["default", "handler"])
@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
def test_addresses_that_a_program_does_not_have(request, tmp_path, mode, handles):
    """Errors, not crashes, also where the program handles SIGSEGV itself; and a fault of the
    program's own still ends it."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    subprocess.run(["cc", "-w", "-O1", "-o", tmp_path / "memory", MEMORY], check=True)
    daemon.empty()
    words = [tmp_path / "memory", daemon.direct, handles]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=60)
    options = ["--direct"] if mode == "direct" else []
    there = daemon.run(tmp_path / "memory", PREFIX, handles, options=options)
    assert direct.stdout.count("EFAULT") > 20 and "still there 1 -" in direct.stdout
    assert there.stdout == direct.stdout, there.stderr
    assert (daemon.far / "f").read_bytes() == (daemon.direct / "f").read_bytes()


@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
def test_handlers_of_faults_that_do_not_come_back(request, tmp_path, mode):
    if shutil.which("c++") is None:
        pytest.skip("c++ is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    words = ["c++", "-w", "-O1", "-fnon-call-exceptions", "-pthread", "-o", tmp_path / "thrown", THROWN]
    subprocess.run(words, check=True)
    daemon.empty()
    words = [tmp_path / "thrown", daemon.direct]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=60)
    options = ["--direct"] if mode == "direct" else []
    there = daemon.run(tmp_path / "thrown", PREFIX, options=options)
    assert direct.stdout.count("a look -1") == 4 and "a write 1" in direct.stdout
    assert there.stdout == direct.stdout, there.stderr
    assert (daemon.far / "thrown").read_bytes() == (daemon.direct / "thrown").read_bytes()


def test_a_far_folder_as_tmpdir_of_another_nodes_programs(node):
    """`zazen run` needs a folder of this machine for itself."""
    node.empty()
    environment = os.environ | {"TMPDIR": PREFIX}
    environment.pop("XDG_RUNTIME_DIR", None)
    done = node.run("sh", "-c", "echo x > $TMPDIR/x && cat $TMPDIR/x", env=environment)
    assert done.stdout == "x\n", done.stderr


@pytest.mark.parametrize("mode", ["forwarded", "direct"])
def test_calls_that_only_a_files_own_kernel_can_do(isolated, tmp_path, mode):
    """Leases, notifications, tee, handles and privileged attributes were refused by --relay."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", tmp_path / "given", GIVEN], check=True)
    isolated.empty()
    words = [tmp_path / "given", isolated.direct]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=120)
    options = [] if mode == "forwarded" else [f"--{mode}"]
    there = isolated.run(tmp_path / "given", PREFIX, options=options)
    assert direct.returncode == 0 and direct.stdout.count("\n") > 60, direct.stderr
    assert there.stdout == direct.stdout, there.stderr
    assert (isolated.far / "out").read_bytes() == (isolated.direct / "out").read_bytes()


def test_the_same_calls_with_a_supervisor(isolated, tmp_path):
    """Privileged attributes and handles were refused. What differs still, docs/forwarding.md
    states: descriptors by O_PATH are open for reading, and some of openat2."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", tmp_path / "given", GIVEN], check=True)
    isolated.empty()
    words = [tmp_path / "given", isolated.direct]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=120)
    there = isolated.run(tmp_path / "given", PREFIX, options=["--seccomp"])
    assert direct.returncode == there.returncode == 0, direct.stderr + there.stderr
    both = zip(direct.stdout.splitlines(), there.stdout.splitlines(), strict=True)
    differing = [said for expected, said in both if said != expected]
    by_path = ("by path only: ", "its ioctl: ", "its mode: ")
    of_openat2 = [said for said in differing if not said.startswith(by_path)]
    refused = [said for said in of_openat2 if said.endswith((": ENOSYS", "../none: EXDEV"))]
    assert [said for said in of_openat2 if said not in refused] == ["stat: ENOENT"] * 2
    assert all(said.startswith(("openat2 ", "made: ")) for said in refused)
    assert (isolated.far / "out").read_bytes() == (isolated.direct / "out").read_bytes()


def test_what_another_nodes_kernel_would_have_to_do_is_refused(node, tmp_path):
    """With an error, never with another result."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", tmp_path / "given", GIVEN], check=True)
    node.empty()
    there = node.run(tmp_path / "given", PREFIX)
    assert there.returncode == 0, there.stderr
    said = dict(line.split(": ") for line in there.stdout.splitlines() if ": " in line)
    refused = {"set owner": "EINVAL", "lease": "EINVAL", "notify": "EINVAL",
               "vmsplice": "EBADF", "handle": "EOPNOTSUPP", "trusted": "EPERM",
               "extended flags": "ENOTTY"}  # fmt: skip
    assert {name: said[name] for name in refused} == refused


@pytest.mark.parametrize("mode", ["forwarded", "direct", "node"])
@pytest.mark.parametrize("named", ["absolute", "relative"])
def test_walks_by_entries(request, tmp_path, mode, named):
    """libc's fts found few entries below a prefix, and said nothing of it."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", tmp_path / "trees", TREES], check=True)
    daemon.empty()
    words = [tmp_path / "trees", daemon.direct, daemon.direct if named == "absolute" else "."]
    direct = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert direct.returncode == 0 and direct.stdout.count("\n") > 300, direct.stderr
    there = daemon.run(
        tmp_path / "trees",
        PREFIX,
        PREFIX if named == "absolute" else ".",
        options=["--direct"] if mode == "direct" else [],
    )
    assert there.stdout == direct.stdout, there.stderr
