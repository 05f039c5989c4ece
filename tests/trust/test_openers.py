"""The kernel decides who may open what: B never gets through the daemon what B's own `open` would
refuse.

Each test plays one attack and, beside it, the victim's own work.
"""

import ctypes
import fcntl
import json
import os
import signal
import struct
import threading
import time

import pytest
import wire
import zazen

from conftest import read_frames, write_frames

SECRET = b"token = 'do-not-tell'\n"
LIBC = ctypes.CDLL(None, use_errno=True)


def expected(count=4, size=140_000):
    return {number: bytes([number + 1]) * size for number in range(count)}


def denied(user, dataset, node, **options):
    """The message with which `user` is refused."""
    with pytest.raises(PermissionError) as refused:
        user.run(read_frames, dataset, node.socket, **options)
    return str(refused.value)


def hold(user, dataset, node, change):
    """Opens `dataset` as `user`, changes something, then reads by the old handle: the frames, or
    the error."""

    def work():
        with zazen.open(str(dataset), socket=str(node.socket)) as opened:
            before = {number: bytes(data) for number, data, _ in opened.frames()}
            os.write(told, b"x")
            os.read(go_on, 1)
            try:
                return before, {number: bytes(data) for number, data, _ in opened.frames()}
            except PermissionError as error:
                return before, str(error)

    ready, told = os.pipe()
    go_on, go = os.pipe()

    def meanwhile():
        os.read(ready, 1)
        change()
        os.write(go, b"x")

    helper = threading.Thread(target=meanwhile)
    helper.start()
    try:
        return user.run(work)
    finally:
        os.write(told, b"x")
        helper.join()
        for descriptor in (ready, told, go_on, go):
            os.close(descriptor)


