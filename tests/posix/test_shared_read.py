"""`zazen run --shared-read`: what programs look up, open and read below a folder reaches the far
side once."""

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from harness import PREFIX, Daemon, calls, python

SHARED = f"{PREFIX}/soft"
MODULES = 20
RANKS = 16
BLOCK = 4 << 20


def program(text: str) -> str:
    return textwrap.dedent(text)


@pytest.fixture(scope="module")
def node(programs):
    """A daemon of another node, with software in a folder."""
    with Daemon(programs, isolated=True, listen=True, name="zzr-") as daemon:
        soft = daemon.far / "soft"
        package = soft / "package"
        (package / "deep" / "er").mkdir(parents=True)
        for number in range(MODULES):
            (package / f"m{number}.py").write_text(f"VALUE = {number}\n" * (number + 1))
        names = [f"m{number}" for number in range(MODULES)]
        (package / "__init__.py").write_text(f"from package import {', '.join(names)}\n")
        (package / "deep" / "link").symlink_to("../m1.py")
        (package / "deep" / "nowhere").symlink_to("missing")
        (package / "deep" / "outside").symlink_to(daemon.far / "plain")
        (soft / "large").write_bytes(os.urandom(2 * BLOCK + 12345))
        (soft / "empty").touch()
        os.mkfifo(soft / "fifo")
        (daemon.far / "plain").write_text("plain\n")
        yield daemon


def run(node: Daemon, text: str, *words: str, shared: bool = True) -> str:
    options = ["--shared-read", SHARED] if shared else []
    done = node.run(python(), "-B", "-c", program(text), *words, options=options)
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORTS = f"""
    import subprocess, sys
    one = [sys.executable, "-B", "-S", "-c", "import sys; sys.path.insert(0, '{SHARED}'); import package; "
           "print(sum(value.VALUE for name, value in vars(package).items() if name[1:].isdigit()))"]
    ranks = [subprocess.Popen(one, stdout=subprocess.PIPE) for _ in range(int(sys.argv[1]))]
    print({{rank.communicate()[0] for rank in ranks}}, {{rank.wait() for rank in ranks}})
"""


def test_many_ranks_cost_little_more_than_one(node):
    """Issue 17: at most 1.2 times one rank's messages; greetings are counted in."""
    total = sum(range(MODULES))
    cost = []
    for ranks in (1, RANKS):
        before = calls(node)
        assert run(node, IMPORTS, str(ranks)) == f"{{b'{total}\\n'}} {{0}}\n"
        after = calls(node)
        cost.append({name: count - before[name] for name, count in after.items() if count != before[name]})
    one, many = (sum(each.values()) for each in cost)
    assert one > 3 * MODULES, cost
    assert many <= 1.2 * one, cost


NUMPY = f"""
    import subprocess, sys
    one = [sys.executable, "-B", "-S", "-c", "import sys; sys.path.insert(0, '{SHARED}'); import numpy; "
           "print(numpy.__file__, numpy.arange(5).sum())"]
    ranks = [subprocess.Popen(one, stdout=subprocess.PIPE) for _ in range(int(sys.argv[1]))]
    print({{rank.communicate()[0].decode() for rank in ranks}}, {{rank.wait() for rank in ranks}})
"""


def test_many_ranks_import_numpy(node, monkeypatch):
    """The same with numpy; $ZAZEN_TEST_RANKS says how many ranks."""
    numpy = pytest.importorskip("numpy")
    installed = Path(numpy.__file__).parent.parent
    libraries = installed / "numpy.libs"
    if not libraries.is_dir():
        pytest.skip("numpy is not from a wheel: its libraries are elsewhere")
    for name in ("numpy", "numpy.libs"):
        shutil.copytree(installed / name, node.far / "soft" / name)
    # With --node, a library's own libraries are this machine's.
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    cost = []
    try:
        for ranks in (1, int(os.environ.get("ZAZEN_TEST_RANKS", str(RANKS)))):
            before = sum(calls(node).values())
            assert run(node, NUMPY, str(ranks)) == f"{{'{SHARED}/numpy/__init__.py 10\\n'}} {{0}}\n"
            cost.append(sum(calls(node).values()) - before)
    finally:
        for name in ("numpy", "numpy.libs"):
            shutil.rmtree(node.far / "soft" / name)
    print(f"calls of one rank and of many: {cost}")
    assert cost[1] <= 1.2 * cost[0], cost


