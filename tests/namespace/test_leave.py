"""`zazen namespace leave`: a node gives away what it keeps, while the others use the namespace."""

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import zazen.testing

# How long a test waits for what must come.
PATIENCE = 120.0


def wait_until(true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if true():
                return
            error = None
        except OSError as found:
            error = found
        assert time.monotonic() < until, f"it did not come: {error}"
        time.sleep(0.1)


def within(work: Callable[[], object]) -> None:
    """Does `work`, which may fail for a while: another node takes over."""

    def done() -> bool:
        work()
        return True

    wait_until(done)


class Bed:
    """A testbed with mounts; its nodes are numbered from 0 on, those of the namespace from 1 on."""

    def __init__(self, folder: Path, nodes: int, replicas: int, *more: object) -> None:
        self.dir, self.mounts = folder / "bed", folder / "m"
        up = ["--namespace", "--mounts", self.mounts, "--replicas", replicas, *more]
        self.run("testbed", "up", nodes, "--dir", self.dir, *up)
        record = json.loads((self.dir / "testbed.json").read_text())
        self.sockets = [node["socket"] for node in record["nodes"]]
        self.data = [Path(self.status(number)["data"]) for number in range(nodes)]
        self.m = [self.mounts / str(number) for number in range(nodes)]

    def call(self, *words: object) -> tuple[int, str]:
        command = [zazen.testing.program("zazen"), *map(str, words)]
        environment = zazen.testing.environment()
        done = subprocess.run(
            command, env=environment, text=True, capture_output=True, timeout=200, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def words(self, *words: object) -> str:
        """What `zazen` says, whatever its status."""
        return self.call(*words)[1]

    def run(self, *words: object, status: int = 0) -> str:
        ended, said = self.call(*words)
        assert ended == status, (words, ended, said)
        return said

    def status(self, at: int) -> dict:
        return json.loads(self.run("namespace", "status", "--json", "--socket", self.sockets[at]))

    def number(self, at: int) -> int:
        """The node's number in the namespace."""
        return self.status(at)["node"]

    def state(self, at: int, node: int) -> str:
        return next(one["state"] for one in self.status(at)["nodes"] if one["node"] == node)

    def leave(self, at: int, node: int, *more: object, status: int = 0) -> str:
        return self.run("namespace", "leave", node, "--socket", self.sockets[at], *more, status=status)

    def holder(self, at: int, path: str) -> str:
        (found,) = json.loads(self.run("locate", "--json", "--socket", self.sockets[at], path))
        return found["name"]

    def copies(self, at: int, path: str) -> list[str]:
        (found,) = json.loads(self.run("locate", "--json", "--socket", self.sockets[at], path))
        return found["copies"]

    def object(self, node: int, path: Path) -> Path:
        """The file on the node's disk that has the bytes of `path`."""
        (found,) = (self.data[node] / "objects").glob(f"*/{path.stat().st_ino:016x}-*")
        return found

    def down(self) -> None:
        self.run("testbed", "down", "--dir", self.dir)


def test_all_that_a_node_keeps_goes_to_the_others(folder, alone):
    def test() -> None:
        bed = Bed(folder, 3, 2)
        m = bed.m
        leaver = bed.number(2)
        (m[2] / "d").mkdir()
        files = {}
        for number in range(30):
            files[f"d/f{number}"] = random.Random(number).randbytes(number * 7001)
            (m[2] / f"d/f{number}").write_bytes(files[f"d/f{number}"])
        with open(m[2] / "d/sparse", "wb") as file:
            file.truncate(3 << 20)
            os.pwrite(file.fileno(), b"end", (3 << 20) - 3)
        files["d/sparse"] = bytes((3 << 20) - 3) + b"end"
        os.setxattr(m[2] / "d/f3", "user.kind", b"kept")
        os.symlink("f3", m[2] / "d/link")
        os.link(m[2] / "d/f4", m[2] / "d/hard")
        files["d/hard"] = files["d/f4"]
        (m[0] / "other").write_bytes(b"of node 0")
        assert bed.holder(0, "/d/f7") == "n2"
        said = bed.leave(0, leaver)
        assert "has left" in said, said
        assert bed.state(0, leaver) == bed.state(1, leaver) == "left"
        status = bed.status(0)
        assert sum(node["primary_of"] for node in status["nodes"]) == status["partitions"]
        assert {bed.holder(0, f"/d/f{number}") for number in range(1, 30)} <= {"n0", "n1"}
        # It is asked in vain, says so when it has heard of it, and may be switched off.
        wait_until(lambda: "has left" in bed.words("locate", "/other", "--socket", bed.sockets[2]))
        bed.run("testbed", "kill", 2, "--dir", bed.dir)
        for name, data in files.items():
            for place in (m[0], m[1]):
                assert (place / name).read_bytes() == data, name
        assert os.getxattr(m[0] / "d/f3", "user.kind") == b"kept"
        assert os.readlink(m[1] / "d/link") == "f3"
        with open(m[0] / "d/f0", "ab") as file:
            file.write(b"empty files move too")
        (m[1] / "new").write_bytes(b"new")
        shutil.rmtree(m[0] / "d")
        wait_until(lambda: sorted(os.listdir(m[1])) == ["new", "other"])
        # With its old folder it is no node any more, and breaks nothing.
        bed.run("testbed", "revive", 2, "--dir", bed.dir)
        wait_until(lambda: "has left" in bed.words("namespace", "status", "--socket", bed.sockets[2]))
        assert (m[0] / "new").read_bytes() == b"new"
        said = bed.leave(0, leaver)
        assert "has left" in said, said
        # What the others took over does not come back.
        said = bed.leave(0, leaver, "--stay", status=1)
        assert "too late to stay" in said, said
        bed.down()

    alone(test)


def test_any_node_may_leave_also_the_one_that_leads_until_one_is_left(folder, alone):
    def test() -> None:
        bed = Bed(folder, 3, 2)
        m = bed.m
        (m[0] / "f").write_bytes(b"one")
        engines = [bed.status(at)["engine"] for at in range(3)]
        leader = next(at for at, engine in enumerate(engines) if engine["leads_stewards"])
        others = [at for at in range(3) if at != leader]
        for number, leaver in enumerate([leader, others[0]]):
            (m[leaver] / f"of{number}").write_bytes(b"x" * 1000)
            asks = others[1]
            assert "has left" in bed.leave(asks, bed.number(leaver))
            bed.run("testbed", "kill", leaver, "--dir", bed.dir)
            within(lambda number=number: (m[others[1]] / f"after{number}").write_bytes(b"after"))
        last = m[others[1]]
        assert sorted(os.listdir(last)) == ["after0", "after1", "f", "of0", "of1"]
        assert (last / "f").read_bytes() == b"one"
        assert {(last / f"of{number}").read_bytes() for number in range(2)} == {b"x" * 1000}
        said = bed.leave(others[1], bed.number(others[1]), status=1)
        assert "only one" in said, said
        bed.down()

    alone(test)


def test_a_node_that_dies_while_it_leaves_goes_on_and_may_stay_after_all(folder, alone):
    def test() -> None:
        bed = Bed(folder, 3, 2)
        m = bed.m
        leaver = bed.number(2)
        for number in range(20):
            (m[2] / f"f{number}").write_bytes(b"%d" % number * 5000)
        # A file that another node's program has open cannot move.
        held = open(m[0] / "f7", "rb")
        said = bed.leave(1, leaver, "--no-wait")
        assert "is leaving" in said, said
        wait_until(lambda: bed.holder(0, "/f6") != "n2")

        def is_waiting() -> bool:
            (found,) = [node["leaving"] for node in bed.status(0)["nodes"] if node["node"] == leaver]
            return found is not None and (found["files"], found["in_use"]) == (1, 1)

        wait_until(is_waiting)
        shown = bed.run("namespace", "status", "--socket", bed.sockets[0])
        assert "is leaving" in shown, shown
        # What it makes meanwhile goes to others.
        made = iter(range(10_000))

        def goes_elsewhere() -> bool:
            name = f"made{next(made)}"
            (m[2] / name).write_bytes(b"elsewhere")
            return bed.holder(0, f"/{name}") != "n2"

        wait_until(goes_elsewhere)
        # It stays after all, and keeps the file that did not move.
        assert "stays" in bed.leave(1, leaver, "--stay")
        wait_until(lambda: bed.state(0, leaver) == "up")
        assert bed.holder(0, "/f7") == "n2"

        # It is killed in the middle: the others count it as down, and it goes on when it is back.
        bed.leave(1, leaver, "--no-wait")
        wait_until(lambda: bed.state(0, leaver) == "leaving")
        bed.run("testbed", "kill", 2, "--dir", bed.dir)
        wait_until(lambda: bed.state(0, leaver) == "down")
        within(lambda: (m[0] / "meanwhile").write_bytes(b"still in use"))
        bed.run("testbed", "revive", 2, "--dir", bed.dir)
        wait_until(lambda: held.seek(0) == 0 and held.read() == b"7" * 5000)
        wait_until(lambda: bed.state(0, leaver) == "leaving")
        held.close()
        assert "has left" in bed.leave(1, leaver)
        bed.run("testbed", "kill", 2, "--dir", bed.dir)
        for number in range(20):
            assert (m[1] / f"f{number}").read_bytes() == b"%d" % number * 5000
        bed.down()

    alone(test)


def test_a_copy_that_may_be_the_last_one_does_not_go_with_its_node(folder, alone):
    def test() -> None:
        bed = Bed(folder, 4, 2, "--repair-after", 3600)
        m = bed.m
        kept = m[0] / "kept"
        kept.mkdir()
        files = {f"f{number}": random.Random(number).randbytes(20_011) for number in range(8)}
        for name, data in files.items():
            (kept / name).write_bytes(data)
            os.setxattr(kept / name, "user.zazen.copies", b"2")
        wait_until(lambda: all(len(bed.copies(0, f"/kept/{name}")) == 1 for name in files))
        (where,) = bed.copies(0, "/kept/f0")
        at = int(where.removeprefix("n"))
        asks = next(other for other in (1, 2, 3) if other != at)
        leaver = bed.number(at)
        of_it = sum(bed.copies(0, f"/kept/{name}") == [where] for name in files)
        # Its holder is away: the copy is all that there is, and the node waits.
        bed.run("testbed", "kill", 0, "--dir", bed.dir)
        assert "is leaving" in bed.leave(asks, leaver, "--no-wait")

        def keeps_copies_only() -> bool:
            found = [node["leaving"] for node in bed.status(asks)["nodes"] if node["node"] == leaver]
            told = found[0] or {"files": 0, "partitions": 1, "is_steward": True}
            if (told["files"], told["partitions"], told["is_steward"]) == (of_it, 0, False):
                return True
            raise OSError(f"of {of_it} files, it says: {told}; {bed.status(asks)}")

        wait_until(keeps_copies_only)
        wait_until(lambda: (m[asks] / "kept/f0").read_bytes() == files["f0"])
        bed.run("testbed", "revive", 0, "--dir", bed.dir)
        assert "has left" in bed.leave(asks, leaver)
        bed.run("testbed", "kill", at, "--dir", bed.dir)
        for name, data in files.items():
            (copy,) = bed.copies(asks, f"/kept/{name}")
            assert copy != where
            assert (m[asks] / "kept" / name).read_bytes() == data, name
        # A copy that is not whole any more does not become the only one.
        (copy,) = bed.copies(asks, "/kept/f1")
        bad = bed.object(int(copy.removeprefix("n")), kept / "f1")
        with open(bad, "r+b") as file:
            before = os.fstat(file.fileno())
            byte = os.pread(file.fileno(), 1, 77)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), 77)
            os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        assert "has left" in bed.leave(asks, bed.number(0))
        bed.run("testbed", "kill", 0, "--dir", bed.dir)
        for name, data in files.items():
            assert (m[asks] / "kept" / name).read_bytes() == data, name
        bed.down()

    alone(test)


def test_two_nodes_leave_at_once_while_others_write(folder, alone):
    def test() -> None:
        bed = Bed(folder, 4, 2)
        m = bed.m
        draw = random.Random(7)
        files = {f"f{number}": draw.randbytes(3001 + number) for number in range(40)}
        for number, (name, data) in enumerate(files.items()):
            (m[number % 4] / name).write_bytes(data)
        leavers = [bed.number(1), bed.number(2)]
        for leaver in leavers:
            bed.leave(3, leaver, "--no-wait")
        seen = [""]
        while set(seen) != {"left"}:
            for _ in range(20):
                name = draw.choice(list(files))
                through = m[draw.choice([0, 3])] / name
                data = draw.randbytes(draw.randrange(1, 9000))
                if draw.random() < 0.5:
                    through.write_bytes(data)
                    files[name] = data
                else:
                    with open(through, "ab") as file:
                        file.write(data)
                    files[name] += data
            seen = [bed.state(0, leaver) for leaver in leavers]
        for at in (1, 2):
            bed.run("testbed", "kill", at, "--dir", bed.dir)
        for name, data in files.items():
            for at in (0, 3):
                assert (m[at] / name).read_bytes() == data, name
        bed.down()

    alone(test)
