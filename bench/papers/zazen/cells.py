#!/usr/bin/env python3
"""Several measurements in one MPI job: starting new interpreters for each would cost more than
measuring.

Reads a list of cells from a JSON file and prints, on rank 0, a list with what each gave. A cell
runs on the first `ranks` ranks; the others sleep. Its seconds lie between two barriers around
everything: opening, assignment, reading, analysis.

    mpiexec -n 8 python cells.py CELLS.json

A cell: {"do": "read" | "residence" | "files", "source": the dataset or a list of paths, "ranks": k,
"cold": drop the caches first, "readers" and "memory": of the read-ahead, "direct": past Zazen's
caches, "begin" and "end": frame numbers, "topology": a file, "threads" and "piece" (bytes per
read): for files, "numbers": also say which frames each rank got, "kill": {"rank", "pid", "after":
frames of this rank}}.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

from measure import Watch, drop_caches
from ranks import MPI, quiet_barrier

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
COPY_BYTES = 8 << 20
TAU_MAX = 20


class Fuse:
    """Kills a process of this machine after its rank has received a number of frames."""

    def __init__(self, cell: dict, rank: int) -> None:
        kill = cell.get("kill")
        self.left = kill["after"] if kill and kill["rank"] == rank else -1
        self.pid = kill["pid"] if kill else 0

    def burn(self) -> None:
        """One frame more."""
        self.left -= 1
        if self.left == 0:
            os.kill(self.pid, signal.SIGKILL)


def frames_of(cell: dict, comm: MPI.Comm, use) -> dict:
    """Every frame of this rank's share to `use`; counters."""
    import zazen

    options = {name: cell[name] for name in ("readers", "memory") if name in cell}
    fuse, numbers = Fuse(cell, comm.rank), []
    with zazen.open(cell["source"], direct=cell.get("direct", False)) as dataset:
        frames = dataset.frames(cell.get("begin"), cell.get("end"), comm=comm, **options)
        for frame in frames:
            use(frame)
            if cell.get("numbers"):
                numbers.append(frame.number)
            frame.data.release()
            fuse.burn()
        stats, assigned = frames.stats, frames.assignment
    return {
        "frames": stats.frames,
        "bytes": stats.bytes,
        "local": stats.native + stats.alien,
        "backing_reads": stats.backing_reads,
        "residue": assigned.residue,
        "numbers": numbers,
    }


def read(cell: dict, comm: MPI.Comm) -> dict:
    """Read each frame and drop it."""
    return frames_of(cell, comm, lambda frame: None)


@cache
def extraction(topology: str):
    """Loaded once for all cells: a job of hours would not notice."""
    import water_residence
    from extraction import Extraction

    warnings.filterwarnings("ignore", module="MDAnalysis")
    select = f"({water_residence.WATER}) and around 3.5 (protein)"
    return Extraction(topology, select)


def residence(cell: dict, comm: MPI.Comm) -> dict:
    """The analysis of examples/water_residence.py: extraction on all ranks, time series on the
    first."""
    import water_residence

    found, extract = [], extraction(cell["topology"])
    mine = frames_of(cell, comm, lambda frame: found.append((frame.number, extract.ids(frame.data))))
    quiet_barrier(comm)
    gathered = comm.gather(found)
    if gathered:
        everything = sorted((item for rank in gathered for item in rank), key=lambda item: item[0])
        mine["result"] = water_residence.survival(everything, TAU_MAX)[2]
    return mine


def files(cell: dict, comm: MPI.Comm) -> dict:
    """Plain files, an equal share per rank, several threads."""
    mine, totals = queue.SimpleQueue(), []
    for path in Path(cell["source"]).read_text().split("\n")[:-1][comm.rank :: comm.size]:
        mine.put(path)

    def reader() -> None:
        buffer, frames, size = memoryview(bytearray(cell.get("piece", COPY_BYTES))), 0, 0
        try:
            while True:
                handle = os.open(mine.get_nowait(), os.O_RDONLY)
                while got := os.readv(handle, [buffer]):
                    size += got
                os.close(handle)
                frames += 1
        except queue.Empty:
            totals.append((frames, size))

    threads = [threading.Thread(target=reader) for _ in range(cell.get("threads", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(totals) != len(threads):
        raise OSError(f"{cell['source']}: not all could be read")
    return {"frames": sum(frames for frames, _ in totals), "bytes": sum(size for _, size in totals)}


def load_code() -> None:
    """Read programs and libraries into memory again; otherwise they come from the measured disk."""
    import zazen

    for file in (Path(zazen._zazen.__file__), Path(sys.executable).parent / "zazend"):
        if file.is_file():
            file.read_bytes()


def measured(cell: dict, comm: MPI.Comm) -> dict | None:
    """Run the cell on `comm`; rank 0 gets the sums over the ranks."""
    if cell["do"] == "residence":
        extraction(cell["topology"])
    quiet_barrier(comm)
    if comm.rank == 0 and cell.get("cold"):
        drop_caches()
        load_code()
    quiet_barrier(comm)
    with Watch() as load:
        began = time.monotonic()
        mine = {"read": read, "residence": residence, "files": files}[cell["do"]](cell, comm)
        quiet_barrier(comm)
        seconds = time.monotonic() - began
    result, numbers = mine.pop("result", None), mine.pop("numbers", None)
    everyone = comm.gather((mine, numbers))
    if comm.rank != 0:
        return None
    total = {name: sum(one[name] for one, _ in everyone) for name in mine}
    total |= {"seconds": seconds, "cpu_share": load.cpu_share, "cpu_seconds": load.cpu_seconds}
    if result:
        total["result"] = result
    if cell.get("numbers"):
        total["numbers"] = [given for _, given in everyone]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", type=Path, help="the JSON file")
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    results = []
    for cell in json.loads(arguments.cells.read_text()):
        some = world.Split(0 if world.rank < cell["ranks"] else 1, world.rank)
        if world.rank < cell["ranks"]:
            results.append(measured(cell, some))
        quiet_barrier(world)
        some.Free()
    if world.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # The other ranks wait at a barrier: end them too.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
