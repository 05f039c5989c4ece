"""Plug-ins in real daemons: the same calls give the same in every placement and over every carrier,
and what a plug-in or a client does costs only itself."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
import zazen.testing
from launching import wait_for

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]
PLACES = ["in-process", "isolated"]
CARRIERS = {"auto": "0", "unix": "1", "shm": "2"}
KILLS = int(os.environ.get("ZAZEN_TEST_KILLS", "50"))

NO_SERVICE, SCHEMA, DISCONNECTED, TIMED_OUT, CRASHED = 8, 9, 10, 11, 13
INTERRUPTED = "block -1 Interrupted system call 0\n"


def run(*command, status=0, timeout=120, **options):
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def zazen_tool(*arguments, status=0, **options):
    return run(zazen.testing.program("zazen"), *arguments, status=status, **options)


class Built:
    """The trial, compiled: plug-in, client, and the client that hosts the plug-in itself."""

    def __init__(self, folder, header=HERE / "trial.h"):
        self.folder = folder
        zazen_tool("plugin", "sdk", folder / "sdk")
        zazen_tool("plugin", "generate", header, "--out", folder)
        paths = [f"-I{path}" for path in (folder / "sdk", folder, header.parent)]
        self.object = folder / "trial.so"
        self.client = folder / "client"
        self.loopback = folder / "loopback"
        if not (folder / "sdk" / "libzazen_stub.so").exists():
            pytest.fail("`zazen plugin sdk` found no libzazen_stub.so: build or install it")
        shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wno-infinite-recursion"]
        source = HERE / "trial.c"
        run("cc", *STRICT, *shared, *paths, source, folder / "trial_dispatch.c", "-o", self.object)
        source = [HERE / "trial_client.c", folder / "trial_client.c"]
        link = ["-L", folder / "sdk", "-lzazen_stub", f"-Wl,-rpath,{folder / 'sdk'}", "-lpthread"]
        run("cc", *STRICT, *paths, *source, *link, "-o", self.client)
        source += [folder / "sdk" / "zazen_loopback.c", "-ldl", "-lpthread"]
        run("cc", *STRICT, "-DTRIAL_LOOPBACK", *paths, *source, "-o", self.loopback)

    def expected(self, **environment):
        return run(self.loopback, "same", env={**os.environ, "TRIAL_OBJECT": str(self.object), **environment})


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("trial"))


class Daemon:
    """A daemon with plug-ins, and what it must not leave behind."""

    def __init__(self, folder, *plugins, environment=None):
        self.folder = folder
        (folder / "backing").mkdir()
        config = folder / "zazend.toml"
        config.write_text("".join(plugins))
        self.cluster = zazen.testing.Cluster(
            folder / "c", folder / "backing", arguments=["--config", config, "--drain-seconds", "3"]
        )
        self.environment = environment or {}
        self.socket = self.cluster.sockets[0]

    def __enter__(self):
        kept = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            self.cluster.__enter__()
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        self.pid = self.cluster.pid(0)
        return self

    def __exit__(self, *error):
        workers = self.workers()
        self.cluster.__exit__()
        for worker in workers:
            wait_for(lambda worker=worker: not alive(worker), f"plug-in process {worker} to end")
        left = [path.name for path in Path(self.socket).parent.glob("*.plugin-*")]
        assert not left, f"sockets left behind: {left}"

    def workers(self):
        pids = set()
        for task in Path("/proc").glob(f"{self.pid}/task/*/children"):
            # A thread that has ended meanwhile has left its children to another one.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids.update(int(pid) for pid in task.read_text().split())
        return pids

    def environ(self, carrier="auto", **more):
        address = self.cluster.nodes[0] if carrier == "tcp" else self.socket
        choice = {"TRIAL_ADDRESS": address, "TRIAL_CARRIER": CARRIERS.get(carrier, "0")}
        clean = zazen.testing.environment()
        clean = {name: value for name, value in clean.items() if not name.startswith("TRIAL")}
        return {**clean, **choice, "ZAZEN_KEY": self.cluster.key, **more}

    def client(self, built, *words, carrier="auto", status=0, **more):
        return run(built.client, *words, env=self.environ(carrier, **more), status=status)

    def start(self, built, *words, carrier="auto", **options):
        words = [str(built.client), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=self.environ(carrier), stdout=pipe, text=True, **options)

    def report(self, plugin="trial"):
        said = zazen_tool("plugin", "stats", plugin, "--socket", self.socket, "--json")
        (report,) = json.loads(said)
        return report

    def log(self):
        return re.sub("\x1b\\[[0-9;]*m", "", self.cluster.log(0).read_text())

    def descriptors(self, pid=None):
        return len(os.listdir(f"/proc/{pid or self.pid}/fd"))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def plugin(built, place="isolated", **settings):
    lines = [f'[[plugin]]\npath = "{built.object}"\nisolate = {str(place == "isolated").lower()}\n']
    tables = {name: value for name, value in settings.items() if isinstance(value, dict)}
    lines += [f"{name} = {json.dumps(value)}\n" for name, value in settings.items() if name not in tables]
    for name, table in tables.items():
        lines.append(f"[plugin.{name}]\n" + "".join(f"{key} = {json.dumps(table[key])}\n" for key in table))
    return "".join(lines)


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def daemon(trial, tmp_path, place):
    with Daemon(tmp_path, plugin(trial, place)) as daemon:
        yield daemon


def comings_and_goings(log):
    """By (generation, client): the reasons of its going, for each who came."""
    come = re.findall(r"attach client (\d+) generation (\d+)", log)
    gone = {who: [] for who in come}
    assert len(gone) == len(come), "nobody comes twice"
    for client, generation, reason in re.findall(
        r"detach client (\d+) generation (\d+) pid \d+ reason (-?\d+)", log
    ):
        gone[(client, generation)].append(int(reason))
    return gone


@pytest.mark.parametrize("carrier", ["auto", "unix", "shm", "tcp"])
def test_the_same_everywhere(daemon, trial, carrier):
    far = {"TRIAL_FAR": "1"} if carrier == "tcp" else {}
    said = daemon.client(trial, "same", carrier=carrier, **far)
    assert said.splitlines() == trial.expected(**far).splitlines()
    wait_for(lambda: daemon.report()["clients"] == 0, "the client to be gone")
    assert list(comings_and_goings(daemon.log()).values()) == [[0]], "it said goodbye"
    report = daemon.report()
    counted = {function["name"]: function for function in report["functions"]}
    assert counted["trial_add"]["calls"] == 1 and counted["trial_add"]["errors"] == 0
    # One call is refused before it leaves, and one by the plug-in's allocate callback.
    assert (counted["trial_lie"]["calls"], counted["trial_lie"]["errors"]) == (4, 3)
    assert (counted["trial_sum"]["calls"], counted["trial_sum"]["errors"]) == (3, 1)
    assert counted["trial_echo"]["bytes_in"] > 3 * (4 << 20) < counted["trial_echo"]["bytes_out"]
    assert sum(counted["trial_copy"]["buckets"]) == counted["trial_copy"]["calls"] == 11
    assert report["handles"] == 0


@pytest.mark.parametrize("carrier", ["auto", "tcp"])
def test_threads_are_one_client_and_do_not_wait_for_each_other(daemon, trial, carrier):
    assert daemon.client(trial, "threads", carrier=carrier) == "threads 0\n"
    wait_for(lambda: daemon.report()["clients"] == 0, "the client to be gone")
    assert list(comings_and_goings(daemon.log()).values()) == [[0]]


@pytest.mark.parametrize("carrier", ["auto", "tcp"])
def test_a_blocked_call_lets_others_pass_and_can_be_interrupted(daemon, trial, carrier):
    lines = daemon.client(trial, "interrupt", carrier=carrier).splitlines()
    assert lines == [f"meanwhile {i + 1}" for i in range(20)] + [INTERRUPTED.strip()]


def test_a_forked_child_is_a_client_of_its_own(daemon, trial):
    parent, child, stranger, threads, own, again = daemon.client(trial, "forks").splitlines()
    assert parent == again and parent.split()[0] == child.split()[0] == "0"
    assert parent.split()[1] != child.split()[1] and parent.split()[4] != child.split()[4]
    assert stranger == "its parent's box -1 no such handle"
    assert (threads, own) == ("threads 0", "its own box 7")


def test_ranks_come_from_the_launcher(daemon, trial):
    assert daemon.client(trial, "who", PMI_RANK="3", PMI_SIZE="8").split()[-2:] == ["3", "8"]
    assert daemon.client(trial, "who").split()[-2:] == ["-1", "-1"]


def test_a_plug_in_knows_whose_client_it_is(trial, place):
    """By the kernel's word: the client says nothing of it."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in (trial.client, trial.folder / "sdk" / "libzazen_stub.so"):
            shutil.copy(file, folder)
        (folder / "d").mkdir()
        with Daemon(folder / "d", plugin(trial, place)) as daemon:
            environment = daemon.environ(LD_LIBRARY_PATH=name)
            said = run(folder / "client", "who", env=environment, user=65534, group=65533, extra_groups=[])
            assert said.startswith("0 ")
            wait_for(lambda: daemon.report()["clients"] == 0, "the client to be gone")
            assert (
                len(re.findall(r"tach client \d+ .* user 65534 group 65533$", daemon.log(), re.MULTILINE))
                == 2
            )


