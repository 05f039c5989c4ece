"""NFS: nfs-ganesha on the file server exports the datasets' own folder; clients by libnfs.

Containers often have kernels without NFS. libnfs needs no support from the kernel.
"""

from __future__ import annotations

from pathlib import Path

import servers_alone
from cluster import Cluster

from . import Peer, Reading, address, listens


class Nfs(Peer):
    """One server, as most sites have it: its link is the limit."""

    name = "NFS"
    packages = (*servers_alone.NFS_PACKAGES, "libnfs13")
    settings = (
        "nfs-ganesha (VFS back end), NFS v3 as in the paper; rsize 1 MiB, the largest that nfs(5) "
        "allows, and as many requests in flight as 8 MiB make; a TCP connection per reader thread, as "
        "nfs(5) nconnect has it; read by libnfs straight into the reader's memory",
    )

    def start(self, cluster: Cluster, folder: Path) -> None:
        log = folder / "log"
        self._export = cluster.server_root
        self._server = address(cluster, "fs")
        command = servers_alone.ganesha(folder, self._export, log, writable=False)
        child = self._serve(cluster, "fs", command, log, private_run=True)
        self._wait("server", lambda: listens(child, servers_alone.NFS_PORT), child, log)

    def store(self, dataset: Path) -> None:
        """Nothing to do: the export is the datasets' home."""

    def reading(self, dataset: Path) -> Reading:
        within = dataset.relative_to(self._export)
        names = sorted(file.name for file in dataset.iterdir())
        return Reading("nfs", [f"nfs://{self._server}/export/{within}/{name}" for name in names])
