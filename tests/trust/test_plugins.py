"""Forwarded files act with their caller's rights and no more: user B attacks user A's files,
root's daemon and the processes that it begins, by way of the posix plug-in; A's programs go on
meanwhile."""

import fcntl
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
import zazen.testing
from forwarding import ATTEMPTS, PREFIX, PYTHON, command, forwarded, needs_python
from launching import wait_for

ROOT = Path(__file__).parents[2]
pytestmark = needs_python


@pytest.fixture
def own_mount():
    """Mounts a file system in memory at a folder, until the test ends."""
    mounted = []

    def mount(folder):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def forwarding(start_node, programs, ground):
    """Starts root's daemon with the posix plug-in and more arguments; `ground`/far is exported and
    everybody's."""
    far = ground / "far"
    far.mkdir()
    far.chmod(0o1777)

    def start(*arguments, exports=(), plugin=True):
        words = ["--plugin", programs / "libzazen_posix.so"] if plugin else []
        for export in (far, *exports):
            words += ["--export", export]
        node = start_node(*words, *arguments)
        node.far = far
        node.programs = programs
        return node

    return start


def workers(node):
    """The processes of plug-ins: uid → pids."""
    found = {}
    for task in Path("/proc").glob(f"{node.process.pid}/task/*/children"):
        for pid in map(int, task.read_text().split()):
            status = Path(f"/proc/{pid}/status").read_text()
            found.setdefault(int(re.search(r"^Uid:\t(\d+)", status, re.M)[1]), []).append(pid)
    return found