def test_clients_killed_at_random_steps_leave_nothing(daemon, trial):
    """Fails with the seed in its message."""
    daemon.client(trial, "same")
    wait_for(lambda: daemon.report()["clients"] == 0, "the first client to be gone")
    report = daemon.report()
    held = {pid: daemon.descriptors(pid) for pid in {daemon.pid, report["pid"]}}
    for seed in range(KILLS):
        victim = daemon.start(trial, "restless", seed, carrier=["auto", "unix", "shm"][seed % 3])
        assert victim.stdout.readline() == "begun\n"
        time.sleep((seed * 7919 % 100) / 2500)
        assert victim.poll() is None, f"seed {seed}: it ended by itself"
        victim.kill()
        victim.wait()
        victim.stdout.close()
    wait_for(lambda: daemon.report()["clients"] == 0, "all clients to be gone")
    report = daemon.report()
    assert (report["generation"], report["crashes"], report["handles"], report["running"]) == (1, 0, 0, 0)
    gone = comings_and_goings(daemon.log())
    # One that was killed before its first call came never to be known.
    assert all(reasons == [1] for reasons in list(gone.values())[1:]) and len(gone) > KILLS / 2
    for pid, count in held.items():
        wait_for(lambda pid=pid, count=count: daemon.descriptors(pid) <= count, "descriptors to be closed")
    assert daemon.client(trial, "who").startswith("0 ")
    daemon.cluster.stop(0)
    assert daemon.log().count("trial fini, 0 user buffers left") == 1


