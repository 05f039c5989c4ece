#!/usr/bin/env python3
"""Reading from and writing to HDFS by hdfs-native; run on a node of the cluster.

    hdfs_client.py store hdfs://HOST:PORT DATASET FIRST STEP REPLICAS [FOLDER]
    hdfs_client.py strays hdfs://HOST:PORT DATASET FIRST STEP
    hdfs_client.py live HOST

`store` writes the files FIRST, FIRST + STEP, … of the folder into HDFS's folder of the same name,
or FOLDER; `strays` prints how many of them this node's DataNode does not hold; `live` prints how
many DataNodes the NameNode knows.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

WEB_PORT = 9870
# HDFS checksums each run of so many bytes; a block is a whole number of them.
CHECKSUM_BYTES = 512
COPY_BYTES = 8 << 20
REPORTED_WITHIN_S = 20


class Client:
    """One client, for one thread. A file is hdfs://HOST:PORT/PATH."""

    def connect(self, file: str) -> None:
        """Get ready to ask the NameNode."""
        import hdfs_native

        url = urlsplit(file)
        self._client = hdfs_native.Client(f"{url.scheme}://{url.netloc}")
        self._client.get_file_info(url.path)

    def read(self, file: str, buffer: memoryview) -> tuple[int, bytes]:
        """Read the whole file, as much as `buffer` holds at once: its size and its first eight
        bytes."""
        reader = self._client.read(urlsplit(file).path)
        size, head = 0, b""
        length = len(reader)
        while size < length:
            data = reader.read(min(len(buffer), length - size))
            head = head or data[:8]
            size += len(data)
        return size, head


def code() -> list[str]:
    """Files of the libraries that reading needs."""
    import hdfs_native

    return [hdfs_native._internal.__file__]


def store(url: str, dataset: str, first: str, step: str, replicas: str, folder: str = "") -> int:
    """Copy a share of the folder; the number of its files."""
    import hdfs_native

    client = hdfs_native.Client(url)
    files = _share(dataset, first, step)
    for file in files:
        whole = -(-file.stat().st_size // CHECKSUM_BYTES) * CHECKSUM_BYTES
        options = hdfs_native.WriteOptions(block_size=whole, replication=int(replicas))
        path = f"/{folder}/{file.name}" if folder else _path(file)
        with file.open("rb") as source, client.create(path, options) as target:
            while data := source.read(COPY_BYTES):
                target.write(data)
    return len(files)


def strays(url: str, dataset: str, first: str, step: str) -> int:
    """How many files of a share have no replica on this node, once the DataNodes have reported."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as any_connection:
        own = any_connection.getsockname()[0]
    files = _share(dataset, first, step)
    until = time.monotonic() + REPORTED_WITHIN_S
    while files and time.monotonic() < until:
        files = [file for file in files if own not in _places(address.hostname, _path(file))]
    return len(files)


def _share(dataset: str, first: str, step: str) -> list[Path]:
    return sorted(Path(dataset).iterdir())[int(first) :: int(step)]


def _path(file: Path) -> str:
    return f"/{file.parent.name}/{file.name}"


def _places(server: str, path: str) -> set[str]:
    """The DataNodes that hold the file's blocks."""
    told = _get(server, f"/webhdfs/v1{path}?op=GETFILEBLOCKLOCATIONS")
    blocks = told["BlockLocations"]["BlockLocation"]
    return {host for block in blocks for host in block["hosts"]}


def live(server: str) -> int:
    """DataNodes that the NameNode knows."""
    told = _get(server, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    return told["beans"][0]["NumLiveDataNodes"]


def _get(server: str, path: str) -> dict:
    with urllib.request.urlopen(f"http://{server}:{WEB_PORT}{path}", timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    print({"store": store, "strays": strays, "live": live}[what](*words))
