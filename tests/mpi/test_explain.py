"""`zazen explain` on a real testbed: planted faults, each of which it must name first."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import zazen.testing
from launching import wait_for

HERE = Path(__file__).parent
RANKS = 4
FRAMES = 480
FRAME_BYTES = 64 << 10
#: Of the file server.
FAST, SLOW = "20MB/s", "600kB/s"


def name(number):
    return f"frame-{number:05}.bin"


class Bed:
    """Four daemons over a file server with a limited rate."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        self.state_home = folder / "home"
        self.server = None
        self.zazen("testbed", "up", RANKS, "--dir", folder / "t", "--server-rate", FAST, *options)
        self.state = json.loads((folder / "t" / "testbed.json").read_text())

    @property
    def variables(self):
        return {
            "ZAZEN_TESTBED": str(self.folder / "t"),
            "ZAZEN_KEY": str(self.folder / "t" / "key"),
            "XDG_STATE_HOME": str(self.state_home),
            "ZAZEN_TIMEOUT": "2",
        }

    def zazen(self, *words, status=(0,)):
        environment = (
            zazen.testing.environment() | self.variables | {"ZAZEND": zazen.testing.program("zazend")}
        )
        done = subprocess.run(
            [zazen.testing.program("zazen"), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
        assert done.returncode in status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def dataset(self, sim="sim1", frames=FRAMES):
        path = Path(self.state["backing_root"]) / sim
        path.mkdir(parents=True)
        for number in range(frames):
            (path / name(number)).write_bytes(bytes([number % 251]) * FRAME_BYTES)
        # Young sources could still change; their copies are used once only.
        time.sleep(0.05)
        return path

    def push(self, path, numbers):
        self.zazen("push", *(path / name(number) for number in numbers), "--nodes", self.state["nodes_file"])

    def slow_down(self):
        """The file server goes on at the same address, at a fraction of its rate."""
        host = self.state["server"]
        address = self.state["backing"].split("tcp://")[1].split("/")[0]
        pid = host["process"]["pid"]
        os.kill(pid, 15)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the file server's end")
        root = self.state["backing_root"]
        words = ["testbed", "serve-files", "--root", root, "--listen", address, "--rate", SLOW]
        ready = self.folder / "ready"
        self.server = subprocess.Popen([zazen.testing.program("zazen"), *words, "--ready", str(ready)])
        wait_for(ready.exists, "the slow file server")

    def close(self):
        if self.server:
            self.server.kill()
            self.server.wait()
        self.zazen("testbed", "down", "--dir", self.folder / "t")


@pytest.fixture
def bed(tmp_path_factory, request):
    bed = Bed(tmp_path_factory.mktemp("z"), *getattr(request, "param", ()))
    yield bed
    bed.close()


def analyse(launch, bed, path, slow_rank=-1, seconds=0.0):
    """Rows of the ranks, by themselves, and the explanation."""
    script = HERE / "read_and_time.py"
    output = launch(RANKS, sys.executable, "-m", "mpi4py", script, path, slow_rank, seconds, **bed.variables)
    rows = json.loads(next(line for line in output.splitlines() if line.startswith("[{")))
    assert sum(row["frames"] for row in rows) == FRAMES
    told = json.loads(bed.zazen("explain", path, "--json", status=(0, 3)))
    check_waterfall(rows, told)
    return told


def check_waterfall(rows, told):
    """Each rank's parts add up to its wall time, and this is what ranks measured themselves, within
    5 % (0.1 s for short ones). A rank may have waited for a processor between the two clocks: two
    of the four are enough."""
    assert [rank["rank"] for rank in told["ranks"]] == list(range(RANKS)), told
    off = []
    for row, rank in zip(rows, told["ranks"], strict=True):
        parts = sum(rank["spent_s"].values())
        assert abs(parts - rank["wall_s"]) <= 0.05 * rank["wall_s"] + 0.01, (row, rank)
        off.append(abs(parts - row["wall_s"]) - max(0.05 * row["wall_s"], 0.1))
        assert rank["local_frames"] + rank["other_frames"] == row["frames"]
    assert sorted(off)[1] <= 0, (rows, told["ranks"])
    assert sum(cause["frames"] for cause in told["causes"]) == sum(
        rank["other_frames"] for rank in told["ranks"]
    )


def first(told, is_slow=False):
    """What is found first. The file server shares this machine's processors: while others take
    them, it is slow indeed, and that may be found before what a test planted."""
    what = [finding["what"] for finding in told["findings"]]
    return next((one for one in what if is_slow or one != "slow store"), None)


def test_never_pushed(launch, bed):
    path = bed.dataset()
    bed.push(path, range(0, FRAMES, 2))
    told = analyse(launch, bed, path)
    assert first(told) == "never pushed", told
    assert told["causes"][0]["frames"] == FRAMES // 2
    # Reading has cached them, and there is nothing to load.
    assert told["mend"].startswith("nothing to load: "), told
    loaded = json.loads(bed.zazen("load", path, "--json"))
    assert loaded["loaded"] == 0, loaded
    # Where a frame is missing again, a command mends it.
    bed.zazen("evict", path, "--frames", "1")
    told = json.loads(bed.zazen("explain", path, "--json"))
    assert told["mend"].startswith(f"zazen load {path}"), told
    bed.zazen("load", path)
    # The next analysis is local.
    again = analyse(launch, bed, path)
    assert "never pushed" not in [finding["what"] for finding in again["findings"]], again
    # What it says one would gain is an upper bound of what was gained, on a machine as busy as
    # this.
    assert again["wall_s"] < told["wall_s"]


@pytest.mark.parametrize("bed", [("--budget", "11MB")], indirect=True)
def test_evicted_for_another_dataset(launch, bed):
    path = bed.dataset()
    bed.push(path, range(FRAMES))
    other = bed.dataset("sim2")
    bed.zazen("load", other)
    told = analyse(launch, bed, path)
    assert first(told) == "evicted", told
    assert f"to make room for {other}" in told["causes"][0]["detail"], told
    assert "before" in told["causes"][0]["detail"]


def test_dead_node(launch, bed):
    path = bed.dataset()
    bed.push(path, range(FRAMES))
    bed.zazen("testbed", "kill", "n2")
    told = analyse(launch, bed, path)
    assert first(told) == "dead node", told
    assert {cause["cause"] for cause in told["causes"]} == {"dead node"}
    assert "n2" in told["verdict"] or "n2" in json.dumps(told["causes"])
    # Once it is back it is known to hold them, and to have been away.
    bed.zazen("testbed", "revive", "n2")
    again = json.loads(bed.zazen("explain", path, "--json"))
    assert first(again) == "dead node", again


def test_stale(launch, bed):
    path = bed.dataset()
    bed.push(path, range(FRAMES))
    for number in range(0, FRAMES, 2):
        (path / name(number)).write_bytes(bytes([7]) * FRAME_BYTES)
    told = analyse(launch, bed, path)
    assert first(told) == "stale", told
    stale = sum(cause["frames"] for cause in told["causes"] if cause["cause"] == "stale")
    # While the ranks agree, each daemon already replaces the stale ones of the first 16 frames.
    assert FRAMES // 2 - 16 * RANKS <= stale <= FRAMES // 2


def test_a_throttled_store(launch, bed):
    """The store gives a fraction of what it gave; a few frames that are not cached show it."""
    before = bed.dataset("sim0")
    bed.zazen("load", before)
    path = bed.dataset()
    bed.push(path, range(0, FRAMES - 24))
    bed.slow_down()
    told = analyse(launch, bed, path)
    assert first(told, is_slow=True) == "slow store", told


def test_a_slow_rank(launch, bed):
    path = bed.dataset()
    bed.push(path, range(FRAMES))
    told = analyse(launch, bed, path, slow_rank=3, seconds=2.0)
    assert first(told) == "slow rank", told
    assert (told["slowest"], told["verdict"].startswith("rank 3")) == (3, True)


READ_ONE_BY_ONE = """
import json, sys, time, zazen
with zazen.open(sys.argv[1]) as dataset:
    began = time.perf_counter()
    for number in range(int(sys.argv[2])):
        assert dataset[number].data[0] == number % 251
    print(json.dumps(time.perf_counter() - began))
"""


def test_frames_read_one_by_one(bed):
    """Random access leaves one record when the dataset is closed."""
    path = bed.dataset()
    bed.push(path, range(0, FRAMES, 2))
    words = [sys.executable, "-c", READ_ONE_BY_ONE, path, FRAMES]
    took = json.loads(bed.zazen("testbed", "run", "-n", 1, "--", *words))
    told = json.loads(bed.zazen("explain", path, "--json"))
    (rank,) = told["ranks"]
    assert rank["local_frames"] + rank["other_frames"] == FRAMES
    causes = Counter()
    for cause in told["causes"]:
        causes[cause["cause"]] += cause["frames"]
    elsewhere = FRAMES // 2 - rank["local_frames"]
    assert causes == {"never pushed": FRAMES // 2, "another rank's share": elsewhere}, told
    assert abs(sum(rank["spent_s"].values()) - took) <= max(0.05 * took, 0.5), (took, rank)
    assert first(told) == "never pushed", told


READ_A_FILE = """
import sys
from zazen.blocks import BlockReader
reader = BlockReader(sys.argv[1])
assert reader.read(0, reader.size) == bytes(reader.size)
reader.close()
"""


def test_blocks_from_other_nodes(bed):
    """Most blocks of a cold file have their homes on other nodes, which read them from the
    store."""
    folder = bed.dataset(frames=0)
    (folder / "field.raw").write_bytes(bytes(8 << 20))
    # Until then its times may not tell of a change, and nothing is kept.
    time.sleep(0.05)
    bed.zazen("testbed", "run", "-n", 1, "--", sys.executable, "-c", READ_A_FILE, folder / "field.raw")
    (rank,) = json.loads(bed.zazen("explain", folder, "--json"))["ranks"]
    assert rank["other_frames"] == 8 and rank["spent_s"]["peer"] > 0, rank


READ_SLOWLY = """
import sys
import time
import zazen
with zazen.open(sys.argv[1]) as dataset:
    for frame in dataset.frames():
        if frame.number == 0:
            time.sleep(0.1)
"""


def test_a_trajectory_file_and_its_folder(bed):
    """A record of a trajectory file is found by the file and by its folder, also on nodes that hold
    none of it, and by no other file of the folder."""
    folder = bed.dataset(frames=0)
    atoms = "".join(f"C {number}.0 0.0 0.0\n" for number in range(9))
    for number in range(2):
        (folder / f"md{'ab'[number]}.xyz").write_text(f"9\nwater\n{atoms}" * (number + 5))
    time.sleep(0.05)
    paths = folder / "mda.xyz", folder / "mdb.xyz"
    bed.zazen("testbed", "run", "-n", 1, "--", sys.executable, "-c", READ_SLOWLY, paths[0])
    bed.zazen("load", paths[1], "--nodes", bed.state["nodes_file"])
    for path in (paths[0], folder):
        (rank,) = json.loads(bed.zazen("explain", path, "--json"))["ranks"]
        assert rank["local_frames"] + rank["other_frames"] == 5, (path, rank)
    assert refused(bed, paths[1]), "its frames are here, and nobody read them"
    # Other commands that ask all nodes for a file.
    listed = json.loads(bed.zazen("ls", paths[0], "--json"))["nodes"]
    assert sum(node["native_frames"] + node["alien_frames"] for node in listed) == 5, listed


def test_a_trajectory_file_without_a_daemon(bed):
    """The record is in the user's folder."""
    folder = bed.dataset(frames=0)
    (folder / "md.xyz").write_text("1\nargon\nAr 0.0 0.0 0.0\n" * 7)
    environment = zazen.testing.environment() | bed.variables | {"ZAZEN_SOCKET": str(bed.folder / "nobody")}
    words = [sys.executable, "-W", "ignore", "-c", READ_SLOWLY, str(folder / "md.xyz")]
    subprocess.run(words, env=environment, check=True, timeout=120)
    for path in (folder / "md.xyz", folder):
        (rank,) = json.loads(bed.zazen("explain", path, "--json"))["ranks"]
        assert rank["other_frames"] == 7, (path, rank)


def test_text_and_page(launch, bed):
    path = bed.dataset()
    told = analyse(launch, bed, path)
    page = bed.folder / "why.html"
    text = bed.zazen("explain", path, "--html", page)
    assert text.splitlines()[0] == told["verdict"]
    for part in ("assign", "daemon", "disk", "backing", "checksum", "consumer"):
        assert f"\n{part} " in text
    html = page.read_text()
    assert html.count("<svg") >= 1 and told["dataset"] in html
    # Nothing comes from another host.
    assert (
        "src=" not in html
        and "href=" not in html
        and html.count("http") == html.count("http-equiv") + html.count("http://www.w3.org/2000/svg")
    )


def test_without_records_it_says_so(bed):
    path = bed.dataset(frames=3)
    assert refused(bed, path)


def refused(bed, path):
    """Whether `zazen explain` says that it has nothing to explain."""
    environment = zazen.testing.environment() | bed.variables
    done = subprocess.run(
        [zazen.testing.program("zazen"), "explain", str(path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 1 and "no analysis of yours is on record" in done.stderr
