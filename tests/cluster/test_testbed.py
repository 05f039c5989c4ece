"""The testbed itself: what it makes, and that nothing stays behind."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import mpiexec

from conftest import FRAMES, Testbed


def hosts(testbed) -> dict:
    status = json.loads(testbed.tool("testbed", "status", "--json").stdout)
    return {host["name"]: host for host in status["hosts"]}


def is_running(pid: int) -> bool:
    """Its first thread may have ended before others."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" or int(fields[16]) > 1


def test_down_leaves_nothing_and_is_idempotent(tool, tmp_path):
    testbed = Testbed(tmp_path / "t", tool)
    pids = [host["pid"] for host in hosts(testbed).values()]
    assert len(pids) == 3 and all(map(is_running, pids))
    testbed.dataset.rmdir()
    tool("testbed", "down", "--dir", testbed.folder)
    assert not any(map(is_running, pids))
    assert not testbed.folder.exists()
    tool("testbed", "down", "--dir", testbed.folder)


def test_down_says_which_variables_still_name_the_testbed(tool, tmp_path):
    testbed = Testbed(tmp_path / "t", tool)
    said = testbed.tool("testbed", "down")
    assert "`unset ZAZEN_TESTBED ZAZEN_KEY`" in said.stderr and "unset" not in said.stdout
    lost = testbed.tool("status", "--nodes", "localhost", status=1)
    assert f"key file {testbed.folder}/key (from $ZAZEN_KEY): there is none" in lost.stderr
    testbed = Testbed(tmp_path / "u", tool)
    assert "unset" not in tool("testbed", "down", "--dir", testbed.folder).stderr


def test_down_lets_daemons_end_in_order(tool, tmp_path):
    """They were asked twice, which ends them at once, without the spans of the last second."""
    spans = tmp_path / "spans"
    testbed = Testbed(tmp_path / "t", tool, "--spans", spans)
    testbed.push(testbed.write())
    tool("testbed", "down", "--dir", testbed.folder)
    out = tmp_path / "spans.jsonl"
    tool("sim", "export", spans, "--format", "jsonl", "-o", out)
    recorded = [json.loads(line) for line in out.read_text().splitlines()]
    pushed = sum(span["bytes_in"] for span in recorded if span["op"].startswith("frames.push"))
    assert pushed == sum(file.stat().st_size for file in testbed.dataset.iterdir())


def test_the_file_servers_data_are_kept(tool, tmp_path):
    testbed = Testbed(tmp_path / "t", tool)
    testbed.write(1)
    assert "kept" in tool("testbed", "down", "--dir", testbed.folder).stdout
    assert [file.name for file in testbed.folder.iterdir()] == ["server"]


def test_kill_and_revive_keep_cache_and_address(pushed):
    before = hosts(pushed)["n1"]
    pushed.tool("testbed", "kill", "1")
    assert not is_running(before["pid"])
    assert "dead already" in pushed.tool("testbed", "kill", "n1", status=1).stderr
    assert "is up" in pushed.tool("testbed", "revive", "n0", status=1).stderr
    assert "n0 to n1" in pushed.tool("testbed", "kill", "n7", status=1).stderr
    pushed.tool("testbed", "revive", "n1")
    after = hosts(pushed)["n1"]
    assert after["addr"] == before["addr"] and after["pid"] != before["pid"]
    nodes = json.loads(pushed.tool("ls", pushed.dataset, "--json").stdout)["nodes"]
    assert sum(node["native_frames"] for node in nodes) == FRAMES, "the killed node's frames are there again"


def test_up_over_a_live_testbed_is_refused_over_a_dead_one_not(testbed, tool):
    assert "is up with 2 nodes" in tool("testbed", "up", 2, "--dir", testbed.folder, status=1).stderr
    pids = [host["pid"] for host in hosts(testbed).values()]
    for pid in pids:
        os.kill(pid, 9)
    while any(map(is_running, pids)):
        time.sleep(0.01)
    tool("testbed", "up", 3, "--dir", testbed.folder)
    assert len(hosts(testbed)) == 4


