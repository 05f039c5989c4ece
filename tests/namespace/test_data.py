"""The bytes of files on a testbed of nodes: checksums, scrubs, space."""

import contextlib
import errno
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zazen.namespace
import zazen.testing
from launching import mpi_environment, mpiexec

BLOCK = 64 << 10
USER = 64_411
# Larger files are not checked when their own node opens them.
CHECKED_AT_OPEN = 4 << 20


def tool(*words: object, status: int = 0) -> str:
    """Runs `zazen`; its standard output, and standard error if it was to fail."""
    command = [zazen.testing.program("zazen"), *map(str, words)]
    done = subprocess.run(
        command, env=zazen.testing.environment(), text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stdout + done.stderr


def within(seconds: float, work, wrong: tuple[type[Exception], ...] = (OSError, AssertionError)):
    """What `work` returns; it may fail for so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except wrong:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


class Bed:
    """A testbed with a namespace, as each of its nodes sees it."""

    def __init__(self, folder: Path, nodes: int, *more: object) -> None:
        self.dir, mounts = folder / "bed", folder / "m"
        tool("testbed", "up", nodes, "--dir", self.dir, "--namespace", "--mounts", mounts, *more)
        self.mounts = [mounts / str(number) for number in range(nodes)]
        record = json.loads((self.dir / "testbed.json").read_text())
        self.sockets = [node["socket"] for node in record["nodes"]]
        self.data = [Path(self.status(number)["data"]) for number in range(nodes)]

    def status(self, node: int) -> dict:
        return json.loads(tool("namespace", "status", "--json", "--socket", self.sockets[node]))

    def object(self, node: int, path: Path) -> Path:
        """The file on the node's disk that has the bytes of `path`."""
        (found,) = (self.data[node] / "objects").glob(f"*/{path.stat().st_ino:016x}-*")
        return found

    def seal(self, node: int, path: Path) -> Path:
        found = self.object(node, path)
        return self.data[node] / "sums" / found.parent.name / found.name

    def wait_for_seal(self, node: int, path: Path) -> None:
        def is_there():
            meta, seal = self.object(node, path).stat(), self.seal(node, path).read_bytes()
            assert int.from_bytes(seal[24:32], "little") == meta.st_size
            assert int.from_bytes(seal[32:40], "little") == meta.st_mtime_ns

        within(60, is_there)

    def directory(self, name: str, *wish: object, asked: int = 0) -> Path:
        """Makes a directory whose new files are as wished from now on: `--copies 2`."""
        made = self.mounts[0] / name
        made.mkdir()
        tool("namespace", "set", f"/{name}", *wish, "--socket", self.sockets[asked])
        time.sleep(2.1)
        return made

    def down(self) -> None:
        tool("testbed", "down", "--dir", self.dir)


def flip(path: Path, at: int) -> None:
    """Changes a bit as a bad disk does: no time changes."""
    meta = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    os.utime(path, ns=(meta.st_atime_ns, meta.st_mtime_ns))


def fails(code: int, work) -> None:
    with pytest.raises(OSError) as raised:
        work()
    assert raised.value.errno == code


def read_at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def a_flipped_bit_is_an_error(bed: Bed) -> None:
    data = random.Random(1).randbytes(5 * BLOCK + 999)
    here, there = bed.mounts[0] / "small", bed.mounts[1] / "small"
    here.write_bytes(data)
    bed.wait_for_seal(0, here)
    assert within(60, there.read_bytes) == data
    flip(bed.object(0, here), 3 * BLOCK + 17)
    fails(errno.EIO, there.read_bytes)
    assert read_at(there, 4 * BLOCK - 3 * BLOCK, BLOCK) == data[BLOCK : 2 * BLOCK]
    # Its own node checks it at an open, and the kernel reads it no more.
    fails(errno.EIO, here.read_bytes)
    assert read_at(here, 5 * BLOCK, 999) == data[5 * BLOCK :]
    # A part written anew would hide the rest; all written anew is well.
    fails(errno.EIO, lambda: os.close(os.open(here, os.O_WRONLY)))

    def is_moved():
        # The kernel tells of a close a moment later. While node 0 has the file open, it keeps the
        # bytes.
        there.write_bytes(data)
        bed.object(1, there)

    within(60, is_moved, (OSError, ValueError))
    assert within(60, here.read_bytes) == data
    bed.wait_for_seal(1, here)


def scrub_finds_what_nobody_read(bed: Bed) -> Path:
    """Returns an object that belongs to no file: it is too young to be removed."""
    data = random.Random(2).randbytes(CHECKED_AT_OPEN + 3 * BLOCK)
    here, there = bed.mounts[0] / "large", bed.mounts[1] / "large"
    here.write_bytes(data)
    whole = bed.mounts[1] / "whole"
    whole.write_bytes(b"whole" * 1000)
    bed.wait_for_seal(0, here)
    bed.wait_for_seal(1, whole)
    # What a crash left.
    held = bed.object(0, here)
    left = held.with_name(held.name + "7")
    left.write_bytes(b"left" * 5000)
    socket = ["--socket", bed.sockets[1]]
    first, second = json.loads(tool("namespace", "scrub", "--json", *socket))
    assert first["damaged_inodes"] == [] and first["removed"] == 0 and left.exists()
    assert first["bytes_checked"] >= len(data)
    assert second["removed"] == 0 and second["bytes_checked"] >= 5000 and second["error"] is None

    flip(held, CHECKED_AT_OPEN + 5)
    said = tool("namespace", "scrub", *socket, status=1)
    assert f"inode {here.stat().st_ino} is damaged" in said and "1 files are damaged" in said
    for path in (here, there):
        assert read_at(path, BLOCK, 1000) == data[BLOCK : BLOCK + 1000]
        fails(errno.EIO, lambda path=path: read_at(path, CHECKED_AT_OPEN, BLOCK))
    assert bed.status(0)["damaged_files"] == 1
    # It is known after a restart of the daemon.
    tool("testbed", "kill", 0, "--dir", bed.dir)
    tool("testbed", "revive", 0, "--dir", bed.dir)
    within(60, lambda: fails(errno.EIO, lambda: read_at(there, CHECKED_AT_OPEN, BLOCK)))
    there.unlink()
    within(60, lambda: tool("namespace", "scrub", *socket))
    assert bed.status(0)["damaged_files"] == 0
    return left


def leftovers_are_removed(bed: Bed, left: Path) -> None:
    """An object may be a copy that the metadata will name: a minute passes before it counts as
    left."""
    time.sleep(max(0, left.stat().st_ctime + 61 - time.time()))
    first, _ = json.loads(tool("namespace", "scrub", "--json", "--socket", bed.sockets[1]))
    assert first["removed"] >= 1 and first["removed_bytes"] >= 20_000 and not left.exists()


def space_is_told(bed: Bed) -> None:
    disk = os.statvfs(bed.data[0])
    seen = os.statvfs(bed.mounts[1])
    # Both nodes are on one disk here, and each counts it.
    assert seen.f_blocks * seen.f_frsize == pytest.approx(2 * disk.f_blocks * disk.f_frsize, rel=0.01)
    assert 0 < seen.f_bavail < seen.f_blocks and seen.f_files > 0


def holder_and_copies(bed: Bed, asked: int, path: str) -> tuple[str, list[str]]:
    (found,) = json.loads(tool("locate", "--json", "--socket", bed.sockets[asked], path))
    return found["name"], found["copies"]


def copies_stand_in_for_a_lost_node(bed: Bed) -> None:
    plain = bed.mounts[0] / "plain"
    plain.mkdir()
    kept = bed.directory("kept", "--copies", 2, asked=1)
    with pytest.raises(OSError):
        os.setxattr(kept, "user.zazen.copies", b"many")
    (kept / "below").mkdir()
    data = {f"below/f{size}": random.Random(size).randbytes(size) for size in [1, 5000, (9 << 20) + 7]}
    for name, content in data.items():
        (kept / name).write_bytes(content)
    (kept / "none").touch()
    with (kept / "sparse").open("wb") as file:
        file.seek(30 << 20)
        file.write(b"end")
    data["sparse"] = bytes(30 << 20) + b"end"
    (plain / "one").write_bytes(b"one")
    (plain / "none").touch()
    first = {}
    for name in data:

        def has_copy(name=name):
            holder, copies = holder_and_copies(bed, 0, f"/kept/{name}")
            assert holder == "n0" and len(copies) == 1 and copies != ["n0"]
            return copies[0]

        first[name] = within(60, has_copy)
    assert holder_and_copies(bed, 0, "/plain/one") == ("n0", [])
    sparse = int(first["sparse"][1:])
    assert bed.object(sparse, kept / "sparse").stat().st_blocks < 2048

    # What is written ends a copy, and there is a new one.
    with (kept / "below/f5000").open("r+b") as file:
        file.write(b"other")
        file.flush()
        os.fsync(file.fileno())
        assert holder_and_copies(bed, 0, "/kept/below/f5000") == ("n0", [])
    data["below/f5000"] = b"other" + data["below/f5000"][5:]

    def has_copy_again():
        assert len(holder_and_copies(bed, 0, "/kept/below/f5000")[1]) == 1

    within(60, has_copy_again)

    # A bad disk of the holder: the bytes of the copy.
    flip(bed.object(0, kept / "below/f5000"), 77)
    there = bed.mounts[1] / "kept/below/f5000"
    assert within(60, there.read_bytes) == data["below/f5000"]
    assert (kept / "below/f5000").read_bytes() == data["below/f5000"]

    tool("testbed", "kill", 0, "--dir", bed.dir)
    for reader in (1, 2):
        for name, content in data.items():
            assert within(60, (bed.mounts[reader] / "kept" / name).read_bytes) == content
    fails(errno.ETIMEDOUT, (bed.mounts[1] / "plain/one").read_bytes)
    # An empty file has nothing that could be lost.
    namespace = zazen.namespace.Namespace(bed.sockets[1])
    for path in ("kept/none", "plain/none"):
        assert (bed.mounts[1] / path).read_bytes() == b""
        with namespace.open("/" + path, "rb") as file:
            assert file.read() == b""

    # The holder comes back with its disk.
    tool("testbed", "revive", 0, "--dir", bed.dir)
    for name, content in data.items():
        assert within(60, (bed.mounts[1] / "kept" / name).read_bytes) == content
    assert within(60, (bed.mounts[1] / "plain/one").read_bytes) == b"one"


def make_tree(root: Path) -> int:
    """A tree with one of each kind, and how many files it has."""
    (root / "a/deep").mkdir(parents=True)
    (root / "empty").mkdir()
    for number, size in enumerate([0, 1, 70_000, (5 << 20) + 3]):
        path = root / f"a/deep/file{number}"
        path.write_bytes(random.Random(number).randbytes(size))
        path.chmod(0o640 + number)
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    os.link(root / "a/deep/file2", root / "again")
    os.symlink("deep/file1", root / "a/link")
    with (root / "sparse").open("wb") as file:
        file.seek(40 << 20)
        file.write(b"end")
    os.setxattr(root / "a/deep/file1", "user.note", b"value")
    (root / "a/deep").chmod(0o550)
    for directory in ["a/deep", "a", "empty", "."]:
        os.utime(root / directory, ns=(10**18, 10**18 + 99))
    return 5


def seen(root: Path) -> dict[str, tuple]:
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        meta = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest(), meta.st_size, meta.st_nlink
        xattrs = {
            name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)
        }
        shown = meta.st_mode, meta.st_uid, meta.st_gid, meta.st_mtime_ns, xattrs, content
        found[str(path.relative_to(root))] = shown
    return found