def access_list(*entries):
    """The bytes of a POSIX access list; an entry is (tag, rights, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 0xFFFFFFFF
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def give_list(path, *entries):
    try:
        os.setxattr(path, "system.posix_acl_access", access_list(*entries))
    except OSError as error:
        pytest.skip(f"the file system of {path} has no access lists: {error}")


def test_a_frame_that_is_a_link_into_a_closed_home(a, b, node):
    home = node.backing / "home-a"
    write_frames(home, a, mode=0o644)
    a.own(home, 0o700)
    trap = node.backing / "trap"
    trap.mkdir()
    b.own(trap)
    for number in range(4):
        b.run(os.symlink, f"../home-a/f-{number}.bin", trap / f"f-{number}.bin")
    denied(b, trap, node)
    assert a.run(read_frames, home, node.socket) == expected()
    # Cached by now; the link still leads where B may not go.
    denied(b, trap, node)
    denied(b, home, node)
    assert a.run(read_frames, trap, node.socket) == expected()


def test_a_link_swapped_while_frames_are_read(a, b, start_node):
    node = start_node("--budget", "2M")
    secret = node.backing / "secret"
    secret.write_bytes(b"S" * 300_000)
    a.own(secret, 0o600)
    trap = node.backing / "trap"
    trap.mkdir()
    b.own(trap)

    def swap():
        frame, fresh, number = trap / "f-0.bin", trap / ".fresh", 0
        while True:
            number += 1
            if number % 2:
                fresh.write_bytes(b"B" * (300_000 + number % 5))
            else:
                fresh.symlink_to("../secret")
            fresh.rename(frame)

    def read():
        for _ in range(150):
            try:
                with zazen.open(str(trap), pattern="f-{n}.bin", socket=str(node.socket)) as opened:
                    for _, data, _ in opened.frames(0, 0):
                        assert b"S" not in bytes(data)
            except (zazen.Error, OSError):
                pass
        return True

    b.run((trap / "f-0.bin").write_bytes, b"B" * 300_000)
    swapper = os.fork()
    if swapper == 0:
        try:
            signal.alarm(100)
            b._become()
            swap()
        finally:
            os._exit(0)
    try:
        assert b.run(read)
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)


def test_a_manifest_that_is_a_link_to_a_secret(a, b, node):
    secret = node.backing / "secret"
    secret.write_bytes(SECRET)
    a.own(secret, 0o600)
    trap = node.backing / "trap"
    write_frames(trap, b)
    b.own(trap)
    b.run(os.symlink, "../secret", trap / "zazen.toml")
    message = denied(b, trap, node)
    assert "do-not-tell" not in message and "token" not in message


def test_an_access_list_that_gives_and_one_that_takes(a, b, node):
    given = node.backing / "given"
    for file in write_frames(given, a, mode=0o600):
        give_list(
            file,
            (OWNER, 6, NOBODY),
            (USER, 4, b.uid),
            (GROUP, 0, NOBODY),
            (MASK, 4, NOBODY),
            (OTHER, 0, NOBODY),
        )
    # The mode shows the mask where the group's rights would be: r for a group that has none.
    taken = node.backing / "taken"
    for file in write_frames(taken, a, mode=0o640):
        os.chown(file, a.uid, a.groups[0])
        give_list(file, (OWNER, 6, NOBODY), (USER, 4, 64_777), (GROUP, 0, NOBODY), (MASK, 4, NOBODY),
                  (OTHER, 0, NOBODY))  # fmt: skip
        assert file.stat().st_mode & 0o777 == 0o640
    for dataset, b_may in [(given, True), (taken, False)]:
        for _ in range(2):
            assert a.run(read_frames, dataset, node.socket) == expected()
            if b_may:
                assert b.run(read_frames, dataset, node.socket) == expected()
            else:
                denied(b, dataset, node)


@pytest.mark.parametrize("size", [3_000, 140_000])
@pytest.mark.parametrize("validate", ["always", "never"])
def test_rights_that_end_after_caching(a, b, start_node, size, validate):
    node = start_node("--validate", validate)
    shared = node.backing / "shared"
    files = write_frames(shared, a, mode=0o640, size=size)
    for file in files:
        os.chown(file, a.uid, a.groups[0])
    assert b.run(read_frames, shared, node.socket) == expected(size=size)
    for file in files:
        os.chown(file, a.uid, a.gid)
    denied(b, shared, node)
    assert a.run(read_frames, shared, node.socket) == expected(size=size)


def test_an_old_handle_ends_with_the_permission(a, b, node):
    sim = node.backing / "sim"
    write_frames(sim, a)
    a.own(sim)
    before, after = hold(b, sim, node, lambda: sim.chmod(0o700))
    assert before == expected() and isinstance(after, str), after
    sim.chmod(0o755)
    before, after = hold(b, sim, node, lambda: [file.chmod(0o600) for file in sim.iterdir()])
    assert before == expected() and isinstance(after, str), after
    assert a.run(read_frames, sim, node.socket) == expected()


def test_frames_of_a_closed_home_by_their_cache_path(a, b, node):
    home = node.backing / "home-a"
    write_frames(home, a, mode=0o644)
    a.own(home, 0o700)
    assert a.run(read_frames, home, node.socket) == expected()
    assert node.cache.stat().st_mode & 0o077 == 0
    cached = [path for path in node.cache.rglob("*") if path.is_file()]
    assert cached
    for path in cached:
        with pytest.raises(PermissionError):
            b.run(path.read_bytes)


def test_nobody_else_is_told_a_path_of_the_cache(a, b, node, programs):
    for name, size in [("small", 3_000), ("large", 140_000)]:
        sim = node.backing / name
        write_frames(sim, a, size=size)
        assert b.run(read_frames, sim, node.socket) == expected(size=size)
        assert b.run(read_frames, sim, node.socket) == expected(size=size)
        told = b.call(programs / "zazen", "ls", sim, "--long", "--json", "--socket", node.socket)
        assert told.returncode == 0, told.stderr
        assert str(node.cache) not in told.stdout


def read_one_by_one(dataset, socket, count, size):
    """Each frame often, alone; the descriptors of this process's files that the cache holds."""
    with zazen.open(str(dataset), socket=str(socket)) as opened:
        for _ in range(4):
            for number in range(count):
                assert bytes(opened[number].data) == bytes([number + 1]) * size
        held = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                held.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            except FileNotFoundError:
                pass  # that of the listing itself
        return [path for path in held if "/segments/" in path]


def ask_places(dataset, socket):
    """How many places the daemon gives for frame 0: by hand, whatever the library would do."""
    caller = wire.Raw(socket)
    handle = caller.open(dataset)
    caller.send(wire.FRAMES, wire.PLACES, struct.pack("<IQIQQQQ", handle, 0, 2048, 9, 9, 9, 9))
    answer = caller.reply()
    files, frames = struct.unpack_from("<I", answer, 4 + len(str(dataset)) + 1)[0], answer[-4:]
    return files if files else struct.unpack("<I", frames)[0]