def test_a_stranger_with_a_recorded_pid_is_left_alone(testbed, tool):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        file = testbed.folder / "testbed.json"
        record = json.loads(file.read_text())
        os.kill(record["nodes"][0]["process"]["pid"], 9)
        record["nodes"][0]["process"]["pid"] = stranger.pid
        file.write_text(json.dumps(record))
        assert not hosts(testbed)["n0"]["alive"]
        tool("testbed", "down", "--dir", testbed.folder)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_daemon_that_does_not_come_up_is_explained_and_undone(tool, tmp_path):
    broken = tmp_path / "zazend"
    broken.write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    broken.chmod(0o755)
    tool.environment["ZAZEND"] = str(broken)
    done = tool("testbed", "up", 2, "--dir", tmp_path / "t", status=1)
    assert "no luck today" in done.stderr and "n0" in done.stderr
    assert not (tmp_path / "t" / "testbed.json").exists()
    assert not (tmp_path / "t" / "fs").exists()


def test_long_paths_get_short_sockets(tool, tmp_path):
    testbed = Testbed(tmp_path / ("x" * 120), tool)
    sockets = [Path(host["socket"]) for host in hosts(testbed).values() if host["socket"]]
    assert all(len(str(socket)) < 100 and socket.is_socket() for socket in sockets)
    testbed.tool("status")
    tool("testbed", "down", "--dir", testbed.folder)
    assert not any(socket.parent.exists() for socket in sockets)


def test_env_and_run_place_a_command(testbed):
    lines = testbed.tool("testbed", "env", "--on", "n1").stdout.splitlines()
    assert f"export ZAZEN_TESTBED='{testbed.folder}'" in lines
    code = "import os; print(os.environ['ZAZEN_NODE'], os.environ['ZAZEN_SOCKET'])"
    said = testbed.tool("testbed", "run", "--on", "n1", "--", sys.executable, "-c", code).stdout.split()
    assert said == ["n1", hosts(testbed)["n1"]["socket"]]
    assert testbed.tool("testbed", "run", "--on", "sim", "--", "sh", "-c", "exit 7", status=7)
    assert "rank" in testbed.tool("testbed", "exec", "--", "true", status=1).stderr


def test_ranks_go_round_the_nodes(testbed):
    # One write each: the launcher mixes the ranks' output byte by byte.
    code = "import os; os.write(1, '{PMI_RANK} {ZAZEN_NODE}\\n'.format(**os.environ).encode())"
    testbed.tool.environment["ZAZEN_MPIEXEC"] = mpiexec()
    said = testbed.tool("testbed", "run", "-n", "4", "--", sys.executable, "-c", code).stdout
    assert sorted(said.split("\n"))[1:] == ["0 n0", "1 n1", "2 n0", "3 n1"]
    testbed.tool("testbed", "kill", "n0")
    said = testbed.tool("testbed", "run", "-n", "2", "--live", "--", sys.executable, "-c", code).stdout
    assert sorted(said.split("\n"))[1:] == ["0 n1", "1 n1"]


