"""Two nodes, two mounts whose kernels keep names and attributes for a minute: what one changes, the
other sees.

With so long a time, only what the daemons tell each other can be the reason.
"""

import errno
import fcntl
import mmap
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import zazen.testing
from zazen import namespace

KEEP = 60


class Two:
    """Two nodes of one namespace, each mounted."""

    def __init__(self, folder: Path) -> None:
        key, nodes = folder / "key", folder / "nodes"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        (folder / "backing").mkdir()
        self.daemons, self.mnt = [], []
        for number in range(2):
            place = folder / f"n{number}"
            place.mkdir()
            (folder / f"m{number}").mkdir()
            arguments = [
                "--namespace",
                folder / f"data{number}",
                "--namespace-nodes",
                nodes,
                "--namespace-root",
                "trust",
            ]
            self.daemons.append(
                zazen.testing.Daemon(
                    place,
                    folder / "backing",
                    [*arguments, "--namespace-format"],
                    listen="127.0.0.1:0",
                    key=key,
                    name=f"n{number}",
                )
            )
            self.mnt.append(folder / f"m{number}")
        for daemon in self.daemons:
            daemon.start()
        fresh = nodes.with_suffix(".new")
        fresh.write_text("".join(f"{daemon.address}\n" for daemon in self.daemons))
        fresh.rename(nodes)

    def zazen(self, *words: object) -> None:
        command = [zazen.testing.program("zazen"), *map(str, words)]
        subprocess.run(command, env=zazen.testing.environment(), check=True, timeout=100)

    def mount(self, number: int, keep: int = KEEP) -> Path:
        mnt, socket = self.mnt[number], self.daemons[number].socket
        self.zazen("mount", mnt, "--socket", socket, "--keep", keep)
        return mnt


def soon(what, expected) -> None:
    """Waits for `what` to be as expected, for less than the kernel would keep the old."""
    until = time.monotonic() + KEEP / 2
    while (found := what()) != expected:
        assert time.monotonic() < until, f"{found!r} is not {expected!r}"
        time.sleep(0.02)


def sent(file, to: Path, size: int) -> bytes:
    """The file's bytes as `sendfile` gives them."""
    with open(to, "wb", buffering=0) as out:
        done = 0
        while done < size:
            done += os.sendfile(out.fileno(), file.fileno(), done, size - done)
    return to.read_bytes()


def look(path: Path):
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        # The daemon is away.
        assert error.errno == errno.EIO, error
        return "EIO"
    return found.st_mode & 0o777


def test_what_another_node_changes_is_seen_although_the_kernel_keeps_it(folder, alone):
    def test():
        two = Two(folder)
        a, b = two.mount(0), two.mount(1)
        for number in range(24):
            # Directories are spread over the partitions of both nodes.
            (a / f"d{number}").mkdir()
        soon(lambda: len(os.listdir(b)), 24)
        for number in range(24):
            here, there = a / f"d{number}", b / f"d{number}"
            (here / "f").write_text("x")
            (here / "gone").write_text("x")
            soon(lambda there=there: look(there / "f"), 0o644)
            soon(lambda there=there: look(there / "gone"), 0o644)
            (here / "f").chmod(0o600)
            (here / "gone").unlink()
            soon(lambda there=there: look(there / "f"), 0o600)
            soon(lambda there=there: look(there / "gone"), None)
            (here / "f").rename(a / f"moved{number}")
            soon(lambda there=there: look(there / "f"), None)
            soon(lambda number=number: look(b / f"moved{number}"), 0o600)
            before = there.stat().st_mtime_ns
            (here / "new").mkdir()
            soon(lambda there=there, before=before: there.stat().st_mtime_ns != before, True)
        # Lengths: the second writer's close is told to the first.
        (a / "log").write_text("12345")
        soon(lambda: (b / "log").stat().st_size if look(b / "log") else None, 5)
        with open(b / "log", "a") as file:
            file.write("678")
        soon(lambda: (a / "log").stat().st_size, 8)
        # A program of the node itself that uses no mount counts as another, too.
        ns = namespace.Namespace(two.daemons[0].socket, umask=0)
        assert look(a / "log") == 0o644
        ns.chmod("/log", 0o640)
        soon(lambda: look(a / "log"), 0o640)
        ns.rename("/log", "/log2")
        soon(lambda: look(a / "log"), None)
        two.zazen("unmount", a)
        two.zazen("unmount", b)

    alone(test)