def test_each_user_is_itself(a, b, forwarding):
    node = forwarding()
    write = "open(sys.argv[1], 'w').write('x'); os.chmod(sys.argv[1], 0o600)"
    forwarded(a, node, write, f"{PREFIX}/a")
    forwarded(b, node, write, f"{PREFIX}/b")
    for user, name in ((a, "a"), (b, "b")):
        found = (node.far / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (user.uid, user.gid, 0o600)
    look = "[attempt(name, open, f'/zf/{name}') for name in 'ab']"
    assert forwarded(a, node, look) == ["a done", "b EACCES"]
    assert forwarded(b, node, look) == ["a EACCES", "b done"]


def test_the_kernel_refuses_what_it_refuses_the_user(a, b, forwarding):
    """B's own copy of a program, devices, owners: as without forwarding."""
    node = forwarding()
    secret = node.far / "secret"
    secret.write_text("x")
    a.own(secret, 0o600)
    shutil.copy("/bin/true", node.far / "copy")
    b.own(node.far / "copy", 0o755)
    code = """
import struct
capability = struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
attempt('capability', os.setxattr, '/zf/copy', 'security.capability', capability)
attempt('trusted', os.setxattr, '/zf/copy', 'trusted.x', b'y')
attempt('chown away', os.chown, '/zf/copy', 0, 0)
attempt('chown of another', os.chown, '/zf/secret', os.getuid(), os.getgid())
attempt('chmod of another', os.chmod, '/zf/secret', 0o4777)
attempt('device', os.mknod, '/zf/device', 0o20666, os.makedev(1, 3))
attempt('disk', os.mknod, '/zf/disk', 0o60666, os.makedev(8, 0))
attempt('sticky', os.unlink, '/zf/secret')
attempt('own setuid', os.chmod, '/zf/copy', 0o4755)
"""
    assert forwarded(b, node, code) == [
        "capability EPERM", "trusted EPERM", "chown away EPERM", "chown of another EPERM",
        "chmod of another EPERM", "device EPERM", "disk EPERM", "sticky EPERM", "own setuid done",
    ]  # fmt: skip
    assert (node.far / "copy").stat().st_uid == b.uid
    assert os.listxattr(node.far / "copy") == []
    sockets = """
import socket
s = socket.socket()
attempt('transparent', s.setsockopt, socket.SOL_IP, 19, 1)
attempt('mark', s.setsockopt, socket.SOL_SOCKET, 36, 1)
attempt('raw', socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt('port', s.bind, ('127.0.0.1', 81))
"""
    said = forwarded(b, node, sockets, options=["--sockets"])
    assert said[:2] == ["transparent EPERM", "mark EPERM"]
    assert said[2] in ("raw EPERM", "raw ESOCKTNOSUPPORT")
    privileged = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    assert said[3] == ("port EACCES" if privileged > 81 else "port done")


OUTSIDE = """
import glob
for name in ['etc/passwd', 'proc/self/status', 'proc/self/fd', 'proc/sys/kernel/hostname', 'dev/null', 'sys/kernel',
             'dev/fd/0', 'nowhere/at/all']:
    path = '/zf/' + name
    attempt(name, open, path)
    for call in (os.stat, os.listdir, os.readlink, os.unlink, os.rmdir, os.statvfs, os.listxattr):
        attempt(f'{name} {call.__name__}', call, path)
    attempt(f'{name} write', open, path, 'w')
    attempt(f'{name} chmod', os.chmod, path, 0o777)
    attempt(f'{name} mkdir', os.mkdir, path + '/x')
    attempt(f'{name} rename', os.rename, path, path + 'x')
    attempt(f'{name} link', os.link, path, '/zf/etc/x')
"""


def test_nothing_outside_the_exports_is_there(b, forwarding):
    node = forwarding()
    said = forwarded(b, node, OUTSIDE, far="/.")
    assert said and {line.split()[-1] for line in said} == {"EACCES"}, [
        line for line in said if "EACCES" not in line
    ]


MAKING = """
import os
def through(name):
    return '/zf/out/' + name
attempt('create', open, through('new'), 'w')
attempt('write', open, through('file'), 'a')
attempt('mkdir', os.mkdir, through('folder'))
attempt('mkfifo', os.mkfifo, through('fifo'))
attempt('symlink', os.symlink, '/etc/passwd', through('link'))
attempt('unlink', os.unlink, through('file'))
attempt('unlink of nothing', os.unlink, through('nothing'))
attempt('rmdir', os.rmdir, through('empty'))
attempt('rename', os.rename, through('file'), through('other'))
attempt('rename out', os.rename, '/zf/mine', through('mine'))
attempt('rename in', os.rename, through('file'), '/zf/file')
attempt('link out', os.link, '/zf/mine', through('mine'))
attempt('link in', os.link, through('file'), '/zf/file')
attempt('truncate', os.truncate, through('file'), 0)
attempt('stat', os.stat, through('file'))
attempt('stat of nothing', os.stat, through('nothing'))
attempt('chmod', os.chmod, through('file'), 0)
attempt('utime', os.utime, through('file'))
attempt('stat of mine', os.stat, '/zf/mine')
attempt('rename of mine', os.rename, '/zf/mine', '/zf/in/mine')
attempt('rename again', os.rename, '/zf/there/mine', '/zf/in/again')
attempt('mkdir by a link', os.mkdir, '/zf/there/folder')
attempt('the export', os.rmdir, '/zf')
"""
MAKING_DONE = ["stat of mine", "rename of mine", "rename again", "mkdir by a link"]


@pytest.mark.parametrize("whole_mount", [False, True], ids=["folder", "mount"])
def test_a_link_out_makes_and_removes_nothing(b, forwarding, ground, own_mount, whole_mount):
    """What B itself may do on this machine it may not do by forwarding, where it leads out of the
    exports."""
    outside = ground / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / "file").write_text("of B")
    for path in (outside, outside / "empty", outside / "file"):
        os.chown(path, b.uid, b.gid)
    if whole_mount:
        own_mount(ground / "far")
    node = forwarding()
    (node.far / "out").symlink_to(outside)
    (node.far / "there").symlink_to(node.far / "in")
    (node.far / "in").mkdir()
    (node.far / "mine").write_text("mine")
    for path in (node.far / "in", node.far / "mine"):
        os.chown(path, b.uid, b.gid)
    before = sorted((path.name, path.stat().st_mode) for path in outside.iterdir())
    said = dict(line.rsplit(" ", 1) for line in forwarded(b, node, MAKING))
    assert said.pop("the export") in ("EBUSY", "EACCES")
    expected = {name: "done" if name in MAKING_DONE else "EACCES" for name in said}
    assert said == expected
    assert sorted((path.name, path.stat().st_mode) for path in outside.iterdir()) == before
    assert (outside / "file").read_text() == "of B"
    assert sorted(path.name for path in (node.far / "in").iterdir()) == ["again", "folder"]


