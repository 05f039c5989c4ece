"""Backing stores where root is nobody, and quotas: the file system decides for the caller, and root
cannot help.

The file systems are real: the namespace under `zazen mount` squashes root, as an NFS server does,
and has quotas of users; a user's private mount refuses everybody else in the kernel; tmpfs has
quotas where the kernel was built with them.
"""

import os
import pwd
import subprocess
from pathlib import Path

import pytest
import zazen
import zazen.testing
from forwarding import ATTEMPTS, PREFIX, PYTHON, command, needs_python
from launching import wait_for
from test_openers import GROUP, MASK, NOBODY, OTHER, OWNER, USER, give_list
from test_quotas import added_up, quota
from zazen import namespace

from conftest import User, read_frames, write_frames

EXPECTED = {number: bytes([number + 1]) * 140_000 for number in range(4)}
MIB = 1 << 20


@pytest.fixture
def host(ground, programs):
    """Root's daemon with a namespace where root is nobody."""
    if os.geteuid() != 0:
        pytest.skip("daemons for several users need root")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    place = ground / "host"
    (place / "backing").mkdir(parents=True)
    arguments = ["--namespace", place / "ns", "--namespace-format"]
    with zazen.testing.Daemon(place, place / "backing", arguments, zazend=programs / "zazend") as daemon:
        wait_for(lambda: has_begun(daemon), "the namespace to begin")
        yield daemon


def has_begun(daemon) -> bool:
    try:
        namespace.Namespace(str(daemon.socket), umask=0o022).listdir("/")
    except (OSError, zazen.Error):
        return False
    return True


@pytest.fixture
def mount(host, programs):
    """Mounts the namespace at a folder, for root or, privately, for another user."""
    mounted = []

    def mount(place, user=None):
        words = [programs / "zazen", "mount", place, "--socket", host.socket]
        how = {"env": zazen.testing.environment(), "capture_output": True, "text": True, "timeout": 120}
        if user is None:
            done = subprocess.run(words, check=False, **how)
        else:
            done = user.call(*words, env=how["env"])
            if done.returncode != 0 and "fusermount" in done.stderr:
                pytest.skip(f"a user cannot mount here: {done.stderr.strip()}")
        assert done.returncode == 0, done
        mounted.append((place, how))
        return place

    yield mount
    for place, how in mounted:
        subprocess.run([programs / "zazen", "unmount", place], check=False, **how)


@pytest.fixture
def mounter():
    """A user who may mount: with an account, which fusermount3 asks for, and with /dev/fuse, which
    all users may open on most systems."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    accounts = [one for one in pwd.getpwall() if one.pw_uid not in (0, 65_534) and one.pw_uid == one.pw_gid]
    if not accounts or not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse, and an account that is not root's")
    user = User(accounts[0].pw_name, accounts[0].pw_uid)
    device = Path("/dev/fuse")
    before = device.stat().st_mode & 0o7777
    if before & 0o006 == 0o006:
        yield user
        return
    entries = (
        (OWNER, 6, NOBODY),
        (USER, 6, user.uid),
        (GROUP, 0, NOBODY),
        (MASK, 6, NOBODY),
        (OTHER, 0, NOBODY),
    )
    give_list(device, *entries)
    yield user
    os.removexattr(device, "system.posix_acl_access")
    device.chmod(before)


@pytest.fixture
def start_daemon(ground, programs):
    """Starts root's daemon over any backing root."""
    started = []

    def start(backing, *arguments):
        daemon = zazen.testing.Daemon(ground, backing, arguments, zazend=programs / "zazend")
        started.append(daemon)
        daemon.start()
        daemon.far, daemon.programs = Path(backing), programs
        return daemon

    yield start
    for daemon in started:
        daemon.stop()


def closed_home(user, place):
    """Frames of this user in a folder of mode 0700."""
    home = place / user.name
    user.run(lambda: (home.mkdir(mode=0o700), write_frames(home, mode=0o600)))
    return home


def is_refused(call, *arguments) -> bool:
    try:
        call(*arguments)
    except PermissionError:
        return True
    return False


