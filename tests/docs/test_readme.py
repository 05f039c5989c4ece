"""README's commands, typed: the shell lines of "Use it on your data" and its Python program.

They run in folders of our own. The only changes made to a line are where it points (`/lustre`,
`/ssd/zazen`, `/etc/zazen/key`, the port) and how many ranks fit here (`-n 64`). A line that the
test does not know fails it: README can't grow a command that nobody ran.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.executable).parent
FRAMES = 40


def blocks(language, title="Use it on your data"):
    text = (ROOT / "README.md").read_text()
    section = text.split(f"## {title}")[1].split("\n## ")[0]
    # Fences alternate: every second piece is inside one.
    inside = section.split("```")[1::2]
    return [block.split("\n", 1)[1] for block in inside if block.split("\n", 1)[0] == language]


def commands():
    """The shell lines, without comments; lines that only install are left to `make test` itself."""
    lines = [line.split("  #")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line]


class Site:
    """Folders that stand for a cluster's, and the daemon started by README's own line."""

    def __init__(self, folder):
        self.folder = folder
        self.lustre = folder / "lustre"
        self.daemon = None
        self.watcher = None
        self.port = None
        self.socket = folder / "zazend.sock"
        for name in ("lustre/sim0", "lustre/sim1", "ssd/zazen", "etc/zazen"):
            (folder / name).mkdir(parents=True)
        write_frames(self.lustre / "sim0")
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "ZAZEN_SOCKET": str(self.socket),
            "ZAZEN_KEY": str(folder / "etc/zazen/key"),
        }
        for name in ("ZAZEN_TESTBED", "ZAZEN_BACKING"):
            self.env.pop(name, None)

    def here(self, line):
        for path in ("/lustre", "/ssd/zazen", "/etc/zazen"):
            line = re.sub(rf"(?<![\w/]){path}", str(self.folder) + path, line)
        return line.replace("mpirun -n 64 python", f"mpiexec -n 2 {sys.executable}")

    def run(self, line, timeout=120):
        done = subprocess.run(
            line, shell=True, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start_daemon(self, line):
        ready = self.folder / "ready.json"
        line = line.rstrip("& ").replace("0.0.0.0:7345", "127.0.0.1:0")
        self.daemon = subprocess.Popen(
            ["sh", "-c", f"exec {line} --ready-file {ready}"], env=self.env, cwd=self.folder
        )
        wait_for(ready.exists, "the daemon to be ready")
        listen = json.loads(ready.read_text())["listen"]
        (self.folder / "nodes.txt").write_text(f"# this machine\n{listen}\n")

    def stop(self):
        for process in (self.watcher, self.daemon):
            if process and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def write_frames(folder):
    for number in range(FRAMES):
        temporary = folder / f".frame-{number:07}.bin"
        temporary.write_bytes(number.to_bytes(4, "little") * 50_000)
        temporary.rename(folder / f"frame-{number:07}.bin")


def wait_for(condition, what, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.stop()


@pytest.mark.skipif(not shutil.which("mpiexec", path=str(BIN)), reason="mpiexec is not in this environment")
def test_readme_commands_work_as_typed(site):
    program = blocks("python")[0]
    assert "..." in program
    # A scan of less than 50 ms leaves nothing to explain.
    body = "print(f'<{number} {len(data)} {path}>', flush=True); time.sleep(0.005)"
    program = "import time\n" + site.here(program).replace("...", body)
    (site.folder / "analysis.py").write_text(program)
    typed = []
    for line in commands():
        if line == "mpirun -n 64 python -m mpi4py analysis.py":
            wait_for(lambda: held(site) == 2 * FRAMES, "all frames to be held")
            out = site.run(site.here(line))
            # The ranks' lines may run into each other.
            rows = re.findall(r"<(\d+) (\d+) ([^<>]+)>", out)
            assert sorted(int(row[0]) for row in rows) == list(range(FRAMES)), "each frame exactly once"
            assert all(row[1] == "200000" and "/ssd/zazen/" in row[2] for row in rows), out
        elif line.startswith("zazend "):
            site.start_daemon(site.here(line))
        elif line.startswith("zazen push --watch"):
            site.watcher = subprocess.Popen(
                ["sh", "-c", "exec " + site.here(line)], env=site.env, cwd=site.folder
            )
            time.sleep(0.5)
            write_frames(site.lustre / "sim1")
        elif line.startswith(("zazen key new", "zazen load", "zazen status", "zazen explain")):
            site.run(site.here(line))
        else:
            pytest.fail(f"README has a command that this test does not know: {line}")
        typed.append(line.split()[0])
    assert typed == ["zazen", "zazend", "zazen", "zazen", "mpirun", "zazen", "zazen"]


@pytest.mark.skipif(not shutil.which("mpiexec", path=str(BIN)), reason="mpiexec is not in this environment")
def test_the_tour_on_one_machine_works_as_typed(tmp_path_factory):
    """All its shell lines in one shell, word for word, but for the installation, which is this
    environment's."""
    title = "Try it on one machine"
    folder = tmp_path_factory.mktemp("tour")
    (folder / "analysis.py").write_text(blocks("python", title)[0])
    lines = [line for block in blocks("", title) for line in block.splitlines()]
    assert lines[0].startswith("pip install '.[mpi]'")
    script = "set -e\n" + "\n".join(f"echo '## {number}'\n{line}" for number, line in enumerate(lines[1:]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}
    environment |= {
        "PATH": f"{BIN}{os.pathsep}{environment['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        if (folder / ".testbed").exists():
            subprocess.run(
                [BIN / "zazen", "testbed", "down"], cwd=folder, env=environment, timeout=60, check=False
            )
    assert "never pushed" in done.stdout and "nothing to load: " in done.stdout, done.stdout
    runs = done.stdout.split("zazen testbed run")[0]
    totals = [int(total) for total in re.findall(r"^\d (\d+)$", runs, flags=re.M)]
    assert sum(totals) == 2 * 200 * 100_000, done.stdout


def held(site):
    """Frames that the daemon says it holds, of all datasets."""
    told = json.loads(site.run("zazen datasets --json"))
    return sum(row["native"] + row["alien"] for row in told["datasets"])


def test_readme_shows_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text and "make test" in text
    assert (ROOT / "docs/zazen.svg").exists()