def test_a_blocked_client_that_is_killed_is_noticed(daemon, trial):
    victim = daemon.start(trial, "block")
    wait_for(lambda: daemon.report()["running"] == 1, "the call to block")
    victim.kill()
    victim.wait()
    victim.stdout.close()
    wait_for(lambda: daemon.report()["clients"] == 0, "the call to end")
    assert list(comings_and_goings(daemon.log()).values()) == [[1]]


def test_a_stopping_daemon_tells_its_plug_ins(trial, tmp_path, place):
    with Daemon(tmp_path, plugin(trial, place)) as daemon:
        lines = daemon.start(trial, "lines", stdin=subprocess.PIPE)
        blocked = daemon.start(trial, "block")
        wait_for(lambda: daemon.report()["running"] == 1, "the call to block")
        assert ask(lines).startswith("0 ")
        daemon.cluster.stop(0)
        said = ask(lines)
        assert said.split()[0] in {str(NO_SERVICE), str(DISCONNECTED)}, said
        for client in (lines, blocked):
            client.kill()
            client.communicate()
        reasons = comings_and_goings(daemon.log())
        assert [3] in reasons.values(), reasons
        assert all(len(reason) <= 1 for reason in reasons.values())
        assert daemon.log().count("trial fini") == 1


def ask(client):
    client.stdin.write("\n")
    client.stdin.flush()
    return client.stdout.readline()


DEATHS = ["segv", "abort", "exit", "_exit", "kill", "stack"]


@pytest.mark.parametrize(("how", "carrier"), [*((how, "auto") for how in DEATHS), ("segv", "tcp")])
def test_a_crash_costs_its_callers_an_error(trial, tmp_path, how, carrier):
    with Daemon(tmp_path, plugin(trial)) as daemon:
        blocked = daemon.start(trial, "block")
        wait_for(lambda: daemon.report()["running"] == 1, "the call to block")
        before, die, after = daemon.client(trial, "die", how, carrier=carrier).splitlines()
        assert die == "die -1 the plug-in crashed during the call"
        # At once, a new process, a new generation, a client anew.
        assert [line.split()[0] for line in (before, after)] == ["0", "0"]
        assert [line.split()[2] for line in (before, after)] == ["1", "2"]
        assert before.split()[3] != after.split()[3]
        assert blocked.communicate()[0] == f"block -1 Input/output error {CRASHED}\n"
        report = daemon.report()
        assert (report["generation"], report["crashes"], report["state"]) == (2, 1, "running")
        log = daemon.log()
        assert len(re.findall("its process (was killed by signal|ended with exit code)", log)) == 1
        assert "begun again (generation 2)" in log


