"""NFS: nfs-ganesha on the file server exports the datasets' own folder; clients by libnfs.

Containers often have kernels without NFS. libnfs needs no support from the kernel.
"""

from __future__ import annotations

from pathlib import Path

from cluster import Cluster

from . import Peer, Reading, address, listens

CONFIGURATION = """\
NFS_CORE_PARAM {{
    Protocols = 3;
    NFS_Port = {port};
    MNT_Port = 20048;
    mount_path_pseudo = true;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    allow_set_io_flusher_fail = true;
}}
EXPORT {{
    Export_Id = 1;
    Path = "{export}";
    Pseudo = "/export";
    Access_Type = RO;
    Squash = No_Root_Squash;
    SecType = sys;
    Transports = TCP;
    Protocols = 3;
    MaxRead = 1048576;
    PrefRead = 1048576;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""
PORT = 2049


class Nfs(Peer):
    """One server, as most sites have it: its link is the limit."""

    name = "NFS"
    packages = ("nfs-ganesha", "nfs-ganesha-vfs", "rpcbind", "libnfs13")
    settings = (
        "nfs-ganesha (VFS back end), NFS v3 as in the paper; rsize 1 MiB, the largest that nfs(5) "
        "allows, and as many requests in flight as 8 MiB make; a TCP connection per reader thread, as "
        "nfs(5) nconnect has it; read by libnfs straight into the reader's memory",
    )

    def start(self, cluster: Cluster, folder: Path) -> None:
        configuration, log = folder / "ganesha.conf", folder / "log"
        self._export = cluster.server_root
        self._server = address(cluster, "fs")
        configuration.write_text(CONFIGURATION.format(port=PORT, folder=folder, export=self._export))
        server = ["ganesha.nfsd", "-F", "-f", configuration, "-L", log, "-p", folder / "pid"]
        command = ["sh", "-c", 'rpcbind && exec "$@"', "sh", *server]
        child = self._serve(cluster, "fs", command, log, private_run=True)
        self._wait("server", lambda: listens(child, PORT), child, log)

    def store(self, dataset: Path) -> None:
        """Nothing to do: the export is the datasets' home."""

    def reading(self, dataset: Path) -> Reading:
        within = dataset.relative_to(self._export)
        names = sorted(file.name for file in dataset.iterdir())
        return Reading("nfs", [f"nfs://{self._server}/export/{within}/{name}" for name in names])