def test_a_rank_that_cannot_start_ends_the_job(testbed, tool):
    """The other rank waits for it in MPI_Init, and mpiexec would wait for both."""
    waits = [sys.executable, "-c", "from mpi4py import MPI"]
    rank = [tool.program, "testbed", "exec", "--dir", testbed.folder, "--"]
    command = [mpiexec(), "-n", "1", *rank, *waits, ":", "-n", "1", *rank, "/nowhere/program"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0
    assert "this rank did not start" in ended.stderr
    assert "/nowhere/program" in ended.stderr


EARLY = """
import os, sys
if os.environ["PMI_RANK"] == "1":
    sys.exit("no module named data")
from mpi4py import MPI
"""


def test_a_rank_that_ends_before_mpi_begins_ends_the_job(testbed, tool):
    """The other rank waits for it in MPI_Init, and mpiexec would wait for both."""
    run = [tool.program, "testbed", "run", "--dir", testbed.folder, "-n", "2", "--", sys.executable, "-c"]
    asked = {"timeout": 300, "env": {**tool.environment, "ZAZEN_MPIEXEC": mpiexec()}}
    ended = subprocess.run([*run, EARLY], capture_output=True, text=True, **asked)
    assert ended.returncode != 0
    assert "no module named data" in ended.stderr
    assert "rank 1 ended before MPI_Init (exit status: 1), so the job ends" in ended.stderr
    # What MPI programs end with stays as it is.
    after = "import sys\nfrom mpi4py import MPI\nassert MPI.COMM_WORLD.allreduce(1) == 2\nsys.exit(5)"
    assert subprocess.run([*run, after], capture_output=True, **asked).returncode == 5
    assert subprocess.run([*run, "pass"], capture_output=True, **asked).returncode == 0


def network_excuse() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "no ip or tc here: apt-get install iproute2"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        return "this root may not make network namespaces"
    return None


def namespaces() -> set[str]:
    folder = Path("/run/netns")
    return {file.name for file in folder.iterdir()} if folder.exists() else set()


@pytest.mark.skipif(network_excuse() is not None, reason=str(network_excuse()))
def test_shaped_links_work_and_vanish(tool, tmp_path):
    before = namespaces()
    testbed = Testbed(tmp_path / "t", tool, "--net", "--link", "80mbit", "--server-link", "8mbit")
    made = namespaces() - before
    assert len(made) == 5, "two nodes, switch, file server, simulation"
    files = testbed.write()
    told = json.loads(testbed.tool("status", "--nodes", testbed.nodes, "--json", status=1).stdout)["nodes"]
    assert "up" not in [node["state"] for node in told], "the host's own network is not attached"
    run = ["testbed", "run", "--on", "sim", "--", testbed.tool.program]
    done = testbed.tool(*run, "push", *files, "--nodes", testbed.nodes, "--json")
    assert json.loads(done.stdout)["pushed"] == FRAMES
    testbed.tool(*run, "status", "--nodes", testbed.nodes)
    status = json.loads(testbed.tool("testbed", "status", "--json").stdout)
    assert status["limits"] == {"how": "shaped links", "server_bytes_per_s": 1_000_000}
    assert status["server_traffic"]["bytes"] == 0, "frames that are pushed are not read back"
    tool("testbed", "down", "--dir", testbed.folder)
    assert namespaces() == before


def groups() -> set[Path]:
    """Control groups of testbeds, in every hierarchy."""
    return {file for file in Path("/sys/fs/cgroup").glob("**/zz??????") if file.is_dir()}


def disk_excuse() -> str | None:
    if os.geteuid() != 0:
        return "I/O control groups need root"
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists():
        there = "io" in unified.read_text().split()
    else:
        there = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").exists()
    return None if there else "no I/O control groups here"


@pytest.mark.skipif(disk_excuse() is not None, reason=str(disk_excuse()))
def test_limited_disks_put_every_host_into_a_group_and_vanish(tool, tmp_path):
    before = groups()
    testbed = Testbed(
        tmp_path / "t", tool, "--disk-bps", "40MB", "--disk-iops", "150", "--server-disk-bps", "90MB"
    )
    disk = json.loads(testbed.tool("testbed", "status", "--json").stdout)["disk"]
    if disk is None:
        tool("testbed", "down", "--dir", testbed.folder)
        pytest.skip("the temporary directory is not on a disk of this machine's own")
    rates = (disk["bytes_per_s"], disk["iops"], disk["server_bytes_per_s"])
    assert rates == (40_000_000, 150, 90_000_000)
    assert "150 reads/s" in testbed.tool("testbed", "status").stdout
    limit = "io.max" if disk["unified"] else "blkio.throttle.read_iops_device"
    text = (Path(disk["group"]) / "n1" / limit).read_text()
    assert disk["device"] in text and "150" in text
    for name in ["n0", "fs", "sim"]:
        seen = testbed.tool("testbed", "exec", "--on", name, "--", "cat", "/proc/self/cgroup").stdout
        assert f"/{Path(disk['group']).name}/{name}\n" in seen, name
    busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    testbed.tool("testbed", "run", "--on", "n1", "--", "sh", "-c", busy)
    seconds = hosts(testbed)["n1"]["cpu_seconds"]
    assert seconds is None or seconds > 0.02
    tool("testbed", "down", "--dir", testbed.folder)
    assert groups() == before


def test_net_without_root_says_so(tool, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("this is root")
    assert "need root" in tool("testbed", "up", 2, "--net", "--dir", tmp_path / "t", status=1).stderr
