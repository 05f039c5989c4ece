"""A node that dies or hangs in mid-analysis costs time, never a frame, a result or the job."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import zazen
import zazen.testing

HERE = Path(__file__).parent
RANKS = 4
FRAMES = 1600
#: Frames that each node holds.
NATIVES = (FRAMES - 200) // RANKS
VICTIM = 2
#: Seconds of silence that a daemon is allowed here; a hung one costs at most twice that a question.
SILENCE = 2.0


def frame_bytes(number):
    return bytes((number * 31 + at * 7) % 251 for at in range(64)) * (1 + number % 40)


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """Four daemons, which all tests share and leave running; all frames but the last 200 are
    natives, spread round-robin."""
    folder = tmp_path_factory.mktemp("z")
    dataset = folder / "backing" / "sim1"
    dataset.mkdir(parents=True)
    for number in range(FRAMES):
        (dataset / f"frame-{number:07}.bin").write_bytes(frame_bytes(number))
    with zazen.testing.Cluster(folder / "c", dataset.parent, nodes=RANKS) as cluster:
        with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for number in range(FRAMES - 200):
                writer.push(number, frame_bytes(number), f"frame-{number:07}.bin")
        assert writer.counters.pushed == FRAMES - 200, writer.problems
        yield cluster, dataset


def analyse(launch, placed, signal_name="SIGKILL", moment="never"):
    """The ranks' rows and the result's hash; every frame came once and whole."""
    cluster, dataset = placed
    output = launch(
        RANKS,
        sys.executable,
        "-m",
        "mpi4py",
        HERE / "lose_daemon.py",
        dataset,
        VICTIM,
        signal_name,
        moment,
        cluster.pid(VICTIM),
        ZAZEN_TESTBED=cluster.testbed,
        ZAZEN_TIMEOUT=SILENCE,
    )
    rows = json.loads(output.splitlines()[-1])
    read = sorted((int(number), digest) for row in rows for number, digest in row["frames"].items())
    assert [number for number, _ in read] == list(range(FRAMES))
    return rows, hashlib.sha256(json.dumps(read).encode()).hexdigest()


@pytest.fixture
def undisturbed():
    """The hash of the result, from the files' own bytes."""
    read = [(number, hashlib.sha256(frame_bytes(number)).hexdigest()) for number in range(FRAMES)]
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()


MOMENTS = ["start", "opened", "collective:0", "collective:2", "frame:1", "frame:5", "frame:80", "frame:200"]


def told_once(rows, cluster):
    """The victim alone warns, once, and says which node, which socket, and what happens now."""
    for rank, row in enumerate(rows):
        if rank != VICTIM:
            assert row["warnings"] == [], (rank, row["warnings"])
    assert len(rows[VICTIM]["warnings"]) == 1, rows[VICTIM]["warnings"]
    text = rows[VICTIM]["warnings"][0]
    assert cluster.sockets[VICTIM] in text and "from the backing store" in text, text
    return text


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_node_killed_in_mid_analysis(launch, placed, undisturbed, moment):
    try:
        rows, result = analyse(launch, placed, "SIGKILL", moment)
    finally:
        # The daemon comes back with its frames.
        placed[0].kill(VICTIM)
        placed[0].start(VICTIM)
    assert rows[VICTIM]["disturbed"] and result == undisturbed
    if rows[VICTIM]["warnings"] == []:
        # It had handed out everything already: descriptors are asked for far ahead of reading.
        assert moment.startswith("frame") and rows[VICTIM]["native"] == NATIVES
    elif rows[VICTIM]["native"] == NATIVES:
        # It had handed out everything but the word that this was all.
        assert moment.startswith("frame")
        told_once(rows, placed[0])
    else:
        text = told_once(rows, placed[0])
        assert moment == "start" or "node2" in text, text
        assert rows[VICTIM]["backing_reads"] > 0
    # A whole job is local again, but for what no node ever held.
    rows, result = analyse(launch, placed)
    assert result == undisturbed and rows[VICTIM]["native"] == NATIVES
    assert not any(row["warnings"] for row in rows)


@pytest.mark.parametrize("moment", ["start", "opened", "collective:2", "frame:5"])
def test_a_hung_node_is_given_up_in_bounded_time(launch, placed, undisturbed, moment):
    cluster, _ = placed
    try:
        rows, result = analyse(launch, placed, "SIGSTOP", moment)
    finally:
        cluster.resume(VICTIM)
    assert rows[VICTIM]["disturbed"] and result == undisturbed
    told_once(rows, cluster)
    # Generous: a loaded machine is slow. Without the bound it would be minutes.
    assert rows[VICTIM]["seconds"] < 60, rows[VICTIM]["seconds"]
    rows, result = analyse(launch, placed)
    assert result == undisturbed and not any(row["warnings"] for row in rows)


def test_all_nodes_but_one_are_gone_one_after_another(launch, placed, undisturbed):
    """Each rank's own daemon may go; what is left is the backing store."""
    cluster, _ = placed
    for node in (0, 1, 3):
        cluster.kill(node)
    rows, result = analyse(launch, placed, "SIGKILL", "frame:3")
    cluster.kill(VICTIM)
    for node in range(RANKS):
        cluster.start(node)
    assert result == undisturbed
    assert all(len(row["warnings"]) == 1 for row in rows)


def test_a_lost_rank_ends_the_job_with_a_word(launch, placed):
    """What MPI does with a rank that is gone is MPI's affair; here: the launcher ends the job and
    says so."""
    code = (
        "import os, signal, sys, zazen\nfrom mpi4py import MPI\n"
        "comm = MPI.COMM_WORLD\n"
        "with zazen.open(sys.argv[1]) as dataset:\n"
        "    if comm.rank == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    for frame in dataset.frames(comm=comm):\n"
        "        pass\n"
    )
    cluster, dataset = placed
    output = launch(RANKS, sys.executable, "-c", code, dataset, expect=1, ZAZEN_TESTBED=cluster.testbed)
    assert "KILLED" in output.upper() or "SIGNAL 9" in output.upper(), output
    # The daemons outlive the job: nothing of it is left with them.
    rows, _ = analyse(launch, placed)
    assert all(row["native"] > 0 for row in rows)
