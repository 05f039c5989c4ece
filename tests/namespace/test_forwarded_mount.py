"""`zazen mount --forward`: a folder of a daemon's machine, mounted.

The daemon runs on this machine, so a test also looks at the folder itself.
"""

import fcntl
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forwarded_programs as programs
import pytest
import zazen.testing

USER = programs.NOBODY
# How long a test waits for what must come.
PATIENCE = 90.0

STATIC = """
    #include <dirent.h>
    #include <fcntl.h>
    #include <stdio.h>
    #include <sys/stat.h>
    #include <unistd.h>
    int main(int argc, char **argv) {
        char text[64] = {0};
        struct stat found;
        if (argc != 2 || chdir(argv[1]) || mkdir("made", 0750) || rename("made", "moved")) return 1;
        int file = open("moved/f", O_RDWR | O_CREAT | O_EXCL, 0640);
        if (file < 0 || write(file, "by a static program", 19) != 19 || fsync(file)) return 2;
        if (ftruncate(file, 11) || pread(file, text, 64, 0) != 11 || fstat(file, &found)) return 3;
        if (found.st_size != 11 || (found.st_mode & 07777) != 0640) return 4;
        if (symlink("moved/f", "link") || readlink("link", text, 64) != 7) return 5;
        printf("%.7s\\n", text);
        return close(file);
    }
"""


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