READS = """
    import errno, fcntl, hashlib, mmap, os, stat, subprocess, sys
    top = sys.argv[1]
    def show(*what):
        print(*(str(each).replace(top, "TOP") for each in what))
    def attempt(what, *words, **more):
        try:
            show(what.__name__, words, what(*words, **more))
        except OSError as error:
            show(what.__name__, words, errno.errorcode[error.errno])
    def known(path, **more):
        found = os.stat(path, **more)
        when = 0 if stat.S_ISFIFO(found.st_mode) else found.st_mtime_ns
        return found.st_mode, found.st_size, found.st_ino, found.st_nlink, when, found.st_uid
    def read(path):
        with open(path, "rb", buffering=0) as file:
            return hashlib.sha256(b"".join(iter(lambda: file.read(1 << 20), b""))).hexdigest()
    for twice in range(2):
        for folder, folders, files in os.walk(top):
            folders.sort()
            for name in sorted(folders + files):
                path = os.path.join(folder, name)
                attempt(known, path), attempt(known, path, follow_symlinks=False)
                attempt(os.readlink, path), attempt(os.access, path, os.R_OK | os.X_OK)
                attempt(os.listxattr, path), attempt(os.getxattr, path, "user.none")
                attempt(os.path.realpath, path)
                if not stat.S_ISFIFO(os.lstat(path).st_mode):
                    attempt(read, path), attempt(os.listdir, path)
        for missing in ("missing", "missing/x", "empty/x", "empty/", "package/", "package/.", "package/../empty"):
            attempt(known, f"{top}/{missing}"), attempt(read, f"{top}/{missing}")
    large = os.open(f"{top}/large", os.O_RDONLY)
    size = os.fstat(large).st_size
    show(size, fcntl.fcntl(large, fcntl.F_GETFL))
    for begin in (0, 5, (4 << 20) - 7, (8 << 20) - 1, size - 3, size, size + 9):
        show(begin, os.pread(large, 20, begin), os.lseek(large, begin, 0), os.read(large, 20))
    show(os.lseek(large, -10, 2), os.read(large, 100), os.lseek(large, -5, 1), os.read(large, 100))
    attempt(os.lseek, large, -1, 0), attempt(os.lseek, large, 0, os.SEEK_DATA), attempt(os.write, large, b"x")
    show(hashlib.sha256(os.pread(large, 1 << 30, 0)).hexdigest())
    with mmap.mmap(large, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:
        show(hashlib.sha256(mapped).hexdigest())
    # A child moves the same offset; another process inherits it.
    other = os.open(f"{top}/large", os.O_RDONLY)
    os.lseek(other, 100, 0)
    if not (child := os.fork()):
        os.read(other, 50)
        os._exit(0)
    show(os.waitpid(child, 0)[1], os.lseek(other, 0, 1))
    show(subprocess.run(["head", "-c", "8"], stdin=other, stdout=subprocess.PIPE).stdout)
    fcntl.flock(other, fcntl.LOCK_EX)
    show(os.read(os.dup(other), 3), os.read(other, 3))
    # A listing can be gone on with, and begun again.
    folder = os.open(f"{top}/package", os.O_RDONLY | os.O_DIRECTORY)
    show(sorted(os.listdir(folder)), sorted(os.listdir(folder)), fcntl.fcntl(folder, fcntl.F_GETFL))
    attempt(os.read, folder, 5)
    show(sorted(os.listdir(folder)))
    show(known("m3.py", dir_fd=folder), read("/proc/self/fd/%d" % large) == read(f"{top}/large"))
    os.chdir(f"{top}/package")
    show(os.getcwd(), known("m4.py"), known("deep/link"), known("."), known(".."), read("deep/../m5.py"))
    show(subprocess.run("cat m6.py; cd deep; cat link; pwd; ls | sort; cat < ../m7.py",
                        shell=True, capture_output=True, text=True))
    place = os.open("m8.py", os.O_PATH)
    attempt(os.read, place, 1), show(known(place), open(f"/dev/fd/{place}").read())
    attempt(os.open, "m8.py", os.O_RDONLY | os.O_DIRECTORY)
    attempt(os.open, "deep/link", os.O_RDONLY | os.O_NOFOLLOW)
    reader = os.open(f"{top}/fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(f"{top}/fifo", os.O_WRONLY | os.O_NONBLOCK)
    show(os.write(writer, b"through"), os.read(reader, 10))
"""


