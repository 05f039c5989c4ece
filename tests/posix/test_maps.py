"""Mappings: the kernel's own where the daemon is on this machine, copies or refusals elsewhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PREFIX, python

PROGRAM = Path(__file__).parent / "programs" / "maps.c"


@pytest.fixture(scope="session")
def maps(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    program = tmp_path_factory.mktemp("maps") / "maps"
    subprocess.run(["cc", "-o", program, PROGRAM], check=True)
    return program


@pytest.mark.parametrize("options", [[], ["--direct"]], ids=["forwarded", "direct"])
def test_mappings_on_this_machine_are_the_kernels(daemon, maps, options):
    daemon.empty()
    direct = subprocess.run([maps, daemon.direct], capture_output=True, text=True)
    there = daemon.run(maps, PREFIX, options=options)
    assert direct.stdout.count("\n") > 15
    assert there.stdout == direct.stdout
    assert there.returncode == direct.returncode, there.stderr
    for name in ("private", "shared"):
        assert (daemon.far / name).read_bytes() == (daemon.direct / name).read_bytes()


REFUSED = """
import mmap, os, sys
fd = os.open("file", os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 10000)
for flags in (mmap.MAP_SHARED, 3):
    try:
        mmap.mmap(fd, 4096, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        print("mapped")
    except OSError as error:
        print(error.errno)
os.ftruncate(fd, 1 << 30)
try:
    mmap.mmap(fd, 1 << 30, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    print("mapped")
except OSError as error:
    print(error.errno)
part = mmap.mmap(fd, 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, offset=0)
print(part[9999:10001])
"""


def test_mappings_of_another_node(node, maps):
    """What can be is a copy; what could not be coherent is refused."""
    node.empty()
    direct = subprocess.run([maps, node.direct, "part"], capture_output=True, text=True).stdout
    there = node.run(maps, PREFIX, "part").stdout
    assert direct.count("\n") > 10
    assert there == direct
    done = node.run("sh", "-c", f'cd {PREFIX} && exec {python()} -c "$0"', REFUSED)
    assert done.stdout.split("\n")[:4] == ["19", "19", "19", "b'x\\x00'"], done.stderr


WRITER = """
import sqlite3, sys
path, number, setup = sys.argv[1], int(sys.argv[2]), sys.argv[3]
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute("pragma mmap_size=268435456")
db.execute(setup)
for i in range(60):
    db.execute("begin immediate")
    db.execute("insert into t values (?, ?, ?)", (number * 1000 + i, number, "x" * 700))
    db.execute("update n set total = total + 1")
    db.execute("commit")
    assert db.execute("select count(*) from t where who = ?", (number,)).fetchone()[0] == i + 1
"""
SETUP = "create table t (id integer primary key, who, text); create index i on t (text, who);"
SETUP += "create table n (total); insert into n values (0);"


@pytest.mark.parametrize("setup", ["pragma journal_mode=delete", "pragma journal_mode=wal"])
def test_sqlite_with_mappings_and_three_writers(daemon, setup):
    """Commits were lost, and the index was damaged."""
    import sqlite3

    daemon.empty()
    (daemon.far / "writer.py").write_text(WRITER)
    with sqlite3.connect(daemon.far / "db") as db:
        # SQLite does not wait for a lock when it changes the mode of a file that others write.
        db.execute(setup)
        db.executescript(SETUP)
    db.close()
    command = [*daemon.command(), python(), f"{PREFIX}/writer.py", f"{PREFIX}/db"]
    writers = [subprocess.Popen([*command, str(number), setup]) for number in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    check = "pragma integrity_check; select count(*) from t; select total from n;"
    done = daemon.run("sqlite3", f"{PREFIX}/db", check) if shutil.which("sqlite3") else None
    with sqlite3.connect(daemon.far / "db") as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert db.execute("select count(*) from t").fetchone() == (180,)
        assert db.execute("select total from n").fetchone() == (180,)
    assert done is None or done.stdout.split() == ["ok", "180", "180"]


TO_WAL = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == "old":
    db.execute("create table t (x)")
    db.execute("insert into t values (7)")
try:
    print(db.execute("pragma journal_mode=wal").fetchone())
except sqlite3.OperationalError as error:
    print(error)
db.close()
db = sqlite3.connect(sys.argv[1], isolation_level=None)
print(db.execute("pragma journal_mode").fetchone()[0])
db.execute("create table if not exists t (x)")
db.execute("insert into t values (8)")
print(db.execute("select count(*), sum(x) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
"""


@pytest.mark.parametrize("what", ["old", "new"])
def test_a_database_of_another_node_is_not_marked_for_a_mode_that_cannot_work(node, what):
    """It was marked first; then nobody could open it by `--node` any more."""
    import sqlite3

    node.empty()
    done = node.run(python(), "-c", TO_WAL, f"{PREFIX}/db", what)
    sums = {"old": "(2, 15)", "new": "(1, 8)"}[what]
    assert done.stdout.splitlines() == ["disk I/O error", "delete", f"{sums} ('ok',)"], done.stderr
    assert done.stderr.count("WAL") == 1 and "another node" in done.stderr
    assert (node.far / "db").read_bytes()[18:20] == b"\1\1"
    with sqlite3.connect(node.far / "db") as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_databases_in_wal_mode_are_copied_to_another_node(node, tmp_path):
    """Only what would change the mode of a database in its place is refused."""
    import sqlite3

    node.empty()
    with sqlite3.connect(tmp_path / "db") as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table t (x)")
    db.close()
    script = f"""
import os, shutil, sys
shutil.copy(sys.argv[1], "{PREFIX}/one")
# As rsync does, and locked by some other program's rules.
with open("{PREFIX}/two", "w+b", buffering=0) as file:
    import fcntl
    fcntl.lockf(file, fcntl.LOCK_EX)
    file.write(open(sys.argv[1], "rb").read())
"""
    done = node.run(python(), "-c", script, tmp_path / "db")
    assert done.returncode == 0 and done.stderr == ""
    for name in ("one", "two"):
        assert (node.far / name).read_bytes() == (tmp_path / "db").read_bytes()


@pytest.mark.parametrize("options", [[], ["--direct"], ["--seccomp"]], ids=["relay", "direct", "seccomp"])
def test_wal_mode_works_where_the_daemon_is_on_this_machine(daemon, options):
    daemon.empty()
    done = daemon.run(python(), "-c", TO_WAL, f"{PREFIX}/db", "old", options=options)
    assert done.stdout.splitlines() == ["('wal',)", "wal", "(2, 15) ('ok',)"], done.stderr
    assert done.stderr == ""


LMDB = """
import lmdb, sys
for run in range(4):
    with lmdb.open(sys.argv[1], map_size=1 << 26, lock=False, writemap=run % 2 == 1) as env:
        for i in range(250):
            with env.begin(write=True) as txn:
                txn.put(b"%d" % (run * 250 + i), b"v" * 50)
with lmdb.open(sys.argv[1], map_size=1 << 26, lock=False) as env, env.begin() as txn:
    print(txn.stat()["entries"])
"""


def test_lmdb_without_locks(daemon):
    """Of 1,000 records, 50 were there after reopening."""
    if subprocess.run([sys.executable, "-c", "import lmdb"], capture_output=True).returncode:
        pytest.skip("the Python package lmdb is not installed")
    daemon.empty()
    assert daemon.run(python(), "-c", LMDB, f"{PREFIX}/db").stdout == "1000\n"