def test_links_lead_only_to_where_the_exports_are(b, forwarding, ground):
    node = forwarding()
    (node.far / "in").mkdir(mode=0o755)
    (node.far / "in" / "f").write_text("inside")
    links = {
        "absolute": node.far / "in" / "f", "up": "in/../in/f", "around": "../far/in/f", "twice": "absolute",
        "passwd": "/etc/passwd", "climbs": "../../../../etc/passwd", "proc": "/proc/self/fd/0",
        "self": "/proc/self", "folder": "/etc", "outside": ground / "log", "round": "round",
    }  # fmt: skip
    for name, target in links.items():
        (node.far / name).symlink_to(target)
    code = "[attempt(name, open, '/zf/' + name) for name in sys.argv[1:]]"
    good, bad = list(links)[:4], list(links)[4:]
    assert forwarded(b, node, code, *good) == [f"{name} done" for name in good]
    expected = {name: "EACCES" for name in bad} | {"round": "ELOOP"}
    assert forwarded(b, node, code, *bad) == [f"{name} {expected[name]}" for name in bad]
    through = "[attempt(name, open, '/zf/' + name) for name in ('folder/passwd', 'self/status', 'self/fd/0')]"
    assert {line.split()[-1] for line in forwarded(b, node, through)} == {"EACCES"}
    through = (
        "for n in sys.argv[1:]: attempt(n, os.stat, '/zf/' + n); attempt(n, os.chmod, '/zf/' + n, 0o777)"
    )
    outside = [name for name in bad if name != "round"]
    assert {line.split()[-1] for line in forwarded(b, node, through, *outside)} == {"EACCES"}
    # A link itself is in the export, wherever it leads.
    assert forwarded(b, node, "print(os.readlink('/zf/passwd'), os.lstat('/zf/folder').st_size)") == [
        "/etc/passwd 4"
    ]