def test_programs_see_what_is_there(node):
    """Line by line the same as without forwarding."""
    soft = str(node.far / "soft")
    here = subprocess.run(
        [python(), "-B", "-c", program(READS), soft], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    there = run(node, READS, SHARED)
    for expected, found in zip(here.splitlines(), there.splitlines(), strict=True):
        assert found == expected.replace(str(node.far), PREFIX)


CHANGES = f"""
    import errno, os
    def attempt(what, *words):
        try:
            what(*words)
            return "done"
        except OSError as error:
            return errno.errorcode[error.errno]
    top, out = "{SHARED}", "{PREFIX}/out"
    W, C, X = os.O_WRONLY, os.O_CREAT, os.O_EXCL
    print(
        attempt(os.open, f"{{top}}/empty", W), attempt(os.open, f"{{top}}/empty", os.O_RDWR | C),
        attempt(os.open, f"{{top}}/empty", os.O_TRUNC), attempt(os.open, f"{{top}}/empty", C | X),
        attempt(os.open, f"{{top}}/empty", C), attempt(os.open, f"{{top}}/new", W | C),
        attempt(os.open, f"{{top}}/no/new", W | C), attempt(os.open, f"{{top}}/missing", W),
        attempt(os.open, f"{{top}}/package", W), attempt(os.open, top, os.O_TMPFILE | W),
        attempt(os.open, f"{{top}}/package/../new", W | C),
    )
    print(
        attempt(os.mkdir, f"{{top}}/package"), attempt(os.mkdir, f"{{top}}/new"),
        attempt(os.mkdir, f"{{top}}/no/new"), attempt(os.symlink, "x", f"{{top}}/new"),
        attempt(os.unlink, f"{{top}}/empty"), attempt(os.rmdir, f"{{top}}/package/deep"),
        attempt(os.rename, f"{{top}}/empty", f"{{top}}/new"), attempt(os.rename, f"{{top}}/empty", out),
        attempt(os.link, f"{{top}}/empty", out), attempt(os.chmod, f"{{top}}/empty", 0o600),
        attempt(os.chmod, f"{{top}}/missing", 0o600), attempt(os.utime, f"{{top}}/empty"),
        attempt(os.truncate, f"{{top}}/empty", 5), os.access(f"{{top}}/empty", os.W_OK),
    )
    held = os.open(f"{{top}}/empty", os.O_RDONLY)
    os.chdir(f"{{top}}/package")
    print(attempt(os.fchmod, held, 0o600), attempt(os.ftruncate, held, 1), attempt(os.unlink, "m1.py"))
    os.chdir("{PREFIX}")
    print(attempt(os.unlink, "soft/empty"), attempt(os.mkdir, "soft/new"))
    with open(out, "w") as file:
        file.write("written")
    print(open(out).read(), attempt(os.rename, out, f"{{top}}/new"), attempt(os.unlink, out))
"""


def test_nothing_is_changed(node):
    """As on a file system that is mounted read-only; what lies beside it is as ever."""
    before = sorted(str(path) for path in (node.far / "soft").rglob("*"))
    assert run(node, CHANGES).splitlines() == [
        "EROFS EROFS EROFS EEXIST done EROFS ENOENT ENOENT EISDIR EROFS EROFS",
        "EEXIST EROFS ENOENT EROFS EROFS EROFS EROFS EXDEV EXDEV EROFS ENOENT EROFS EROFS False",
        "EROFS EINVAL EROFS",
        "EROFS EROFS",
        "written EXDEV done",
    ]
    assert sorted(str(path) for path in (node.far / "soft").rglob("*")) == before


def test_versions_of_a_file_are_never_mixed(node):
    """A file that somebody changes all the same: what was not read yet fails with ESTALE."""
    file = node.far / "soft" / "changes"
    file.write_bytes(b"a" * (2 * BLOCK))
    text = f"""
        import errno, os, sys
        file = os.open("{SHARED}/changes", os.O_RDONLY)
        print(os.pread(file, 3, 0), flush=True)
        sys.stdin.readline()
        print(os.pread(file, 3, 0), os.fstat(file).st_size)
        try:
            print(os.pread(file, 3, {BLOCK}))
        except OSError as error:
            print(errno.errorcode[error.errno])
    """
    command = [*node.command("--shared-read", SHARED), python(), "-c", program(text)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "b'aaa'\n"
        file.write_bytes(b"b" * (2 * BLOCK + 1))
        assert running.communicate("\n", timeout=60)[0].split("\n") == [f"b'aaa' {2 * BLOCK}", "ESTALE", ""]


WAITS = f"""
    import sys
    print(open("{SHARED}/" + sys.argv[1]).read(), flush=True)
    for line in sys.stdin:
        print(open("{SHARED}/" + line.strip()).read(), flush=True)
"""


def test_runs_of_one_node_share(node, tmp_path):
    """Ranks that are started one by one: the first run's go-between serves all, and stays for the
    others when its own program has ended."""
    for number in range(30):
        (node.far / "soft" / f"t{number}").write_text(f"text {number}")
    # A place of their own to meet.
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [*node.command("--shared-read", SHARED), python(), "-c", program(WAITS)]

    def start(name: str) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
        return subprocess.Popen([*command, name], **pipes)

    def ask(rank: subprocess.Popen, name: str) -> str:
        print(name, file=rank.stdin, flush=True)
        return rank.stdout.readline()

    ranks = [start(f"t{number}") for number in range(4)]
    try:
        for number, rank in enumerate(ranks):
            assert rank.stdout.readline() == f"text {number}\n"
        before = calls(node)
        for rank in ranks:
            assert [ask(rank, f"t{number}") for number in range(4, 30)] == [
                f"text {number}\n" for number in range(4, 30)
            ]
        after = calls(node)
        # One look, and an open with its kind, bytes and end, for each file.
        assert sum(after.values()) - sum(before.values()) <= 5 * 26
        # Whoever was first ends; a fifth joins those who are left.
        assert ranks[0].communicate(timeout=60)[0] == "" and ranks[0].returncode == 0
        (node.far / "soft" / "late").write_text("late")
        assert [ask(rank, "late") for rank in ranks[1:]] == ["late\n"] * 3
        ranks.append(start("t7"))
        assert ranks[4].stdout.readline() == "text 7\n"
        assert [rank.communicate(timeout=60)[0] for rank in ranks[1:]] == [""] * 4
        assert {rank.returncode for rank in ranks} == {0}
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_only_forwarded_folders_of_another_node_are_shared(node, programs):
    done = node.run("true", options=["--shared-read", "/elsewhere"])
    assert done.returncode != 0 and "below no folder of --forward" in done.stderr
    words = [programs / "zazen", "run", "--forward", PREFIX, "--shared-read", PREFIX, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "--node" in done.stderr
