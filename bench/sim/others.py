#!/usr/bin/env python3
"""The same job by other simulators, where they are there: an open at a node that is drawn, and 1 GB
to the own disk.

    .venv/bin/python bench/sim/others.py --ross ~/ROSS

SimGrid: Debian's libsimgrid-dev, with a C++ compiler; star.cpp is the job. ROSS: its sources
(github.com/ROSS-org/ROSS), which this builds, with cmake and an MPI; star_ross.c is the job. CODES
is networks for ROSS: none of its programs writes to a node's disk, so it has no job to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
SIMGRID_NODES_MAX = 8_000
CLUSTER = """
[disk]
read_bytes_per_s = 161e6
write_bytes_per_s = 161e6
latency_us = 0.0
[daemon]
open_us = 25.0
[network]
shape = "star"
interface_bytes_per_s = 1.25e9
latency_us = 20.0
overhead_us = 0.0
gap_us = 0.0
"""
JOB = """
name = "star"
net = "star"
[[step]]
do = "open"
[[step]]
do = "write"
bytes = "1GB"
"""


def run(command: list[str], folder: pathlib.Path) -> tuple[str, float, float]:
    """What a command prints, its CPU seconds, and its largest resident set in MB. It runs in
    `folder`: ROSS writes tables beside itself."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    )
    text = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def simgrid(folder: pathlib.Path) -> tuple[pathlib.Path | None, str]:
    """The job as a program of SimGrid's; None, with the reason, where it cannot be built."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None, "there is no C++ compiler"
    program = folder / "star"
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(HERE / "star.cpp"), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        return None, f"{reason.strip()} (Debian: apt-get install libsimgrid-dev)"
    return program, ""


def ross(folder: pathlib.Path, source: pathlib.Path | None) -> tuple[pathlib.Path | None, str]:
    """The job as a model for ROSS; None, with the reason, where it cannot be built."""
    if source is None:
        return None, "no sources (git clone https://github.com/ROSS-org/ROSS; then --ross ROSS)"
    # Debian's MPICH has all that linking needs; its Open MPI is often there without.
    compiler = os.environ.get("MPICC") or shutil.which("mpicc.mpich") or shutil.which("mpicc")
    if compiler is None or shutil.which("cmake") is None:
        return None, "no cmake or no mpicc (Debian: apt-get install cmake libmpich-dev)"
    source = source.resolve()
    build, program = folder / "ross", folder / "star_ross"
    flags = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_C_COMPILER={compiler}"]
    flags += ["-DROSS_BUILD_MODELS=OFF", "-DROSS_BUILD_TESTING=OFF"]
    where = [f"-I{source / 'core'}", f"-I{build / 'core'}", f"-L{build / 'core'}"]
    commands = [
        ["cmake", "-S", str(source), "-B", str(build), *flags],
        ["cmake", "--build", str(build), "--target", "ROSS"],
        [compiler, "-O2", "-o", str(program), str(HERE / "star_ross.c"), *where, "-lROSS", "-lm"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "rror" in line]
            return None, (lines or [done.stderr[-200:]])[0].strip()
    return program, ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zazen", default=shutil.which("zazen") or "zazen")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results/sim"))
    default = os.environ.get("ROSS_SOURCE")
    parser.add_argument("--ross", type=pathlib.Path, default=pathlib.Path(default) if default else None)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rows: list[dict] = []

    def tell(simulator: str, nodes: int | None, note: str, found: tuple[float, float, float] | None) -> None:
        makespan_s, cpu_s, rss_mb = found or (None, None, None)
        row = {"simulator": simulator, "nodes": nodes, "makespan_s": makespan_s, "cpu_s": cpu_s}
        rows.append({**row, "rss_mb": rss_mb, "note": note})
        where = f"{simulator:<9} {nodes:>6} nodes" if nodes else simulator
        what = f"{makespan_s:.6f} s simulated, {cpu_s:.2f} CPU-s, {rss_mb:.0f} MB" if found else ""
        print(f"{where}: {what}{' ' if found and note else ''}{note}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "cluster.toml").write_text(CLUSTER)
        (folder / "star.toml").write_text(JOB)
        others: list[tuple[str, pathlib.Path, Callable[[int], list[str]]]] = []
        for simulator, (program, reason), words in (
            ("SimGrid", simgrid(folder), lambda nodes: [str(nodes)]),
            (
                "ROSS",
                ross(folder, options.ross),
                lambda nodes: ["--synch=1", "--end=1000", f"--nodes={nodes}"],
            ),
        ):
            if program is None:
                tell(simulator, None, f"skipped: {reason}", None)
            else:
                others.append((simulator, program, words))
        for nodes in (100, 1000) if options.quick else (100, 1000, 4000, 64_000):
            job = [
                str(pathlib.Path(options.zazen).resolve()),
                "sim",
                "run",
                str(folder / "star.toml"),
                "--cluster",
                str(folder / "cluster.toml"),
            ]
            text, cpu_s, rss_mb = run([*job, "--nodes", str(nodes), "--json", "--threads", "1"], folder)
            ours_s = json.loads(text)["makespan_s"]
            tell("zazen sim", nodes, "", (ours_s, cpu_s, rss_mb))
            for simulator, program, words in others:
                if simulator == "SimGrid" and nodes > SIMGRID_NODES_MAX:
                    tell(simulator, nodes, "skipped: its time grows with the square of the nodes", None)
                    continue
                text, cpu_s, rss_mb = run([str(program), *words(nodes)], folder)
                theirs_s = float(text.split("makespan")[-1].split()[0])
                note = f"zazen sim says {100 * (ours_s / theirs_s - 1):+.2f} %"
                tell(simulator, nodes, note, (theirs_s, cpu_s, rss_mb))
    tell("CODES", None, "skipped: none of its programs writes to a node's disk after a metadata call", None)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "others.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