def test_an_exported_proc_shows_no_descriptors(a, b, forwarding):
    node = forwarding(exports=["/proc"])
    hold = "open('/zf/held', 'w').write('x'); print('up', flush=True); sys.stdin.read()"
    with a.start(*command(node, PYTHON, "-c", ATTEMPTS + hold), stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "up\n"
        (as_worker,) = workers(node)[a.uid]
        code = """
import glob
attempt('sys', open, '/zf/sys/kernel/hostname', 'w')
attempt('daemon', os.listdir, f'/zf/{sys.argv[1]}/fd')
attempt('worker of A', os.listdir, f'/zf/{sys.argv[2]}/fd')
attempt('its memory', open, f'/zf/{sys.argv[2]}/mem')
attempt('program of A', os.listdir, f'/zf/{sys.argv[3]}/fd')
for path in ('/zf/self/mem', '/zf/self/environ', '/zf/self/auxv', '/zf/self/exe', '/zf/self/root/etc/passwd',
             '/zf/self/cwd/etc/passwd'):
    attempt(path, open, path, 'rb')
for number in range(64):
    try: os.close(os.open(f'/zf/self/fd/{number}', os.O_RDWR)); print('fd done')
    except OSError as error: assert error.errno in (errno.ELOOP, errno.ENOENT, errno.EACCES), error
"""
        words = [node.process.pid, as_worker, holder.pid]
        said = forwarded(b, node, code, *words, far="/proc")
        assert all(line.split()[-1] in ("EACCES", "ELOOP", "EPERM") for line in said), said
        holder.stdin.close()
        holder.wait(20)


def test_a_worker_is_its_caller_and_keeps_nothing(a, b, forwarding, monkeypatch):
    monkeypatch.setenv("SECRET_OF_ROOT", "x")
    monkeypatch.setenv("LD_BIND_NOW", "1")
    node = forwarding()
    for user in (a, b):
        forwarded(user, node, "open('/zf/' + str(os.getuid()), 'w')")
        (pid,) = workers(node)[user.uid]
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert status["Uid"].split() == [str(user.uid)] * 4
        assert status["Gid"].split() == [str(user.gid)] * 4
        assert [int(group) for group in status["Groups"].split()] == sorted(user.groups)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"].strip() == "1"
        names = {word.split("=")[0] for word in Path(f"/proc/{pid}/environ").read_text().split("\0") if word}
        assert names <= {"PATH", "ZAZEN_LOG", "RUST_BACKTRACE"}
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, "dumpable"
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0", limits)
        mine = {os.readlink(entry) for entry in Path(f"/proc/{node.process.pid}/fd").iterdir()}
        inherited = [
            link for entry in Path(f"/proc/{pid}/fd").iterdir()
            if (link := os.readlink(entry)) in mine and link.startswith(("socket:", "/memfd"))
        ]  # fmt: skip
        assert len(inherited) <= 1, inherited  # the listening socket, which its daemon made

        def is_closed(path):
            try:
                os.listdir(path) if path.endswith("fd") else open(path, "rb").close()
            except PermissionError:
                return True
            return False

        # Not even a process of the same user looks into it.
        for name in ("fd", "mem", "environ", "maps"):
            assert user.run(is_closed, f"/proc/{pid}/{name}"), name
            assert user.run(is_closed, f"/proc/{node.process.pid}/{name}"), name


def test_a_worker_serves_nobody_else(a, b, forwarding, ground):
    node = forwarding()
    forwarded(a, node, "open('/zf/a', 'w')")
    before = {path.name for path in ground.glob("s.plugin-*")}
    forwarded(b, node, "open('/zf/b', 'w')")
    (his,) = {path.name for path in ground.glob("s.plugin-*")} - before

    def is_refused(path):
        with socket.socket(socket.AF_UNIX) as lane:
            lane.settimeout(20)
            lane.connect(str(path))
            return b"serves another user" in lane.recv(4096)

    assert a.run(is_refused, ground / his)

    # Many of them cost its owner nothing.
    def crowd(path):
        lanes = []
        for _ in range(500):
            try:
                lane = socket.socket(socket.AF_UNIX)
                lane.connect(str(path))
                lanes.append(lane)
            except OSError:
                break
        return len(lanes)

    a.run(crowd, ground / his, seconds=60)
    assert forwarded(b, node, "attempt('b', open, '/zf/b')") == ["b done"]


def test_a_dropped_privilege_stays_dropped(b, forwarding):
    """A program of root's that becomes B; also by system calls that the library does not see."""
    node = forwarding()
    (node.far / "secret").write_text("x")
    (node.far / "secret").chmod(0o600)
    code = f"""
held = os.open('/zf/secret', os.O_RDONLY)
attempt('root', open, '/zf/secret')
os.setgroups([]); os.setresgid({b.gid}, {b.gid}, {b.gid}); os.setresuid({b.uid}, {b.uid}, {b.uid})
attempt('held', os.pread, held, 1, 0)
attempt('dropped', open, '/zf/secret')
attempt('back', os.setresuid, 0, 0, 0)
attempt('again', open, '/zf/secret')
import socket, struct
for name in os.listdir('/proc/self/fd'):
    try:
        with socket.socket(fileno=os.dup(int(name))) as lane:
            if lane.family == socket.AF_UNIX and lane.getpeername():
                print('connected')
    except OSError: pass
open('/zf/made', 'w')
"""
    words = command(node, PYTHON, "-c", ATTEMPTS + code)
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "root done", "held done", "dropped EACCES", "back EPERM", "again EACCES",
    ], done.stderr  # fmt: skip
    assert (node.far / "made").stat().st_uid == b.uid


def test_killing_ones_own_worker_costs_oneself(a, b, forwarding):
    node = forwarding()
    (node.far / "a").write_text("x" * 100)
    steady = """
import time
f = os.open('/zf/a', os.O_RDONLY)
print('up', flush=True)
while sys.stdin in __import__('select').select([sys.stdin], [], [], 0.01)[0] or True:
    assert os.pread(f, 10, 0) == b'x' * 10
    if __import__('select').select([sys.stdin], [], [], 0)[0]: break
print('well', flush=True)
"""
    words = command(node, PYTHON, "-c", ATTEMPTS + steady)
    with a.start(*words, stdin=subprocess.PIPE) as steady:
        assert steady.stdout.readline() == "up\n"
        lost = """
f = os.open('/zf/a', os.O_RDONLY)
print('up', flush=True)
sys.stdin.readline()
attempt('held', os.pread, f, 1, 0)
attempt('anew', open, '/zf/a')
"""
        with b.start(*command(node, PYTHON, "-c", ATTEMPTS + lost), stdin=subprocess.PIPE) as victim:
            assert victim.stdout.readline() == "up\n"
            (his,), (another,) = workers(node)[b.uid], workers(node)[a.uid]
            b.run(os.kill, his, signal.SIGKILL)
            with pytest.raises(PermissionError):
                b.run(os.kill, another, signal.SIGKILL)
            wait_for(lambda: his not in workers(node).get(b.uid, []))
            victim.stdin.write("\n")
            victim.stdin.flush()
            assert victim.stdout.readline().startswith("held E")
            victim.stdin.close()
            victim.wait(60)
        for _ in range(3):
            assert forwarded(b, node, "attempt('b', open, '/zf/a')") == ["b done"]
            (his,) = workers(node)[b.uid]
            b.run(os.kill, his, signal.SIGKILL)
            wait_for(lambda his=his: his not in workers(node).get(b.uid, []))
        assert workers(node)[a.uid] == [another]
        steady.stdin.write("\n")
        steady.stdin.close()
        assert steady.stdout.read() == "well\n", steady.stderr.read()