def test_repeated_crashes_leak_nothing(trial, tmp_path):
    with Daemon(tmp_path, plugin(trial)) as daemon:
        daemon.client(trial, "die", "segv")
        held = daemon.descriptors()
        for _ in range(3):
            daemon.client(trial, "die", "abort")
        wait_for(lambda: daemon.descriptors() <= held, "descriptors to be closed")
        assert len(daemon.workers()) == 1
        assert daemon.report()["crashes"] == 4


@pytest.mark.parametrize("how", ["nonsense", "half"])
def test_a_plug_in_that_lies_to_its_daemon_is_replaced(trial, tmp_path, how):
    with Daemon(tmp_path, plugin(trial)) as daemon:
        before, die, after = daemon.client(trial, "die", how).splitlines()
        assert die == "die -1 the plug-in crashed during the call"
        assert [line.split()[0] for line in (before, after)] == ["0", "0"]
        assert [line.split()[2] for line in (before, after)] == ["1", "2"]


def test_a_plug_in_that_babbles_does_not_keep_its_daemon(trial, tmp_path):
    with Daemon(tmp_path, plugin(trial)) as daemon:
        babbling = daemon.start(trial, "die", "babble")
        wait_for(lambda: daemon.report()["running"] == 1, "the call to run")
        begun = time.monotonic()
        daemon.cluster.stop(0)
        assert time.monotonic() - begun < 90
        assert "die -1" in babbling.communicate(timeout=90)[0]


@pytest.mark.parametrize("how", ["hang", "sleep"])
@pytest.mark.parametrize("carrier", ["auto", "tcp"])
def test_a_hang_is_bounded_and_a_blocking_function_is_not_one(trial, tmp_path, how, carrier):
    with Daemon(tmp_path, plugin(trial, call_timeout_seconds=0.5)) as daemon:
        blocked = daemon.start(trial, "block")
        wait_for(lambda: daemon.report()["running"] == 1, "the call to block")
        time.sleep(1.0)
        assert daemon.report()["generation"] == 1, "a blocking function may take its time"
        before, die, after = daemon.client(trial, "die", how, carrier=carrier).splitlines()
        assert die == "die -1 no answer in time"
        assert [line.split()[2] for line in (before, after)] == ["1", "2"]
        assert "trial_die has run for" in daemon.log()
        # It had waited for longer than that, too.
        assert blocked.communicate()[0] == f"block -1 Connection timed out {TIMED_OUT}\n"


def test_a_plug_in_that_stops_answering_altogether_is_replaced(trial, tmp_path):
    with Daemon(tmp_path, plugin(trial, silence_seconds=3)) as daemon:
        pid = daemon.report()["pid"]
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: daemon.report()["generation"] == 2, "its silence to be noticed", seconds=60)
        assert not alive(pid)
        assert "no sign of life" in daemon.log()


def test_a_plug_in_that_is_stopped_delays_no_report(trial, tmp_path):
    """Its counters are still told, and that it is silent; it serves again when it goes on."""
    with Daemon(tmp_path, plugin(trial, silence_seconds=100)) as daemon:
        daemon.client(trial, "who")
        before = daemon.report()
        calls = [(function["name"], function["calls"]) for function in before["functions"]]
        os.kill(before["pid"], signal.SIGSTOP)
        begun = time.monotonic()
        stopped = [daemon.report() for _ in range(5)]
        took = time.monotonic() - begun
        assert took < 60, f"five reports took {took:.1f} s"
        wait_for(lambda: daemon.report()["state"] == "silent", "its silence to be told")
        for report in [*stopped, daemon.report()]:
            assert [(function["name"], function["calls"]) for function in report["functions"]] == calls
        os.kill(before["pid"], signal.SIGCONT)
        wait_for(lambda: daemon.report()["state"] == "running", "its return to be told")
        assert daemon.client(trial, "who").startswith("0 ")
        assert daemon.report()["generation"] == 1


