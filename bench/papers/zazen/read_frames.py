#!/usr/bin/env python3
"""Read a dataset in parallel and say how long it took: what the reading figures run under mpiexec.

Prints one JSON object on rank 0: seconds between two barriers placed before and after everything
(assignment, opening, reading), processor seconds of the whole machine meanwhile, bytes, frames, and
for Zazen where the frames came from. Each frame is read whole into memory; with --frame-bytes its
size and its first bytes (its number, see frames.py) are checked.

    mpiexec -n 4 python read_frames.py zazen DATASET
    mpiexec -n 4 python read_frames.py files LIST --threads 4     # LIST: paths; {node} is replaced
    mpiexec -n 4 python read_frames.py nfs LIST --threads 4       # as peers/nfs_client.py names files
    python read_frames.py code                                    # which files its own code is in
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import re
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

from measure import Watch
from ranks import MPI, quiet_barrier

COPY_BYTES = 8 << 20


class ZazenReader:
    """All frames of the dataset through Zazen: the ranks agree on who reads which."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import zazen

        self._zazen, self._arguments = zazen, arguments
        load_code(zazen._zazen.__file__)

    def __call__(self, comm: MPI.Comm) -> dict:
        readers, frame_bytes = self._arguments.readers, self._arguments.frame_bytes
        options = {} if readers is None else {"readers": readers}
        with self._zazen.open(self._arguments.source) as dataset:
            frames = dataset.frames(comm=comm, **options)
            for frame in frames:
                data = frame.data
                if frame_bytes:
                    check(str(frame.number), len(data), bytes(data[:8]), frame_bytes)
                data.release()
            stats = frames.stats
            return {
                "frames": stats.frames,
                "bytes": stats.bytes,
                "local": stats.native + stats.alien,
                "backing_reads": stats.backing_reads,
            }


class FileClient:
    """Plain files: a local disk, or what is mounted there. Clients of peers offer the same."""

    def connect(self, file: str) -> None:
        """Get ready for files like this one, as a mount would be: not part of reading."""

    def read(self, file: str, buffer: memoryview) -> tuple[int, bytes]:
        """Read the whole file through `buffer`: its size and its first eight bytes."""
        size, head = 0, b""
        handle = os.open(file, os.O_RDONLY)
        try:
            while got := os.readv(handle, [buffer]):
                head = head or bytes(buffer[: min(8, got)])
                size += got
        finally:
            os.close(handle)
        return size, head


class FilesReader:
    """An equal share of the listed files per rank, whole files, `--threads` at a time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        with open(arguments.source) as file:
            self._paths = file.read().split("\n")[:-1]
        client = FileClient if arguments.through == "files" else peer_client(arguments.through)
        # For each thread; the paper's file systems were mounted before the clock ran, too.
        self._clients = [client() for _ in range(arguments.threads)]
        self._buffers = [memoryview(bytearray(COPY_BYTES)) for _ in range(arguments.threads)]
        for one in self._clients if self._paths else []:
            one.connect(self._paths[0])

    def __call__(self, comm: MPI.Comm) -> dict:
        node = os.environ.get("ZAZEN_NODE", f"n{comm.rank}")
        mine = queue.SimpleQueue()
        for path in self._paths[comm.rank :: comm.size]:
            mine.put(path.replace("{node}", node))
        totals, failures = [], []

        def reader(client: FileClient, buffer: memoryview) -> None:
            try:
                totals.append(self._read_all(client, mine, buffer))
            except Exception as error:
                failures.append(error)

        pairs = zip(self._clients, self._buffers, strict=True)
        threads = [threading.Thread(target=reader, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return {"frames": sum(frames for frames, _ in totals), "bytes": sum(size for _, size in totals)}

    def _read_all(self, client: FileClient, mine: queue.SimpleQueue, buffer: memoryview) -> tuple[int, int]:
        frames = total = 0
        try:
            while True:
                path = mine.get_nowait()
                size, head = client.read(path, buffer)
                if self._arguments.frame_bytes:
                    check(path, size, head, self._arguments.frame_bytes)
                total += size
                frames += 1
        except queue.Empty:
            return frames, total


def peer_client(through: str) -> type:
    """`Client` of `peers/<through>_client.py`."""
    module = importlib.import_module(f"peers.{through}_client")
    load_code(*module.code())
    return module.Client


def load_code(*files: str) -> None:
    """Read libraries into memory; otherwise they come from the throttled disk while the clock
    runs."""
    for file in files:
        with open(file, "rb") as library:
            while library.read(COPY_BYTES):
                pass


def check(name: str, size: int, head: bytes, frame_bytes: int) -> None:
    """Is this the frame whose number `name` ends with? `ValueError` says what is wrong."""
    number = int(re.findall(r"\d+", name)[-1])
    if size != frame_bytes or head != number.to_bytes(8, "little"):
        found = f"{size} bytes beginning with {head.hex()}"
        raise ValueError(f"{name}: {found}, not {frame_bytes} of frame {number}")


def code() -> list[str]:
    """The files that this process and its modules were loaded from."""
    import zazen  # noqa: F401

    files = {getattr(module, "__cached__", None) for module in list(sys.modules.values())}
    with open("/proc/self/maps") as maps:
        files |= {word for word in (line.split()[-1] for line in maps) if not word.startswith("/dev/")}
    files |= {shutil.which(name) for name in ("mpiexec", "mpiexec.hydra", "hydra_pmi_proxy")}
    return sorted(file for file in files if file and os.path.isfile(file))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("through", choices=["zazen", "files", "nfs", "hdfs", "code"])
    parser.add_argument("source", nargs="?", help="the dataset, or the list of files")
    parser.add_argument("--threads", type=int, default=1, help="files read at a time by each rank")
    parser.add_argument("--readers", type=int, help="Zazen's read-ahead threads (default: its own choice)")
    parser.add_argument("--frame-bytes", type=int, help="each frame's size: check what was read")
    arguments = parser.parse_args()
    if arguments.through == "code":
        print("\n".join(code()))
        return
    comm = MPI.COMM_WORLD
    read = (ZazenReader if arguments.through == "zazen" else FilesReader)(arguments)
    quiet_barrier(comm)
    with Watch() as load:
        began = time.monotonic()
        mine = read(comm)
        own_seconds = time.monotonic() - began
        quiet_barrier(comm)
    everyone = comm.gather(mine | {"own_seconds": own_seconds})
    if comm.rank == 0:
        total = {name: sum(one[name] for one in everyone) for name in mine}
        slowest = max(one["own_seconds"] for one in everyone)
        times = {"seconds": load.seconds, "slowest_rank_seconds": slowest, "cpu_seconds": load.cpu_seconds}
        print(json.dumps(total | times | {"ranks": comm.size}))


if __name__ == "__main__":
    try:
        main()
    except Exception:
        # The other ranks wait at a barrier: end them too.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
