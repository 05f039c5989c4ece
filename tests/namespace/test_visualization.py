"""A visualization in a mount of the namespace: the namespace says where its files are."""

import json
import warnings
from pathlib import Path

import pytest
import zazen.testing
import zazen.viz
from test_four_nodes import zazen_command


def test_each_rank_is_given_what_its_node_holds(folder, alone):
    bed, mounts = folder / "bed", folder / "m"

    def test():
        up = ["--namespace", "--mounts", mounts, "--replicas", 1]
        zazen_command("testbed", "up", 2, "--dir", bed, *up)
        sockets = [node["socket"] for node in json.loads((bed / "testbed.json").read_text())["nodes"]]
        m = [mounts / "0", mounts / "1"]
        (m[0] / "a b").mkdir()
        for node in range(2):
            for step in range(2):
                (m[node] / f"a b/s{step}_{node}.vtu").write_bytes(bytes([step, node]) * 500)
        rows = [f"{step / 10},s{step}_{node}.vtu\n" for step in range(2) for node in range(2)]
        (m[0] / "a b/ts.csv").write_text("time,file\n" + "".join(rows))

        ranks = folder / "hosts.txt"
        ranks.write_text("n1\nn0\n")
        words = ["viz", "plan", m[1] / "a b/ts.csv", "--ranks", ranks, "--socket", sockets[1], "--json"]
        planned = json.loads(zazen_command(*words))
        assert (planned["files"], planned["remote"]) == (4, 0)
        assert planned["steps"][0]["assigned"] == [["s0_1.vtu"], ["s0_0.vtu"]]

        for node in range(2):
            index = m[node] / "a b/ts.csv"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                opened = zazen.viz.Visualization(index, socket=sockets[node])
            assert opened.namespace == "/a b"
            for step in range(2):
                assert opened.plan(step).is_local == [at == node for at in range(2)]
                for at in range(2):
                    assert opened.path_of(step, at).read_bytes() == bytes([step, at]) * 500
                assert opened.read(step, [0, 1]) is None, "no cache is asked"
            assert zazen.viz.Visualization(index, socket=sockets[node], locator="none").plan(0).remote == 2
        # No daemon to ask: a word, and all counts as remote.
        with pytest.warns(zazen.ZazenWarning, match="does not say where"):
            opened = zazen.viz.Visualization(m[0] / "a b/ts.csv", socket=folder / "nothing")
        assert opened.plan(0).remote == 2 and Path(opened.path_of(0, 0)).is_file()
        zazen_command("testbed", "down", "--dir", bed)

    alone(test)
