"""Files in chunks: many nodes write one file, each to its own disk, and all see the same bytes."""

import contextlib
import ctypes
import errno
import functools
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
from launching import mpi_environment, mpiexec
from test_data import Bed, fails, read_at, tool, within
from zazen import namespace

MIB = 1 << 20
NODES = 4
USER = 64_412


def located(bed: Bed, path: str, asked: int = 0) -> dict:
    (found,) = json.loads(tool("locate", "--json", "--socket", bed.sockets[asked], path))
    return found


def open_at(bed: Bed, node: int, name: str, flags: int) -> int:
    return os.open(bed.mounts[node] / name, flags)


def write_at(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        assert os.pwrite(descriptor, data, offset) == len(data)
    finally:
        os.close(descriptor)


def same_on_all(bed: Bed, name: str, data: bytes) -> None:
    for number, mount in enumerate(bed.mounts):
        got = within(60, (mount / name).read_bytes, (OSError,))
        if got != data:
            wrong = (at for at, (a, b) in enumerate(zip(got, data, strict=False)) if a != b)
            raise AssertionError(
                f"node {number}: {name}: {len(got)} of {len(data)} bytes, {next(wrong, None)}"
            )
        assert (mount / name).stat().st_size == len(data)


def wishes(bed: Bed) -> None:
    """A directory says it for the files and directories that are made in it."""
    mount = bed.mounts[0]
    (mount / "plain").mkdir()
    (mount / "plain/full").write_bytes(b"full")
    os.mknod(mount / "plain/never")
    for value in (b"-1", b"1025", b"many", b""):
        fails(errno.EINVAL, lambda value=value: os.setxattr(mount / "c", "user.zazen.chunks", value))
    (mount / "c/below").mkdir()
    (mount / "c/below/f").touch()
    assert os.getxattr(bed.mounts[3] / "c/below/f", "user.zazen.chunks") == b"1"
    (mount / "plain/f").touch()
    fails(errno.ENODATA, lambda: os.getxattr(mount / "plain/f", "user.zazen.chunks"))
    # A file keeps what it has, once it has bytes.
    fails(errno.EOPNOTSUPP, lambda: os.setxattr(mount / "plain/full", "user.zazen.chunks", b"1"))
    fails(errno.EOPNOTSUPP, lambda: os.removexattr(mount / "c/below/f", "user.zazen.chunks"))
    with (mount / "plain/never").open("rb"):
        fails(errno.EBUSY, lambda: os.setxattr(mount / "plain/never", "user.zazen.chunks", b"1"))

    def changes():
        # The kernel tells of a close a moment later.
        os.setxattr(mount / "plain/never", "user.zazen.chunks", b"1")

    within(60, changes)
    assert os.getxattr(mount / "plain/never", "user.zazen.chunks") == b"1"
    os.setxattr(mount / "c/below/f", "user.zazen.archive", b"yes")


def each_node_writes_its_range(bed: Bed) -> None:
    """Ranges that begin and end within chunks: each goes to the disk of its writer."""
    length = 3 * MIB + 12_345
    whole = random.Random(1).randbytes(NODES * length)
    for node, mount in enumerate(bed.mounts):
        write_at(mount / "c/ranges", node * length, whole[node * length : (node + 1) * length])
    same_on_all(bed, "c/ranges", whole)
    found = located(bed, "/c/ranges", 2)
    assert (found["bytes"], found["chunk_bytes"], found["chunks"]) == (len(whole), MIB, 13)
    assert sorted(holder["name"] for holder in found["holders"]) == ["n0", "n1", "n2", "n3"]
    held = [holder["bytes"] for holder in found["holders"]]
    assert sum(held) == len(whole) and held == sorted(held, reverse=True) and min(held) >= 2 * MIB
    hosts = tool("locate", "--hosts", "--socket", bed.sockets[0], "/c/ranges").split()
    assert hosts == [holder["name"] for holder in found["holders"]]
    shown = tool("locate", "--socket", bed.sockets[0], "/c/ranges")
    assert all(f"n{node}" in shown for node in range(NODES))
    (place,) = namespace.Namespace(bed.sockets[0]).locate(["/c/ranges"])
    assert place.name == hosts[0] and [holder.bytes for holder in place.holders] == held
    # Other calls take it as any file.
    (bed.mounts[1] / "c/ranges").rename(bed.mounts[1] / "c/renamed")
    os.link(bed.mounts[2] / "c/renamed", bed.mounts[2] / "plain/linked")
    within(60, lambda: same_on_all(bed, "plain/linked", whole))
    os.unlink(bed.mounts[0] / "c/renamed")
    descriptor = os.open(bed.mounts[0] / "plain/linked", os.O_RDONLY)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as pages:
        assert pages[:] == whole
    os.unlink(bed.mounts[3] / "plain/linked")
    assert os.pread(descriptor, 100, 5 * MIB) == whole[5 * MIB :][:100]
    os.close(descriptor)

    def all_bytes_go():
        held = sum(path.stat().st_size for data in bed.data for path in (data / "objects").glob("*/*"))
        assert held < MIB

    within(60, all_bytes_go)


WRITER = """
import os, sys
path, first, step, length = sys.argv[1], *map(int, sys.argv[2:5])
data = open(sys.argv[5], "rb").read()
file = os.open(path, os.O_WRONLY)
for at in range(first * length, len(data), step * length):
    part = data[at:at + length]
    assert os.pwrite(file, part, at) == len(part)
os.close(file)
"""


def blocks_that_touch(bed: Bed, folder: Path) -> None:
    """Unaligned blocks of all nodes in turn, at once."""
    length = 70_003
    whole = random.Random(2).randbytes(100 * length)
    (folder / "whole").write_bytes(whole)
    (bed.mounts[0] / "c/turns").touch()
    within(60, lambda: [(mount / "c/turns").stat() for mount in bed.mounts])
    writers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                WRITER,
                mount / "c/turns",
                *map(str, (node, NODES, length)),
                folder / "whole",
            ]
        )
        for node, mount in enumerate(bed.mounts)
    ]
    assert [writer.wait(100) for writer in writers] == [0] * NODES
    same_on_all(bed, "c/turns", whole)


