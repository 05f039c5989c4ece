"""`zazen bench assign`: numbers that must add up, in one process and under a launcher."""

import json
import subprocess

import pytest
from launching import mpiexec, run_ranks


def bench(tool, *words: object) -> dict:
    out = tool("bench", "assign", "--json", "--repeats", 2, *words).stdout
    assert out.count("\n") == 1, "one JSON object on one line"
    return json.loads(out)


def under_launcher(tool, ranks: int, *words: object, status: int = 0) -> subprocess.CompletedProcess:
    command = [mpiexec(), "-n", ranks, tool.program, "bench", "assign", "--repeats", 2, *words]
    done = run_ranks(command, tool.environment)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def check(report: dict, ranks: int, frames: int, residue: int) -> None:
    """What holds of every report."""
    assert report["setting"]["ranks"] == ranks and report["setting"]["frames"] == frames
    for side in report["protocols"]:
        assert side["adds_up"]
        assert side["native"] + side["alien"] + side["residue"] == frames
        assert side["residue"] == residue
        assert side["local_share"] == pytest.approx((frames - residue) / frames)
        phases = side["phases"]
        assert phases[-1]["round"] == "done" and len(phases) == side["rounds"] + 1
        assert sum(phase["bytes_sum"] for phase in phases) == side["bytes_sent_sum"]
        for spread in (side["total_s"], side["local_s"]):
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        # A rank's rounds lie within the two barriers.
        assert max(phase["collective_max_s"]["min"] for phase in phases) <= side["total_s"]["max"]


@pytest.mark.parametrize(
    ("words", "residue"),
    [
        (["--placement", "round-robin"], 0),
        (["--placement", "contiguous", "--ranks-per-node", 2], 0),
        (["--placement", "random", "--verify", "exact"], 0),
        (["--placement", "random", "--dead-nodes", 4], 50_000),
        (["--placement", "holes", "--hole-share", "1e-2"], 500),
        (["--placement", "aliens", "--rules", "paper"], 1),
    ],
)
def test_in_one_process(tool, words, residue):
    report = bench(tool, "--frames", 50_000, "--ranks", 4, "--protocol", "both", *words)
    check(report, 4, 50_000, residue)
    assert [side["protocol"] for side in report["protocols"]] == ["owner", "bitmaps"]
    assert report["bitmaps_over_owner"] > 0
    reduced = {row["round"]: row["bytes"] for row in report["model"]["rounds"]}
    assert reduced["natives"] == 50_000 / 8
    # The second all-reduce is left out where every frame is native somewhere.
    assert reduced.get("alien entries", 50_000 / 4) == 50_000 / 4
    assert ("alien entries" in reduced) == (residue > 0)
    assert report["memory"]["natives_sum"] <= 50_000 * report["setting"]["ranks_per_node"]


def test_a_billion_regular_frames_are_kilobytes(tool):
    report = bench(tool, "--frames", "1e9", "--ranks", 8)
    check(report, 8, 10**9, 0)
    [side] = report["protocols"]
    assert side["path"] == "fingerprint" and side["bytes_sent_max"] < 1000
    assert report["memory"]["sets_heap_bytes_max"] < 1000


def test_the_model_of_another_cluster_shows_its_arithmetic(tool):
    words = ["--protocol", "both", "--model-nodes", 16, "--model-link", "117e6", "--model-latency", "50e-6"]
    report = bench(tool, "--frames", "1e6", "--ranks", 2, "--placement", "random", *words)
    times = {time["protocol"]: time for time in report["elsewhere"]["times"]}
    assert report["elsewhere"]["nodes"] == 16 and set(times) == {"owner", "bitmaps"}
    # 2n(1 - 1/p) bytes over the link, and 2(p - 1) messages, are the least the OR takes.
    assert times["bitmaps"]["seconds"] > 2 * 125_000 * 15 / 16 / 117e6 + 30 * 50e-6
    for time in times.values():
        assert "measured" in time["arithmetic"] and time["seconds"] > 0


def test_under_a_launcher(tool):
    words = [
        "--json",
        "--frames",
        100_000,
        "--placement",
        "random",
        "--protocol",
        "both",
        "--ranks-per-node",
        2,
    ]
    done = under_launcher(tool, 4, *words, "--dead-nodes", 1)
    report = json.loads(done.stdout)
    assert report["setting"]["carrier"].startswith("MPI") and report["setting"]["nodes"] == 2
    [owner, bitmaps] = report["protocols"]
    check(report, 4, 100_000, owner["residue"])
    assert owner["residue"] == bitmaps["residue"] == pytest.approx(50_000, rel=0.05)
    assert report["model"]["rates"]["alpha_s"] > 0


def test_only_rank_0_speaks(tool):
    done = under_launcher(tool, 2, "--frames", 1000)
    assert done.stdout.count("adds up") == 1
    refused = under_launcher(tool, 2, "--ranks", 3, status=1)
    assert refused.stderr.count("the launcher has started 2 ranks") == 1 and not refused.stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--frames", "0"], 2, "0 frames need no assignment"),
        (["--frames", "1e20"], 2, "beyond the limit"),
        (["--frames", 2**63 + 1], 2, "beyond the limit"),
        (["--frames", "ten"], 2, "not a number of frames"),
        (["--ranks", 0], 1, "--ranks 0: give 1 to 1024"),
        (["--ranks", 4096], 1, "the limit is 1024"),
        (["--ranks", 4, "--ranks-per-node", 3], 1, "does not divide the 4 ranks"),
        (["--frames", "1e10", "--protocol", "bitmaps"], 1, "--protocol owner"),
        (["--hole-share", 2], 1, "between 0 and 1"),
        (["--dead-nodes", 9], 1, "there are 4 nodes"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tool, words, status, says):
    done = tool("bench", "assign", *words, status=status)
    assert says in done.stderr and not done.stdout
    if status == 1:
        assert done.stderr.count("\n") == 1


def test_help_shows_how(tool):
    text = tool("bench", "assign", "--help").stdout
    assert "EXAMPLES" in text and "mpiexec -n 4 zazen bench assign" in text
