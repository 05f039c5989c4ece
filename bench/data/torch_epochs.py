#!/usr/bin/env python3
"""Two epochs of shuffled samples over a throttled store: zazen.torch.LocalSampler beside
DistributedSampler.

    .venv/bin/python bench/data/torch_epochs.py            a table
    .venv/bin/python bench/data/torch_epochs.py --json     the same for programs

Each sampler gets a testbed of its own with cold caches, one rank a node, collectives over gloo.
Both read through the nodes' daemons, with the same seed, and fill the caches as they go. Printed by
epoch: samples per second of all ranks together, the store's bytes as a share of the dataset (the
file server's own count), and the share of samples that lay on the reader's node. The global batches
of both are compared. Turns alternate; the ratio is of one turn. A third testbed gets two copies of
each sample by `zazen push --copies 2` before LocalSampler begins. Needs PyTorch
(scripts/test-torch.sh installs it in .venv-torch).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zazen
import zazen.testing

NODES, SAMPLES, SAMPLE_BYTES, BATCH, EPOCHS, SEED = 4, 1600, 64 << 10, 32, 2, 1
#: What the file server gives all readers together.
STORE_RATE = "25M"
GOAL_SPEED, GOAL_STORE_SHARE, GOAL_LOCAL, GOAL_LOCAL_OF_TWO = 3.0, 0.07, 0.92, 0.999


class Testbed:
    """Nodes over a file server of bounded rate; a context manager."""

    def __init__(self, folder: Path, rate: str | None = STORE_RATE) -> None:
        self.folder, self.rate = folder, rate
        self.environment = zazen.testing.environment() | {"ZAZEND": zazen.testing.program("zazend")}

    def zazen(self, *words: object) -> str:
        command = [zazen.testing.program("zazen"), "testbed", "--dir", str(self.folder), *map(str, words)]
        return subprocess.run(
            command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def __enter__(self) -> Testbed:
        self.zazen("up", NODES, *(["--server-rate", self.rate] if self.rate else []))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.zazen("down")

    def status(self) -> dict[str, Any]:
        return json.loads(self.zazen("status", "--json"))


def rank_main(job: dict[str, Any]) -> None:
    import torch.distributed
    import zazen.torch
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

    rank = int(os.environ["RANK"])
    store = torch.distributed.FileStore(job["folder"] + "/rendezvous", NODES)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=NODES)
    frames = zazen.open(job["dataset"], socket=job["sockets"][rank])
    samples = zazen.torch.Dataset(frames)
    if job["sampler"] != "plain":
        batches = epochs = zazen.torch.LocalSampler(samples, BATCH, seed=SEED)
    else:
        epochs = DistributedSampler(samples, seed=SEED, drop_last=True)
        batches = BatchSampler(epochs, BATCH, drop_last=False)
    told = []
    for epoch in range(EPOCHS):
        epochs.set_epoch(epoch)
        native, alien = frames.query(0, 1 << 40)
        held = native | alien
        torch.distributed.barrier()
        begun = time.perf_counter()
        drawn = []

        def noted(drawn: list[list[int]] = drawn) -> Any:
            for batch in batches:
                drawn.append(batch)
                yield batch

        count = 0
        for batch in DataLoader(samples, batch_sampler=_Sized(noted, len(batches)), collate_fn=list):
            count += len(batch)
            assert all(len(sample) == SAMPLE_BYTES for sample in batch)
        torch.distributed.barrier()
        seconds = time.perf_counter() - begun
        local = sum(samples.positions.number(one) in held for batch in drawn for one in batch) / max(count, 1)
        told.append({"seconds": seconds, "samples": count, "local": local, "batches": drawn})
        Path(job["folder"], f"epoch{epoch}-{rank}").touch()
        Path(job["folder"], f"rank{rank}.json").write_text(json.dumps(told))
        while epoch + 1 < EPOCHS and not Path(job["folder"], f"go{epoch}").exists():
            time.sleep(0.02)
    torch.distributed.destroy_process_group()


class _Sized:
    def __init__(self, make: Any, length: int) -> None:
        self.make, self.length = make, length

    def __iter__(self) -> Any:
        return self.make()

    def __len__(self) -> int:
        return self.length


def run(sampler: str, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    with Testbed(folder / "t") as testbed:
        dataset = folder / "t" / "server" / "images"
        dataset.mkdir(parents=True)
        for number in range(SAMPLES):
            (dataset / f"sample-{number:06}.bin").write_bytes(
                number.to_bytes(8, "little") * (SAMPLE_BYTES // 8)
            )
        time.sleep(0.1)
        if sampler == "copies":
            (dataset / "done").touch()
            push = [zazen.testing.program("zazen"), "push", "--watch", dataset, "--until", "done"]
            testbed.zazen(
                "run", "--on", "sim", "--", *push, "--copies", 2, "--nodes", folder / "t" / "nodes.txt"
            )
        hosts = {host["name"]: host for host in testbed.status()["hosts"]}
        job = {
            "sampler": sampler,
            "folder": str(folder),
            "dataset": str(dataset),
            "sockets": [hosts[f"n{node}"]["socket"] for node in range(NODES)],
        }
        before = testbed.status()["server_traffic"]["bytes"]
        environment = zazen.testing.environment() | {"WORLD_SIZE": str(NODES), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, __file__, "--rank", json.dumps(job)]
        ranks = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}) for rank in range(NODES)]
        store = []
        for epoch in range(EPOCHS):
            while not all((folder / f"epoch{epoch}-{rank}").exists() for rank in range(NODES)):
                if any(process.poll() not in (None, 0) for process in ranks):
                    raise RuntimeError("a rank failed")
                time.sleep(0.02)
            now = testbed.status()["server_traffic"]["bytes"]
            store.append(now - before)
            before = now
            (folder / f"go{epoch}").touch()
        if any(process.wait() for process in ranks):
            raise RuntimeError("a rank failed")
    told = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(NODES)]
    epochs = []
    for epoch in range(EPOCHS):
        of = [rank[epoch] for rank in told]
        samples = sum(one["samples"] for one in of)
        epochs.append(
            {
                "rate": samples / max(one["seconds"] for one in of),
                "store_share": store[epoch] / (SAMPLES * SAMPLE_BYTES),
                "local": sum(one["local"] * one["samples"] for one in of) / samples,
                "batches": [
                    sorted(itertools.chain.from_iterable(parts))
                    for parts in zip(*(one["batches"] for one in of), strict=True)
                ],
            }
        )
    return epochs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(json.loads(options.rank))
        return 0
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch epochs: not measured, torch is not installed (scripts/test-torch.sh installs it)")
        return 0
    turns = []
    for turn in range(options.turns):
        found = {}
        samplers = ("plain", "local", "copies")
        for sampler in samplers if turn % 2 == 0 else reversed(samplers):
            with tempfile.TemporaryDirectory(prefix="zz") as folder:
                found[sampler] = run(sampler, Path(folder, "r"))
        turns.append(found)
    ratios = [turn["local"][1]["rate"] / turn["plain"][1]["rate"] for turn in turns]
    row = {
        "what": f"torch: {NODES} ranks, batch {BATCH}, {SAMPLES} samples of {SAMPLE_BYTES} bytes, "
        f"store {STORE_RATE}/s",
        "turns": options.turns,
        "epoch_2_speedup": statistics.median(ratios),
        "epoch_2_speedup_spread": [min(ratios), max(ratios)],
        "same_batches": all(
            turn[sampler][epoch]["batches"] == turn["plain"][epoch]["batches"]
            for turn in turns
            for sampler in ("local", "copies")
            for epoch in range(EPOCHS)
        ),
    }
    for sampler in ("plain", "local", "copies"):
        for name in ("rate", "store_share", "local"):
            row[f"{sampler}_{name}"] = [
                statistics.median(turn[sampler][epoch][name] for turn in turns) for epoch in range(EPOCHS)
            ]
    row["good"] = (
        row["same_batches"]
        and row["epoch_2_speedup"] >= GOAL_SPEED
        and row["local_store_share"][1] <= GOAL_STORE_SHARE
        and row["local_local"][1] >= GOAL_LOCAL
        and min(row["copies_local"]) >= GOAL_LOCAL_OF_TWO
    )
    if options.json:
        print(json.dumps(row))
        return 0
    print(row["what"])
    names = {"plain": "DistributedSampler", "local": "LocalSampler", "copies": "two copies"}
    for sampler, name in names.items():
        for epoch in range(EPOCHS):
            rate, store, local = (row[f"{sampler}_{key}"][epoch] for key in ("rate", "store_share", "local"))
            print(
                f"  {name:18} epoch {epoch + 1}: {rate:8.0f} samples/s, store {store:6.1%}, local "
                f"{local:7.2%}"
            )
    low, high = row["epoch_2_speedup_spread"]
    print(
        f"  epoch 2: {row['epoch_2_speedup']:.1f} times as fast ({low:.1f} … {high:.1f}); goal {GOAL_SPEED}"
    )
    print(f"  the same global batches: {row['same_batches']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
