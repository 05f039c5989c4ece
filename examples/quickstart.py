#!/usr/bin/env python3
"""Zazen in one minute, on a laptop: no MPI, no daemon to set up, nothing left behind.

    python quickstart.py

It plays a simulation that writes 100 frames, pushes them into the caches of two nodes (daemons on
this machine), and reads them back through each of them.
"""

import tempfile
from pathlib import Path

import zazen
import zazen.testing


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Path(folder, "server")
        dataset = server / "sim1"
        dataset.mkdir(parents=True)
        with zazen.testing.Cluster(Path(folder, "nodes"), server, nodes=2) as cluster:
            with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
                for number in range(100):
                    name, frame = f"frame-{number:07}.bin", number.to_bytes(4, "little") * 50_000
                    (dataset / name).write_bytes(frame)
                    writer.push(number, frame, name)
            print("pushed:", writer.counters)

            for node, socket in enumerate(cluster.sockets):
                with zazen.open(dataset, socket=socket) as opened:
                    natives, aliens = opened.query(0, 99)
                    frames = opened.frames()
                    total = sum(int.from_bytes(data[:4], "little") for _, data, _ in frames)
                print(
                    f"node {node}: held natives {natives}, aliens {aliens}; read {frames.stats}, sum {total}"
                )


if __name__ == "__main__":
    main()