def test_waits_hold_up_nobody(a, b, forwarding):
    """A FIFO without a writer and a file under a lease: neither B's other calls nor A's wait for
    them."""
    node = forwarding()
    os.mkfifo(node.far / "fifo")
    leased = node.far / "leased"
    leased.write_text("x")
    b.own(leased, 0o644)
    broken, told = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            b._become()
            file = os.open(leased, os.O_RDWR)
            signal.signal(signal.SIGIO, lambda *_: os.write(told, b"!"))
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(told, b"+")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    waiting = []
    try:
        assert os.read(broken, 1) == b"+"
        for name in ("fifo", "leased", "leased"):
            words = command(node, PYTHON, "-c", ATTEMPTS + f"attempt('{name}', open, '/zf/{name}')")
            waiting.append(b.start(*words))
        assert select.select([broken], [], [], 60)[0], "nobody asks for the lease"
        for user in (a, b):
            name = f"/zf/of{user.name}"
            code = f"open('{name}', 'w').write('x'); print(open('{name}').read())"
            assert forwarded(user, node, code) == ["x"]
        assert [program.poll() for program in waiting] == [None, None, None]
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(broken), os.close(told)
    # The lease went with its holder.
    for program in waiting[1:]:
        assert program.communicate(timeout=60)[0] == "leased done\n"
    waiting[0].terminate()
    waiting[0].communicate(timeout=90)


def test_a_full_table_is_its_owners(a, b, forwarding, ground, programs):
    config = ground / "zazend.toml"
    config.write_text(f'[[plugin]]\npath = "{programs}/libzazen_posix.so"\nopen_files = 64\n')
    node = forwarding("--config", config, plugin=False)
    fill = """
held = []
try:
    while True: held.append(os.open('/zf/f', os.O_RDWR | os.O_CREAT))
except OSError as error:
    print(errno.errorcode[error.errno], len(held) > 8, flush=True)
sys.stdin.read()
"""
    with b.start(*command(node, PYTHON, "-c", ATTEMPTS + fill), stdin=subprocess.PIPE) as greedy:
        assert greedy.stdout.readline() == "EMFILE True\n"
        many = "held = [os.open('/zf/a', os.O_RDWR | os.O_CREAT) for _ in range(9)]; print(len(held))"
        assert forwarded(a, node, many) == ["9"]
        greedy.stdin.close()
        greedy.wait(20)


