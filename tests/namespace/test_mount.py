"""`zazen mount` over the namespace of one node."""

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
from pathlib import Path

import pytest

USER = 64_411


def mounted(mnt: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f" {mnt} " in line]


def serving(mnt: Path) -> list[int]:
    """The processes that serve this mount."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"mount" in words and str(mnt).encode() in words:
                found.append(int(entry.name))
    return found


def within(seconds: float, done) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.05)


def test_a_program_that_nobody_may_read_can_be_executed(run_inside):
    def test(node):
        program = node.mount() / "true"
        shutil.copy("/bin/true", program)
        program.chmod(0o711)
        subprocess.run([program], user=USER, group=USER, extra_groups=[], cwd="/", check=True)
        read = ["cat", program]
        done = subprocess.run(read, user=USER, group=USER, extra_groups=[], capture_output=True, text=True)
        assert done.returncode != 0 and "Permission denied" in done.stderr
        program.chmod(0o744)
        with pytest.raises(PermissionError):
            subprocess.run([program], user=USER, group=USER, extra_groups=[], cwd="/", check=True)

    run_inside(test)


def test_files_directories_links_and_times(run_inside):
    def test(node):
        mnt = node.mount("--source", "n7")
        assert "fuse.zazen n7 " in mounted(mnt)[0]
        (mnt / "a").mkdir()
        (mnt / "a/one").write_bytes(b"x" * 5000)
        os.link(mnt / "a/one", mnt / "two")
        os.symlink("a/one", mnt / "link")
        assert (mnt / "link").read_bytes() == b"x" * 5000
        assert (mnt / "two").stat().st_nlink == 2
        os.rename(mnt / "a/one", mnt / "three")
        assert sorted(os.listdir(mnt)) == ["a", "link", "three", "two"]
        os.utime(mnt / "two", ns=(10**18 + 1, 10**18 + 2))
        assert (mnt / "three").stat().st_mtime_ns == 10**18 + 2
        os.setxattr(mnt / "two", "user.x", b"value")
        assert os.getxattr(mnt / "three", "user.x") == b"value"
        with pytest.raises(OSError, match="not empty"):
            (mnt / "three").rename(mnt / "a/three")
            (mnt / "a").rmdir()
        with open(mnt / "two", "r+b") as file:
            file.truncate(100_000)
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) <= 100_000
            with mmap.mmap(file.fileno(), 0) as memory:
                memory[99_999:] = b"!"
        assert (mnt / "a/three").read_bytes()[-1:] == b"!"
        shutil.rmtree(mnt / "a")
        node.unmount()
        assert not mounted(mnt) and os.listdir(mnt) == []

    run_inside(test)


def test_an_open_directory_that_is_removed_can_be_looked_at(run_inside):
    def test(node):
        mnt = node.mount()
        for gone, go in (
            ("a", lambda: (mnt / "a").rmdir()),
            ("b", lambda: (mnt / "c").rename(mnt / "b")),
        ):
            (mnt / gone).mkdir(mode=0o750)
            (mnt / "c").mkdir()
            opened = os.open(mnt / gone, os.O_RDONLY | os.O_DIRECTORY)
            again = os.open(mnt / gone, os.O_RDONLY | os.O_DIRECTORY)
            before = os.fstat(opened)
            go()
            os.close(again)
            # The kernel keeps what it was told for a second.
            time.sleep(1.2)
            after = os.fstat(opened)
            assert (after.st_ino, after.st_mode, after.st_nlink) == (before.st_ino, before.st_mode, 0)
            assert os.listdir(opened) == []
            os.close(opened)
            if gone == "a":
                (mnt / "c").rmdir()
        assert os.listdir(mnt) == ["b"]
        node.unmount()

    run_inside(test)


def test_what_a_mount_shows_is_there_after_unmount_and_restart(run_inside):
    def test(node):
        mnt = node.mount()
        for number in range(300):
            (mnt / f"f{number}").write_text(str(number))
        node.unmount()
        node.daemon.stop()
        node.daemon.start()
        mnt = node.mount()
        assert len(os.listdir(mnt)) == 300
        assert all((mnt / f"f{number}").read_text() == str(number) for number in range(300))
        node.unmount()

    run_inside(test)


def test_a_restart_of_the_daemon_is_waited_for_and_open_files_go_on(run_inside):
    def test(node):
        mnt = node.mount()
        # Started before the file is opened: a child that has it would close it, and wait for the
        # daemon.
        words = ["sh", "-c", 'sleep 4; exec "$@"', "sh", *node.daemon.command_line]
        again = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(mnt / "log", "wb", buffering=0) as file:
            file.write(b"before,")
            node.daemon.kill()
            file.write(b"during,")  # The kernel's own write: the node holds the file.
            assert os.listdir(mnt) == ["log"]
            assert again.poll() is None
            file.write(b"after")
        assert (mnt / "log").read_bytes() == b"before,during,after"
        (mnt / "new").write_bytes(b"works")
        node.unmount()
        again.terminate()
        assert again.wait(60) == 0

    run_inside(test)


def test_locks_end_with_the_daemon_and_whoever_had_one_hears_of_it(run_inside):
    def test(node):
        mnt = node.mount()
        (mnt / "free").touch()
        # Begun before the files are opened, as above.
        words = ["sh", "-c", 'read go; exec "$@"', "sh", *node.daemon.command_line]
        again = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        with open(mnt / "free", "rb") as without, open(mnt / "locked", "wb") as locked:
            fcntl.lockf(locked, fcntl.LOCK_EX)
            node.daemon.kill()
            again.stdin.write(b"go\n")
            again.stdin.close()
            # This waits for the daemon. A lock does not: nobody would know whether it was given.
            assert sorted(os.listdir(mnt)) == ["free", "locked"]
            fcntl.flock(without, fcntl.LOCK_SH)
            with pytest.raises(OSError, match="Input/output error"):
                fcntl.lockf(locked, fcntl.LOCK_EX)
            fcntl.lockf(locked, fcntl.LOCK_UN)
            fcntl.lockf(locked, fcntl.LOCK_EX)
        node.unmount()
        again.terminate()
        assert again.wait(60) == 0

    run_inside(test)


def test_without_its_daemon_a_call_fails_in_time(run_inside):
    def test(node):
        mnt = node.mount()
        node.daemon.kill()
        started = time.monotonic()
        with pytest.raises(OSError, match="Input/output error"):
            os.listdir(mnt)
        assert time.monotonic() - started < 40
        node.unmount()
        assert not mounted(mnt)

    run_inside(test)


def test_a_killed_mount_is_replaced_a_living_one_refused_and_a_signal_unmounts(run_inside):
    def test(node):
        mnt = node.mount()
        (mnt / "kept").write_bytes(b"kept")
        assert "zazen unmount" in node.zazen("mount", mnt, "--socket", node.daemon.socket, status=1)
        (process,) = serving(mnt)
        os.kill(process, signal.SIGKILL)
        within(60, lambda: not Path(f"/proc/{process}").exists())
        with pytest.raises(OSError, match="not connected"):
            os.listdir(mnt)
        node.mount()
        assert (mnt / "kept").read_bytes() == b"kept"
        (process,) = serving(mnt)
        os.kill(process, signal.SIGTERM)
        within(60, lambda: not mounted(mnt))
        assert "is no mount" in node.zazen("unmount", mnt, status=1)

    run_inside(test)


def test_users_have_their_own_rights_and_groups(run_inside):
    def test(node):
        mnt = node.mount()
        mnt.chmod(0o1777)
        (mnt / "root").write_text("secret")
        (mnt / "root").chmod(0o600)
        (mnt / "group").write_text("for the group")
        os.chown(mnt / "group", 0, USER + 1)
        (mnt / "group").chmod(0o640)

        def as_user(groups: list[int], code: str) -> None:
            def become() -> None:
                os.setgroups(groups)
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)

            subprocess.run(["sh", "-ec", code], cwd=mnt, preexec_fn=become, check=True, timeout=60)

        as_user([USER + 1], f"cat group; echo mine > own; chgrp {USER + 1} own")
        as_user([], "! cat group; ! cat root; ! echo x >> root; ! chown 0 own; ! mv root gone; rm own")
        assert sorted(os.listdir(mnt)) == ["group", "root"]
        node.unmount()

    run_inside(test)


def test_a_lock_excludes_and_its_wait_ends_by_a_signal(run_inside):
    def test(node):
        mnt = node.mount()
        (mnt / "locked").write_text("x")
        with open(mnt / "locked", "r+") as held:
            fcntl.lockf(held, fcntl.LOCK_EX)
            code = "import fcntl; fcntl.lockf(open('locked', 'r+'), fcntl.LOCK_EX)"
            waiting = subprocess.Popen(["python3", "-c", code], cwd=mnt)
            time.sleep(0.5)
            assert waiting.poll() is None
            waiting.kill()
            assert waiting.wait(5) == -signal.SIGKILL
            waiting = subprocess.Popen(["python3", "-c", code], cwd=mnt)
            time.sleep(0.5)
            assert waiting.poll() is None
        assert waiting.wait(10) == 0
        node.unmount()

    run_inside(test)


def test_a_lock_of_an_open_file_ends_with_the_open_file(run_inside):
    def test(node):
        path = node.mount() / "locked"
        path.write_text("x" * 100)
        # As struct flock: kind, from where, start, length, process.
        exclusive = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 10, 20, 0)

        def lock(file) -> None:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, exclusive)

        with open(path, "r+") as other, open(path, "r+") as process:
            held = open(path, "r+")
            inherited = os.dup(held.fileno())
            lock(held)
            with pytest.raises(BlockingIOError):
                lock(other)
            # Another descriptor of the same process, and one of two of the open file, end nothing.
            open(path, "r+").close()
            held.close()
            with pytest.raises(BlockingIOError):
                lock(other)
            # A lock of the process is another one's.
            with pytest.raises(BlockingIOError):
                fcntl.lockf(process, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 10)
            os.close(inherited)
            # The kernel tells the mount after the close.
            within(10, lambda: can(lambda: lock(other)))
            # And a process's locks stay, whatever open file of the file is closed by others.
            fcntl.lockf(process, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 50)
        node.unmount()

    def can(act) -> bool:
        try:
            act()
        except BlockingIOError:
            return False
        return True

    run_inside(test)


def test_sqlite_and_git_work_as_on_a_local_disk(run_inside):
    def test(node):
        mnt = node.mount()
        for mode in ("delete", "wal"):
            path = mnt / f"{mode}.db"
            with contextlib.closing(sqlite3.connect(path)) as base:
                base.execute(f"pragma journal_mode={mode}")
                base.execute("create table t(a)")
                base.commit()
            code = (
                "import sqlite3, sys; base = sqlite3.connect(sys.argv[1], timeout=60)\n"
                "for number in range(40):\n    with base: base.execute('insert into t values(?)', (number,))"
            )
            writers = [subprocess.Popen(["python3", "-c", code, str(path)]) for _ in range(3)]
            assert [writer.wait(100) for writer in writers] == [0, 0, 0]
            with contextlib.closing(sqlite3.connect(path)) as base:
                assert base.execute("select count(*) from t").fetchone() == (120,)
                assert base.execute("pragma integrity_check").fetchone() == ("ok",)
        script = """
            git init -q repo; cd repo; git config user.email a@b; git config user.name a
            for i in 1 2 3 4 5; do echo $i > f$i; git add .; git commit -qm c$i; done
            git gc -q; git fsck --strict; git clone -q . ../copy; diff -r . ../copy --exclude .git
        """
        subprocess.run(
            ["sh", "-ec", script], cwd=mnt, check=True, timeout=100, env=os.environ | {"HOME": str(mnt)}
        )
        node.unmount()

    run_inside(test)
