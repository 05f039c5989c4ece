"""MooseFS: its master on the file server, a chunk server on every node, FUSE clients."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster import Cluster

from . import Peer, Reading, address, copy_from_nodes, listens

CLIENT_PORT = 9421
EMPTY_METADATA = Path("/var/lib/mfs/metadata.mfs.empty")
MASTER = """\
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {home}
EXPORTS_FILENAME = {home}/exports.cfg
TOPOLOGY_FILENAME = {home}/topology.cfg
MATOML_LISTEN_HOST = {address}
MATOCS_LISTEN_HOST = {address}
MATOCL_LISTEN_HOST = {address}
CHUNKS_WRITE_REP_LIMIT = 2,1,0,0
CHUNKS_READ_REP_LIMIT = 10,5,0,0
"""
CHUNK_SERVER = """\
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {home}
HDD_CONF_FILENAME = {home}/hdd.cfg
MASTER_HOST = {master}
CSSERV_LISTEN_HOST = {address}
HDD_LEAVE_SPACE_DEFAULT = 128MiB
HDD_TEST_SPEED = 0
"""
MOUNT = "mfscachemode=AUTO,mfsreadaheadsize=512,mfsreadaheadleng=2097152,mfsreadaheadtrigger=1048576"


class Moosefs(Peer):
    """One copy of each chunk: the goal that reads no slower and writes fastest."""

    name = "MooseFS"
    packages = ("moosefs-master", "moosefs-chunkserver", "moosefs-client")
    settings = (
        f"goal 1; mfsmount(8): {MOUNT.replace(',', ', ')}; chunk tests and moving chunks between "
        "servers off (either reads from the disks meanwhile). The kernel's cache, which is dropped, is the "
        "only one that keeps data",
    )

    def start(self, cluster: Cluster, folder: Path) -> None:
        self._nodes = cluster.nodes
        master, home = address(cluster, "fs"), folder / "master"
        home.mkdir(parents=True)
        (home / "exports.cfg").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (home / "topology.cfg").touch()
        shutil.copy(EMPTY_METADATA, home / "metadata.mfs")
        (home / "master.cfg").write_text(MASTER.format(home=home, address=master))
        log = home / "log"
        daemon = self._serve(cluster, "fs", ["mfsmaster", "-f", "-c", home / "master.cfg", "start"], log)
        self._wait("master", lambda: listens(daemon, CLIENT_PORT), daemon, log)
        for node in cluster.nodes:
            self._start_chunk_server(cluster, node, folder / node, master)
        self.mounted = {node: folder / f"mount-{node}" for node in cluster.nodes}
        for node, where in self.mounted.items():
            client = ["mfsmount", "-f", "-H", master, "-o", MOUNT, where]
            self._mount(cluster, node, client, where, folder / f"mount-{node}.log")
        first = cluster.nodes[0]
        cluster.run(first, "mfssetgoal", "-r", "1", self.mounted[first])

    def store(self, dataset: Path) -> None:
        (self.mounted[self._nodes[0]] / dataset.name).mkdir()
        copy_from_nodes({file: file.name for file in sorted(dataset.iterdir())}, dataset.name, self.mounted)

    def reading(self, dataset: Path) -> Reading:
        first = self.mounted[self._nodes[0]]
        names = sorted(file.name for file in (first / dataset.name).iterdir())
        where = str(first.with_name("mount-{node}"))
        return Reading("files", [f"{where}/{dataset.name}/{name}" for name in names])

    def _start_chunk_server(self, cluster: Cluster, node: str, home: Path, master: str) -> None:
        disk = cluster.node_dir(node) / "moosefs"
        disk.mkdir()
        home.mkdir()
        (home / "hdd.cfg").write_text(f"{disk}\n")
        text = CHUNK_SERVER.format(home=home, master=master, address=address(cluster, node))
        (home / "chunk-server.cfg").write_text(text)
        command = ["mfschunkserver", "-f", "-c", home / "chunk-server.cfg", "start"]
        self._serve(cluster, node, command, home / "log")