class Far:
    """A daemon with a folder that is mounted on `mnt`."""

    def __init__(self, folder: Path, plugin: bool = True) -> None:
        self.folder, self.data, self.mnt = folder, folder / "far", folder / "mnt"
        self.key = folder / "key"
        for name in ("far", "mnt", "node", "backing"):
            (folder / name).mkdir()
        self.zazen("key", "new", self.key)
        plugins = ["--plugin", "posix"] if plugin else []
        self.daemon = zazen.testing.Daemon(
            folder / "node",
            folder / "backing",
            arguments=[*plugins, "--export", self.data],
            listen="127.0.0.1:0",
            key=self.key,
        )

    def zazen(self, *words: object, status: int = 0) -> str:
        """Runs `zazen`; what it wrote to both outputs."""
        command = [zazen.testing.program("zazen"), *map(str, words)]
        environment = zazen.testing.environment()
        done = subprocess.run(
            command, env=environment, text=True, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == status, done
        return done.stdout + done.stderr

    def mount(self, *more: object, forward: str | None = None, status: int = 0) -> str:
        forward = forward or f"{self.mnt}={self.data}"
        where = ["--node", self.daemon.address, "--key", self.key]
        log = ["--log", self.folder / "mount.log"]
        return self.zazen("mount", "--forward", forward, *where, *log, *more, status=status)

    def unmount(self) -> None:
        self.zazen("unmount", self.mnt)


def run(folder: Path, alone: Callable[..., None], test: Callable[[Far], None], **options: bool) -> None:
    def with_far() -> None:
        far = Far(folder, **options)
        with far.daemon:
            test(far)

    alone(with_far)


def test_programs_find_what_the_folder_has(folder, alone):
    def test(far: Far) -> None:
        assert "for its user only: here, for root" in far.mount()
        # What takes minutes over TCP on a loaded machine runs by hand (forwarded_programs.py).
        (far.mnt / "tar").mkdir()
        try:
            programs.tar_and_rsync(far.mnt / "tar", 30)
        except programs.NotRunError as error:
            print(f"not run: {error}")
        for mode in ("delete", "wal"):
            both = [sqlite3.connect(far.mnt / f"{mode}.db", timeout=PATIENCE) for _ in range(2)]
            both[0].execute(f"pragma journal_mode={mode}")
            both[0].execute("create table t (n)")
            for number in range(8):
                with both[number % 2] as database:
                    database.execute("insert into t values (?)", (number,))
                other = both[(number + 1) % 2]
                assert other.execute("select count(*), max(n) from t").fetchone() == (number + 1, number)
            for database in both:
                database.close()
            with sqlite3.connect(far.data / f"{mode}.db") as database:
                assert database.execute("pragma integrity_check").fetchone() == ("ok",)
                assert database.execute("select count(*) from t").fetchone() == (8,)
            database.close()
        source = far.folder / "static.c"
        source.write_text(STATIC)
        built = subprocess.run(
            ["cc", "-static", "-o", far.mnt / "static", source], capture_output=True, check=False
        )
        if built.returncode == 0:
            (far.mnt / "work").mkdir()
            done = subprocess.run(
                [far.mnt / "static", far.mnt / "work"], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (0, "moved/f\n"), done
            assert (far.data / "work/moved/f").read_text() == "by a static"
            assert stat.S_IMODE((far.data / "work/moved").stat().st_mode) == 0o750
        else:
            print("not run: no static C library")
        # The tree as the mount shows it is the one that is there.
        subprocess.run(["diff", "-r", "--no-dereference", far.mnt, far.data], check=True)
        show = "find . -printf '%P %y %m %n %s %U %G %T@ %l\\n' | sort"
        seen = [subprocess.check_output(["sh", "-c", show], cwd=top) for top in (far.mnt, far.data)]
        assert seen[0] == seen[1]
        far.unmount()
        assert not list(far.mnt.iterdir())

    run(folder, alone, test)


def test_files_without_names_and_many_folders(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        # More open folders, and more known ones, than one session may hold descriptions of.
        deep = far.mnt.joinpath(*["deep"] * 40)
        deep.mkdir(parents=True)
        for number in range(300):
            (far.mnt / f"d{number}").mkdir()
            (far.mnt / f"d{number}/f").write_text(str(number))
        for number in range(300):
            assert (far.mnt / f"d{number}/f").read_text() == str(number)
        (deep / "f").write_text("deep")
        assert (far.data.joinpath(*["deep"] * 40) / "f").read_text() == "deep"
        # Open files that were removed, and renamed folders.
        with open(far.mnt / "gone", "w+") as file:
            file.write("still here")
            file.flush()
            os.unlink(far.mnt / "gone")
            assert os.fstat(file.fileno()).st_size == 10
            assert os.fstat(file.fileno()).st_nlink == 0
            os.fchmod(file.fileno(), 0o600)
            os.ftruncate(file.fileno(), 5)
            assert os.pread(file.fileno(), 100, 0) == b"still"
        with open(far.mnt / "d1/f") as file:
            (far.mnt / "d1").rename(far.mnt / "other")
            (far.mnt / "other/f").rename(far.mnt / "other/g")
            (far.mnt / "d1").mkdir()
            (far.mnt / "d1/f").write_text("new")
            assert file.read() == "1"
            assert os.fstat(file.fileno()).st_ino == (far.mnt / "other/g").stat().st_ino
        assert (far.mnt / "d1/f").read_text() == "new"
        os.link(far.mnt / "d1/f", far.mnt / "d1/l")
        assert (far.mnt / "d1/f").stat().st_nlink == 2
        assert (far.mnt / "d1/f").stat().st_ino == (far.mnt / "d1/l").stat().st_ino
        os.setxattr(far.mnt / "d1/l", "user.kind", b"far")
        assert os.getxattr(far.data / "d1/f", "user.kind") == b"far"
        assert os.statvfs(far.mnt).f_blocks > 0
        # Appends of both sides.
        with open(far.mnt / "log", "ab") as here, open(far.data / "log", "ab") as there:
            for _ in range(20):
                for file in (here, there):
                    file.write(b"line\n")
                    file.flush()
        assert (far.mnt / "log").read_bytes() == b"line\n" * 40
        far.unmount()

    run(folder, alone, test)


def test_odd_names_large_offsets_and_replaced_files(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        here, there = os.fsencode(far.mnt), os.fsencode(far.data)
        names = [b"\xff\xfe", b"line\nfeed", b" ", b"-rf", b"\\", "ü".encode(), b"n" * 255]
        for name in names:
            with open(here + b"/" + name, "wb") as file:
                file.write(name)
            os.symlink(b"to " + name[:200], here + b"/l" + name[:200])
        assert sorted(os.listdir(here)) == sorted(os.listdir(there))
        assert sorted(os.listdir(here)) == sorted([*names, *(b"l" + name[:200] for name in names)])
        for name in names:
            with open(there + b"/" + name, "rb") as file:
                assert file.read() == name
            assert os.readlink(here + b"/l" + name[:200]) == b"to " + name[:200]
        with pytest.raises(OSError, match="name too long"):
            open(here + b"/" + b"n" * 256, "wb")
        # Beyond 4 GiB, and more than one call takes.
        data = random.Random(1).randbytes(5 << 20)
        with open(far.mnt / "big", "w+b", buffering=0) as file:
            assert os.pwrite(file.fileno(), data, 5 << 30) == len(data)
            assert os.pread(file.fileno(), len(data), 5 << 30) == data
            assert os.fstat(file.fileno()).st_size == (5 << 30) + len(data)
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) > 4 << 30
            os.ftruncate(file.fileno(), (5 << 30) + 7)
            assert os.pread(file.fileno(), 100, 5 << 30) == data[:7]
        with open(far.data / "big", "rb") as file:
            assert os.pread(file.fileno(), 100, 5 << 30) == data[:7]
        os.truncate(far.mnt / "big", 0)
        assert (far.data / "big").stat().st_size == 0
        # A file that another one replaces stays what it is to those who have it open.
        (far.mnt / "old").write_text("old")
        (far.mnt / "new").write_text("new")
        with open(far.mnt / "old") as file:
            os.replace(far.mnt / "new", far.mnt / "old")
            assert file.read() == "old"
            assert os.fstat(file.fileno()).st_nlink == 0
        assert (far.mnt / "old").read_text() == (far.data / "old").read_text() == "new"
        with open(far.mnt / "src", "wb") as file:
            file.write(data)
        shutil.copyfile(far.mnt / "src", far.mnt / "copy")
        assert (far.data / "copy").read_bytes() == data
        far.unmount()

    run(folder, alone, test)


def test_copies_take_the_bytes_that_are_there(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        size = 1 << 16
        with (
            open(far.data / "f", "w+b", buffering=0) as there,
            open(far.data / "to", "wb"),
            open(far.mnt / "f", "rb", buffering=0) as here,
            open(far.mnt / "to", "r+b", buffering=0) as to,
        ):
            for number in range(1, 4):
                wrote = bytes([number]) * size
                os.pwrite(there.fileno(), wrote, 0)
                # The length that the kernel keeps may be old.
                wait_until(lambda: os.fstat(here.fileno()).st_size == size)
                done = 0
                while done < size:
                    done += os.copy_file_range(here.fileno(), to.fileno(), size - done, done, done)
                assert os.pread(to.fileno(), size, 0) == wrote, number
        far.unmount()

    run(folder, alone, test)


def test_calls_end_while_the_daemon_is_away(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        for number in range(30):
            (far.mnt / f"f{number}").write_text(str(number))
        far.daemon.kill()
        # The first waits, the others do not: 30 waits would be longer than a test may take.
        for number in range(30):
            with pytest.raises(OSError, match="Input/output error"):
                (far.mnt / f"f{number}").read_text()
        far.daemon.start()
        wait_until(lambda: is_there(far.mnt / "f0"))
        assert (far.mnt / "f7").read_text() == "7"
        far.unmount()

    run(folder, alone, test)


def is_there(path: Path) -> bool:
    try:
        return path.read_text() == "0"
    except OSError:
        return False


def test_what_others_change_is_seen(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        (far.data / "f").write_text("one")
        assert (far.mnt / "f").read_text() == "one"
        with open(far.mnt / "f") as file:
            # Bytes at once: nothing of them is kept here.
            (far.data / "f").write_text("two")
            assert file.read() == "two"
        # Names and attributes, after the second for which the kernel keeps them.
        os.replace(far.data / "f", far.data / "g")
        wait_until(lambda: not (far.mnt / "f").exists())
        (far.data / "f").write_text("another file")
        wait_until(lambda: (far.mnt / "f").exists() and (far.mnt / "f").read_text() == "another file")
        assert (far.mnt / "g").read_text() == "two"
        (far.data / "f").chmod(0o600)
        wait_until(lambda: stat.S_IMODE((far.mnt / "f").stat().st_mode) == 0o600)
        far.unmount()

    run(folder, alone, test)


def test_locks_count_at_both_ends(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        (far.data / "f").write_bytes(bytes(100))
        there = open(far.data / "f", "r+b")
        here = open(far.mnt / "f", "r+b")

        def is_free(start: int, length: int) -> bool:
            """As another program at the far side sees it."""
            code = (
                "import fcntl, sys; f = open(sys.argv[1], 'r+b'); "
                "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, int(sys.argv[3]), int(sys.argv[2]))"
            )
            words = [sys.executable, "-c", code, far.data / "f", str(start), str(length)]
            return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0

        fcntl.lockf(here, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)
        assert (is_free(20, 10), is_free(0, 20), is_free(30, 0)) == (False, True, True)
        fcntl.lockf(here, fcntl.LOCK_UN, 5, 20)
        assert (is_free(20, 5), is_free(25, 1)) == (True, False)
        # Another process of this machine is another owner.
        if (child := os.fork()) == 0:
            try:
                with open(far.mnt / "f", "r+b") as mine:
                    fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 25)
                os._exit(1)
            except OSError:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        here.close()
        wait_until(lambda: is_free(0, 0))
        with open(far.mnt / "f", "r+b") as here:
            fcntl.flock(here, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(there, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with pytest.raises(BlockingIOError):
                fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(there, fcntl.LOCK_UN)
            fcntl.flock(here, fcntl.LOCK_EX)
            with pytest.raises(BlockingIOError):
                fcntl.flock(there, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(there, fcntl.LOCK_EX)
        there.close()
        far.unmount()

    run(folder, alone, test)


def test_open_files_survive_a_restart_of_the_daemon(folder, alone):
    def test(far: Far) -> None:
        far.mount()
        (far.mnt / "d").mkdir()
        (far.mnt / "d/f").write_bytes(b"before and ")
        (far.mnt / "locked").write_bytes(b"x")
        file = open(far.mnt / "d/f", "r+b", buffering=0)
        locked = open(far.mnt / "locked", "r+b", buffering=0)
        gone = open(far.mnt / "gone", "w+b", buffering=0)
        os.unlink(far.mnt / "gone")
        fcntl.lockf(locked, fcntl.LOCK_EX)
        far.daemon.kill()
        far.daemon.start()
        assert file.read() == b"before and "
        assert file.write(b"after") == 5
        assert (far.data / "d/f").read_bytes() == b"before and after"
        assert sorted(os.listdir(far.mnt)) == ["d", "locked"]
        # Its lock is gone, and another may have it; it has no name any more.
        for lost in (locked, gone):
            with pytest.raises(OSError, match="Input/output error"):
                lost.read()
            lost.close()
        assert (far.mnt / "locked").read_bytes() == b"x"
        file.close()
        far.unmount()

    run(folder, alone, test)


def test_a_user_has_the_users_rights(folder, alone):
    if shutil.which("fusermount3") is None:
        pytest.skip("needs fusermount3 (package fuse3)")

    def test(far: Far) -> None:
        # On most systems all users may open it. The test's mounts are its own.
        device = far.folder / "fuse"
        os.mknod(device, stat.S_IFCHR | 0o666, Path("/dev/fuse").stat().st_rdev)
        device.chmod(0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
        far.data.chmod(0o777)
        (far.data / "secret").write_text("root's")
        (far.data / "secret").chmod(0o600)
        (far.data / "public").write_text("all's")
        (far.data / "closed").mkdir(mode=0o700)
        os.chown(far.mnt, USER, USER)
        far.key.chmod(0o600)

        program = zazen.testing.program("zazen")
        where = ["--node", far.daemon.address, "--key", far.key]
        # Root's own mount is for root only, and root takes no key of another user.
        far.mount()
        said = programs.as_nobody("ls", far.mnt, status=2)
        assert "Permission denied" in said, said
        said = programs.as_nobody("cat", far.mnt / "public", status=1)
        assert "Permission denied" in said, said
        far.unmount()
        os.chown(far.key, USER, USER)
        programs.as_nobody(program, "mount", "--forward", f"{far.mnt}={far.data}", *where)
        # `set -e` does not see what fails after `!`: each refusal has a status of its own.
        code = """
            set -e
            refused() { if "$@" 2> /dev/null; then echo "not refused: $*"; exit 9; fi; }
            test "$(cat public)" = "all's"
            refused cat secret
            refused ls closed
            refused touch closed/f
            refused chown 0 public
            refused chmod 777 secret
            refused sh -c 'echo x >> public'
            umask 022
            mkdir own
            echo hello > own/f
            chmod 4755 own/f
            test "$(stat -c %a own/f)" = 4755
            echo more >> own/f
            test "$(stat -c %a own/f)" = 755
        """
        programs.as_nobody("sh", "-xc", f"cd {far.mnt}\n{code}")
        assert (far.data / "own/f").read_text() == "hello\nmore\n"
        assert (far.data / "own/f").stat().st_uid == USER
        # Nobody else may enter, not even root.
        with pytest.raises(PermissionError):
            os.listdir(far.mnt)
        programs.as_nobody(program, "unmount", far.mnt)

    run(folder, alone, test)


def test_what_cannot_be_mounted_is_told(folder, alone):
    def test(far: Far) -> None:
        said = far.mount(forward=f"{far.mnt}=/usr", status=1)
        assert "does not export /usr" in said, said
        said = far.mount(forward=f"{far.mnt}={far.data}/none", status=1)
        assert f"{far.data}/none" in said, said
        assert "No such file" in said, said
        (far.data / "file").touch()
        said = far.mount(forward=f"{far.mnt}={far.data}/file", status=1)
        assert "Not a directory" in said, said
        said = far.mount(forward=str(far.data), status=1)
        assert "that folder itself" in said, said
        said = far.mount(forward=f"mnt={far.data}", status=1)
        assert "absolute paths" in said, said
        words = ["mount", "--forward", f"{far.mnt}={far.data}"]
        said = far.zazen(*words, "--node", far.daemon.address, status=1)
        assert "--key" in said, said
        # Without --node: this machine's daemon.
        far.zazen(*words, "--socket", far.daemon.socket)
        (far.mnt / "f").write_text("x")
        assert (far.data / "f").read_text() == "x"
        far.unmount()

    run(folder, alone, test)


def test_a_daemon_without_the_plugin_is_told(folder, alone):
    def test(far: Far) -> None:
        assert "--plugin posix" in far.mount(status=1)

    run(folder, alone, test, plugin=False)
