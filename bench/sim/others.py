#!/usr/bin/env python3
"""The same job by other simulators, where they are there: an open at a node that is drawn, and 1 GB
to the own disk.

    .venv/bin/python bench/sim/others.py

SimGrid: Debian's libsimgrid-dev, with a C++ compiler; star.cpp is the job. CODES has no job of this
kind that its own programs run: where `codes` is installed this says so, and otherwise how to get
it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
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


def run(command: list[str]) -> tuple[str, float, float]:
    """What a command prints, its CPU seconds, and its largest resident set in MB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    text = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def simgrid(folder: pathlib.Path) -> pathlib.Path | None:
    """The job as a program of SimGrid's; None, with the reason, where it cannot be built."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        print("SimGrid: skipped: there is no C++ compiler")
        return None
    program = folder / "star"
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(HERE / "star.cpp"), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        print(f"SimGrid: skipped: {reason.strip()} (Debian: apt-get install libsimgrid-dev)")
        return None
    return program


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zazen", default=shutil.which("zazen") or "zazen")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "cluster.toml").write_text(CLUSTER)
        (folder / "star.toml").write_text(JOB)
        program = simgrid(folder)
        for nodes in (100, 1000) if options.quick else (100, 1000, 4000):
            job = [
                options.zazen,
                "sim",
                "run",
                str(folder / "star.toml"),
                "--cluster",
                str(folder / "cluster.toml"),
            ]
            text, cpu_s, rss_mb = run([*job, "--nodes", str(nodes), "--json", "--threads", "1"])
            ours_s = float(text.split('"makespan_s":')[1].split(",")[0])
            print(f"zazen sim {nodes:>6} nodes: {ours_s:.6f} s simulated, {cpu_s:.2f} CPU-s, {rss_mb:.0f} MB")
            if program is not None:
                text, cpu_s, rss_mb = run([str(program), str(nodes)])
                theirs_s = float(text)
                print(
                    f"SimGrid   {nodes:>6} nodes: {theirs_s:.6f} s simulated "
                    f"({100 * (ours_s / theirs_s - 1):+.2f} %), {cpu_s:.2f} CPU-s, {rss_mb:.0f} MB"
                )
    if shutil.which("modelnet-test") is None:
        print(
            "ROSS and CODES: skipped: not installed (github.com/codes-org/codes builds them; "
            "no package has them)"
        )
    else:
        print(
            "ROSS and CODES: skipped: CODES has no program that writes to node-local disks after a metadata "
            "call"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