def trees_are_staged_in_and_out(bed: Bed, folder: Path) -> None:
    source, back = folder / "source", folder / "back"
    files = make_tree(source)
    expected = seen(source)
    here, there = bed.mounts[0] / "in", bed.mounts[1] / "in"
    report = json.loads(tool("stage-in", "--json", source, here))
    assert (report["copied"], report["failed"], report["stopped"]) == (files, [], False)
    assert within(60, lambda: seen(there)) == expected
    assert bed.object(0, here / "sparse").stat().st_blocks < 1000
    report = json.loads(tool("stage-in", "--json", "--compare", source, there))
    assert (report["copied"], report["there"]) == (0, files)
    # Without a mount, as a path of the namespace; and a file into a directory.
    tool("stage-in", "--socket", bed.sockets[1], source, "/in2")
    assert seen(bed.mounts[0] / "in2") == expected
    tool("stage-in", "--socket", bed.sockets[1], source / "again", "/in2/empty")
    assert (bed.mounts[0] / "in2/empty/again").read_bytes() == (source / "again").read_bytes()

    # Out, by two nodes at once; what is left over is done by a last run.
    command = [zazen.testing.program("zazen"), "stage-out", "--json"]
    both = [subprocess.Popen([*command, place, back], stdout=subprocess.PIPE) for place in (here, there)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0], reports
    assert sum(report["copied"] for report in reports) >= files
    report = json.loads(tool("stage-out", "--json", "--socket", bed.sockets[0], "/in", back))
    assert (report["copied"], report["there"], report["elsewhere"]) == (0, files, 0)
    assert seen(back) == expected

    # An interrupted run goes on, whatever it left; a source that changed is copied again.
    (source / "a/deep/file3").write_bytes(b"changed")
    part = here / "a/deep/.file3.zazen-part"
    part.write_bytes(b"what a run left, and more than that")
    os.mkfifo(source / "pipe")
    (source / "empty/x").write_bytes(b"x")
    (here / "empty/x").mkdir()
    said = tool("stage-in", source, here, status=1)
    assert f"{source}/pipe: " in said and f"{source}/empty/x: " in said and "2 could not be copied" in said
    assert (here / "a/deep/file3").read_bytes() == b"changed" and not part.exists()
    assert "nothing" in tool("stage-out", here / "nothing", back, status=1)

    # With the rights of the user.
    own, theirs = bed.mounts[0] / "own", bed.mounts[0] / "theirs"
    own.mkdir()
    os.chown(own, USER, USER)
    theirs.mkdir()
    public = folder / "public"
    public.mkdir()
    (public / "file").write_bytes(b"for all")
    as_user = {"user": USER, "group": USER, "extra_groups": [], "env": zazen.testing.environment()}
    run = [zazen.testing.program("zazen"), "stage-in", str(public)]
    subprocess.run([*run, own / "public"], check=True, timeout=60, **as_user)
    meta = (own / "public/file").stat()
    assert (meta.st_uid, (own / "public/file").read_bytes()) == (USER, b"for all")
    done = subprocess.run([*run, theirs / "public"], check=False, timeout=60, **as_user)
    assert done.returncode == 1 and os.listdir(theirs) == []