def test_leaks_are_bounded(trial, tmp_path):
    with Daemon(tmp_path, plugin(trial, memory="600M", open_files=100)) as daemon:
        said = daemon.client(trial, "leak", "files", 10_000)
        assert 20 < int(said.split()[1]) < 100
        said = daemon.client(trial, "leak", "memory", 100_000)
        taken = int(said.split()[1])
        assert "crashed" in said or 100 < taken < 600, said
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        assert int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) < 300 << 10
        os.kill(daemon.report()["pid"], signal.SIGKILL)
        wait_for(lambda: daemon.report()["generation"] >= 2, "the next process")
        assert daemon.client(trial, "who").startswith("0 ")


def test_two_plug_ins_do_not_hurt_each_other(trial, tmp_path, place):
    other = adder(tmp_path)
    with Daemon(tmp_path, plugin(trial), plugin(other, place)) as daemon:
        pid = daemon.report("other")["pid"]
        assert "crashed" in daemon.client(trial, "die", "segv")
        report = daemon.report("other")
        assert (report["pid"], report["generation"], report["crashes"]) == (pid, 1, 0)
        assert alive(pid) and (place == "isolated") == (pid != daemon.pid)
        rows = json.loads(zazen_tool("plugin", "list", "--socket", daemon.socket, "--json"))
        assert [(row["name"], row["id"]) for row in rows] == [("other", 7), ("trial", 78)]
        assert rows[1]["crashes"] == 1


class Adder:
    def __init__(self, path):
        self.object = path


def adder(folder, number=7):
    """A plug-in of one function."""
    folder = folder / f"other{number}"
    folder.mkdir()
    text = f"#pragma once\n/* START-ZAZEN-SCANNER ID={number} INIT=NULL FINI=NULL */\n"
    (folder / "other.h").write_text(text + "int other_add(int a /* in:obj */, int b /* in:obj */);\n")
    (folder / "other.c").write_text('#include "other.h"\nint other_add(int a, int b) { return a + b; }\n')
    zazen_tool("plugin", "generate", folder / "other.h", "--out", folder)
    paths = [f"-I{path}" for path in (ROOT / "sdk/plugin/include", folder)]
    sources = [folder / "other.c", folder / "other_dispatch.c"]
    run("cc", *STRICT, "-shared", "-fPIC", *paths, *sources, "-o", folder / "other.so")
    return Adder(folder / "other.so")


def test_clients_of_another_header_are_refused(daemon, trial, tmp_path):
    changed = tmp_path / "changed"
    changed.mkdir()
    text = (HERE / "trial.h").read_text()
    assert "max=64" in text
    (changed / "trial.h").write_text(text.replace("max=64", "max=65"))
    (tmp_path / "built").mkdir()
    built = Built(tmp_path / "built", changed / "trial.h")
    said = daemon.client(built, "who")
    assert said.startswith(f"{SCHEMA} ") and "was made from another header than this client" in said
    assert "attach" not in daemon.log()


def test_a_plug_in_that_is_not_there_is_told(trial, tmp_path):
    other = adder(tmp_path)
    with Daemon(tmp_path, plugin(other)) as daemon:
        said = daemon.client(trial, "who")
        assert said.startswith(f"{NO_SERVICE} ") and "no plug-in trial (ID 78)" in said
        said = zazen_tool("plugin", "ping", "trial", "--socket", daemon.socket, status=1)
        assert "plug-in trial: no daemon serves it" in said


def refusal(tmp_path, *plugins, environment=None):
    with pytest.raises(RuntimeError) as refused, Daemon(tmp_path, *plugins, environment=environment):
        pass
    return str(refused.value)