def test_files_of_several_frames_go_to_nobody_else(a, b, node):
    """A file of the cache holds frames of A that B may read and others that B may not."""
    sim = node.backing / "sim"
    files = write_frames(sim, a, count=120, size=3_000)
    # Young files have no places.
    time.sleep(0.1)
    read_one_by_one(sim, node.socket, 120, 3_000)
    mine, given = read_one_by_one(sim, node.socket, 120, 3_000), ask_places(sim, node.socket)
    if not mine and not given:
        pytest.skip("root has no places: the temporary folder is on no file system of this machine")
    assert mine and given
    assert all(path.startswith(str(node.cache)) for path in mine)
    for user in (a, b):
        assert user.run(read_one_by_one, sim, node.socket, 120, 3_000) == []
        assert user.run(ask_places, sim, node.socket) == 0
    files[0].chmod(0o600)
    assert "frame 0" in denied(b, sim, node)


def test_a_directory_that_may_be_passed_but_not_listed(a, b, node, programs):
    sim = node.backing / "sim"
    write_frames(sim, a, name="quite-secret-{}.bin")
    a.own(sim, 0o711)
    # Its names are known to the daemon by now.
    assert a.run(read_frames, sim, node.socket) == expected()
    message = denied(b, sim, node)
    assert "quite-secret" not in message
    told = b.call(programs / "zazen", "ls", sim, "--socket", node.socket)
    assert told.returncode != 0 and "quite-secret" not in told.stdout + told.stderr

    def by_name():
        with zazen.open(str(sim), pattern="quite-secret-{n}.bin", socket=str(node.socket)) as opened:
            return {number: bytes(data) for number, data, _ in opened.frames(0, 3)}

    assert b.run(by_name) == expected()


def test_who_may_list_but_not_pass(a, b, node):
    sim = node.backing / "sim"
    write_frames(sim, a)
    a.own(sim, 0o744)
    assert a.run(read_frames, sim, node.socket) == expected()
    denied(b, sim, node)


def test_whose_datasets_are_shown_and_who_may_check_them(a, b, node, programs):
    home = node.backing / "home-a"
    write_frames(home / "project-x", a)
    a.own(home / "project-x")
    a.own(home, 0o700)
    write_frames(node.backing / "open", a)
    for dataset in (home / "project-x", node.backing / "open"):
        a.run(read_frames, dataset, node.socket)
    zazen_program, socket = programs / "zazen", ("--socket", node.socket)
    for command in ("status", "datasets"):
        told = b.call(zazen_program, command, "--json", *socket)
        assert told.returncode == 0, told.stderr
        assert "project-x" not in told.stdout and "home-a" not in told.stdout
        assert "project-x" in a.call(zazen_program, command, "--json", *socket).stdout
    assert 'backing/open"' in b.call(zazen_program, "datasets", "--json", *socket).stdout
    for dataset in (home / "project-x", node.backing / "open"):
        for command in ("verify", "evict", "pin"):
            told = b.call(zazen_program, command, dataset, *socket)
            assert told.returncode != 0, (command, told.stdout)
    write_frames(node.backing / "as", a)
    a.own(node.backing / "as")
    a.run(read_frames, node.backing / "as", node.socket)
    told = a.call(zazen_program, "verify", node.backing / "as", "--json", *socket)
    assert told.returncode == 0 and json.loads(told.stdout), told.stderr


def test_what_is_no_file_and_what_is_leased(a, b, node):
    sim = node.backing / "sim"
    write_frames(sim, b)
    b.own(sim)
    (sim / "f-1.bin").unlink()
    b.run(os.mkfifo, sim / "f-1.bin")
    with pytest.raises((zazen.Error, OSError)) as refused:
        b.run(read_frames, sim, node.socket, seconds=60)
    assert "regular" in str(refused.value), refused.value

    leased = node.backing / "leased"
    write_frames(leased, b)
    held, told = os.pipe()

    def hold_lease():
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        descriptor = os.open(leased / "f-0.bin", os.O_RDWR)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.write(told, b"x")
        signal.pause()

    holder = os.fork()
    if holder == 0:
        try:
            signal.alarm(100)
            b._become()
            hold_lease()
        finally:
            os._exit(0)
    try:
        os.read(held, 1)
        other = node.backing / "other"
        write_frames(other, a)
        with pytest.raises((zazen.Error, OSError)) as refused:
            a.run(read_frames, leased, node.socket, seconds=60)
        assert "lease" in str(refused.value), refused.value
        assert a.run(read_frames, other, node.socket, seconds=60) == expected()
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(held)
        os.close(told)


