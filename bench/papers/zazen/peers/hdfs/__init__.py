"""HDFS: its NameNode on the file server, a DataNode on every node; frames are read where they lie.

The servers' jars come by Maven; the client is hdfs-native, from PyPI.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import escape

from cluster import HERE, BenchError, Cluster, call, say

from .. import KEPT, Peer, Reading, address, listens, packages

POM = Path(__file__).with_name("pom.xml")
JARS = KEPT / "hdfs"
MAVEN = ["mvn", "--quiet", "--batch-mode", "--file", POM, "dependency:copy-dependencies"]
PORT, WEB_PORT = 9000, 9870
SEED = 7
CLIENT = HERE / "peers" / "hdfs_client.py"
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
# The collector with the least work on few cores; heaps that hold this few blocks many times over.
JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"]
LOGGING = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""


class Hdfs(Peer):
    """One block per file, as in the paper, and all reads local: what MapReduce strives for."""

    name = "HDFS"
    # The row of readers that are not told which node holds a file.
    unaware = "HDFS, locations unknown"
    packages = ()
    settings = (
        "block size = file size and 3 replicas, as in the paper (1 in a quick run); every file is read "
        "on the node whose DataNode holds its first replica, as MapReduce would have it; "
        "io.file.buffer.size 131072 (Hadoop's Cluster Setup guide); block scanner off. Short-circuit "
        "reads need libhadoop, which no package brings: local blocks come from the DataNode through "
        "loopback",
        "“locations unknown”: files are dealt out to the nodes at random (seeded), and have one replica, so "
        "that all but a node's share is remote: with three replicas on four nodes three quarters would be "
        "local by chance, on the paper's 100 nodes 3 %",
    )

    def missing(self) -> str | None:
        if not shutil.which("java"):
            return "`apt-get install openjdk-17-jre-headless`"
        if not _jars() and not shutil.which("mvn"):
            return "`apt-get install maven`"
        if not _jars():
            return f"`{' '.join(map(str, MAVEN))} -DoutputDirectory={JARS}`"
        if not importlib.util.find_spec("hdfs_native"):
            return f"`{sys.executable} -m pip install hdfs-native`"
        return None

    def install(self) -> None:
        if not shutil.which("java"):
            packages.install(["openjdk-17-jre-headless"])
        if not _jars():
            if not shutil.which("mvn"):
                packages.install(["maven"])
            self._fetch_jars()
        if not importlib.util.find_spec("hdfs_native"):
            raise BenchError(f"install the client: {self.missing()}")

    def start(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._server = cluster, address(cluster, "fs")
        log = folder / "name-node.log"
        name_node = self._start_name_node(cluster, folder / "fs", log)
        self._wait("NameNode", lambda: listens(name_node, PORT), name_node, log)
        data_nodes = [self._start_data_node(cluster, node, folder) for node in cluster.nodes]
        self._wait("joining of all DataNodes", lambda: self._live() == len(data_nodes), data_nodes[-1], log)

    def store(self, dataset: Path) -> None:
        """Each node writes its share: the first replica stays where the writer is."""
        self._on_all_nodes("store", dataset, 1 if self._quick else 3)
        self._on_all_nodes("store", dataset, 1, self._dealt(dataset))
        strays = sum(int(count) for count in self._on_all_nodes("strays", dataset))
        if strays:
            raise BenchError(f"HDFS: {strays} files of {dataset.name} are not where they were written")

    def reading(self, dataset: Path) -> Reading:
        names = sorted(file.name for file in dataset.iterdir())
        return Reading("hdfs", [f"{self._url}/{dataset.name}/{name}" for name in names])

    def readings(self, dataset: Path) -> dict[str, Reading]:
        names = sorted(file.name for file in dataset.iterdir())
        random.Random(SEED).shuffle(names)
        files = [f"{self._url}/{self._dealt(dataset)}/{name}" for name in names]
        return {self.unaware: Reading("hdfs", files)}

    def _dealt(self, dataset: Path) -> str:
        """HDFS's folder of the copies that are read without regard to their places."""
        return f"{dataset.name}-dealt"

    def _on_all_nodes(self, what: str, dataset: Path, *more: object) -> list[str]:
        """Run the client's `what` for each node's share, on all nodes at once; returns what they
        print."""
        nodes = self._cluster.nodes

        def run(at: int) -> str:
            words = [what, self._url, dataset, at, len(nodes), *more]
            return self._cluster.run(nodes[at], sys.executable, CLIENT, *words)

        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(run, range(len(nodes))))

    @property
    def _url(self) -> str:
        return f"hdfs://{self._server}:{PORT}"

    def _start_name_node(self, cluster: Cluster, home: Path, log: Path) -> subprocess.Popen:
        java = self._java(home, {"dfs.namenode.name.dir": f"file://{home}/name"})
        script = '"$@" -format -force -nonInteractive && exec "$@"'
        return self._serve(cluster, "fs", ["sh", "-c", script, "sh", *java, NAME_NODE], log)

    def _start_data_node(self, cluster: Cluster, node: str, folder: Path) -> subprocess.Popen:
        own = {
            "dfs.datanode.data.dir": f"file://{cluster.node_dir(node)}/hdfs",
            "dfs.datanode.hostname": address(cluster, node),
        }
        command = [*self._java(folder / node, own), DATA_NODE]
        return self._serve(cluster, node, command, folder / f"data-node-{node}.log")

    def _java(self, home: Path, own: dict[str, str]) -> list[object]:
        """The command line of a server whose configuration is put into `home`."""
        home.mkdir(parents=True)
        common = {
            "fs.defaultFS": self._url,
            "hadoop.tmp.dir": f"{home}/tmp",
            "io.file.buffer.size": "131072",
            "dfs.namenode.http-address": f"{self._server}:{WEB_PORT}",
            # Nodes have addresses, no names.
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.fs-limits.min-block-size": "512",
            "dfs.permissions.enabled": "false",
            # A busy writer's own DataNode must not be passed over.
            "dfs.namenode.redundancy.considerLoad": "false",
            # Reads all blocks in the background otherwise.
            "dfs.datanode.scan.period.hours": "-1",
        }
        entries = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in (common | own).items()
        )
        for file in ("core-site.xml", "hdfs-site.xml"):
            (home / file).write_text(f"<configuration>\n{entries}</configuration>\n")
        (home / "log4j.properties").write_text(LOGGING)
        return [*JAVA, "-cp", f"{home}:{JARS}/*"]

    def _live(self) -> int:
        """DataNodes that the NameNode knows."""
        return int(self._cluster.run("fs", sys.executable, CLIENT, "live", self._server))

    def _fetch_jars(self) -> None:
        say("fetching HDFS's jars by Maven (about 90 MB)")
        fresh = JARS.with_name("hdfs.new")
        shutil.rmtree(fresh, ignore_errors=True)
        call([*MAVEN, f"-DoutputDirectory={fresh}"], timeout=900)
        fresh.rename(JARS)


def _jars() -> bool:
    """Whether the jars are there, all of them: they come by one rename."""
    return JARS.is_dir()