def holes(bed: Bed) -> None:
    """What nobody has written is zeros, within chunks, between them, and where there is none."""
    path = [mount / "c/holes" for mount in bed.mounts]
    write_at(path[1], 5 * MIB + 10, b"five")
    write_at(path[2], 100, b"hundred")
    data = bytearray(5 * MIB + 14)
    data[100:107], data[5 * MIB + 10 :] = b"hundred", b"five"
    same_on_all(bed, "c/holes", bytes(data))
    assert path[3].stat().st_blocks * 512 < MIB
    file = os.open(path[3], os.O_RDWR)
    assert os.lseek(file, 0, os.SEEK_DATA) <= 100
    assert os.lseek(file, 200_000, os.SEEK_DATA) in range(5 * MIB, 5 * MIB + 11)
    assert os.lseek(file, 2 * MIB + 5, os.SEEK_HOLE) == 2 * MIB + 5
    assert os.lseek(file, 5 * MIB + 10, os.SEEK_HOLE) == len(data)
    fails(errno.ENXIO, lambda: os.lseek(file, len(data), os.SEEK_DATA))
    # Truncation to a greater length, and back.
    os.ftruncate(file, 9 * MIB + 1)
    same_on_all(bed, "c/holes", bytes(data) + bytes(9 * MIB + 1 - len(data)))
    os.ftruncate(file, len(data))
    # Space is taken, and a hole is made.
    os.posix_fallocate(file, 2 * MIB - 5, 2 * MIB)
    assert path[0].stat().st_blocks * 512 >= 2 * MIB
    same_on_all(bed, "c/holes", bytes(data))
    os.posix_fallocate(file, len(data), 3 * MIB)
    same_on_all(bed, "c/holes", bytes(data) + bytes(3 * MIB))
    libc_fallocate(file, 3, 50, 4 * MIB)
    data[50 : 50 + 4 * MIB] = bytes(4 * MIB)
    same_on_all(bed, "c/holes", bytes(data) + bytes(3 * MIB))
    fails(errno.EOPNOTSUPP, lambda: libc_fallocate(file, 8, 0, MIB))
    os.close(file)