def many_nodes_write_one_file(bed: Bed, folder: Path) -> None:
    """Plain writers: unaligned blocks that touch, from three nodes at once; nothing is lost."""
    blocks, length = 120, 5003
    whole = random.Random(4).randbytes(3 * blocks * length)
    (bed.mounts[1] / "shared").touch()
    script = """
import os, sys
path, first, length, data = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), open(sys.argv[4], "rb").read()
file = os.open(path, os.O_WRONLY)
for at in range(first * length, len(data), 3 * length):
    assert os.pwrite(file, data[at:at + length], at) == length
os.close(file)
"""
    (folder / "whole").write_bytes(whole)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, mount / "shared", str(node), str(length), folder / "whole"]
        )
        for node, mount in enumerate(bed.mounts)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    for mount in bed.mounts:
        assert within(60, (mount / "shared").read_bytes) == whole


def mpi_io_on_one_file(bed: Bed, folder: Path) -> None:
    """Each rank sees the mount of its own node under one path, as on a cluster."""
    pytest.importorskip("mpi4py")
    job = folder / "job"
    job.mkdir()
    node = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    see = f'mount --bind {bed.mounts[0].parent}/{node} {job} && exec "$@"'
    program = [sys.executable, Path(__file__).with_name("shared_file.py"), job / "mpi"]
    command = [mpiexec(), "-n", "3", "unshare", "-m", "sh", "-c", see, "sh", *program]
    done = subprocess.run(
        command, env=mpi_environment(), text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0 and "shared file is right" in done.stdout, done


def test_copies_and_one_file_of_many_writers(folder, alone):
    def test():
        bed = Bed(folder, 3)
        many_nodes_write_one_file(bed, folder)
        mpi_io_on_one_file(bed, folder)
        copies_stand_in_for_a_lost_node(bed)
        bed.down()

    alone(test)


def test_checksums_scrub_and_space(folder, alone):
    def test():
        bed = Bed(folder, 2)
        a_flipped_bit_is_an_error(bed)
        left = scrub_finds_what_nobody_read(bed)
        within(60, lambda: space_is_told(bed))
        trees_are_staged_in_and_out(bed, folder)
        leftovers_are_removed(bed, left)
        bed.down()

    alone(test)


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def test_a_full_disk_sends_new_files_elsewhere(folder, alone):
    def test():
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        tool("key", "new", folder / "key")
        (folder / "nodes").write_text("\n".join(addresses) + "\n")
        (folder / "backing").mkdir()
        (folder / "small").mkdir()
        (folder / "large").mkdir()
        for disk, size in [("small", "256m"), ("large", "512m")]:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder / disk], check=True)
        flags = ["--namespace-format", "--namespace-nodes", folder / "nodes", "--namespace-root", "trust"]
        daemons, mounts = [], [folder / "m0", folder / "m1"]
        for number, data in enumerate([folder / "small/data", folder / "large/data"]):
            (folder / f"n{number}").mkdir()
            mounts[number].mkdir()
            daemon = zazen.testing.Daemon(
                folder / f"n{number}",
                folder / "backing",
                [*flags, "--namespace", data],
                listen=addresses[number],
                key=folder / "key",
                name=f"n{number}",
            )
            daemon.start()
            daemons.append(daemon)
        for daemon, mount in zip(daemons, mounts, strict=True):
            tool("mount", mount, "--socket", daemon.socket)

        def holder(name):
            (found,) = json.loads(tool("locate", "--json", "--socket", daemons[0].socket, f"/{name}"))
            return found["name"]

        (mounts[0] / "before").write_bytes(b"before")
        assert holder("before") == "n0"
        # Another program fills the disk, but for what the log may need.
        with (folder / "small/filler").open("wb") as filler:
            free = os.statvfs(folder / "small")
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - (8 << 20))
        data = random.Random(3).randbytes(20 << 20)
        number = 0

        def goes_elsewhere():
            nonlocal number
            number += 1
            (mounts[0] / f"after{number}").touch()
            assert holder(f"after{number}") == "n1"

        within(60, goes_elsewhere)
        large = mounts[0] / "large"
        large.write_bytes(data)
        assert holder("large") == "n1" and large.read_bytes() == data
        assert within(60, (mounts[1] / "large").read_bytes) == data
        # A rewrite from nothing moves a file away, too.
        (mounts[0] / "before").write_bytes(data)
        assert holder("before") == "n1" and (mounts[0] / "before").read_bytes() == data
        # With space again, files stay here.
        (folder / "small/filler").unlink()

        def stays_here():
            nonlocal number
            number += 1
            (mounts[0] / f"again{number}").write_bytes(b"again")
            assert holder(f"again{number}") == "n0"

        within(60, stays_here)

        # Cold files go to the emptier disk; one that is open stays.
        data = {f"cold{number}": random.Random(number).randbytes(20 << 20) for number in range(8)}
        for name, content in data.items():
            (mounts[0] / name).write_bytes(content)
            assert holder(name) == "n0"
        busy = (mounts[0] / "cold0").open("rb")
        time.sleep(2)
        words = ["namespace", "balance", "--json", "--age", 0, "--rate", "1G", "--socket", daemons[0].socket]
        first, second = json.loads(tool(*words))
        assert first["files"] >= 2 and first["bytes"] >= 40 << 20 and second["files"] == 0
        holders = [holder(name) for name in data]
        assert holders[0] == "n0" and holders.count("n1") >= 2 and holders.count("n0") >= 2, holders
        for name, content in data.items():
            assert (mounts[0] / name).read_bytes() == content == (mounts[1] / name).read_bytes()
        assert busy.read() == data["cold0"]
        busy.close()
        words = ["namespace", "scrub", "--json", "--socket", daemons[0].socket]
        for node in json.loads(tool(*words)):
            assert (node["removed"], node["damaged_inodes"], node["error"]) == (0, [], None)
        for daemon, mount in zip(daemons, mounts, strict=True):
            tool("unmount", mount)
            daemon.stop()

    alone(test)