def test_objects_that_cannot_be_served_stop_the_daemon(trial, tmp_path, place):
    def check(name, says, *plugins, environment=None):
        folder = tmp_path / name
        folder.mkdir()
        said = refusal(folder, *plugins, environment=environment)
        assert says in said, said

    check("missing", "there is no such file", plugin(Adder(tmp_path / "no.so"), place))
    (tmp_path / "text.so").write_text("no object")
    # What the loader itself says, too: "dlopen failed" helps nobody.
    check("text", "it can't be loaded: ", plugin(Adder(tmp_path / "text.so"), place))
    (tmp_path / "lacks.c").write_text(
        "int nobody_has_this(void); int call(void) { return nobody_has_this(); }\n"
    )
    run("cc", "-shared", "-fPIC", tmp_path / "lacks.c", "-o", tmp_path / "lacks.so")
    check("lacks", "undefined symbol: nobody_has_this", plugin(Adder(tmp_path / "lacks.so"), place))
    (tmp_path / "empty.c").write_text("int nothing;\n")
    run("cc", "-shared", "-fPIC", tmp_path / "empty.c", "-o", tmp_path / "empty.so")
    check("empty", "exports no zazen_plugin_v1", plugin(Adder(tmp_path / "empty.so"), place))
    refuses = {"TRIAL_INIT": "refuse"}
    variable = {"environment": refuses} if place == "isolated" else {}
    check("refuses", "its init refused (5)", plugin(trial, place, **variable), environment=refuses)
    twins = [plugin(trial, place), plugin(trial, place)]
    check("twins", "have the same ID 78", *twins)
    if place == "isolated":
        crashes = {"TRIAL_INIT": "crash"}
        check("crashes", "ended while it was loaded or in its init", plugin(trial, environment=crashes))
    check("typo", "unknown field `isolated`", f'[[plugin]]\npath = "{trial.object}"\nisolated = true\n')


def doctored(trial, tmp_path, name, was, becomes):
    """The trial with a patched dispatcher."""
    source = tmp_path / f"{name}.c"
    text = (trial.folder / "trial_dispatch.c").read_text()
    assert text.count(was) >= 1, was
    source.write_text(text.replace(was, becomes))
    paths = [f"-I{path}" for path in (trial.folder / "sdk", trial.folder, HERE)]
    out = tmp_path / f"{name}.so"
    run("cc", "-shared", "-fPIC", "-w", *paths, HERE / "trial.c", source, "-o", out)
    return Adder(out)


def test_entry_tables_are_checked(trial, tmp_path):
    backing = tmp_path / "backing"
    backing.mkdir()
    base = ["--cache", tmp_path / "cache", "--backing", backing, "--socket", tmp_path / "s", "--check"]
    for name, was, becomes, says in [
        ("abi", ".abi = ZAZEN_PLUGIN_ABI", ".abi = 2", "version 2 of the plug-in interface"),
        ("size", ".struct_size = sizeof(struct zazen_plugin)", ".struct_size = 24", "has 24 bytes"),
        ("id", ".id = TRIAL_ID", ".id = 70000", "its ID is 70000"),
        ("hash", ".schema_hash = TRIAL_SCHEMA_HASH", ".schema_hash = 1", "disagree about the schema_hash"),
        ("name", '.name = "trial"', '.name = "trail"', "disagree about the name"),
    ]:
        bad = doctored(trial, tmp_path, name, was, becomes)
        said = run(zazen.testing.program("zazend"), *base, "--plugin", bad.object, status=1)
        assert says in said, said
    said = run(zazen.testing.program("zazend"), *base, "--plugin", f"{trial.object}:in-process")
    assert f"ok: plugin {trial.object}: trial (ID 78), 22 functions, in this process" in said


def test_a_killed_daemon_takes_its_plug_ins_with_it(trial, tmp_path):
    with Daemon(tmp_path, plugin(trial)) as daemon:
        blocked = daemon.start(trial, "block")
        wait_for(lambda: daemon.report()["running"] == 1, "the call to block")
        (worker,) = daemon.workers()
        daemon.cluster.kill(0)
        wait_for(lambda: not alive(worker), "the plug-in's process to end")
        said = blocked.communicate()[0]
        # The plug-in's process tells blocked calls to return before it ends; what comes first
        # depends.
        assert said in {f"block -1 Connection reset by peer {DISCONNECTED}\n", INTERRUPTED}
        # A fresh daemon finds the place clean, and an old client the fresh daemon.
        daemon.cluster.start(0)
        daemon.pid = daemon.cluster.pid(0)
        assert daemon.client(trial, "who").startswith("0 1 1 ")


def test_a_client_goes_on_with_the_next_daemon(daemon, trial):
    lines = daemon.start(trial, "lines", stdin=subprocess.PIPE)
    first = ask(lines).split()
    daemon.cluster.stop(0)
    assert ask(lines).split()[0] in {str(NO_SERVICE), str(DISCONNECTED)}
    daemon.cluster.start(0)
    daemon.pid = daemon.cluster.pid(0)
    said = [ask(lines).split() for _ in range(2)]
    lines.communicate()
    assert said[-1][0] == "0" and said[-1][3] != first[3], said


