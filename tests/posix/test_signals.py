"""Signals reach a forwarded program as they reach one that runs directly, in each mode."""

import os
import signal
import subprocess
import time

import pytest
from harness import PREFIX, python

MODES = ["preload", "direct", "seccomp", "node"]


@pytest.fixture(params=MODES)
def command(request):
    """What to put before a program, in each mode, and the daemon."""
    daemon = request.getfixturevalue("node" if request.param == "node" else "daemon")
    daemon.empty()
    options = {"direct": ["--direct"], "seccomp": ["--seccomp"]}.get(request.param, [])
    return daemon, daemon.command(*options)


def ignoring() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


@pytest.mark.parametrize("before", [None, ignoring], ids=["usual", "ignoring"])
def test_signals_are_blocked_and_ignored_as_before(command, before):
    _, words = command
    program = ["cat", "/proc/self/status"]

    def lines(words):
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, preexec_fn=before, restore_signals=False
        )
        return [line for line in done.stdout.splitlines() if line[:6] in ("SigBlk", "SigIgn")]

    assert len(lines(program)) == 2
    assert lines([*words, *program]) == lines(program)


def test_timeout_ends_a_program(command):
    _, words = command
    done = subprocess.run([*words, "timeout", "0.5", "sleep", "60"], timeout=90)
    assert done.returncode == 124


POOL = """
import multiprocessing, sys
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(double, [1, 2]))
"""


def test_a_pool_of_processes_ends(command):
    daemon, words = command
    (daemon.far / "pool.py").write_text(POOL)
    done = subprocess.run([*words, python(), f"{PREFIX}/pool.py"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2, 4]\n", done.stderr


TRAP = 'trap "echo got; exit 7" {}; echo ready; while :; do sleep 0.05; done'


@pytest.mark.parametrize("name", ["TERM", "USR1", "HUP", "ALRM", "XCPU"])
def test_a_signal_to_zazen_run_reaches_the_program(command, name):
    _, words = command
    words = [*words, "bash", "-c", f"cd {PREFIX}; " + TRAP.format(name)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(getattr(signal, "SIG" + name))
        assert run.stdout.read() == "got\n"
        assert run.wait(30) == 7


def test_a_program_that_a_signal_ends(command):
    _, words = command
    done = subprocess.run([*words, "sh", "-c", "kill -KILL $$"], timeout=90)
    assert done.returncode in (-9, 128 + 9)


def test_background_children_keep_their_files(command):
    daemon, words = command
    late = "(until [ -e go ]; do sleep 0.1; done; echo late; cat before)"
    script = f"cd {PREFIX}; exec > out; {late} & echo early; exit 5"
    (daemon.far / "before").write_text("from before\n")
    done = subprocess.run([*words, "bash", "-c", script], timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 5
    assert (daemon.far / "out").read_text() == "early\n", "the command waited for its child"
    (daemon.far / "go").touch()
    deadline = time.monotonic() + 60
    while "from before" not in (daemon.far / "out").read_text():
        assert time.monotonic() < deadline, (daemon.far / "out").read_text()
        time.sleep(0.1)
    assert (daemon.far / "out").read_text() == "early\nlate\nfrom before\n"


def test_a_bridge_ends_with_its_last_program(node, tmp_path):
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    node.run("sh", "-c", "sleep 0.5 > /dev/null 2>&1 &", env=environment)
    deadline = time.monotonic() + 60
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_node_that_does_not_answer(node):
    words = node.command()
    words[words.index("--node") + 1] = "127.0.0.1:1"
    done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "127.0.0.1:1" in done.stderr
