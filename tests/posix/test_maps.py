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
