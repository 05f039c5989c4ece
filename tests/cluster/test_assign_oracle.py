"""`zazen assign --scenario` against an oracle that knows only the rules' text: frame by frame.

Written from the paper (§4) and ARCHITECTURE.md ("Assignment"), not from the code.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
from collections import Counter

import pytest

ZAZEN = os.environ.get("ZAZEN_BIN", str(pathlib.Path(sys.executable).parent / "zazen"))
SEEDS = range(120)


def expand(runs):
    return {first + index * step for first, count, step in runs for index in range(count)}


def run(scenario):
    done = subprocess.run(
        [ZAZEN, "assign", "--scenario", "-", "--json"],
        input=json.dumps(scenario), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{scenario}\n{done.stderr}"
    return json.loads(done.stdout)


def some_runs(dice, top, crowded):
    runs = []
    for _ in range(dice.randint(0, 4 if crowded else 2)):
        first, step = dice.randint(0, top), dice.choice([1, 1, 2, 3, 4, 7, 64])
        runs.append([first, dice.randint(1, max(1, (top - first) // step + 1)), step])
    return runs


def make(seed):
    dice = random.Random(seed)
    nodes = dice.randint(1, 6)
    ranks = dice.randint(1, 9)
    nodes_of_ranks = [dice.randrange(nodes) for _ in range(ranks)]
    top = dice.choice([1, 10, 200, 3000, 70_000, 140_000])
    begin = dice.randint(0, top // 2)
    kind = dice.choice(["perfect", "nearly", "mess"])
    native, alien = [[] for _ in range(nodes)], [[] for _ in range(nodes)]
    if kind == "mess":
        native = [some_runs(dice, top, True) for _ in range(nodes)]
        alien = [some_runs(dice, top, True) for _ in range(nodes)]
    else:
        for node in range(nodes):
            native[node] = [[node, max(1, (top - node) // nodes + 1), nodes]] if node <= top else []
            if kind == "nearly":
                alien[node] = some_runs(dice, top, False)
        if kind == "nearly":
            native[dice.randrange(nodes)] = some_runs(dice, top, False)
    return {
        "nodes_of_ranks": nodes_of_ranks, "begin": begin, "end": dice.randint(begin, top),
        "stride": dice.choice([1, 1, 1, 2, 5, 64]), "native": native, "alien": alien,
        "rules": dice.choice(["full", "paper"]), "protocol": dice.choice(["owner", "bitmaps"]),
    }  # fmt: skip


def check(scenario, outcome):
    target = set(range(scenario["begin"], scenario["end"] + 1, scenario["stride"]))
    ranks_of = {}
    for rank, node in enumerate(scenario["nodes_of_ranks"]):
        ranks_of.setdefault(node, []).append(rank)
    native = {node: expand(scenario["native"][node]) & target for node in ranks_of}
    alien = {node: expand(scenario["alien"][node]) & target for node in ranks_of}
    assigned = [expand(runs) for runs in outcome["assigned"]]

    times = Counter(frame for share in assigned for frame in share)
    assert set(times) == target and set(times.values()) == {1}, "each requested frame exactly once"
    assert sum(count for runs in outcome["assigned"] for _, count, _ in runs) == len(target), "runs overlap"

    reader = {
        frame: scenario["nodes_of_ranks"][rank] for rank, share in enumerate(assigned) for frame in share
    }
    natives = aliens = 0
    residue = []
    for frame in sorted(target):
        holders = [node for node in ranks_of if frame in native[node]]
        guests = [node for node in ranks_of if frame in alien[node]]
        if holders:
            assert reader[frame] in holders, f"rule 1, frame {frame}"
            natives += 1
        elif len(guests) == 1 or (guests and scenario["rules"] == "full"):
            assert reader[frame] in guests, f"rule 2, frame {frame}"
            aliens += 1
        else:
            residue.append(frame)
    assert (outcome["native"], outcome["alien"], outcome["residue"]) == (natives, aliens, len(residue))

    sole = all(sum(frame in native[node] for node in ranks_of) == 1 for frame in target)
    if scenario["protocol"] == "owner":
        assert (outcome["path"] == "fingerprint") == sole
    place = {frame: index for index, frame in enumerate(residue)}
    for share in assigned:
        mine = sorted(place[frame] for frame in share if frame in place)
        assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True, (
            "residue in contiguous blocks"
        )
    if scenario["rules"] == "paper":
        sizes = [sum(frame in place for frame in share) for share in assigned]
        assert max(sizes) - min(sizes) <= 1, f"equal residue blocks: {sizes}"
        starts = [min((place[f] for f in share if f in place), default=None) for share in assigned]
        starts = [start for start in starts if start is not None]
        assert starts == sorted(starts), "blocks by rank"
    elif residue:
        # Residue levels the load: who got some is not above anybody by more than a frame.
        loads = [len(share) for share in assigned]
        filled = [load for load, share in zip(loads, assigned, strict=True) if any(f in place for f in share)]
        assert max(filled) <= min(loads) + 1, f"loads {loads}"


@pytest.mark.parametrize("seed", SEEDS)
def test_assignment_agrees_with_the_oracle(seed):
    scenario = make(seed)
    outcome = run(scenario)
    check(scenario, outcome)
    other = run(scenario | {"protocol": "bitmaps" if scenario["protocol"] == "owner" else "owner"})
    assert other["assigned"] == outcome["assigned"], "both protocols give the same shares"


def test_a_billion_frames_by_description():
    nodes = 8
    scenario = {
        "nodes_of_ranks": list(range(nodes)), "begin": 0, "end": 10**9 - 1, "stride": 1,
        "native": [[[node, 10**9 // nodes, nodes]] for node in range(nodes)],
        "alien": [[] for _ in range(nodes)], "rules": "full", "protocol": "owner",
    }  # fmt: skip
    outcome = run(scenario)
    assert outcome["path"] == "fingerprint" and outcome["native"] == 10**9
    assert outcome["assigned"] == scenario["native"]
    assert max(outcome["bytes_sent"]) < 100 * nodes