@pytest.mark.parametrize("validate", ["always", "never"])
def test_frames_of_a_file_system_where_root_is_nobody(a, b, ground, mount, start_daemon, validate):
    far = ground / "far"
    far.mkdir()
    mount(far)
    home = closed_home(a, far)
    # The ground: root is squashed.
    assert is_refused(os.listdir, home) and is_refused((home / "f-0.bin").read_bytes)
    config = ground / "zazend.toml"
    config.write_text(f'validate = "{validate}"\n')
    daemon = start_daemon(far, "--config", config)
    for _ in range(3):
        assert a.run(read_frames, home, daemon.socket) == EXPECTED
        assert b.run(is_refused, read_frames, home, daemon.socket)
        assert is_refused(read_frames, home, daemon.socket), "root is nobody there"
    listed = a.call(daemon.programs / "zazen", "ls", home, "--socket", daemon.socket)
    assert listed.returncode == 0 and "0+4" in listed.stdout, listed
    listed = b.call(daemon.programs / "zazen", "ls", home, "--socket", daemon.socket)
    assert "0+4" not in listed.stdout
    # B's own frames at the same time.
    other = closed_home(b, far)
    assert b.run(read_frames, other, daemon.socket) == EXPECTED
    assert a.run(is_refused, read_frames, other, daemon.socket)
    # What A gives, B gets; what A takes back, B loses.
    a.run(lambda: [os.chmod(path, 0o755) for path in (home, *home.iterdir())])
    wait_for(lambda: not b.run(is_refused, read_frames, home, daemon.socket), "B to be let in")
    assert b.run(read_frames, home, daemon.socket) == EXPECTED
    a.run(os.chmod, home, 0o700)
    wait_for(lambda: b.run(is_refused, read_frames, home, daemon.socket), "B to be shut out")
    assert a.run(read_frames, home, daemon.socket) == EXPECTED


def test_a_private_mount_is_its_users_alone(mounter, b, ground, mount, start_daemon):
    """The kernel keeps root's daemon out of it, whatever the daemon's threads are."""
    far = ground / "far"
    place = far / "private"
    place.mkdir(parents=True)
    mounter.own(place)
    mount(place, mounter)
    home = closed_home(mounter, place)
    assert is_refused(os.listdir, place), "root is kept out"
    daemon = start_daemon(far)
    (far / "shared").mkdir()
    (far / "shared").chmod(0o1777)
    other = closed_home(b, far / "shared")
    for _ in range(2):
        assert mounter.run(read_frames, home, daemon.socket) == EXPECTED
        assert b.run(is_refused, read_frames, home, daemon.socket)
        assert is_refused(read_frames, home, daemon.socket)
        # Nobody else's work ends with that.
        assert b.run(read_frames, other, daemon.socket) == EXPECTED


# Writes until there is no more room, prints what came of it, and removes nothing.
FILL = """
written = 0
with open(sys.argv[1], 'wb', buffering=0) as file:
    while written < 8 << 20:
        try:
            written += file.write(bytes(64 << 10))
        except OSError as error:
            print(errno.errorcode[error.errno], written)
            break
    else:
        print('done', written)
"""


def fill(user, node, name):
    """How many bytes the user's forwarded program could write to a file, and why no more."""
    done = user.call(*command(node, PYTHON, "-c", ATTEMPTS + FILL, f"{PREFIX}/{name}"))
    assert done.returncode == 0, done.stderr
    why, written = done.stdout.split()
    return why, int(written)


def check_quota(a, b, node, bounded):
    """B may have 1 MiB, and A, if `bounded`, another: each is charged for its own forwarded
    writes."""
    # What was just written may count twice for a moment, but never too little.
    tries = []

    def reaches() -> bool:
        tries.append(fill(b, node, "b"))
        assert tries[-1][0] == "EDQUOT" and tries[-1][1] <= MIB, tries
        return tries[-1][1] > MIB // 2

    wait_for(reaches, "B to write what B may")
    # B's quota is used up, and A's work goes on.
    why, written = fill(a, node, "a")
    assert (why, written) == ("done", 8 * MIB) or (bounded and written > MIB // 2)
    for user, name in ((a, "a"), (b, "b")):
        assert os.stat(node.far / name).st_uid == user.uid
    # Another file does not help.
    why, written = fill(b, node, "more")
    assert why == "EDQUOT" and written + os.stat(node.far / "b").st_size <= MIB


@needs_python
def test_forwarded_writes_take_their_callers_quota(a, b, ground, host, mount, start_daemon):
    far = ground / "far"
    far.mkdir()
    mount(far)
    node = start_daemon(far, "--plugin", "posix", "--export", far)
    quota(host, "--user", b.uid, "--bytes", MIB)
    added_up(host, 1)
    check_quota(a, b, node, bounded=False)
    (row,) = quota(host)
    assert row["user"] == b.uid and row["bytes"] <= MIB


@needs_python
def test_forwarded_writes_and_the_kernels_quotas(a, b, ground, start_daemon):
    if os.geteuid() != 0:
        pytest.skip("a mount needs root")
    far = ground / "far"
    far.mkdir()
    options = f"mode=1777,size=64m,usrquota_block_hardlimit={MIB}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", far], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"this kernel's tmpfs has no quotas: {done.stderr.strip()}")
    try:
        node = start_daemon(far, "--plugin", "posix", "--export", far)
        check_quota(a, b, node, bounded=True)
        node.stop()
    finally:
        subprocess.run(["umount", "--lazy", far], check=True)