def libc_fallocate(file: int, mode: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (file, mode, ctypes.c_long(offset), ctypes.c_long(length))
    if libc.fallocate(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


APPENDER = """
import os, sys
path, node, count, length = sys.argv[1], *map(int, sys.argv[2:5])
file = os.open(path, os.O_WRONLY | os.O_APPEND)
for number in range(count):
    record = b"%d-%d;" % (node, number)
    record += bytes([65 + node]) * (length - len(record))
    assert os.write(file, record) == length
os.close(file)
"""


def all_nodes_append(bed: Bed) -> None:
    """No append lands on another one, or is torn."""
    count, length = 150, 4_001
    (bed.mounts[0] / "c/log").write_bytes(b"!" * length)
    appenders = [
        subprocess.Popen([sys.executable, "-c", APPENDER, mount / "c/log", *map(str, (node, count, length))])
        for node, mount in enumerate(bed.mounts)
    ]
    assert [appender.wait(100) for appender in appenders] == [0] * NODES
    got = (bed.mounts[2] / "c/log").read_bytes()
    assert len(got) == (1 + NODES * count) * length
    records = [got[at : at + length] for at in range(length, len(got), length)]
    seen = {node: [] for node in range(NODES)}
    for record in records:
        head, _, rest = record.partition(b";")
        node, number = map(int, head.split(b"-"))
        assert rest == bytes([65 + node]) * len(rest)
        seen[node].append(number)
    assert all(numbers == list(range(count)) for numbers in seen.values())
    same_on_all(bed, "c/log", got)


def appends_count_what_is_not_told_yet(bed: Bed) -> None:
    """A plain write of another node that is not closed nor synced: an append goes behind it."""
    writes = os.open(bed.mounts[1] / "c/untold", os.O_WRONLY | os.O_CREAT)
    assert os.pwrite(writes, b"w" * 5000, 0) == 5000
    appends = within(60, lambda: os.open(bed.mounts[2] / "c/untold", os.O_WRONLY | os.O_APPEND))
    assert os.write(appends, b"a" * 10) == 10
    assert os.pwrite(writes, b"W" * 7, 3 * MIB) == 7
    assert os.write(appends, b"A" * 10) == 10
    expected = b"w" * 5000 + b"a" * 10
    expected += bytes(3 * MIB - len(expected)) + b"W" * 7 + b"A" * 10
    same_on_all(bed, "c/untold", expected)
    os.close(writes)
    os.close(appends)
    same_on_all(bed, "c/untold", expected)


def no_zeros_where_bytes_were_written(bed: Bed) -> None:
    """Who reads a file to its end while it grows, again and again, sees what was written only."""
    path, size, step = "c/grows", 5 * MIB, 40_009
    (bed.mounts[0] / path).touch()
    within(60, (bed.mounts[3] / path).stat)
    done = threading.Event()
    wrong, most = [], [0]

    def read() -> None:
        file = os.open(bed.mounts[3] / path, os.O_RDONLY)
        while not wrong:
            last = done.is_set()
            at = 0
            while part := os.pread(file, 100_000, at):
                zero = part.find(b"\0")
                if zero >= 0:
                    wrong.append(at + zero)
                    break
                at += len(part)
            most[0] = max(most[0], at)
            if last:
                break
        os.close(file)

    reader = threading.Thread(target=read)
    reader.start()
    file = os.open(bed.mounts[0] / path, os.O_WRONLY)
    for at in range(0, size, step):
        os.pwrite(file, b"x" * min(step, size - at), at)
    done.set()
    reader.join(100)
    os.close(file)
    assert not wrong and most[0] == size


def cut_while_others_have_it_open(bed: Bed) -> None:
    data = random.Random(3).randbytes(6 * MIB)
    for node, mount in enumerate(bed.mounts):
        write_at(mount / "c/cut", node * 3 * MIB // 2, data[node * 3 * MIB // 2 :][: 3 * MIB // 2])
    files = [os.open(mount / "c/cut", os.O_RDWR) for mount in bed.mounts]
    for file in files:
        assert os.pread(file, 7 * MIB, 0) == data
    # What all write there afterwards is cut, too, although the metadata does not know of it.
    for node, file in enumerate(files):
        assert os.pwrite(file, bytes([node + 1]) * 1000, 6 * MIB + node * 1000) == 1000
    kept = MIB + MIB // 2 + 3
    os.ftruncate(files[3], kept)
    for mount, file in zip(bed.mounts, files, strict=True):
        assert os.pread(file, 7 * MIB, 0) == data[:kept]
        within(60, lambda mount=mount: same_size(mount / "c/cut", kept))
    # Longer again: zeros, whoever looks.
    os.ftruncate(files[1], 5 * MIB)
    expected = bytearray(data[:kept] + bytes(5 * MIB - kept))
    for file in files:
        assert os.pread(file, 7 * MIB, 0) == expected
    # By handles from before the cut.
    for node, file in enumerate(files):
        at = 2 * MIB + node * 700_001
        assert os.pwrite(file, b"again", at) == 5
        expected[at : at + 5] = b"again"
    same_on_all(bed, "c/cut", bytes(expected))
    # From nothing, while all have it open.
    with (bed.mounts[2] / "c/cut").open("wb") as fresh:
        for file in files:
            assert os.pread(file, 100, 0) == b"" and os.pread(file, 100, 3 * MIB) == b""
        fresh.write(b"fresh")
    for file in files:
        assert os.pread(file, 7 * MIB, 0) == b"fresh"
        os.fsync(file)
    same_on_all(bed, "c/cut", b"fresh")
    for file in files:
        os.close(file)
    # Nobody has it open: the bytes go.
    (bed.mounts[0] / "c/cut").write_bytes(data)
    os.truncate(bed.mounts[1] / "c/cut", MIB)
    same_on_all(bed, "c/cut", data[:MIB])
    os.truncate(bed.mounts[1] / "c/cut", 3 * MIB)
    same_on_all(bed, "c/cut", data[:MIB] + bytes(2 * MIB))


def same_size(path: Path, size: int) -> None:
    assert path.stat().st_size == size


def stat_while_many_write(bed: Bed) -> None:
    """The length is right at each moment; times within the second that kernels keep."""
    files = [os.open(mount / "c/stat", os.O_WRONLY | os.O_CREAT) for mount in bed.mounts]
    size = 0
    for turn in range(12):
        node = turn % NODES
        size = turn * 700_000 + 5
        assert os.pwrite(files[node], b"y" * 5, size - 5) == 5
        for other, mount in enumerate(bed.mounts):
            if turn >= NODES:
                assert os.stat(mount / "c/stat").st_size == size, (turn, other)
    for file in files:
        os.close(file)
    time.sleep(1.1)
    times = {(mount / "c/stat").stat().st_mtime_ns for mount in bed.mounts}
    assert len(times) == 1 and abs(times.pop() / 1e9 - time.time()) < 60
    os.utime(bed.mounts[1] / "c/stat", ns=(10**18, 10**18))
    time.sleep(1.1)
    assert {(mount / "c/stat").stat().st_mtime_ns for mount in bed.mounts} == {10**18}


def as_user(work) -> None:
    """Does `work` in a process of an ordinary user."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def a_quota_bounds_it(bed: Bed) -> None:
    """A user may write so much, to chunks too; what is refused adds no zeros to the file."""
    own = bed.mounts[1] / "c/own"
    own.mkdir()
    os.chown(own, USER, USER)
    tool("namespace", "quota", "--user", USER, "--bytes", "3M", "--socket", bed.sockets[0])

    def counted():
        quotas = json.loads(tool("namespace", "quota", "--json", "--socket", bed.sockets[1]))
        assert [one["bytes"] is not None for one in quotas] == [True]

    within(60, counted)

    def write_all_that_goes() -> None:
        file = os.open(own / "f", os.O_WRONLY | os.O_CREAT)
        put = 0
        with pytest.raises(OSError) as raised:
            while put < 8 * MIB:
                put += os.pwrite(file, b"q" * 100_000, put)
        assert raised.value.errno == errno.EDQUOT and 2 * MIB < put <= 3 * MIB
        log = os.open(own / "f", os.O_WRONLY | os.O_APPEND)
        fails(errno.EDQUOT, lambda: os.write(log, b"l" * MIB))
        assert os.fstat(log).st_size == put

    as_user(write_all_that_goes)
    tool("namespace", "quota", "--user", USER, "--remove", "--socket", bed.sockets[0])


def mpi_io(bed: Bed, folder: Path) -> None:
    pytest.importorskip("mpi4py")
    job = folder / "job"
    job.mkdir()
    node = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    see = f'mount --bind {bed.mounts[0].parent}/{node} {job} && exec "$@"'
    program = [sys.executable, Path(__file__).with_name("shared_file.py"), job / "c/mpi"]
    command = [mpiexec(), "-n", "3", "unshare", "-m", "sh", "-c", see, "sh", *program]
    done = subprocess.run(
        command, env=mpi_environment(), text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0 and "shared file is right" in done.stdout, done
    assert os.getxattr(bed.mounts[0] / "c/mpi", "user.zazen.chunks") == b"1"


def it_is_staged_out(bed: Bed, folder: Path) -> None:
    data = random.Random(5).randbytes(3 * MIB + 77)
    for node in range(NODES):
        part = slice(node * MIB, (node + 1) * MIB)
        write_at(bed.mounts[node] / "c/out", node * MIB, data[part])
    tool("stage-out", "--socket", bed.sockets[2], "/c/out", folder / "out")
    assert (folder / "out").read_bytes() == data
    tool("stage-in", "--socket", bed.sockets[1], folder / "out", "/c/in")
    same_on_all(bed, "c/in", data)
    assert located(bed, "/c/in")["chunks"] == 4


def a_lost_holder(bed: Bed) -> None:
    """What a lost node holds is an error, never zeros. The rest can be read; with copies, all."""
    bed.directory("c/kept", "--copies", 2)
    data = random.Random(6).randbytes(NODES * MIB)
    for name in ("c/lone", "c/kept/f"):
        for node, mount in enumerate(bed.mounts):
            write_at(mount / name, node * MIB, data[node * MIB : (node + 1) * MIB])
        same_on_all(bed, name, data)
    reads = os.open(bed.mounts[1] / "c/lone", os.O_RDONLY)
    writes = os.open(bed.mounts[0] / "c/lone", os.O_RDWR)
    assert os.pread(writes, 10, 2 * MIB) == data[2 * MIB :][:10]

    def has_copies():
        held = located(bed, "/c/kept/f")
        objects = sum(
            path.stat().st_size == MIB for data in bed.data for path in (data / "objects").glob("*/*")
        )
        # Those of both files, and one copy of each of the second.
        assert held["chunks"] == NODES and objects >= 3 * NODES

    within(60, has_copies)
    time.sleep(1)
    tool("testbed", "kill", 2, "--dir", bed.dir)
    for node in (0, 1, 3):
        path = bed.mounts[node] / "c/lone"
        for chunk in (0, 1, 3):
            part = data[chunk * MIB : (chunk + 1) * MIB]
            assert (
                within(60, lambda path=path, chunk=chunk: read_at(path, chunk * MIB, MIB), (OSError,)) == part
            )
    for attempt in (
        lambda: read_at(bed.mounts[1] / "c/lone", 2 * MIB + 5, 10),
        lambda: os.pread(reads, 10, 2 * MIB),
        lambda: os.pread(reads, 2 * MIB, 2 * MIB - 100),
        lambda: os.pread(writes, 10, 2 * MIB),
        lambda: os.pwrite(writes, b"lost", 2 * MIB),
        (bed.mounts[3] / "c/lone").read_bytes,
    ):
        with pytest.raises(OSError) as raised:
            got = attempt()
            print(f"no error: {got[:20] if isinstance(got, bytes) else got}", file=sys.stderr)
        assert raised.value.errno in (errno.ETIMEDOUT, errno.EIO), raised.value
    for node in (0, 1, 3):
        assert within(60, (bed.mounts[node] / "c/kept/f").read_bytes, (OSError,)) == data
    # What others hold can still be written.
    assert os.pwrite(writes, b"here", 3 * MIB) == 4
    tool("testbed", "revive", 2, "--dir", bed.dir)
    expected = bytearray(data)
    expected[3 * MIB : 3 * MIB + 4] = b"here"
    with contextlib.suppress(OSError):
        os.close(writes)
    os.close(reads)
    for name, wanted in (("c/lone", bytes(expected)), ("c/kept/f", data)):
        for mount in bed.mounts:
            assert within(60, (mount / name).read_bytes, (OSError,)) == wanted


def daemons_that_end_or_stop(bed: Bed) -> None:
    """A writer whose daemon is killed, or hangs for longer than its lease, goes on, and loses
    nothing that its disk has. Others see how long the file is before it is closed."""
    files = [os.open(mount / "c/life", os.O_RDWR | os.O_CREAT) for mount in bed.mounts[:2]]
    expected = bytearray(5 * MIB)

    def put(node: int, at: int, data: bytes) -> None:
        def write() -> None:
            assert os.pwrite(files[node], data, at) == len(data)

        # A change whose answer was lost fails with EIO; the same write again is the same.
        within(60, write, (OSError,))
        expected[at : at + len(data)] = data

    put(0, 0, b"zero" * 100)
    put(1, 4 * MIB + 7, b"one" * 1000)
    tool("testbed", "kill", 1, "--dir", bed.dir)
    tool("testbed", "revive", 1, "--dir", bed.dir)
    del expected[4 * MIB + 7 + 3000 :]

    def is_told() -> None:
        assert (bed.mounts[2] / "c/life").stat().st_size == len(expected)
        assert (bed.mounts[2] / "c/life").read_bytes() == expected

    within(60, is_told)
    put(1, 4 * MIB + 100, b"again")
    put(1, 2 * MIB, b"new chunk")
    process = json.loads(tool("testbed", "status", "--json", "--dir", bed.dir))["hosts"][1]["pid"]
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(8)
    finally:
        os.kill(process, signal.SIGCONT)
    put(1, 4 * MIB + 50, b"after the pause")
    put(1, 3 * MIB, b"another chunk")
    put(0, 2 * MIB + 3, b"of the other")
    for file in files:
        os.fsync(file)
        os.close(file)
    same_on_all(bed, "c/life", bytes(expected))


def in_chunks(folder: Path, alone, *works, nodes: int = NODES) -> None:
    """Does all works on a testbed with a directory whose files are in chunks."""

    def test():
        bed = Bed(folder, nodes, "--replicas", 2)
        bed.directory("c", "--chunks", 1, asked=1)
        for work in works:
            work(bed)
        bed.down()

    alone(test)


def test_many_nodes_write_a_file_in_chunks(folder, alone):
    touch = functools.partial(blocks_that_touch, folder=folder)
    in_chunks(folder, alone, wishes, each_node_writes_its_range, touch, holes)


def test_chunks_are_appended_to_cut_and_looked_at_while_all_write(folder, alone):
    in_chunks(
        folder,
        alone,
        all_nodes_append,
        appends_count_what_is_not_told_yet,
        no_zeros_where_bytes_were_written,
        cut_while_others_have_it_open,
        stat_while_many_write,
    )


def test_chunks_quotas_mpi_io_and_stage_out(folder, alone):
    with_folder = (functools.partial(work, folder=folder) for work in (mpi_io, it_is_staged_out))
    in_chunks(folder, alone, a_quota_bounds_it, *with_folder)


def test_chunks_of_lost_nodes(folder, alone):
    in_chunks(folder, alone, daemons_that_end_or_stop, a_lost_holder)


def random_work(bed: Bed, seed: int, operations: int) -> None:
    """One file through all mounts, an operation at a time, compared with an array in memory."""
    chance, longest, expected, log = random.Random(seed), 5 * MIB, bytearray(), []
    paths = [mount / f"c/work{seed}" for mount in bed.mounts]
    paths[0].touch()
    within(60, lambda: [path.stat() for path in paths])
    files = [os.open(path, os.O_RDWR) for path in paths]
    appends = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths]

    def put(at: int, data: bytes) -> None:
        expected.extend(bytes(max(0, at + len(data) - len(expected))))
        expected[at : at + len(data)] = data

    for number in range(operations):
        node = chance.randrange(len(paths))
        kind = chance.choice("wwwrrrratpfsz")
        # Near the edges of chunks as often as elsewhere.
        at = chance.choice([chance.randrange(longest), chance.randrange(1, 5) * MIB - chance.randrange(2000)])
        length = chance.choice([1, 1000, 4096, 100_001, 2 * MIB])
        log.append(f"{number}: {kind} at {at} for {length} through {node}, {len(expected)} long")
        file, size = files[node], len(expected)
        if kind == "w":
            data = chance.randbytes(length)
            assert os.pwrite(file, data, at) == length
            put(at, data)
        elif kind == "r":
            got = b""
            while len(got) < length and (part := os.pread(file, length - len(got), at + len(got))):
                got += part
            assert got == expected[at : at + length], log[-30:]
        elif kind == "a" and size < longest:
            data = chance.randbytes(min(length, 100_001))
            assert os.write(appends[node], data) == len(data)
            put(size, data)
        elif kind == "t":
            os.ftruncate(file, at)
            del expected[at:]
            expected.extend(bytes(at - len(expected)))
        elif kind == "p":
            libc_fallocate(file, 3, at, length)
            end = min(at + length, size)
            if end > at:
                expected[at:end] = bytes(end - at)
        elif kind == "f":
            os.close(files[node])
            files[node] = os.open(paths[node], os.O_RDWR)
        elif kind == "s":
            os.fsync(file)
        elif kind == "z":
            assert os.lseek(file, 0, os.SEEK_END) >= 0
            seen = paths[node].stat().st_size
            # Another kernel may keep a length for a second, if nobody has a chunk open for writing.
            log.append(f"   stat says {seen}")
    same_on_all(bed, f"c/work{seed}", bytes(expected))
    for file in files + appends:
        os.close(file)
    same_on_all(bed, f"c/work{seed}", bytes(expected))


def test_random_work_through_the_mounts_of_three_nodes(folder, alone):
    works = (functools.partial(random_work, seed=seed, operations=300) for seed in (1, 2))
    in_chunks(folder, alone, *works, nodes=3)