def test_identities_are_bounded(a, b, forwarding, ground, programs):
    config = ground / "zazend.toml"
    config.write_text(f'[[plugin]]\npath = "{programs}/libzazen_posix.so"\nidentities = 1\n')
    node = forwarding("--config", config, plugin=False)
    hold = "f = open('/zf/a', 'w'); print('up', flush=True); sys.stdin.read()"
    hold += "; f.write('x'); f.close(); print('well')"
    ping = [node.programs / "zazen", "plugin", "ping", "posix", "--socket", node.socket]
    # Root's own process, from the start of the daemon, makes room once it has been idle for some
    # seconds.
    wait_for(lambda: a.call(*ping).returncode == 0, "room for A")
    with a.start(*command(node, PYTHON, "-c", ATTEMPTS + hold), stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "up\n", holder.stderr.read()
        done = b.call(*command(node, PYTHON, "-c", ATTEMPTS + "attempt('b', open, '/zf/a')"))
        assert "done" not in done.stdout
        asked = b.call(*ping)
        assert asked.returncode != 0 and "are in use by others" in asked.stdout + asked.stderr
        holder.stdin.close()
        assert holder.stdout.read() == "well\n"


def privileges(words, *capabilities, ground):
    """A program's first words that leave root just these capabilities."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)
    return ["setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}", *words]


@pytest.fixture
def limited(forwarding, monkeypatch):
    """`forwarding` with a daemon that has only these capabilities."""

    def start(*capabilities, **options):
        whole = subprocess.Popen

        def popen(words, *more, **others):
            if str(words[0]).endswith("zazend"):
                words = privileges(words, *capabilities, ground=None)
            return whole(words, *more, **others)

        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", popen)
            return forwarding(**options)

    return start


@pytest.mark.parametrize("left", ["CAP_SETGID", "CAP_SETUID"])
def test_half_the_privilege_serves_nobody_else(a, b, limited, left):
    node = limited(left, "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER")
    secret = node.far / "secret"
    secret.write_text("x")
    a.own(secret, 0o600)
    done = b.call(*command(node, PYTHON, "-c", ATTEMPTS + "attempt('secret', open, '/zf/secret')"))
    assert "done" not in done.stdout
    asked = b.call(node.programs / "zazen", "plugin", "ping", "posix", "--socket", node.socket)
    missing = {"CAP_SETGID": "CAP_SETUID", "CAP_SETUID": "CAP_SETGID"}[left]
    assert asked.returncode != 0 and f"without {missing}" in asked.stdout + asked.stderr
    # Root itself is served.
    words = [*map(str, command(node, PYTHON, "-c", ATTEMPTS + "attempt('root', open, '/zf/r', 'w')"))]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "root done\n"


def unit_capabilities():
    unit = (ROOT / "packaging" / "zazend.service").read_text()
    return re.search(r"^CapabilityBoundingSet=(.*)$", unit, re.M)[1].split()


def test_the_packaged_unit_serves_several_users(a, b, limited):
    node = limited(*unit_capabilities())
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    assert int(re.search(r"^CapBnd:\t(\w+)", status, re.M)[1], 16).bit_count() == len(unit_capabilities())
    hold = "f = open(f'/zf/{os.getuid()}', 'w'); print('up', flush=True); sys.stdin.read()"
    hold += "; f.write('x'); f.close()"
    both = [
        user.start(*command(node, PYTHON, "-c", ATTEMPTS + hold), stdin=subprocess.PIPE) for user in (a, b)
    ]
    for program in both:
        assert program.stdout.readline() == "up\n", program.stderr.read()
    assert {a.uid, b.uid} <= set(workers(node))
    for user, program in zip((a, b), both, strict=True):
        assert program.communicate(timeout=90)[1] == ""
        found = (node.far / str(user.uid)).stat()
        assert (found.st_uid, found.st_gid, found.st_size) == (user.uid, user.gid, 1)
    for user in (a, b):
        (pid,) = workers(node)[user.uid]
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^CapEff:\t0+$", status, re.M) and re.search(r"^CapPrm:\t0+$", status, re.M)


def test_a_plug_in_that_others_can_write_is_refused(a, ground, programs):
    plugin = ground / "plugin.so"
    shutil.copy(programs / "libzazen_posix.so", plugin)

    def said():
        words = [
            programs / "zazend",
            "--cache",
            ground / "c",
            "--backing",
            "/usr",
            "--plugin",
            plugin,
            "--check",
        ]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60)
        return next(line for line in done.stdout.splitlines() if "plugin" in line)

    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    assert said().startswith("ok: ")
    a.own(plugin)
    assert f"belongs to user {a.uid}" in said()
    os.chown(plugin, 0, 0)
    plugin.chmod(0o666)
    assert "has mode 0666" in said()
    plugin.chmod(0o644)
    ground.chmod(0o777)
    assert "has mode 0777" in said()
    ground.chmod(0o755)
    os.chown(ground, a.uid, a.gid)
    assert f"{ground} belongs to user {a.uid}" in said()


def test_a_daemon_that_is_not_root_serves_its_own_user(a, b, ground, programs):
    mine = ground / "mine"
    mine.mkdir()
    far = mine / "far"
    far.mkdir()
    for folder in (mine, far):
        a.own(folder, 0o755)
    daemon = zazen.testing.Daemon(mine, far, ["--plugin", "posix"], zazend=programs / "zazend", popen=a.popen)
    with daemon:

        class Node:
            pass

        node = Node()
        node.socket, node.far, node.programs = daemon.socket, far, programs
        assert forwarded(a, node, "attempt('a', open, '/zf/x', 'w')") == ["a done"]
        done = b.call(*command(node, PYTHON, "-c", ATTEMPTS + "attempt('b', open, '/zf/x')"))
        assert "done" not in done.stdout
