import pytest
import zazen

SCENARIO = {
    "nodes_of_ranks": [0, 1],
    "begin": 0,
    "end": 9,
    "stride": 1,
    "native": [[[0, 5, 2]], [[1, 4, 2]]],
    "alien": [[], []],
}


def test_a_small_scenario():
    for protocol in ("owner", "bitmaps"):
        outcome = zazen.assign_scenario(SCENARIO | {"protocol": protocol, "rules": "full"})
        assert (outcome["native"], outcome["alien"], outcome["residue"]) == (9, 0, 1), protocol
        frames = [set(zazen.RunSet.from_runs(runs)) for runs in outcome["assigned"]]
        assert frames == [{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}], protocol
        assert outcome["path"] == "exchange" and len(outcome["bytes_sent"]) == 2 and outcome["rounds"] > 0


def test_a_wrong_one_names_the_field():
    with pytest.raises(ValueError, match="end"):
        zazen.assign_scenario(SCENARIO | {"begin": 10})
    with pytest.raises(zazen.InvalidArgumentError, match="rules"):
        zazen.assign_scenario(SCENARIO | {"rules": "mine"})