def test_the_lock_of_a_client_that_dies_is_free_on_the_other_node(folder, alone):
    def test():
        two = Two(folder)
        a, b = two.mount(0, 1), two.mount(1, 1)
        (a / "f").write_text("x")
        code = "import fcntl, sys, time; f = open('f', 'r+'); fcntl.flock(f, 2); fcntl.lockf(f, 2)"
        holder = subprocess.Popen(
            ["python3", "-c", code + "; print('held', flush=True); time.sleep(600)"],
            cwd=a,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout.readline() == b"held\n"
        with open(b / "f", "r+") as file:
            for attempt in (
                lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
                lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
            ):
                try:
                    attempt()
                except BlockingIOError:
                    continue
                raise AssertionError("two nodes have one lock")
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_EX)
        # And when the mount's own process dies with the lock held.
        again = subprocess.Popen(
            ["python3", "-c", code + "; print('held', flush=True); time.sleep(600)"],
            cwd=a,
            stdout=subprocess.PIPE,
        )
        assert again.stdout.readline() == b"held\n"
        mount = subprocess.run(["pgrep", "-f", f"mount {a} "], capture_output=True, text=True, check=True)
        for process in mount.stdout.split():
            os.kill(int(process), signal.SIGKILL)
        with open(b / "f", "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        again.kill()
        two.zazen("unmount", b)

    alone(test)


def test_open_files_are_opened_again_and_calls_do_not_wait_twice(folder, alone):
    def test():
        two = Two(folder)
        a, b = two.mount(0, 1), two.mount(1, 1)
        files = [open(a / f"f{number}", "wb", buffering=0) for number in range(40)]
        two.daemons[0].stop()
        two.daemons[0].start()
        # The mount opens all of them again, so the other node does not take them for closed.
        ns = namespace.Namespace(two.daemons[0].socket, umask=0)
        soon(lambda: ns.status()["open_files"] >= 40, True)
        for file in files:
            file.write(b"after the restart")
            file.close()
        soon(lambda: (b / "f39").stat().st_size, 17)
        # Without the daemon: the first call waits, the others do not. 30 files would take ten
        # minutes.
        files = [open(a / f"f{number}", "wb", buffering=0) for number in range(30)]
        two.daemons[0].kill()
        failed = 0
        for file in files:
            # The kernel's own write. Of an empty file, closing has nothing to tell.
            file.write(b"x")
            try:
                file.close()
            except OSError:
                failed += 1
        assert failed == 30
        two.daemons[0].start()
        soon(lambda: look(a / "f0"), 0o644)
        two.zazen("unmount", a)
        two.zazen("unmount", b)

    alone(test)


def test_copies_and_sendfile_see_what_another_node_wrote(folder, alone):
    """The kernel moves bytes of files between descriptors through pages that it keeps."""

    def test():
        two = Two(folder)
        a, b = two.mount(0), two.mount(1)
        size = 1 << 16
        with (
            open(a / "f", "w+b", buffering=0) as here,
            open(a / "to", "wb"),
        ):
            here.write(bytes(size))
            # Both mounts have the file open all the time, and nobody asks for its attributes.
            with (
                open(b / "f", "r+b", buffering=0) as there,
                open(b / "to", "r+b", buffering=0) as to,
            ):
                for round in range(1, 6):
                    wrote = bytes([round]) * size
                    assert os.pwrite(here.fileno(), wrote, 0) == size
                    assert os.pread(there.fileno(), size, 0) == wrote
                    done = 0
                    while done < size:
                        done += os.copy_file_range(there.fileno(), to.fileno(), size - done, done, done)
                    assert os.pread(to.fileno(), size, 0) == wrote, f"copy in round {round}"
                    # Within one file.
                    copied = os.copy_file_range(there.fileno(), there.fileno(), 4096, 0, size)
                    assert os.pread(there.fileno(), size, size) == wrote[:copied]
                # sendfile and maps have pages that may be old, but not for long.
                for round in range(6, 10):
                    wrote = bytes([round]) * size
                    assert os.pwrite(here.fileno(), wrote, 0) == size
                    with mmap.mmap(there.fileno(), size, prot=mmap.PROT_READ) as mapped:
                        soon(lambda mapped=mapped: mapped[:], wrote)
                    soon(lambda: sent(there, folder / "sent", size), wrote)
        two.zazen("unmount", a)
        two.zazen("unmount", b)

    alone(test)
