"""A Slurm of our own for tests: a controller and several nodes on this machine, with own ports
and folders.

Nothing of the machine's Slurm is touched. The daemons run as the user of the tests. If that is
root, jobs are submitted as `nobody`, because Slurm gives root more rights than users of a cluster.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

#: Waits of tests end with an error after so many seconds.
SECONDS_MAX = 120
#: The intervals that docs/slurm.md has, instead of short ones: for figures.
AS_SHIPPED = bool(os.environ.get("ZAZEN_SLURM_AS_SHIPPED"))
#: The programs that are needed, and Debian's packages with them.
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "munge")


def missing() -> str | None:
    """Why no Slurm can be started here; None if one can be."""
    absent = [name for name in PROGRAMS if find(name) is None]
    if absent:
        return (
            f"no {', '.join(absent)} here: install Debian's packages slurmctld, slurmd, slurm-client "
            "and munge"
        )
    if user() is None:
        if os.geteuid():
            return f"user {os.geteuid()} has no name here, and Slurm wants one"
        return "no user `nobody` here, and root's jobs would show nothing about users"
    return None


def find(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def user() -> pwd.struct_passwd | None:
    """The user who submits jobs."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.geteuid()) if os.geteuid() else pwd.getpwnam("nobody")
    return None


def wait_for(what: str, ready: Callable[[], object], seconds: float = SECONDS_MAX) -> object:
    """Waits until `ready` returns something true, and returns that."""
    until = time.monotonic() + seconds
    while True:
        found = ready()
        if found:
            return found
        assert time.monotonic() < until, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Adjacent ports that nobody listens on now."""
    for _ in range(100):
        first = 20_000 + secrets.randbelow(10_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise RuntimeError(f"no {count} adjacent free ports")


class Slurm:
    """A controller and nodes n1, n2, … with two processors each; a context manager.

    A job has its nodes for itself. `settings` are lines of slurm.conf, `memory` the MiB of nodes
    that have not 100. `files` are more files of the folder of slurm.conf, by name.
    """

    def __init__(
        self, nodes: int = 4, settings: Sequence[str] = (), memory: Mapping[str, int] | None = None
    ) -> None:
        # Every user must get there, and the paths of sockets are short.
        self.folder = Path(tempfile.mkdtemp(prefix="zslurm", dir="/tmp"))
        self.folder.chmod(0o755)
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.conf = self.folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.settings, self.files = list(settings), dict[str, str | Path]()
        #: More variables of commands.
        self.variables: dict[str, str] = {}
        self._memory = dict(memory or {})

    def _write_configuration(self) -> None:
        me, at, host = pwd.getpwuid(os.geteuid()).pw_name, self.folder, socket.gethostname()
        control, *ports = free_ports(1 + len(self.names))
        (at / "state").mkdir()
        (at / "run").mkdir()
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 "
            f"RealMemory={self._memory.get(name, 100)}"
            for name, port in zip(self.names, ports, strict=True)
        ]
        lines = [
            "ClusterName=zazentest",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={control}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            f"SlurmUser={me}",
            f"SlurmdUser={me}",
            f"AuthType=auth/munge\nAuthInfo=socket={at}/run/munge",
            f"StateSaveLocation={at}/state",
            f"SlurmdSpoolDir={at}/run/%n",
            f"SlurmctldPidFile={at}/run/slurmctld.pid",
            f"SlurmdPidFile={at}/run/%n.pid",
            f"SlurmctldLogFile={at}/slurmctld.log",
            f"SlurmdLogFile={at}/%n.log",
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core",
            # Only backfill starts a job elsewhere than it prefers.
            "SchedulerParameters="
            + ("bf_interval=10" if AS_SHIPPED else "sched_interval=1,batch_sched_delay=0,bf_interval=5"),
            "SlurmdParameters=config_overrides\nReturnToService=1",
            "MessageTimeout=90\nBatchStartTimeout=120\nUnkillableStepTimeout=120",
            "SlurmdTimeout=300\nKillWait=5\nInactiveLimit=0\nMinJobAge=300",
            *self.settings,
            *nodes,
            "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=EXCLUSIVE",
        ]
        self.conf.write_text("\n".join(lines) + "\n")
        for name, what in self.files.items():
            text = what.read_text() if isinstance(what, Path) else what
            (at / name).write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands that speak to this Slurm."""
        # $TMPDIR may be a folder that only the user of the tests may enter.
        left_out = ("SLURM", "ZAZEN", "TMPDIR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return kept | {"SLURM_CONF": str(self.conf), "PATH": path} | self.variables

    def _spawn(self, name: str, command: Sequence[object]) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            self._processes[name] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        run = self.folder / "run"
        options = [f"--key-file={key}", f"--socket={run}/munge", f"--pid-file={run}/munge.pid"]
        options += [f"--log-file={self.folder}/munge.log", f"--seed-file={run}/munge.seed"]
        # Without this it refuses to run as root.
        self._spawn("munged", [find("munged"), "--foreground", "--force", "--num-threads=2", *options])
        wait_for("munged listens", lambda: Path(run, "munge").exists())

    def __enter__(self) -> Slurm:
        try:
            self._write_configuration()
            self._start_munge()
            self._spawn("slurmctld", [find("slurmctld"), "-D", "-f", self.conf, "-c"])
            for name in self.names:
                self._spawn(name, [find("slurmd"), "-D", "-f", self.conf, "-N", name])
            wait_for("all nodes are idle", lambda: set(self.states().values()) == {"idle"})
        except BaseException:
            for log in sorted(self.folder.glob("*.log")):
                print(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.run("scancel", "--user", self.user.pw_name, check=False)
            wait_for("jobs end", lambda: not self.run("squeue", "--noheader", check=False), 30)
        for name in [*self.names, "slurmctld", "munged"]:
            process = self._processes.pop(name, None)
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """The folder, which is removed at the end."""
        try:
            yield self.folder
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def user(self) -> pwd.struct_passwd:
        """The user who submits jobs."""
        found = user()
        assert found is not None
        return found

    def run(self, *words: object, check: bool = True, seconds: float = SECONDS_MAX) -> str:
        """What an administrator's command prints."""
        return self._run(words, check, seconds, {})

    def as_user(self, *words: object, check: bool = True, seconds: float = SECONDS_MAX) -> str:
        """What an ordinary user's command prints."""
        who = (
            {} if os.geteuid() else {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        )
        return self._run(words, check, seconds, who)

    def _run(self, words: Sequence[object], check: bool, seconds: float, who: dict) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment,
            cwd=self.folder,
            check=False,
            **who,
        )
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}"
        return (done.stdout + done.stderr).strip()

    def states(self) -> dict[str, str]:
        """The state of each node, as sinfo names it without flags."""
        told = self.run("sinfo", "--Node", "--noheader", "--format=%N %T", check=False)
        lines = [line.split() for line in told.splitlines()]
        return {words[0]: words[1].rstrip("*~#$@^-") for words in lines if len(words) == 2}

    def features(self) -> dict[str, list[str]]:
        """The active features of each node."""
        told = self.run("sinfo", "--Node", "--noheader", "--format=%N|%b")
        rows = [line.split("|") for line in told.splitlines()]
        return {name: sorted(given.split(",")) if given not in ("", "(null)") else [] for name, given in rows}

    def field(self, job: str, name: str) -> str:
        """A field of `scontrol show job`."""
        for word in self.run("scontrol", "show", "job", "--oneliner", job).split():
            key, _, value = word.partition("=")
            if key == name:
                return value
        raise KeyError(name)

    def nodes_of(self, job: str) -> list[str]:
        """The nodes that a job has or had."""
        told = self.field(job, "NodeList")
        return self.run("scontrol", "show", "hostnames", told).split()

    def seconds_to_start(self, job: str) -> float:
        """How long a job waited, as the controller has it, in whole seconds."""
        submitted, started = (self.field(job, name) for name in ("SubmitTime", "StartTime"))
        parse = datetime.datetime.fromisoformat
        return (parse(started) - parse(submitted)).total_seconds()

    def finish(self, job: str) -> str:
        """Waits for a job's end; its state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(f"job {job} ends", lambda: self.field(job, "JobState") in ended)
        return self.field(job, "JobState")
