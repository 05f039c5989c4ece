"""A Slurm with Zazen on its nodes, for the tests of this folder."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slurm
import zazen.testing

KIT = Path(__file__).resolve().parents[1]


class Site:
    """Four nodes of Slurm with a daemon each, and the agent beside the controller."""

    def __init__(self, cluster, backing, daemons, key):
        self.slurm, self.backing, self.daemons, self.key = cluster, backing, daemons, key
        #: The user's home, on all nodes.
        self.home = cluster.folder / "home"
        #: Of the daemon that has the namespace.
        self.namespace = cluster.folder / "ns/s"
        self.nodes = ",".join(daemon.address for daemon in daemons.values())

    def jobs_folder(self, node, job):
        """The job's folder on a node's disk."""
        return self.slurm.folder / node / "jobs" / job

    def zazen(self, *words):
        command = [zazen.testing.program("zazen"), *words]
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=slurm.SECONDS_MAX,
            env=zazen.testing.environment(),
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def load(self, name, nodes, frames=8):
        """Makes a dataset and puts its frames on these nodes; its path."""
        path = self.backing / name
        path.mkdir()
        for number in range(frames):
            (path / f"f-{number}.dcd").write_bytes(os.urandom(5000))
        addresses = ",".join(self.daemons[node].address for node in nodes)
        self.zazen("load", path, "--nodes", addresses, "--key", self.key)
        return path

    def feature(self, path):
        done = subprocess.run(
            [sys.executable, KIT / "zazen-slurm-features", "--dataset", path],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def warm(self, path):
        """The nodes with the dataset's feature."""
        feature = self.feature(path)
        return [name for name, features in self.slurm.features().items() if feature in features]

    def wait_for_warm(self, path, nodes):
        """Waits until Slurm, and the table of the agent, have these nodes as warm."""
        feature, table = self.feature(path), self.slurm.folder / "warm"

        def listed():
            lines = [line.split("\t") for line in table.read_text().splitlines()[1:]]
            return [line[0] for line in lines if feature in line[-1].split(",")]

        slurm.wait_for(f"{nodes} are warm", lambda: self.warm(path) == nodes and listed() == nodes)

    def submit(self, *words, script=None):
        """Submits a job of the user; its number. `self.said`: what Slurm says of it besides."""
        options = ["sbatch", "--parsable", f"--output={self.home}/%j.out", *words]
        if script is None:
            told = self.slurm.as_user(*options, "--wrap", "true")
        else:
            file = self.slurm.folder / "script"
            file.write_text(script)
            file.chmod(0o755)
            told = self.slurm.as_user(*options, file)
        job, _, self.said = told.partition("\n")
        return job


def wrapper(path, environment, program):
    """A script that runs a program of the kit with these variables, because Slurm gives its scripts
    none of the daemon's."""
    lines = [f"export {name}='{value}'" for name, value in environment.items()]
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec "{program}" "$@"\n']))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="package")
def site():
    """The whole site. Tests leave it as they found it, but for new datasets."""
    why = slurm.missing()
    if why is not None:
        pytest.skip(why)
    cluster = slurm.Slurm(
        4,
        [
            "JobSubmitPlugins=lua\nBurstBufferType=burst_buffer/lua",
            f"HealthCheckInterval={60 if slurm.AS_SHIPPED else 3}\nHealthCheckNodeState=ANY",
        ],
        memory={"n4": 500},
    )
    at = cluster.folder
    place = (KIT / "job_submit.lua").read_text()
    assert "/var/lib/zazen-slurm/warm" in place
    cluster.files["job_submit.lua"] = place.replace("/var/lib/zazen-slurm/warm", f"{at}/warm")
    cluster.files["zazen_placement.lua"] = KIT / "zazen_placement.lua"
    staging = (KIT / "burst_buffer.lua").read_text()
    for ours, theirs in [
        ('zazen = "zazen"', f'zazen = "{at}/bin/zazen"'),
        ("socket = nil", f'socket = "{at}/ns/s"'),
        ("/var/lib/zazen-slurm/staging", f"{at}/staging"),
    ]:
        assert ours in staging
        staging = staging.replace(ours, theirs)
    cluster.files["burst_buffer.lua"] = staging
    cluster.files["burst_buffer.conf"] = KIT / "burst_buffer.conf"
    (at / "staging").mkdir()
    # The user of the jobs may not be able to reach the programs under test.
    (at / "bin").mkdir()
    for name in ("zazen", "zazend"):
        shutil.copy(zazen.testing.program(name), at / "bin")
    (at / "home").mkdir(mode=0o700)
    os.chown(at / "home", cluster.user.pw_uid, cluster.user.pw_gid)
    path = f"{at}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
    cluster.variables = {"PATH": path, "HOME": str(at / "home")}
    variables = {
        "PATH": path,
        "SLURM_CONF": cluster.conf,
        "ZAZEN_SLURM_SETTINGS": at / "settings.sh",
    }
    settings = [f"ZAZEN_SLURM_SOCKET={at}/%n/s", "ZAZEN_SLURM_TRIES=2", f"ZAZEN_SLURM_JOBS={at}/%n/jobs"]
    (at / "settings.sh").write_text("\n".join(settings) + "\n")
    for setting, program in [
        ("HealthCheckProgram", "health"),
        ("Prolog", "prolog"),
        ("Epilog", "epilog"),
        ("TaskProlog", "task-prolog"),
    ]:
        script = wrapper(at / program, variables, KIT / f"zazen-slurm-{program}")
        cluster.settings.append(f"{setting}={script}")
    key = at / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    backing = at / "backing"
    backing.mkdir()
    with contextlib.ExitStack() as stack:
        # First in, last out: the folder goes when nothing uses it any more.
        stack.enter_context(cluster.place())
        daemons = {}
        for name in cluster.names:
            folder = at / name
            (folder / "jobs").mkdir(parents=True)
            daemon = zazen.testing.Daemon(folder, backing, listen="127.0.0.1:0", key=key, name=name)
            daemons[name] = stack.enter_context(daemon)
        (at / "ns").mkdir()
        more = ["--namespace", at / "ns/disk", "--namespace-format"]
        stack.enter_context(zazen.testing.Daemon(at / "ns", backing, more))
        stack.enter_context(cluster)
        found = Site(cluster, backing, daemons, key)
        command = [sys.executable, KIT / "zazen-slurm-features", "--nodes", found.nodes, "--key", key]
        command += ["--table", at / "warm", "--zazen", zazen.testing.program("zazen")]
        command += [] if slurm.AS_SHIPPED else ["--interval", "0.5"]
        with open(at / "agent.log", "wb") as log:
            agent = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, env=cluster.environment
            )
        try:
            slurm.wait_for("the agent's first table", lambda: (at / "warm").exists())
            yield found
        finally:
            agent.terminate()
            assert agent.wait(60) == 0
