"""A real HDFS on this machine: a name node and data nodes, each in a network namespace of its own.
Needs root.

Tests and benches use it. Node 0 is the name node, and no data node.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import zazen.testing

JARS = Path(__file__).resolve().parents[3] / "target/hadoop/lib"


def lacking():
    """What is missing here, or None."""
    if not (shutil.which("java") and JARS.is_dir()):
        return "no HDFS here: scripts/install-hadoop.sh"
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and iproute2"
    return None


def sh(*words, **more):
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=300, check=False, **more
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what, seconds=240):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Hdfs:
    """The name node and ``nodes`` data nodes, with all their files beneath ``folder``.

    ``others``: nodes beside them, without a process of HDFS; they have the numbers above."""

    def __init__(self, folder, nodes, others=0):
        self.folder, self.nodes, self.processes = folder, nodes, {}
        self.every = range(nodes + 1 + others)
        self.mark = f"zv{os.getpid()}"
        #: A folder of control groups, one for each node; ranks enter their node's.
        self.groups = None

    def name(self, node):
        return f"{self.mark}n{node}"

    @staticmethod
    def address(node):
        """A node's address on its link."""
        return f"10.79.0.1{node}"

    def up(self):
        switch = f"{self.mark}sw"
        sh("ip", "netns", "add", switch)
        sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", switch, "link", "set", "br0", "up")
        host = os.uname().nodename
        for node in self.every:
            name = self.name(node)
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh(
                "ip",
                "-n",
                name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                f"p{node}",
                "netns",
                switch,
            )
            sh("ip", "-n", switch, "link", "set", f"p{node}", "master", "br0", "up")
            sh("ip", "-n", name, "addr", "add", f"10.79.0.1{node}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            names = [f"{self.address(each)} node{each}" for each in self.every]
            (etc / "hosts").write_text(
                "\n".join(["127.0.0.1 localhost", *names, f"10.79.0.1{node} {host}", ""])
            )
        for node in range(self.nodes + 1):
            self.configure(node)
        self.java(0, "namenode.NameNode", "-format", "-force", "-nonInteractive", wait=True)
        self.java(0, "namenode.NameNode")
        for node in range(1, self.nodes + 1):
            self.java(node, "datanode.DataNode")
        until(lambda: self.live() == self.nodes)

    def configure(self, node):
        folder = self.folder / f"c{node}"
        folder.mkdir()
        settings = {
            "dfs.namenode.name.dir": self.folder / "name",
            "dfs.datanode.data.dir": self.folder / f"data{node}",
            "dfs.datanode.hostname": f"node{node}",
            "dfs.namenode.rpc-bind-host": "0.0.0.0",
            "dfs.namenode.http-bind-host": "0.0.0.0",
            "dfs.datanode.address": f"10.79.0.1{node}:9866",
            "dfs.datanode.http.address": f"10.79.0.1{node}:9864",
            "dfs.datanode.ipc.address": f"10.79.0.1{node}:9867",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        }
        self.write(folder / "core-site.xml", {"fs.defaultFS": "hdfs://node0:9000"})
        self.write(folder / "hdfs-site.xml", settings)
        client = self.folder / f"client{node}"
        client.mkdir()
        own = {key: settings[key] for key in ("dfs.datanode.data.dir",)}
        self.write(client / "hdfs-site.xml", own | {"dfs.client.read.shortcircuit": "true"})
        (folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"
        )

    @staticmethod
    def write(path, settings):
        rows = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        path.write_text(f"<configuration>{rows}</configuration>")

    def java(self, node, main, *words, wait=False):
        log = open(self.folder / f"log{node}", "a")
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = f"{self.folder / f'c{node}'}:{JARS}/*"
        program = ["java", *options, "-cp", classes, f"org.apache.hadoop.hdfs.server.{main}"]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name(node), *program, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        if wait:
            assert process.wait(240) == 0, (self.folder / f"log{node}").read_text()[-2000:]
        else:
            self.processes[node] = process

    def live(self):
        url = "http://node0:9870/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        ask = f"json.load(urllib.request.urlopen({url!r}))['beans'][0]['NumLiveDataNodes']"
        script = f"import json, urllib.request; print({ask})"
        done = subprocess.run(
            ["ip", "netns", "exec", self.name(0), "python3", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for node, process in self.processes.items():
            assert process.poll() is None, (self.folder / f"log{node}").read_text()[-2000:]
        return int(done.stdout) if done.returncode == 0 else 0

    def zazen(self, *words):
        program = zazen.testing.program("zazen")
        environment = zazen.testing.environment() | {"HADOOP_USER_NAME": "root"}
        return sh("ip", "netns", "exec", self.name(0), program, *words, env=environment)

    def shape(self, rate):
        """Limits what each node sends; ``rate`` as `tc` takes it."""
        for node in self.every:
            limits = ["rate", rate, "burst", "128kb", "latency", "100ms"]
            sh(
                "ip",
                "netns",
                "exec",
                self.name(node),
                "tc",
                "qdisc",
                "replace",
                "dev",
                "eth0",
                "root",
                "tbf",
                *limits,
            )

    def ranks(self, launcher, environment, count, *words, as_files=True):
        """Starts ``count`` ranks of Python, each in a data node's namespace and with that node's
        host name. ``as_files``: they have that node's configuration, so they may open its replicas.
        """
        settings = f"HADOOP_CONF_DIR={self.folder}/client$1" if as_files else "HADOOP_CONF_DIR=/nowhere"
        inner = f'hostname node$1; export {settings}; shift; exec "$@"'
        enter = f"exec ip netns exec {self.mark}n$i unshare --uts"
        limited = f"echo $$ > {self.groups}/n$i/cgroup.procs; " if self.groups else ""
        script = f"i=$((PMI_RANK + 1)); {limited}{enter} sh -c '{inner}' sh $i \"$@\""
        command = [launcher, "-n", str(count), "sh", "-c", script, "sh"]
        command += [sys.executable, *map(str, words)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"HADOOP_USER_NAME": "root", "OMP_NUM_THREADS": "1"},
        )

    def down(self):
        for process in self.processes.values():
            process.kill()
            process.wait(60)
        for node in self.every:
            subprocess.run(["ip", "netns", "del", self.name(node)], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / self.name(node), ignore_errors=True)
        subprocess.run(["ip", "netns", "del", f"{self.mark}sw"], check=False, capture_output=True)
