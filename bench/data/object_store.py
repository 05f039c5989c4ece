#!/usr/bin/env python3
"""Cold frames of an object store through a daemon, against the same library bare.

    .venv/bin/python bench/data/object_store.py            a table
    .venv/bin/python bench/data/object_store.py --json     the same for programs

Both read the same objects of one server, eight at once, in turn: `obstore`, which is the library
`object_store` in Python and is told the keys, and a dataset's frames through zazend, whose cache is
empty. The time is from the first call until all bytes are in the reader's hands. Zazen also finds
the objects, writes the frames to its cache and checks them; the library does none of this. The
server is a model of a store at a distance: a first byte takes 20 ms, and a connection brings 60
MB/s. A server on this machine without these limits would measure this machine's cores, which run
the server, too. `make bench-objects` builds what it needs, optimised.

Two more figures do not depend on what else runs here. The processor time is that of zazend and
zazen-objects together, for each GB that they bring. The requests are those that Zazen sends in the
measured time: for names, most of which wait for each other, and for objects.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zazen
import zazen.testing

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/objects"))
from hostile import Hostile  # noqa: E402

FIRST_BYTE_SECONDS, CONNECTION_BYTES_PER_SECOND, PIECE = 0.020, 60e6, 256 << 10
AT_ONCE, TURNS, GOAL = 8, 7, 0.9
SIZES = {"64 KiB": (64 << 10, 800), "4 MiB": (4 << 20, 192), "32 MiB": (32 << 20, 24)}
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def distant(request) -> bool:
    """Answers as a store at a distance does."""
    time.sleep(FIRST_BYTE_SECONDS)
    connection = request.wfile

    class Paced:
        def write(self, data):
            begin, view = time.monotonic(), memoryview(data)
            for at in range(0, len(view), PIECE):
                connection.write(view[at : at + PIECE])
                ready = begin + min(at + PIECE, len(view)) / CONNECTION_BYTES_PER_SECOND
                time.sleep(max(0.0, ready - time.monotonic()))

        def flush(self):
            connection.flush()

    request.wfile = Paced()
    try:
        request.be_honest()
    finally:
        request.wfile = connection
    return True


def bare(store, keys: list[str], frame_bytes: int) -> float:
    """Seconds that the library takes for all objects."""
    import obstore

    begin = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        lengths = pool.map(lambda key: len(obstore.get(store, key).bytes()), keys)
        assert sum(lengths) == frame_bytes * len(keys)
    return time.perf_counter() - begin


def processor_seconds(daemon: int) -> float:
    """What the daemon and the programs that it started have used so far."""

    def of(pid: str) -> list[str]:
        return Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()

    ticks = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = of(pid)
            if int(pid) == daemon or int(fields[1]) == daemon:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def touch_memory(folder: Path, total: int) -> None:
    """Has this machine's memory given to it, if it is a virtual one: at the first touch that takes
    longer than what is measured here. Who reads without a cache touches less."""
    with (folder / "touched").open("wb") as file:
        for _ in range(0, total, 1 << 20):
            file.write(bytes(1 << 20))
    (folder / "touched").unlink()


def through_zazen(
    folder: Path, server: Hostile, helper: Path, frames: int, frame_bytes: int
) -> tuple[float, float, tuple[int, int]]:
    """Seconds that a reader of all frames takes, processor seconds for each GB, and requests: for
    names and for objects. The cache is empty."""
    (folder / "empty").mkdir()
    told = ["--backing", f"s3://b/p?endpoint={server.endpoint}", "--fetchers", AT_ONCE]
    variables = KEYS | {"ZAZEN_OBJECTS": str(helper)}
    with zazen.testing.Daemon(folder, folder / "empty", told, variables=variables) as node:
        with zazen.open("s3://b/p/run1", socket=str(node.socket)) as dataset:
            server.requests.clear()
            begin, used = time.perf_counter(), processor_seconds(node.pid)
            assert sum(frame.length for frame in dataset.frames()) == frames * frame_bytes
            took = time.perf_counter() - begin
            cost = (processor_seconds(node.pid) - used) / (frames * frame_bytes / 1e9)
            for_objects = sum("frame" in key for _, key, _ in server.requests)
            return took, cost, (len(server.requests) - for_objects, for_objects)


def measure(name: str, helper: Path) -> dict[str, object]:
    from obstore.store import S3Store

    frame_bytes, frames = SIZES[name]
    data = os.urandom(frame_bytes)
    objects = {f"p/run1/frame{number:04}": data for number in range(frames)}
    ratios, rates, costs, asked = [], [], [], []
    with Hostile(objects) as server:
        server.behave = distant
        store = S3Store(
            "b",
            endpoint=server.endpoint,
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        for turn in range(TURNS):
            with tempfile.TemporaryDirectory(prefix="zz") as folder:
                touch_memory(Path(folder), frames * frame_bytes)

                def zazen_seconds(folder=folder):
                    return through_zazen(Path(folder), server, helper, frames, frame_bytes)

                def bare_seconds():
                    return bare(store, list(objects), frame_bytes)

                if turn % 2:
                    through, bare_took = zazen_seconds(), bare_seconds()
                else:
                    bare_took, through = bare_seconds(), zazen_seconds()
            took, cost, requests = through
            costs.append(cost)
            asked.append(requests)
            ratios.append(bare_took / took)
            rates.append(frames * frame_bytes / bare_took / 1e6)
    ratios.sort()
    return {
        "what": f"{frames} objects of {name}",
        "bare_mb_per_s": statistics.median(rates),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "processor_s_per_gb": statistics.median(costs),
        "name_requests": statistics.median(names for names, _ in asked),
        "object_requests": statistics.median(objects for _, objects in asked),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--helper", type=Path, default=ROOT / "target/objects/release/zazen-objects")
    parser.add_argument("sizes", nargs="*", default=list(SIZES), metavar="SIZE", help="; ".join(SIZES))
    options = parser.parse_args()
    rows = [measure(name, options.helper) for name in options.sizes]
    if options.json:
        print(json.dumps({"rows": rows, "load": os.getloadavg()[0]}))
        return 0
    print(f"load average {os.getloadavg()[0]:.1f}; {TURNS} turns each")
    for row in rows:
        low, high = row["spread"]
        print(
            f"{row['what']}: {row['bare_mb_per_s']:.0f} MB/s bare; through Zazen {row['ratio']:.2f} of it "
            f"({low:.2f} .. {high:.2f}); goal {GOAL}; "
            f"{row['processor_s_per_gb']:.1f} s of processor for each GB; "
            f"{row['name_requests']:.0f} requests for names, {row['object_requests']:.0f} for objects"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