def test_ping_and_stats_for_people(daemon, trial):
    daemon.client(trial, "same")
    said = zazen_tool("plugin", "ping", "--socket", daemon.socket)
    assert re.search(r"^trial on .+: answers in \d+ µs, generation 1, \d+ clients$", said, re.MULTILINE)
    said = zazen_tool("plugin", "stats", "78", "--socket", daemon.socket)
    assert re.search(r"^trial_add +1 +0 ", said, re.MULTILINE), said
    said = zazen_tool("plugin", "list", "--socket", daemon.socket)
    assert re.search(r"^.+ +78 +trial +(in-process|isolated) +running ", said, re.MULTILINE), said
    status = json.loads(zazen_tool("status", "--socket", daemon.socket, "--json"))
    (row,) = status["nodes"][0]["status"]["plugins"]
    assert (row["name"], row["calls"] > 50, row["state"]) == ("trial", True, "running")


def test_python_calls_over_the_same_library(daemon, trial, tmp_path):
    link = ["-L", trial.folder / "sdk", "-lzazen_stub", f"-Wl,-rpath,{trial.folder / 'sdk'}"]
    paths = [f"-I{path}" for path in (trial.folder / "sdk", trial.folder, HERE)]
    library = tmp_path / "libtrial.so"
    run("cc", *STRICT, "-shared", "-fPIC", *paths, trial.folder / "trial_client.c", *link, "-o", library)
    # Beside trial.so, Python would take that for the module.
    shutil.copy(trial.folder / "trial.py", tmp_path)
    (tmp_path / "go.py").write_text(
        "import trial\n"
        f"client = trial.Client({str(library)!r})\n"
        "print(client.trial_add(2, 3), client.trial_upper('text'), client.trial_sum(bytes([1, 2, 3])))\n"
        "box = client.trial_box(9)\n"
        "print(client.trial_unbox(box), client.trial_drop(box))\n"
        "try:\n    client.trial_unbox(box)\nexcept trial.CallError as error:\n    print(error.status)\n"
        "try:\n    client.trial_fail(18)\nexcept OSError as error:\n    print(error.strerror)\n"
    )
    said = run(sys.executable, tmp_path / "go.py", env=daemon.environ(ZAZEN_SOCKET=daemon.socket))
    assert said.splitlines() == ["5 (4, 'TEXT') 6", "9 9", "5", "Invalid cross-device link"]


def test_the_template_builds_tests_and_runs(tmp_path):
    beside = f"{Path(zazen.testing.program('zazen')).parent}:{Path(sys.executable).parent}"
    clean = zazen.testing.environment()
    environment = {
        **clean,
        "PATH": f"{beside}:{os.environ['PATH']}",
        "ZAZEN": zazen.testing.program("zazen"),
        "ZAZEND": zazen.testing.program("zazend"),
    }
    zazen_tool("plugin", "new", "fft_2d", "--dir", tmp_path / "mine")
    begun = time.monotonic()
    said = run(shutil.which("make"), "-C", tmp_path / "mine", "test", env=environment)
    assert "fft_2d in a process of its own: as expected" in said and "fft_2d:in-process: as expected" in said
    assert time.monotonic() - begun < 60
    said = zazen_tool("plugin", "new", "other", "--dir", tmp_path / "mine", status=1)
    assert "is there already" in said
    assert "give lower-case letters" in zazen_tool("plugin", "new", "No-Name", status=1, cwd=tmp_path)


def test_metrics_count_plug_ins(trial, tmp_path):
    with Daemon(tmp_path, 'metrics = "127.0.0.1:0"\n', plugin(trial)) as daemon:
        daemon.client(trial, "die", "segv")
        ready = json.loads((daemon.cluster.folder / "node0.ready").read_text())
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=90) as page:
            text = page.read().decode()
        assert 'zazen_plugin_crashes_total{plugin="trial"} 1' in text
        assert 'zazen_plugin_clients{plugin="trial"} ' in text
        calls = re.search(r'zazen_plugin_calls_total\{plugin="trial"\} (\d+)', text)
        assert int(calls[1]) >= 2
