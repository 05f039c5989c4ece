#!/usr/bin/env python3
"""Read a dataset in parallel and say how long it took: what the reading figures run under mpiexec.

Prints one JSON object on rank 0: seconds between two barriers placed before and after everything
(assignment, opening, reading), bytes, frames, and for Zazen where the frames came from. Each frame is read
whole into memory.

    mpiexec -n 4 python read_frames.py zazen DATASET
    mpiexec -n 4 python read_frames.py files LIST --threads 4     # LIST: paths; {node} is replaced
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
import time

from mpi4py import MPI

COPY_BYTES = 8 << 20


def read_zazen(arguments: argparse.Namespace, comm: MPI.Comm) -> dict:
    """All frames of the dataset through Zazen: who reads which is settled by the ranks."""
    import zazen

    options = {} if arguments.readers is None else {"readers": arguments.readers}
    with zazen.open(arguments.source) as dataset:
        with dataset.frames(comm=comm, **options) as frames:
            for frame in frames:
                frame.data.release()
            stats = frames.stats
            return {
                "frames": stats.frames,
                "bytes": stats.bytes,
                "local": stats.native + stats.alien,
                "backing_reads": stats.backing_reads,
            }


def read_files(arguments: argparse.Namespace, comm: MPI.Comm) -> dict:
    """An equal share of the listed files per rank, whole files, `--threads` at a time."""
    with open(arguments.source) as file:
        paths = file.read().split("\n")[:-1]
    node = os.environ.get("ZAZEN_TESTBED_NODE", f"n{comm.rank}")
    mine = queue.SimpleQueue()
    for path in paths[comm.rank :: comm.size]:
        mine.put(path.replace("{node}", node))
    totals, failures = [], []

    def reader() -> None:
        buffer = memoryview(bytearray(COPY_BYTES))
        frames = size = 0
        try:
            while True:
                handle = os.open(mine.get_nowait(), os.O_RDONLY)
                try:
                    while got := os.readv(handle, [buffer]):
                        size += got
                finally:
                    os.close(handle)
                frames += 1
        except queue.Empty:
            totals.append((frames, size))
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=reader) for _ in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {"frames": sum(frames for frames, _ in totals), "bytes": sum(size for _, size in totals)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("through", choices=["zazen", "files"])
    parser.add_argument("source", help="the dataset, or the list of files")
    parser.add_argument("--threads", type=int, default=1, help="files read at a time by each rank")
    parser.add_argument("--readers", type=int, help="Zazen's read-ahead threads (default: its own choice)")
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    read = {"zazen": read_zazen, "files": read_files}[arguments.through]
    comm.Barrier()
    began = time.monotonic()
    mine = read(arguments, comm)
    own_seconds = time.monotonic() - began
    comm.Barrier()
    seconds = time.monotonic() - began
    everyone = comm.gather(mine | {"own_seconds": own_seconds})
    if comm.rank == 0:
        total = {name: sum(one[name] for one in everyone) for name in mine}
        slowest = max(one["own_seconds"] for one in everyone)
        print(json.dumps(total | {"seconds": seconds, "slowest_rank_seconds": slowest, "ranks": comm.size}))


if __name__ == "__main__":
    main()
