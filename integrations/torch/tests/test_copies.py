"""Two copies of each sample, as `zazen load` and `zazen push` place them on real nodes. It needs no
torch.

`load` makes all pairs of nodes, and `push` all pairs of a node of one group with a node of the
other. So nearly all samples of all global batches are read on their readers' nodes.
"""

import subprocess

import numpy as np
import pytest
import zazen
import zazen.testing
from deal_alone import Homes, deal

NODES, SAMPLES, BATCH, EPOCHS = 4, 3200, 32, 3
LEAST = 0.999


def content(number):
    return number.to_bytes(4, "little") * 25


@pytest.mark.parametrize("how", ["load", "push"])
def test_samples_are_read_where_they_lie(folder, backing, how):
    images = backing / "two"
    images.mkdir()
    for number in range(SAMPLES):
        (images / f"sample-{number:05}.bin").write_bytes(content(number))
    (images / "done").touch()
    with zazen.testing.Cluster(folder / "c", backing, nodes=NODES) as cluster:
        (folder / "nodes.txt").write_text("\n".join(cluster.nodes) + "\n")
        command = {
            "push": ["push", "--watch", images, "--until", "done", "--timeout", "600s"],
            "load": ["load", images],
        }[how]
        options = ["--copies", 2, "--nodes", folder / "nodes.txt", "--key", cluster.key]
        words = [zazen.testing.program("zazen"), *command, *options]
        subprocess.run([str(word) for word in words], check=True, timeout=600, stdout=subprocess.DEVNULL)
        opened = [zazen.open(images, socket=socket) for socket in cluster.sockets]
        held = np.zeros((NODES, SAMPLES), dtype=bool)
        for node, dataset in enumerate(opened):
            native, alien = dataset.query(0, SAMPLES - 1)
            held[node, list(native | alien)] = True
        assert (held.sum(axis=0) == 2).all(), "each sample is on two nodes"
        homes, share = Homes(list(held)), NODES * BATCH
        local = 0
        for epoch in range(EPOCHS):
            order = np.random.default_rng(epoch).permutation(SAMPLES)
            mine = [[] for _ in range(NODES)]
            for first in range(0, SAMPLES, share):
                for node, part in enumerate(deal(order[first : first + share], homes, range(NODES), BATCH)):
                    mine[node] += part.tolist()
            for node, dataset in enumerate(opened):
                frames = dataset.read_many(mine[node])
                assert [bytes(frame.data) for frame in frames] == [content(one) for one in mine[node]]
                local += sum(
                    frame.source in ("native", "alien") and held[node, frame.number] for frame in frames
                )
        for dataset in opened:
            dataset.close()
    print(f"{how} --copies 2: local share {local / (EPOCHS * SAMPLES):.4f}")
    assert local >= LEAST * EPOCHS * SAMPLES
