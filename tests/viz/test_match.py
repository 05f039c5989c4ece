"""Matching files to ranks: the command, Python and C agree, and scipy finds no better map."""

import json
import random
import subprocess

import pytest
import zazen
import zazen.testing
import zazen.viz

STRATEGIES = ["blind", "first-come", "scarcest", "least-demand", "optimal", "bytes"]


def drawn(seed, ranks=12, files=40, copies=3, nodes=10):
    """Ranks on nodes (some nodes without, some with several), files with lognormal lengths."""
    draw = random.Random(seed)
    node_of_rank = [draw.randrange(nodes) for _ in range(ranks)]
    sized = [int(draw.lognormvariate(10, 1)) for _ in range(files)]
    return node_of_rank, [(size, draw.sample(range(nodes), draw.randint(0, copies))) for size in sized]


def command(scenario, *flags):
    return subprocess.run(
        [zazen.testing.program("zazen"), "viz", "match", "--scenario", "-", *flags],
        input=scenario if isinstance(scenario, str) else json.dumps(scenario),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def as_scenario(ranks, files, strategy, seed=1):
    listed = [{"bytes": size, "holders": holders} for size, holders in files]
    return {"ranks": ranks, "files": listed, "strategy": strategy, "seed": seed}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_sums_are_true(strategy):
    for seed in range(20):
        ranks, files = drawn(seed)
        done = command(as_scenario(ranks, files, strategy, seed), "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert zazen.viz.match(ranks, files, strategy, seed) == zazen.viz.Matched(**found)
        assert sorted(file for own in found["assigned"] for file in own) == list(range(len(files)))
        far = [
            file
            for rank, own in enumerate(found["assigned"])
            for file in own
            if ranks[rank] not in files[file][1]
        ]
        load = [sum(files[file][0] for file in own) for own in found["assigned"]]
        assert found["remote"] == len(far) >= found["bound"]
        assert found["bytes_max"] == max(load) >= found["bytes_bound"]
        assert found["bytes_mean"] == sum(load) // len(load)
        if strategy != "bytes":
            assert max(map(len, found["assigned"])) <= -(-len(files) // len(ranks))


def test_scipy_finds_no_better_map():
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is the oracle here")
    for seed in range(40):
        ranks, files = drawn(seed, ranks=9, files=31)
        each = -(-len(files) // len(ranks))
        # A rank stands in as often as it has room; a remote read costs 1.
        cost = [[int(node not in holders) for node in ranks for _ in range(each)] for _, holders in files]
        least = sum(
            cost[row][column] for row, column in zip(*optimize.linear_sum_assignment(cost), strict=True)
        )
        assert zazen.viz.match(ranks, files).remote == least
        assert zazen.viz.match(ranks, files, "scarcest").bound == least


def test_scipy_finds_no_lower_byte_bound():
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is the oracle here")
    for seed in range(40):
        ranks, files = drawn(seed, ranks=7, files=25, copies=2)
        pairs = [(f, r) for f, (_, held) in enumerate(files) for r, node in enumerate(ranks) if node in held]
        pairs += [(f, r) for f, (_, held) in enumerate(files) if not set(held) & set(ranks) for r in range(7)]
        # Variables: the bytes of a pair, and the load of the fullest rank, which is made small.
        whole = [[float(f == file) for f, _ in pairs] + [0.0] for file in range(len(files))]
        loads = [[float(r == rank) for _, r in pairs] + [-1.0] for rank in range(7)]
        solved = optimize.linprog(
            [0.0] * len(pairs) + [1.0],
            A_ub=loads,
            b_ub=[0.0] * 7,
            A_eq=whole,
            b_eq=[float(size) for size, _ in files],
        )
        least = max(solved.fun, max(size for size, _ in files))
        found = zazen.viz.match(ranks, files, "bytes")
        assert found.bytes_bound == pytest.approx(least, abs=1.01), seed
        assert found.bytes_max <= least + max(size for size, _ in files), seed


def test_a_sticky_map_stays():
    ranks = ["a", "b"]
    steps = [[(1, ["a"]), (1, ["b"])], [(1, ["b"]), (1, ["a"])], [(1, ["a"]), (1, ["b"])]]
    found = zazen.viz.sticky(ranks, steps)
    assert found.assigned == [[0], [1]]
    assert (found.remote, found.bound) == (2, 0)


def test_a_person_reads_a_table():
    done = command(as_scenario(["n1", "n2"], [(10, ["n2"]), (30, ["n1"])], "optimal"))
    assert done.returncode == 0, done.stderr
    assert "0 remote (at least 0); bytes per rank: mean 20, most 30, at least 30" in done.stdout


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("{", "scenario"),
        (as_scenario([], [], "optimal"), "ranks"),
        (as_scenario([0], [], "best"), "least-demand"),
        (as_scenario([0], [(2**64 - 1, []), (1, [])], "optimal"), "64 bits"),
        ({"ranks": [0], "strategy": "optimal"}, "files"),
        ({"ranks": [0], "files": [], "strategy": "sticky"}, "steps"),
        (as_scenario([0], [], "optimal") | {"sed": 1}, "sed"),
        (as_scenario([0], [(-1, [])], "optimal"), "-1"),
        (as_scenario([-1], [], "optimal"), "a node: give a number"),
        (as_scenario([0], [(1, [0.5])], "optimal"), "a node: give a number"),
        (as_scenario([0], [], "best"), "and sticky"),
    ],
)
def test_a_wrong_scenario_names_the_field(scenario, words):
    done = command(scenario, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_python_names_what_is_wrong():
    for files, seed in (([(-1, [0])], 0), ([(2**64, [0])], 0), ([(1, [0])], -1)):
        with pytest.raises(zazen.InvalidArgumentError, match="2\\^64"):
            zazen.viz.match([0], files, seed=seed)
    with pytest.raises(zazen.InvalidArgumentError, match="least-demand"):
        zazen.viz.match([0], [(1, [0])], "best")
    with pytest.raises(zazen.InvalidArgumentError, match="64 bits"):
        zazen.viz.match([0], [(2**64 - 1, []), (1, [])])
    # Names, numbers and any other keys of nodes; files from a generator, holders from a set.
    named = zazen.viz.match([("a", 1), ("b", 2)], ((5, {node}) for node in [("b", 2), ("a", 1)]))
    assert named.assigned == [[1], [0]] and named.remote == 0


def test_more_ranks_than_files_and_no_files():
    assert zazen.viz.match([1, 2, 3], [(5, [3])]).assigned == [[], [], [0]]
    empty = zazen.viz.match([1, 2], [])
    assert (empty.assigned, empty.remote, empty.bytes_max) == ([[], []], 0, 0)
