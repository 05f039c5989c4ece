"""The namespace without a mount: `zazen.namespace` over real daemons, also as an ordinary user."""

import errno
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest
import zazen
import zazen.testing
from zazen import namespace

USER = 64_412


@pytest.fixture
def place(tmp_path_factory):
    """A folder with a short path that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="zns-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "backing").mkdir()
    (folder / "node").mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=False)


def daemon_in(place):
    arguments = ["--namespace", place / "data", "--namespace-format", "--namespace-root", "trust"]
    return zazen.testing.Daemon(place / "node", place / "backing", arguments=arguments)


@pytest.fixture
def daemon(place):
    with daemon_in(place) as daemon:
        yield daemon


@pytest.fixture
def ns(daemon):
    return namespace.Namespace(daemon.socket, umask=0o022)


def test_a_daemon_without_a_namespace_is_told_apart(place):
    with (
        zazen.testing.Daemon(place / "node", place / "backing") as daemon,
        pytest.raises(zazen.UnsupportedError, match="has no namespace: start it with --namespace DIR"),
    ):
        namespace.Namespace(daemon.socket).listdir("/")


def test_files_are_what_python_makes_of_files(ns):
    ns.makedirs("/run1/a/b")
    with ns.open("/run1/a/f", "w") as file:
        print("héllo", 17, file=file)
        print("second", file=file)
    with ns.open("/run1/a/f", encoding="utf-8") as file:
        assert list(file) == ["héllo 17\n", "second\n"]
    with ns.open("/run1/a/f", "ab") as file:
        file.write(b"x" * 3_000_000)
    assert ns.stat("/run1/a/f").st_size == 3_000_000 + 17
    with ns.open("/run1/a/f", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"tail")
        file.seek(0)
        assert file.readline() == "héllo 17\n".encode()
        file.seek(10)
        file.truncate(12)
    assert ns.read_bytes("/run1/a/f") == "héllo 17\n".encode()[:12] + b"se"[: 12 - 10]
    with pytest.raises(FileExistsError), ns.open("/run1/a/f", "x"):
        pass
    with pytest.raises(io.UnsupportedOperation):
        ns.open("/run1/a/f").fileno()
    with pytest.raises(io.UnsupportedOperation):
        ns.open("/run1/a/f").write("x")
    for wrong in ("", "rw", "r+w", "z", "rtb", "b"):
        with pytest.raises(ValueError):
            ns.open("/run1/a/f", wrong)
    with pytest.raises(ValueError):
        ns.open("/run1/a/f", buffering=0)
    file = ns.open("/run1/a/f", "rb", buffering=0)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_names_links_and_times(ns):
    ns.mkdir("/d")
    assert ns.stat("/d").st_mode == 0o40755
    ns.write_bytes("/d/f", b"hello")
    assert ns.stat("/d/f").st_mode == 0o100644
    ns.symlink("f", "/d/s")
    ns.link("/d/f", "/d/g")
    assert ns.readlink("/d/s") == "f" and ns.readlink(b"/d/s") == b"f"
    assert ns.stat("/d/s").st_nlink == 2 and ns.lstat("/d/s").st_mode >> 12 == 0o12
    assert sorted(ns.listdir("/d")) == ["f", "g", "s"]
    assert sorted(ns.listdir(b"/d")) == [b"f", b"g", b"s"]
    entries = {entry.name: entry for entry in ns.scandir("/d")}
    assert entries["f"].is_file() and entries["s"].is_symlink() and entries["s"].is_file()
    assert entries["f"].stat().st_size == 5 and not entries["f"].is_dir()
    ns.utime("/d/f", ns=(10**18 + 1, 10**18 + 2))
    found = ns.stat("/d/g")
    assert (found.st_atime_ns, found.st_mtime_ns) == (10**18 + 1, 10**18 + 2)
    ns.utime("/d/f")
    assert abs(ns.stat("/d/f").st_mtime - os.stat("/proc/self").st_ctime) < 10**6
    ns.chmod("/d/f", 0o600)
    assert ns.stat("/d/f").st_mode == 0o100600
    ns.setxattr("/d/f", "user.origin", b"here")
    assert ns.getxattr("/d/f", "user.origin") == b"here" and ns.listxattr("/d/f") == ["user.origin"]
    ns.removexattr("/d/f", "user.origin")
    ns.truncate("/d/f", 2)
    assert ns.read_bytes("/d/g") == b"he"
    ns.makedirs("/d/x/y/z")
    ns.write_bytes("/d/x/y/f", b"")
    assert [(top, sorted(down), sorted(files)) for top, down, files in ns.walk("/d")] == [
        ("/d", ["x"], ["f", "g", "s"]),
        ("/d/x", ["y"], []),
        ("/d/x/y", ["z"], ["f"]),
        ("/d/x/y/z", [], []),
    ]
    assert [top for top, _down, _files in ns.walk("/", topdown=False)][-1] == "/"
    ns.rename("/d/x", "/e")
    assert not ns.exists("/d/x") and ns.isdir("/e/y") and not ns.isfile("/e/y")
    assert not ns.exists("/d/f/below")
    ns.symlink("/d", "/e/to-d")
    ns.rmtree("/e")
    assert ns.listdir("/") == ["d"] and len(ns.listdir("/d")) == 3
    with pytest.raises(OSError, match="unlink"):
        ns.symlink("/d", "/l")
        ns.rmtree("/l")
    ns.unlink("/l")


def test_what_a_path_led_to_a_moment_ago_is_not_taken_for_what_it_leads_to_now(ns, daemon):
    other = namespace.Namespace(daemon.socket)
    for round in range(3):
        ns.makedirs("/a/b")
        ns.write_bytes("/a/b/f", b"%d" % round)
        assert other.read_bytes("/a/b/f") == b"%d" % round
        # Another caller takes the directory away and puts another in its place.
        ns.rename("/a", f"/old{round}")
        with pytest.raises(FileNotFoundError):
            other.read_bytes("/a/b/nothing")
        ns.rmtree(f"/old{round}")
    ns.makedirs("/a/b")
    other.write_bytes("/a/b/f", b"last")
    assert ns.read_bytes("/a/b/f") == b"last"


def test_a_directory_by_a_dot_is_not_taken_for_the_one_above_it(ns):
    ns.mkdir("/above")
    ns.mkdir("/above/d")
    for number, path in enumerate(("/above/d/.", "/above/d/./", "/above/./d/.//", "/above/d/..")):
        ns.stat(path)
        name = f"file{number}"
        ns.open(f"/above/d/{name}", "xb").close()
        assert ns.listdir("/above") == ["d"] and name in ns.listdir("/above/d")
        assert ns.stat("/above/d/.").st_ino == ns.stat("/above/d").st_ino != ns.stat("/above").st_ino


def test_many_at_once(ns):
    ns.mkdir("/m")
    names = [f"n{number}" for number in range(2500)]
    assert ns.create_many("/m", names) == [None] * 2500
    assert sorted(ns.listdir("/m")) == sorted(names)
    with pytest.raises(FileExistsError, match="n7"):
        ns.create_many("/m", ["new", "n7"])
    again = ns.create_many("/m", ["new2", "n7", "x" * 255], on_error="return")
    assert again[0] is None and isinstance(again[1], FileExistsError) and again[2] is None
    assert again[1].filename == "/m/n7"
    assert ns.exists("/m/new") and ns.exists("/m/new2")
    with pytest.raises(OSError, match="long") as raised:
        ns.create_many("/m", ["x" * 256])
    assert raised.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError, match="not valid"):
        ns.create_many("/m", ["a/b"])
    with pytest.raises(FileNotFoundError):
        ns.create_many("/nothing", ["a"])
    ns.mkdir("/m2")
    ns.write_bytes("/m2/f", b"12345")
    ns.symlink("/m2/f", "/m/link")
    paths = [f"/m/{name}" for name in names] + ["/m2/f", "/m/link", "/m", "/", "/m2/../m/n3"]
    found = ns.stat_many(paths)
    assert [stat.st_size for stat in found[2500:2502]] == [5, 5]
    assert found[2502].st_mode >> 12 == 4 and found[2503].st_ino == 1
    assert found[2504].st_ino == found[3].st_ino
    assert [stat.st_ino for stat in found[:2500]] == [
        ns.stat(path).st_ino if number % 500 == 0 else found[number].st_ino
        for number, path in enumerate(paths[:2500])
    ]
    assert ns.stat_many(["/m/link"], follow_symlinks=False)[0].st_mode >> 12 == 0o12
    mixed = ns.stat_many(["/m/n1", "/m/gone", "/gone/x", "/m2/f/x"], on_error="return")
    assert isinstance(mixed[1], FileNotFoundError) and isinstance(mixed[2], FileNotFoundError)
    assert isinstance(mixed[3], NotADirectoryError) and isinstance(mixed[3], zazen.Error)
    with pytest.raises(FileNotFoundError, match="gone") as raised:
        ns.stat_many(["/m/n1", "/m/gone", "/gone/x"])
    assert "2 of 3" in raised.value.__notes__[0]
    assert ns.remove_many([f"/m/{name}" for name in names]) == [None] * 2500
    assert sorted(ns.listdir("/m")) == sorted(["new", "new2", "x" * 255, "link"])
    # What is wrong with a call's arguments is said before the call has any effect.
    with pytest.raises(ValueError, match="on_error"):
        ns.stat_many([], on_error="ignore")
    with pytest.raises(ValueError, match="on_error"):
        ns.remove_many(["/m/new"], on_error="ignore")
    for call in (ns.stat_many, ns.remove_many, ns.locate, lambda one: ns.create_many("/m", one)):
        for one in ("ab", b"ab", Path("ab")):
            with pytest.raises(TypeError, match="takes several paths"):
                call(one)
    assert sorted(ns.listdir("/m")) == sorted(["new", "new2", "x" * 255, "link"])


def test_where_files_are(ns):
    ns.write_bytes("/f", b"123")
    ns.create_many("/", ["empty"])
    ns.mkdir("/dir")
    here, empty = ns.locate(["/f", "/empty"])
    assert (here.path, here.node, here.bytes) == ("/f", 1, 3) and here.host
    assert empty.bytes == 0
    with pytest.raises(IsADirectoryError, match="/dir"):
        ns.locate(["/dir"])
    assert ns.nodes()[0]["up"] and ns.status()["partitions"] >= 16


def test_errors_are_those_of_os_and_of_the_package(ns):
    ns.mkdir("/d")
    ns.write_bytes("/d/f", b"")
    cases = [
        (lambda: ns.stat("/nothing"), FileNotFoundError, errno.ENOENT, zazen.NotFoundError),
        (lambda: ns.rmdir("/d"), OSError, errno.ENOTEMPTY, zazen.Error),
        (lambda: ns.rmdir("/d/f"), NotADirectoryError, errno.ENOTDIR, zazen.Error),
        (lambda: ns.unlink("/d"), OSError, errno.EISDIR, zazen.Error),
        (lambda: ns.open("/d", "wb"), IsADirectoryError, errno.EISDIR, namespace.Error),
        (lambda: ns.mkdir("/d"), FileExistsError, errno.EEXIST, zazen.ConflictError),
        (lambda: ns.rename("/d", "/d/below"), OSError, errno.EINVAL, zazen.Error),
        (lambda: ns.readlink("/d/f"), OSError, errno.EINVAL, namespace.Error),
        (lambda: ns.getxattr("/d", "user.none"), OSError, errno.ENODATA, zazen.Error),
    ]
    for call, builtin, number, ours in cases:
        with pytest.raises(builtin) as raised:
            call()
        assert raised.value.errno == number, raised.value
        assert isinstance(raised.value, ours), type(raised.value).__mro__
        assert str(raised.value).endswith(("'/nothing'", "'/d'", "'/d/f'")), raised.value
    with pytest.raises(zazen.UnavailableError):
        namespace.Namespace("/nonexistent/socket")
    with pytest.raises(ValueError, match="null"):
        ns.stat("/a\0b")


def test_forked_children_and_threads_share_nothing_they_should_not(ns):
    ns.write_bytes("/f", bytes(range(256)) * 5000)
    reads = ns.open("/f", "rb")
    writes = ns.open("/out", "wb", buffering=0)
    writes.write(b"parent,")
    reads.seek(256)

    def child() -> None:
        assert reads.read(3) == b"\0\1\2"
        assert ns.stat("/f").st_size == 1_280_000
        assert writes.write_at(b"child", 7) == 5
        ns.write_bytes("/from-child", b"x")

    context = multiprocessing.get_context("fork")
    stop = threading.Event()

    def busy() -> None:
        # Holds locks at the fork, as often as not.
        while not stop.is_set():
            ns.stat("/f")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            process = context.Process(target=child)
            process.start()
            process.join(60)
            assert process.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert reads.read(2) == b"\0\1"
    writes.close()
    assert ns.read_bytes("/out") == b"parent,child" and ns.exists("/from-child")


def test_pickles(ns):
    ns.write_bytes("/f", b"0123456789")
    file = ns.open("/f", "rb", buffering=0)
    file.seek(4)
    again = pickle.loads(pickle.dumps(file))
    assert again.read(3) == b"456" and file.tell() == 4
    written = ns.open("/w", "wb", buffering=0)
    written.write(b"abc")
    again = pickle.loads(pickle.dumps(written))
    again.write(b"def")
    again.close()
    assert ns.read_bytes("/w") == b"abcdef"
    assert pickle.loads(pickle.dumps(ns)).umask == 0o022
    ns.write_bytes("/g", b"other")
    pickled = pickle.dumps(file)
    ns.rename("/g", "/f")
    with pytest.raises(OSError, match="another file"):
        pickle.loads(pickled)


def test_an_open_file_outlives_its_daemon(place):
    daemon = daemon_in(place)
    with daemon:
        ns = namespace.Namespace(daemon.socket)
        file = ns.open("/log", "wb", buffering=0)
        file.write(b"before,")
        daemon.stop()
        daemon.start()
        file.write(b"after")
        file.close()
        assert ns.read_bytes("/log") == b"before,after"
        # Not used since: closing tells what was written, and has nothing to say of what was read.
        read, written = ns.open("/log", "rb", buffering=0), ns.open("/log", "ab", buffering=0)
        read.read(3)
        written.write(b",end")
        daemon.stop()
        daemon.start()
        written.close()
        assert ns.stat("/log").st_size == len(b"before,after,end")
        read.close()
        daemon.stop()
        daemon.start()
        with ns.open("/log", "rb", buffering=0) as read:
            daemon.kill()
        daemon.start()


def test_paths_are_like_pathlibs(daemon, monkeypatch):
    monkeypatch.setenv("ZAZEN_SOCKET", str(daemon.socket))
    folder = namespace.Path("/data/run")
    folder.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        folder.mkdir()
    (folder / "a.txt").write_text("ä", encoding="utf-8")
    (folder / "b.bin").write_bytes(b"12")
    (folder / "sub").mkdir()
    (folder / "sub" / "c.txt").touch()
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.bin", "sub"]
    assert [str(path) for path in folder.glob("*.txt")] == ["/data/run/a.txt"]
    assert sorted(map(str, folder.rglob("*.txt"))) == ["/data/run/a.txt", "/data/run/sub/c.txt"]
    assert (folder / "a.txt").read_text(encoding="utf-8") == "ä"
    assert (folder / "b.bin").locate().bytes == 2
    moved = (folder / "b.bin").rename(folder / "d.bin")
    assert moved.is_file() and not (folder / "b.bin").exists()
    (folder / "l").symlink_to("d.bin")
    assert (folder / "l").is_symlink() and str((folder / "l").readlink()) == "d.bin"
    assert pickle.loads(pickle.dumps(moved)) == moved
    assert namespace.listdir("/data") == ["run"]
    with namespace.open(folder / "a.txt", encoding="utf-8") as file:
        assert file.read() == "ä"
    (folder / "none").unlink(missing_ok=True)


def test_an_ordinary_user_gets_what_the_permissions_give(place):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with daemon_in(place) as daemon:
        ns = namespace.Namespace(daemon.socket, umask=0o022)
        ns.write_bytes("/public", b"for all")
        ns.write_bytes("/secret", b"for root")
        ns.chmod("/secret", 0o600)
        ns.mkdir("/closed", 0o700)
        ns.write_bytes("/closed/f", b"behind a closed directory")
        code = f"""
            # The interpreter may lie where other users may not look: all is imported before.
            import os
            from zazen import namespace
            os.setgroups([]); os.setresgid({USER}, {USER}, {USER}); os.setresuid({USER}, {USER}, {USER})
            ns = namespace.Namespace({str(daemon.socket)!r}, umask=0o022)
            assert ns.read_bytes("/public") == b"for all"
            ns.makedirs("/mine/deep")
            ns.write_bytes("/mine/f", b"x" * 100)
            assert ns.create_many("/mine", ["a", "b"]) == [None, None]
            found = ns.stat("/mine/a")
            assert (found.st_uid, found.st_gid, found.st_mode) == ({USER}, {USER}, 0o100644), found
            refused = [
                lambda: ns.read_bytes("/secret"), lambda: ns.open("/public", "r+b"), lambda: ns.unlink("/public"),
                lambda: ns.stat("/closed/f"), lambda: ns.listdir("/closed"), lambda: ns.chmod("/public", 0o777),
                lambda: ns.chown("/mine/f", 0, 0), lambda: ns.create_many("/closed", ["x"]),
                lambda: ns.stat_many(["/closed/f"]), lambda: ns.remove_many(["/public"]),
                lambda: ns.locate(["/closed/f"]), lambda: ns.rename("/public", "/mine/public"),
                lambda: ns.link("/secret", "/mine/secret"),
            ]
            for call in refused:
                try:
                    call()
                except PermissionError:
                    continue
                raise AssertionError(call)
            ns.rmtree("/mine")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert sorted(ns.listdir("/")) == ["closed", "public", "secret"]