def test_the_daemon_is_beyond_the_users_reach(a, b, node):
    sim = node.backing / "sim"
    write_frames(sim, a, count=64)
    b.run(read_frames, sim, node.socket)
    threads = [int(name) for name in os.listdir(f"/proc/{node.process.pid}/task")]
    names = [open(f"/proc/{node.process.pid}/task/{thread}/comm").read().strip() for thread in threads]
    assert f"as {b.uid}" in names, names

    def attack():
        done = []
        for thread in threads:
            tries = {
                "kill": lambda thread=thread: os.kill(thread, 0),
                "affinity": lambda thread=thread: os.sched_setaffinity(thread, {0}),
                "idle": lambda thread=thread: os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0)),
                "nice": lambda thread=thread: os.setpriority(os.PRIO_PROCESS, thread, 19),
                "environ": lambda thread=thread: open(f"/proc/{thread}/environ", "rb").read(),
                "maps": lambda thread=thread: open(f"/proc/{thread}/maps", "rb").read(),
                "descriptors": lambda thread=thread: os.listdir(f"/proc/{thread}/fd"),
            }
            for name, attempt in tries.items():
                try:
                    attempt()
                    done.append(name)
                except (PermissionError, ProcessLookupError, FileNotFoundError):
                    pass  # refused, or the thread has ended
            for name, number, arguments in [
                ("ptrace", 101, (0x4206, thread, 0, 0)),
                ("tkill", 200, (thread, 0)),
            ]:
                if (
                    os.uname().machine == "x86_64"
                    and LIBC.syscall(number, *map(ctypes.c_long, arguments)) == 0
                ):
                    done.append(name)
        return done

    assert b.run(attack) == []
    assert b.run(read_frames, sim, node.socket) == expected(64)


def test_the_daemons_own_memory_is_no_frame(b, start_node, ground):
    node = start_node("--backing", "/proc")
    for folder in (f"/proc/{node.process.pid}", "/proc/self", "/proc/self/task", "/proc/sys/kernel"):
        for pattern in ("{n}", "maps{n}"):
            with pytest.raises((zazen.Error, OSError)):
                b.run(lambda: read_frames(folder, node.socket, pattern=pattern))  # noqa: B023


def test_while_the_backing_store_is_away(a, b, node):
    """Recorded mode bits allow nobody anything: access lists and folders may forbid what they
    allow."""
    for name, mode in [("public", 0o644), ("shared", 0o640)]:
        for file in write_frames(node.backing / name, a, mode=mode):
            os.chown(file, a.uid, a.groups[0])
        for user in (a, b):
            assert user.run(read_frames, node.backing / name, node.socket) == expected()
    away = node.backing.with_name("away")
    node.backing.rename(away)
    try:
        for name in ("public", "shared"):
            assert a.run(read_cached, node.backing / name, node.socket) == expected(), name
            with pytest.raises((zazen.Error, OSError)):
                b.run(read_cached, node.backing / name, node.socket)
    finally:
        away.rename(node.backing)
    os.stat(node.backing)


def test_never_compared_is_not_anybodys(a, b, start_node):
    """Copies of A's private file, made for A through B's link, are not B's once B's own file is
    there instead."""
    node = start_node("--validate", "never")
    secret = write_frames(node.backing / "a", a, mode=0o600, count=1)[0]
    a.own(secret.parent, 0o700)
    folder = node.backing / "b"
    folder.mkdir()
    b.own(folder)
    b.run(lambda: (folder / "f-0.bin").symlink_to("../a/f-0.bin"))
    assert a.run(read_frames, folder, node.socket) == {0: secret.read_bytes()}

    def swap():
        (folder / "f-0.bin").unlink()
        (folder / "f-0.bin").write_bytes(b"b" * secret_bytes)

    secret_bytes = secret.stat().st_size
    b.run(swap)
    assert b.run(read_frames, folder, node.socket) == {0: b"b" * secret_bytes}


def read_cached(dataset, socket):
    with zazen.open(str(dataset), socket=str(socket)) as opened:
        return {number: bytes(data) for number, data, _ in opened.frames(0, 3)}


def test_a_daemon_of_a_user_serves_that_user(a, ground, programs):
    home = ground / "home"
    home.mkdir()
    a.own(home, 0o755)
    backing = ground / "backing"
    backing.mkdir()
    words = ("--cache", home / "cache", "--backing", backing, "--socket", home / "s")
    said = a.call(programs / "zazend", *words, "--check")
    assert f"serves user {a.uid} alone" in said.stdout, said.stdout + said.stderr
