"""Quotas of users and directories in the namespace: what A may use, and that only root decides."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import zazen.testing
from zazen import namespace

KIB = 1024
SECONDS_MAX = 90


@pytest.fixture
def node(start_node, ground):
    node = start_node("--namespace", ground / "ns", "--namespace-format")
    eventually("the namespace has begun", lambda: _answers(node))
    return node


def library(node) -> namespace.Namespace:
    return namespace.Namespace(str(node.socket), umask=0o022)


def quota(node, *words: object) -> list[dict]:
    """Root runs `zazen namespace quota`; without limits, what it lists."""
    words = (zazen.testing.program("zazen"), "namespace", "quota", *words, "--socket", node.socket, "--json")
    how = {"env": zazen.testing.environment(), "timeout": 120, "check": False}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, **how)
    assert done.returncode == 0, done
    return json.loads(done.stdout) if done.stdout.strip() else []


def eventually(what: str, look) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def added_up(node, count: int) -> None:
    """Waits until the daemon has added up the files for so many quotas."""
    eventually(
        "the files are added up",
        lambda: len(listed := quota(node)) == count and all(one["age_ms"] is not None for one in listed),
    )
    # Once more, from now on.
    eventually("the files are added up again", lambda: quota(node)[0]["age_ms"] < 5000)


def refused(act) -> bool:
    """Whether `act` fails because a quota is used up."""
    try:
        act()
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
        return True
    return False


def reaches(limit: int, act) -> None:
    """Waits until `act` gets as far as the limit, and no further.

    What was just made may count twice for a moment, but never too little.
    """

    def far_enough() -> bool:
        got = act()
        assert got <= limit, got
        return got == limit

    eventually(f"the limit of {limit} is reached", far_enough)


def make(node, folder: str, count: int) -> int:
    """How many of `count` files could be made, or were there."""
    ns = library(node)
    made = 0
    for number in range(count):
        if refused(lambda number=number: ns.write_bytes(f"{folder}/{os.geteuid()}-{number}", b"")):
            break
        made += 1
    return made


def grow(node, path: str, bytes_max: int) -> int:
    """How many bytes could be written, 64 KiB at a time."""
    written = 0
    with library(node).open(path, "wb", buffering=0) as file:
        while written < bytes_max and not refused(lambda: file.write(bytes(64 * KIB))):
            written += 64 * KIB
    return written


def test_a_user_may_have_so_many_files_and_bytes(a, b, node):
    quota(node, "--user", a.uid, "--files", 6, "--bytes", "1M")
    added_up(node, 1)
    reaches(6, lambda: a.run(make, node, "", 20))
    assert a.run(lambda: refused(lambda: library(node).mkdir("/dir")))
    assert b.run(make, node, "", 20) == 20, "others are not bounded"
    # What is there stays in use, and may be removed.
    assert a.run(lambda: library(node).read_bytes(f"/{a.uid}-0")) == b""
    reaches(1 << 20, lambda: a.run(grow, node, f"/{a.uid}-0", 4 << 20))
    a.run(lambda: library(node).unlink(f"/{a.uid}-0"))
    eventually("what was removed counts no more", lambda: a.run(make, node, "", 1) == 1)
    (row,) = quota(node)
    assert (row["user"], row["files_max"], row["bytes_max"]) == (a.uid, 6, 1 << 20)
    eventually("all is counted", lambda: quota(node)[0]["files"] == 6)
    quota(node, "--user", a.uid, "--remove")
    eventually("the quota has ended", lambda: a.run(make, node, "", 20) == 20)
    assert quota(node) == []


def test_all_below_a_directory_is_bounded_together(a, b, node):
    ns = library(node)
    a.run(lambda: (library(node).mkdir("/d"), library(node).chmod("/d", 0o777)))
    a.run(lambda: (library(node).mkdir("/d/sub"), library(node).chmod("/d/sub", 0o777)))
    quota(node, "/d", "--files", 5, "--bytes", "512K")
    added_up(node, 1)
    reaches(2, lambda: a.run(make, node, "/d", 2))
    # The folder `sub` is one of five.
    reaches(2, lambda: b.run(make, node, "/d/sub", 20))
    assert a.run(make, node, "/d/sub", 20) == 0
    assert a.run(make, node, "", 3) == 3, "elsewhere there is no limit"
    reaches(512 * KIB, lambda: b.run(grow, node, f"/d/sub/{b.uid}-0", 4 << 20))
    (row,) = quota(node, "/d")
    assert row["path"] == "/d" and row["user"] is None
    # It is an attribute of the root that ordinary users do not see, and cannot change.
    assert a.run(lambda: library(node).listxattr("/")) == []
    assert ns.listdir("/d")
    # A restart keeps it.
    node.stop()
    node.start()
    eventually("the namespace has begun again", lambda: _answers(node))
    added_up(node, 1)
    assert a.run(make, node, "/d", 20) == 2, "those that exist are opened"


def test_no_way_around_a_quota(a, b, node):
    """Holes that are filled, what was cut, many files in one call, space behind the end."""
    mib = 1 << 20
    quota(node, "--user", a.uid, "--files", 20, "--bytes", "2M")
    added_up(node, 1)

    def fill(file, limit: int) -> int:
        written = 0
        while written < limit and not refused(lambda: file.write(bytes(64 * KIB))):
            written += 64 * KIB
        return written

    def in_a_hole() -> int:
        with library(node).open("/hole", "wb", buffering=0) as file:
            file.truncate(64 * mib)
            return fill(file, 8 * mib)

    def before_a_far_byte() -> int:
        with library(node).open("/far", "wb", buffering=0) as file:
            file.seek(64 * mib - 4 * KIB)
            file.write(bytes(4 * KIB))
            file.seek(0)
            return fill(file, 8 * mib)

    def what_was_cut() -> int:
        """Each file is written and cut, and then written once more through the first descriptor."""
        ns = library(node)
        files = []
        for number in range(4):
            files.append(ns.open(f"/cut{number}", "wb", buffering=0))
            eventually("there is room", lambda: fill(files[-1], mib) == mib or files[-1].seek(0) != 0)
            ns.truncate(f"/cut{number}", 0)
            files[-1].seek(0)
        written = sum(fill(file, mib) for file in files)
        for file in files:
            file.close()
        return written

    def no_file(name: str) -> None:
        a.run(lambda: library(node).unlink(name))
        eventually("what was removed counts no more", lambda: quota(node)[0]["bytes"] == 0)

    assert 0 < a.run(in_a_hole) <= 2 * mib
    no_file("/hole")
    assert 0 < a.run(before_a_far_byte) <= 2 * mib
    no_file("/far")
    assert a.run(what_was_cut) <= 2 * mib
    for number in range(4):
        a.run(lambda number=number: library(node).unlink(f"/cut{number}"))

    def nothing() -> bool:
        (row,) = quota(node)
        return row["files"] == row["bytes"] == 0

    eventually("nothing counts any more", nothing)

    # What is there already is written again, as often as one likes.
    def again() -> None:
        with library(node).open("/again", "wb", buffering=0) as file:
            for _ in range(8):
                file.seek(0)
                assert file.write(bytes(mib)) == mib

    a.run(again)
    no_file("/again")

    def many() -> int:
        ns = library(node)
        refused(lambda: ns.create_many("/", [f"many{number}" for number in range(1000)]))
        return sum(name.startswith("many") for name in ns.listdir("/"))

    assert a.run(many) <= 20


def test_names_do_not_move_below_a_quota(a, node):
    """What was made elsewhere comes below a directory with a quota as a copy only."""

    def prepare():
        ns = library(node)
        for folder in ("/d", "/d/sub", "/tree"):
            ns.mkdir(folder)
        for name in ("/f", "/tree/f", "/d/own", "/d/old"):
            ns.write_bytes(name, b"x")

    a.run(prepare)
    # A move within nothing and into nothing is free.
    a.run(lambda: library(node).rename("/f", "/tree/g"))
    a.run(lambda: library(node).rename("/tree/g", "/f"))
    quota(node, "/d", "--files", 100)
    added_up(node, 1)

    def attack() -> list[str]:
        ns = library(node)
        ns.listdir("/")
        got = []
        for name, act in {
            "file": lambda: ns.rename("/f", "/d/f"),
            "file over another": lambda: ns.rename("/f", "/d/sub/f"),
            "tree": lambda: ns.rename("/tree", "/d/tree"),
            "link": lambda: ns.link("/f", "/d/f"),
            "link to outside": lambda: ns.link("/d/own", "/own"),
        }.items():
            try:
                act()
                got.append(name)
            except OSError as error:
                assert error.errno == errno.EXDEV, (name, error)
        # Within it, and out of it, names move as ever.
        ns.rename("/d/own", "/d/sub/own")
        ns.link("/d/sub/own", "/d/linked")
        ns.rename("/d/old", "/old")
        return got

    assert a.run(attack) == []
    assert a.run(lambda: sorted(library(node).listdir("/d"))) == ["linked", "sub"]


def test_a_limit_that_is_not_given_stays_and_a_lost_directory_has_no_quota(a, node):
    a.run(lambda: library(node).mkdir("/d"))
    for words in (("--user", a.uid), ("/d",)):
        # One after the other, before any daemon has looked at the limits again.
        quota(node, *words, "--bytes", "1G")
        quota(node, *words, "--files", 7)
    eventually("both are known", lambda: len(quota(node)) == 2)
    limits = lambda: [(row["bytes_max"], row["files_max"]) for row in quota(node)]  # noqa: E731
    eventually("both limits hold", lambda: limits() == [(1 << 30, 7)] * 2)
    a.run(lambda: library(node).rmdir("/d"))
    quota(node, "/d", "--remove")
    eventually("one quota is left", lambda: len(quota(node)) == 1)


def test_only_root_sets_quotas_and_users_see_their_own(a, b, node, programs):
    quota(node, "--user", a.uid, "--bytes", "1G")
    quota(node, "--user", b.uid, "--bytes", "2G")
    b.run(lambda: library(node).mkdir("/of-b"))
    quota(node, "/of-b", "--bytes", "3G")
    added_up(node, 3)
    asks = [programs / "zazen", "namespace", "quota", "--socket", node.socket]
    for words in (("--user", b.uid, "--bytes", "1T"), ("--user", b.uid, "--remove"), ("/of-b", "--remove")):
        done = b.call(*asks, *words)
        assert done.returncode != 0 and "only root" in done.stderr, done
    done = b.call(*asks, "--json")
    assert [(row["user"], row["bytes_max"]) for row in json.loads(done.stdout)] == [(b.uid, 2 << 30)], done
    assert len(quota(node)) == 3
    # What makes no sense is refused, and named.
    for words, text in (
        (("/not-there", "--bytes", "1G"), "/not-there"),
        (("--user", 0, "--bytes", "1G"), "root has no quota"),
        (("--user", "nobody-of-this-name", "--bytes", "1G"), "nobody-of-this-name"),
        (("--bytes", "1G"), "--user"),
        (("/of-b", "--files", "1X"), "1X"),
    ):
        command = [*map(str, asks), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0 and text in done.stderr, done


def test_a_mount_shows_the_quota_and_cannot_pass_it(a, node, ground, programs):
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    a.run(lambda: library(node).mkdir("/d"))
    quota(node, "/d", "--bytes", "1M", "--files", 100)
    added_up(node, 1)
    place = ground / "mnt"
    place.mkdir()
    how = {"env": zazen.testing.environment(), "timeout": 120, "check": False}
    words = [programs / "zazen", "mount", place, "--socket", node.socket]
    done = subprocess.run(words, capture_output=True, text=True, **how)
    assert done.returncode == 0, done
    try:
        space = os.statvfs(place / "d")
        assert space.f_blocks * space.f_frsize == 1 << 20
        assert (space.f_files, space.f_ffree) == (100, 100)
        whole = os.statvfs(place)
        assert whole.f_blocks * whole.f_frsize > 1 << 20

        def fill() -> int:
            written = 0
            with open(place / "d" / "f", "wb", buffering=0) as file:
                while written < 8 << 20 and not refused(lambda: file.write(bytes(64 * KIB))):
                    written += 64 * KIB
            return written

        reaches(1 << 20, lambda: a.run(fill))
        eventually("df shows that it is full", lambda: os.statvfs(place / "d").f_bavail == 0)
    finally:
        subprocess.run([programs / "zazen", "unmount", place], **how)


def test_what_one_node_writes_counts_on_the_other(a, ground, programs):
    """The bound is exact as of the last time that the files were added up."""
    if os.geteuid() != 0:
        pytest.skip("daemons for several users need root")
    key = ground / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    nodes = ground / "nodes"
    daemons = []
    try:
        for number in range(2):
            place = ground / f"n{number}"
            place.mkdir()
            place.chmod(0o755)
            (ground / "backing").mkdir(exist_ok=True)
            arguments = ["--namespace", place / "ns", "--namespace-format", "--namespace-nodes", nodes]
            daemons.append(
                zazen.testing.Daemon(
                    place,
                    ground / "backing",
                    arguments,
                    listen="127.0.0.1:0",
                    key=key,
                    name=f"n{number}",
                    zazend=programs / "zazend",
                )
            )
            daemons[-1].start()
        (ground / "nodes.new").write_text("".join(f"{one.address}\n" for one in daemons))
        (ground / "nodes.new").rename(nodes)
        one, two = daemons
        eventually("the namespace has begun", lambda: _answers(one) and _answers(two))
        quota(one, "--user", a.uid, "--files", 10)
        added_up(two, 1)
        added_up(one, 1)
        reaches(8, lambda: a.run(make, one, "", 8))
        eventually("the other node knows", lambda: quota(two)[0]["files"] == 8)
        eventually(
            "there is room for two", lambda: not a.run(lambda: refused(lambda: library(two).mkdir("/of-two")))
        )
        reaches(1, lambda: a.run(make, two, "/of-two", 20))
    finally:
        for daemon in daemons:
            daemon.stop()


def _answers(node) -> bool:
    try:
        library(node).listdir("/")
    except (OSError, zazen.Error):
        return False
    return True
