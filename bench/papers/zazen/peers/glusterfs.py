"""GlusterFS: a brick on every node, files distributed over them by the hash of their names, FUSE
clients."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import servers_alone
from cluster import BenchError, Cluster

from . import Peer, Reading, address, copy_from_nodes, listens

VOLUME = "bench"
# Below this many files chance would put too many on one brick.
PLACED_FILES = 64
# See `settings`; the rest are the volume's defaults.
OPTIONS = servers_alone.GLUSTER_OPTIONS | {
    "performance.read-ahead": "on",
    "performance.read-ahead-page-count": "16",
    "performance.parallel-readdir": "on",
    "cluster.lookup-optimize": "on",
    # By default a brick with a tenth of its disk free gets no files: one disk stands for all of
    # them.
    "cluster.min-free-disk": "64MB",
}


class Glusterfs(Peer):
    """Four bricks, no replicas: the placement that reads fastest."""

    name = "GlusterFS"
    packages = servers_alone.GLUSTER_PACKAGES
    settings = (
        "distributed volume, no replicas; event-threads 4, client-io-threads on, lookup-optimize on (as "
        "Gluster's and Red Hat's administration guides advise), read-ahead of 16 pages (the most there "
        "is); io-cache and quick-read off, so that reads are cold. Large files, which are few, are "
        "spread evenly over the bricks",
    )

    def start(self, cluster: Cluster, folder: Path) -> None:
        self._names: dict[str, list[str]] = {}
        self._nodes, self._cluster = cluster.nodes, cluster
        self.mounted = {node: folder / f"mount-{node}" for node in cluster.nodes}
        daemons = {node: self._start_daemon(cluster, node, folder / node) for node in cluster.nodes}
        for node, daemon in daemons.items():
            log = folder / node / "log"
            ready = partial(listens, daemon, servers_alone.GLUSTER_PORT)
            self._wait(f"glusterd of {node}", ready, daemon, log)
        first, *others = cluster.nodes
        self._first = daemons[first]
        for node in others:
            self._gluster("peer", "probe", address(cluster, node))
        self._wait("joining of all nodes", lambda: self._joined(len(others)))
        bricks = [f"{address(cluster, node)}:{cluster.node_dir(node) / 'gluster'}" for node in cluster.nodes]
        self._gluster("volume", "create", VOLUME, "transport", "tcp", *bricks, "force")
        for option, value in OPTIONS.items():
            self._gluster("volume", "set", VOLUME, option, value)
        self._gluster("volume", "start", VOLUME)
        for node in cluster.nodes:
            log = folder / f"mount-{node}.log"
            server = address(cluster, node)
            client = ["glusterfs", "--no-daemon", f"--log-file={log}", f"--volfile-server={server}"]
            where = self.mounted[node]
            self._mount(cluster, node, [*client, f"--volfile-id={VOLUME}", where], where, log)

    def store(self, dataset: Path) -> None:
        """The hash of a name decides on its brick: few files get names that spread them evenly."""
        files = sorted(dataset.iterdir())
        (self.mounted[self._nodes[0]] / dataset.name).mkdir()
        names = {file: file.name for file in files}
        if len(files) <= PLACED_FILES:
            names = {file: self._name_on_brick(dataset.name, file, at) for at, file in enumerate(files)}
        copy_from_nodes(names, dataset.name, self.mounted)
        self._names[dataset.name] = list(names.values())

    def reading(self, dataset: Path) -> Reading:
        first = self.mounted[self._nodes[0]]
        names = self._names[dataset.name]
        where = str(first.with_name("mount-{node}"))
        return Reading("files", [f"{where}/{dataset.name}/{name}" for name in names])

    def _name_on_brick(self, folder: str, file: Path, at: int) -> str:
        """A name that puts `file` on the brick whose turn it is: the next node's, a further one
        each " "round."""
        nodes = len(self._nodes)
        node = self._nodes[(at + 1 + at // nodes) % nodes]
        for trial in range(1000):
            name = f"{trial}-{file.name}"
            made = self.mounted[self._nodes[0]] / folder / name
            made.touch()
            if (self._cluster.node_dir(node) / "gluster" / folder / name).exists():
                return name
            made.unlink()
        raise BenchError(f"GlusterFS: no name in 1,000 for the brick of {node}")

    def _start_daemon(self, cluster: Cluster, node: str, home: Path) -> subprocess.Popen:
        command = servers_alone.glusterd(home)
        (cluster.node_dir(node) / "gluster").mkdir()
        return self._serve(cluster, node, command, home / "log", private_run=True)

    def _gluster(self, *words: object) -> str:
        return self._inside(self._first, ["gluster", "--mode=script", *words])

    def _joined(self, others: int) -> bool:
        return self._gluster("peer", "status").count("Peer in Cluster (Connected)") == others
