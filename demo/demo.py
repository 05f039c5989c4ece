#!/usr/bin/env python3
"""The main job from end to end on this machine: simulate, push, analyse under MPI, lose a node,
get it back.

A testbed of four nodes (daemons with caches of their own) and a slow file server; an OpenMM
simulation writes a trajectory to the file server while `zazen push --watch` places each of its
frames on a node; then the same MDAnalysis analysis runs under `mpiexec -n 4` straight from the file
server, from Zazen, with one node dead, and with it back. Ends with a table on stdout and
`demo-report.json`; exits non-zero if the results differ or Zazen did not read locally.

    make demo        # or: .venv/bin/python demo/demo.py [--frames N] [--files]

As root with iproute2 each node gets a network namespace with shaped links; otherwise a token bucket
limits the file server. Everything lies in `.demo/` and is taken down at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODES = 4
VICTIM = "n2"
# What the file server gives all readers together. Scaled down from a real cluster like the data:
# some 30 MB take seconds, and the server is slower than the four nodes together.
SERVER_BYTES_PER_S = 5_000_000
LINK_BITS_PER_S = 160_000_000
LOCAL_SHARE_MIN = 0.99
# What opening a trajectory may read from the file server, on all nodes together: its header, and
# its first frame where a node does not have it. No frame of the analysis is among it.
OPENING_SHARE_MAX = 0.05
PACKAGES = {
    "openmm": "openmm",
    "MDAnalysis": "MDAnalysis",
    "mpi4py": "mpi4py",
    "numpy": "numpy",
    "zazen": ".",
}


class DemoError(Exception):
    """The demo cannot go on; the message says what to do."""


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


class Demo:
    """One run of the demo: its folders, its environment and what it has to clean up."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder = ROOT / ".demo"
        self.testbed_dir = self.folder / "testbed"
        self.dataset = self.testbed_dir / "server" / "villin"
        # With --files the directory is the trajectory.
        self.trajectory = self.dataset if arguments.files else self.dataset / "md.dcd"
        self.children: list[subprocess.Popen] = []
        binaries = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # Four ranks share the cores, so libraries must not start threads of their own.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        for name in [name for name in self.environment if name.startswith("ZAZEN_") and name != "ZAZEN_LOG"]:
            del self.environment[name]
        self.zazen = self.find("zazen", "pip install .")
        self.find("zazend", "pip install .")
        self.find("mpiexec", "pip install mpich")

    def find(self, program: str, install: str) -> str:
        found = shutil.which(program, path=self.environment["PATH"])
        if not found:
            raise DemoError(f"{program}: not found; run `make demo`, or `{sys.executable} -m {install}`")
        return found

    # Processes

    def run(self, *command: object, quiet: bool = True) -> str:
        """Run to the end and return stdout; a failure carries what the command said."""
        child = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None)
        out, errors = child.communicate()
        self.children.remove(child)
        if child.returncode != 0:
            shown = " ".join(str(part) for part in command)
            raise DemoError(f"`{shown}` failed ({child.returncode}):\n{(errors or out).strip()}")
        return out

    def start(self, *command: object, **streams: object) -> subprocess.Popen:
        """Start in a session of its own: Ctrl-C reaches this process alone, which then cleans up in
        order."""
        words = [str(part) for part in command]
        child = subprocess.Popen(words, env=self.environment, text=True, start_new_session=True, **streams)
        self.children.append(child)
        return child

    def testbed(self, *command: object, quiet: bool = True) -> str:
        return self.run(self.zazen, "testbed", "--dir", self.testbed_dir, *command, quiet=quiet)

    def clean_up(self) -> None:
        """Leave nothing running and nothing behind; may be called at any time and more than
        once."""
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        self.children.clear()
        if self.testbed_dir.exists():
            self.testbed("down")

    def leave(self) -> None:
        """Clean up at the end, whatever has happened; a second Ctrl-C does not cut it short."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            self.clean_up()
        except DemoError as error:
            say(f"the testbed in {self.testbed_dir} is left behind: {error}")
            return
        if not self.arguments.keep:
            self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # The four acts

    def raise_testbed(self) -> dict:
        """Build the testbed; return what limits the file server."""
        limited = ["--server-rate", str(SERVER_BYTES_PER_S)]
        if os.geteuid() == 0 and not self.arguments.no_net and shutil.which("ip") and shutil.which("tc"):
            shaped = [
                "--net", "--link", f"{LINK_BITS_PER_S}bit", "--server-link", f"{8 * SERVER_BYTES_PER_S}bit",
            ]  # fmt: skip
            try:
                self.testbed("up", str(NODES), "--budget", "1G", *shaped)
            except DemoError as error:
                # Containers often have root without the right to make namespaces.
                say(f"no network namespaces here, a token bucket limits the file server instead ({error})")
                self.testbed("up", str(NODES), "--budget", "1G", *limited)
        else:
            self.testbed("up", str(NODES), "--budget", "1G", *limited)
        limits = json.loads(self.testbed("status", "--json"))["limits"]
        return {"how": limits["how"], "bytes_per_s": limits["server_bytes_per_s"]}

    def simulate_and_push(self) -> tuple[dict, dict]:
        """Run the simulation with the pusher beside it; return their reports."""
        self.dataset.mkdir(parents=True)
        with open(self.folder / "push.log", "w") as log:
            pusher = self.start(
                self.zazen, "testbed", "--dir", self.testbed_dir, "run", "--on", "sim", "--",
                self.zazen, "push", "--watch", self.dataset, "--nodes", self.testbed_dir / "nodes.txt",
                "--until", "simulation.done", "--json",
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        simulation = self.testbed(
            "run", "--on", "sim", "--",
            sys.executable, ROOT / "examples" / "simulate_peptide.py",
            "--out", self.dataset, "--frames", self.arguments.frames, "--steps", self.arguments.steps,
            "--compare", self.folder / "unwatched", *(["--files"] if self.arguments.files else []),
            quiet=False,
        )  # fmt: skip
        try:
            out, _ = pusher.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            raise DemoError("zazen push did not end within 60 s of the simulation's end") from None
        self.children.remove(pusher)
        if pusher.returncode != 0:
            said = (self.folder / "push.log").read_text().strip()
            raise DemoError(f"zazen push failed ({pusher.returncode}):\n{said}")
        return json.loads(simulation), json.loads(out)

    def find_frames(self) -> None:
        """Let each node find the frames in the trajectory; the first opening would do it
        otherwise."""
        if not self.arguments.files:
            before = self.server_bytes()
            self.testbed("run", "-n", str(NODES), "--", self.zazen, "index", self.trajectory)
            say(
                f"each node found the frames: {(self.server_bytes() - before) / 1e6:.1f} MB from the file "
                "server"
            )

    def analyse(self, name: str, *, direct: bool = False) -> dict:
        """Run the analysis on all nodes; return its row of the report."""
        say(f"analysis under mpiexec -n {NODES}: {name}")
        report_file = self.folder / f"analysis-{name}.json"
        before = self.server_bytes()
        self.testbed(
            "run", "-n", str(NODES), "--",
            sys.executable, "-m", "mpi4py", ROOT / "examples" / "water_residence.py", self.trajectory,
            "--topology", self.dataset / "topology.pdb", "--json", report_file,
            *(["--direct"] if direct else []),
        )  # fmt: skip
        report = json.loads(report_file.read_text())
        row = {"name": name}
        for key in ("seconds", "local_share", "native", "alien", "residue", "backing_reads", "result_sha256"):
            row[key] = report[key]
        row["seconds"] = round(row["seconds"], 3)
        row["bytes"] = report["bytes"]
        row["server_bytes"] = self.server_bytes() - before
        return row

    def server_bytes(self) -> int:
        """The bytes that the file server has sent so far, by its own count."""
        return json.loads(self.testbed("status", "--json"))["server_traffic"]["bytes"]

    def perform(self) -> dict:
        started = time.monotonic()
        say(f"testbed of {NODES} nodes")
        rate_limit = self.raise_testbed()
        megabytes_per_s = rate_limit["bytes_per_s"] / 1e6
        say(f"the file server is limited to {megabytes_per_s:.0f} MB/s by {rate_limit['how']}")
        say("simulation with zazen push --watch beside it")
        simulation, push = self.simulate_and_push()
        self.find_frames()
        runs = [self.analyse("server", direct=True), self.analyse("zazen")]
        self.testbed("kill", VICTIM)
        runs.append(self.analyse("one-node-dead"))
        self.testbed("revive", VICTIM)
        runs.append(self.analyse("node-back"))
        return {
            "nodes": NODES,
            "frames": simulation["frames"],
            "frame_bytes": simulation["frame_bytes"],
            "runs": runs,
            "push": {
                "pushed": push["pushed"] + push["already_there"],
                "skipped": push["skipped"] + push["refused"],
                "sim_slowdown_percent": simulation["slowdown_percent"],
                "sim_slowdown_percent_range": simulation.get("slowdown_percent_range"),
                "compared_blocks": simulation["compared_blocks"],
            },
            "rate_limit": rate_limit,
            "seconds": round(time.monotonic() - started, 1),
        }


def faults(report: dict) -> list[str]:
    """The problems that the report shows."""
    found = []
    runs = {run["name"]: run for run in report["runs"]}
    if len({run["result_sha256"] for run in report["runs"]}) != 1:
        found.append("the results of the four runs differ")
    cached = runs["zazen"]
    if cached["local_share"] < LOCAL_SHARE_MIN:
        found.append(f"the run from Zazen read {100 * cached['local_share']:.1f} % locally, not 99 %")
    if cached["backing_reads"] != 0:
        found.append(f"the run from Zazen read {cached['backing_reads']} frames from the file server")
    if cached["server_bytes"] > OPENING_SHARE_MAX * cached["bytes"]:
        found.append(f"the file server counts {cached['server_bytes']} bytes sent in the run from Zazen")
    return found


def table(report: dict) -> str:
    """The report for people."""
    rows = [("run", "time", "MB/s", "local", "natives", "aliens", "residues", "from server", "result")]
    for run in report["runs"]:
        rows.append(
            (
                run["name"],
                f"{run['seconds']:.2f} s",
                f"{run['bytes'] / run['seconds'] / 1e6:.1f}",
                f"{100 * run['local_share']:.1f} %",
                str(run["native"]),
                str(run["alien"]),
                str(run["residue"]),
                str(run["backing_reads"]),
                run["result_sha256"][:12],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    push, limit = report["push"], report["rate_limit"]
    lines += [
        "",
        f"{report['frames']} frames of {report['frame_bytes']} bytes on {report['nodes']} nodes; "
        f"file server limited to {limit['bytes_per_s'] / 1e6:.0f} MB/s in all by {limit['how']}.",
        "time: reading, extraction, gather and time series under MPI, without the start of the processes.",
        "All frames were just written and lie in the page cache; what slows the file server is its limit.",
        f"push: {push['pushed']} frames pushed, {push['skipped']} skipped; {slowdown(push)}.",
    ]
    return "\n".join(lines)


def slowdown(push: dict) -> str:
    if push["sim_slowdown_percent"] is None:
        return "too few frames to tell whether the simulation was slowed"
    low, high = push["sim_slowdown_percent_range"]
    return (
        f"simulation slowed by {push['sim_slowdown_percent']:+.1f} % "
        f"(median of {push['compared_blocks']} blocks run both ways, from {low:+.1f} to {high:+.1f} %)"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=300, help="frames to simulate (default 300)")
    parser.add_argument("--steps", type=int, default=2, help="time steps per frame (default 2)")
    parser.add_argument("--files", action="store_true", help="every frame is a file of its own")
    parser.add_argument("--no-net", action="store_true", help="no network namespaces, even as root")
    parser.add_argument("--keep", action="store_true", help="keep .demo/ with the frames and logs")
    parser.add_argument(
        "--report", type=Path, default=ROOT / "demo-report.json", help="where the report goes"
    )
    arguments = parser.parse_args()
    if arguments.frames < 24:
        parser.error("--frames must be at least 24: the analysis follows waters over 20")
    return arguments


def check_packages() -> None:
    missing = [pip for module, pip in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        packages = " ".join(missing)
        raise DemoError(
            f"packages are missing; run `make demo`, or `{sys.executable} -m pip install {packages}`"
        )


def main() -> int:
    arguments = parse()
    # A terminated demo cleans up like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    demo = None
    try:
        check_packages()
        demo = Demo(arguments)
        # Remove what an earlier, killed demo left.
        demo.clean_up()
        demo.remove_folder()
        demo.folder.mkdir()
        report = demo.perform()
    except DemoError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; cleaning up")
        return 130
    finally:
        if demo:
            demo.leave()
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    say(f"report in {arguments.report}; {report['seconds']:.0f} s in all")
    for fault in faults(report):
        say(f"FAILED: {fault}")
    return 1 if faults(report) else 0


if __name__ == "__main__":
    sys.exit(main())
