"""What root's daemon writes where other users choose names: files in a folder like /tmp, lines of
its log, and what its tools print.
"""

import json
import os
import signal
import subprocess

import pytest
import zazen.testing
from launching import wait_for
from wire import Raw

from conftest import read_frames, write_frames


@pytest.fixture
def shared(ground):
    """A folder that everybody may write to, and nobody may remove others' files from."""
    folder = ground / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def daemon(ground, programs):
    """Starts root's daemon, with nothing but these flags beside what it must have."""
    if os.geteuid() != 0:
        pytest.skip("another user's links need root")
    (ground / "backing").mkdir()
    started = []

    def start(*flags):
        words = [programs / "zazend", "--cache", ground / "cache", "--backing", ground / "backing"]
        words += ["--socket", ground / "s", "--name", "n0", "--free-floor", "0", *flags]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                [*map(str, words)], stderr=pipe, stdout=pipe, text=True, env=zazen.testing.environment()
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_own_file(path):
    """A regular file of root's with something in it, and no link."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == 0 and not path.is_symlink() and found.st_size > 0


def test_planted_links_are_replaced_not_followed(a, b, daemon, ground, shared):
    victim = ground / "victim"
    victim.write_text("precious")
    for name in ("ready", "ready.new", "state", "state.new"):
        b.run(os.symlink, victim, shared / name)
    process = daemon("--ready-file", shared / "ready", "--dump-file", shared / "state")
    wait_for(lambda: is_own_file(shared / "ready") or process.poll() is not None, "the ready file")
    assert json.loads((shared / "ready").read_text())["pid"] == process.pid
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: is_own_file(shared / "state"), "the state")
    assert victim.read_text() == "precious"
    # It names everybody's files.
    assert (shared / "state").stat().st_mode & 0o777 == 0o600
    with pytest.raises(PermissionError):
        a.run((shared / "state").read_text)


def test_spans_go_into_no_file_of_another_user(b, daemon, ground, shared):
    victim = ground / "victim"
    victim.write_text("precious")
    planted = shared / "n0.spans"
    b.run(os.symlink, victim, planted)
    b.run((shared / "n0.2.spans").write_text, "not yours")
    os.link(victim, shared / "n0.3.spans")
    process = daemon("--spans", shared, "--ready-file", ground / "ready")
    wait_for(lambda: is_own_file(ground / "ready") or process.poll() is not None, "the daemon to serve")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == 0
    made = shared / "n0.4.spans"
    assert made.lstat().st_uid == 0 and not made.is_symlink()
    assert victim.read_text() == "precious"
    assert (shared / "n0.2.spans").read_text() == "not yours"


# What a name could do to a terminal and to a log: clear it, begin a line or a row of its own.
NAME = "x\n2026-01-01T00:00:00.000000Z ERROR forged\r\x1b[2J\x9b31m"


def test_names_forge_no_line_and_give_no_orders(a, b, start_node, programs):
    node = start_node("--budget", "1M")
    home = node.backing / "home"
    home.mkdir()
    b.own(home)
    sims = [home / f"{NAME}{number}" for number in range(3)]
    for sim in sims:
        b.run(sim.mkdir)
        # Two do not fit at once: the log tells which dataset made room for which.
        write_frames(sim, b, count=5)
        assert len(b.run(read_frames, sim, node.socket)) == 5
        # A dataset stays in use until the daemon has seen the scan's connection close.
        wait_for(
            lambda: not any(one["scans"] for one in Raw(node.socket).status()["datasets"]), "the scan's end"
        )

    log = node.log.read_text()
    assert "forged" in log and "\x1b" not in log and "\x9b" not in log and "\r" not in log
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())


def check_shown(text):
    """No order reaches a terminal, and no name begins a line."""
    orders = [*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E]
    assert not any(ord(letter) in orders for letter in text.replace("\n", "")), text
    assert not any(line.startswith("2026-01-01") for line in text.split("\n")), text


def test_what_root_is_shown_of_names(b, daemon, ground, programs):
    """Root looks at a folder of B's with the command line: tables, lines, errors and the state."""
    state = ground / "state"
    process = daemon("--dump-file", state)
    wait_for((ground / "s").exists, "the daemon to serve")
    home = ground / "backing" / "home"
    home.mkdir()
    b.own(home)
    sim = home / f"{NAME}\u202e0"
    b.run(sim.mkdir)
    write_frames(sim, b, count=5, name=f"{NAME[:20]}\u202e-{{}}.bin")
    assert len(b.run(read_frames, sim, ground / "s")) == 5
    # What is no layout: its error quotes the file.
    broken = home / f"{NAME}broken"
    b.run(broken.mkdir)
    b.run((broken / "zazen.toml").write_text, f'"{NAME}')
    nodes = home / f"{NAME}nodes"
    b.run(nodes.write_text, f"{NAME}\n")

    def told(*words, place=("--socket", ground / "s")):
        command = [programs / "zazen", *words, *place]
        environment = zazen.testing.environment() | {"ZAZEN_LOG": "debug"}
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, timeout=90, env=environment
        )
        assert 0 <= done.returncode <= 3, done
        check_shown(done.stdout)
        check_shown(done.stderr)
        return done.stdout + done.stderr

    for words in (["datasets"], ["stat", sim, "0"], ["status", "--dump"], ["ls", f"{sim}none"]):
        assert "forged" in told(*words), words
    for words in (["ls", sim], ["status"], ["doctor", "--no-disk"], ["explain", sim]):
        told(*words)
    for command in ("verify", "load", "evict", "index"):
        for path in (sim, broken, f"{sim}none"):
            told(command, path)
    for words in (["push", sim, "--nodes", nodes], ["assign", "--scenario", broken], ["viz", "plan", broken]):
        told(*words, place=())
    # A shell puts names of files into command lines.
    assert "forged" in told("ls", f"--{NAME}")
    assert "forged" in told(NAME, place=())
    # What was evicted is read again.
    assert len(b.run(read_frames, sim, ground / "s")) == 5
    rows = json.loads(told("datasets", "--json"))["datasets"]
    assert str(sim) in [value for row in rows for value in row.values()]
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: is_own_file(state), "the state")
    check_shown(state.read_text())
    assert "forged" in state.read_text()
