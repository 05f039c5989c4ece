"""Lifts a cluster's limits while datasets are stored, because only reading is measured."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from cluster import Cluster, call

V1_FILES = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")


@contextlib.contextmanager
def lifted(cluster: Cluster) -> Iterator[None]:
    """While inside, links and disks are as fast as the machine; the same limits are put back
    afterwards."""
    with _links_free(cluster), _disks_free(cluster):
        yield


@contextlib.contextmanager
def _links_free(cluster: Cluster) -> Iterator[None]:
    state = cluster.state()
    hosts = [*state["nodes"], state["server"]]
    ends = [(host["netns"], "eth0") for host in hosts]
    ends += [(state["net"]["switch"], f"p-{host['name']}") for host in hosts]
    shapes = {end: _shape(*end) for end in ends}
    for netns, device in ends:
        call(["tc", "-n", netns, "qdisc", "del", "dev", device, "root"])
    try:
        yield
    finally:
        for (netns, device), shape in shapes.items():
            call(["tc", "-n", netns, "qdisc", "add", "dev", device, "root", "tbf", *shape])


def _shape(netns: str, device: str) -> list[str]:
    """The words that `tc` takes to make this end's token bucket again."""
    told = json.loads(call(["tc", "-json", "-netns", netns, "qdisc", "show", "dev", device]))
    bucket = next(one["options"] for one in told if one["kind"] == "tbf")
    # `tc` reports the depth rounded down: without rounding up it would shrink from time to time.
    burst = -(-bucket["burst"] // 1000) * 1000
    words = {"rate": f"{bucket['rate']}bps", "burst": f"{burst}b", "latency": f"{bucket['lat']}us"}
    return [word for pair in words.items() for word in pair]


@contextlib.contextmanager
def _disks_free(cluster: Cluster) -> Iterator[None]:
    disk = cluster.state()["disk"]
    before = {}
    if disk:
        names = ("io.max",) if disk["unified"] else V1_FILES
        before = {file: file.read_text().split("\n")[:-1] for name in names for file in _groups(disk, name)}
    for file, lines in before.items():
        for line in lines:
            device = line.split(" ", 1)[0]
            file.write_text(f"{device} rbps=max wbps=max" if disk["unified"] else f"{device} 0")
    try:
        yield
    finally:
        for file, lines in before.items():
            for line in lines:
                file.write_text(line)


def _groups(disk: dict, name: str) -> list[Path]:
    """The file `name` of each host's control group."""
    return sorted(Path(disk["group"]).glob(f"*/{name}"))
