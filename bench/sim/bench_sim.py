#!/usr/bin/env python3
"""What `make bench-sim` runs: the FusionFS job to two million nodes, what the simulator costs, and
how true it is.

    make bench-sim                               # everything: half an hour
    make bench-sim PARTS="cost pages"            # some of it; the page keeps what others left
    .venv/bin/python bench/sim/bench_sim.py --quick

Parts: cost (CPU seconds and memory at two million nodes), pages (sweeps, and their pages),
published (the paper's curve to 16 K nodes), spans (what recording them costs), validation (against
real daemons behind shaped links), others (SimGrid and ROSS on the same case).

Costs are CPU seconds of the process and its largest resident set, as the kernel counts them, so a
loaded machine changes them little. Tables and one page for each sweep are written beneath --out;
its index.html has all goals and the paper's figures, from what all parts have left there.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable

import page

ROOT = pathlib.Path(__file__).resolve().parents[2]
FULL = 2_000_376
PARTS = ("cost", "pages", "published", "spans", "validation", "others")
# Metadata to two million nodes: the workload `metadata` makes 1,000 names on each.
METADATA_JOB = """
name = "metadata-16"
[[step]]
do = "repeat"
times = 16
[[step.step]]
do = "insert"
at = "hashed"
phase = "create"
"""


def cost(zazen: str, *arguments: str) -> tuple[dict, float, int]:
    """The last line of JSON that the simulator prints, its CPU seconds, and its largest resident
    set in bytes."""
    command = [zazen, "sim", "run", *arguments, "--json", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(text.splitlines()[-1]), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def tell(goals: list[page.Goal]) -> None:
    for goal in goals:
        reason = f" ({goal.reason})" if goal.reason else ""
        print(f"goal {goal.what}: {goal.found}: {goal.verdict()}{reason}", flush=True)


def measure(zazen: str, nodes: int, repetitions: int) -> list[dict]:
    rows = []
    for fidelity in ("path", "hop"):
        found = [
            cost(zazen, "fusionfs", "--nodes", str(nodes), "--net", "torus", "--fidelity", fidelity)
            for _ in range(repetitions)
        ]
        traces = {run[0]["trace_hash"] for run in found}
        if len(traces) != 1:
            raise SystemExit(f"{fidelity}: the same seed gave {len(traces)} traces")
        cpu = [run[1] for run in found]
        row = {
            "fidelity": fidelity,
            "nodes": nodes,
            "events": found[0][0]["events"],
            "cpu_s": cpu,
            "rss_bytes": max(run[2] for run in found),
            "events_per_cpu_s": found[0][0]["events"] / statistics.median(cpu),
            "trace_hash": found[0][0]["trace_hash"],
        }
        rows.append(row)
        print(
            f"fusionfs {fidelity:4} {nodes} nodes: {row['events']:,} events, CPU {page.spread(cpu)} s, "
            f"{row['rss_bytes'] / 1e6:.0f} MB, {row['events_per_cpu_s'] / 1e6:.2f} M events per CPU second",
            flush=True,
        )
    return rows


def print_cost(zazen: str, nodes: int, out: pathlib.Path, is_quick: bool) -> None:
    rows = measure(zazen, nodes, 1 if is_quick else 3)
    tell(page.cost_goals(rows, FULL))
    (out / "cost.json").write_text(json.dumps(rows, indent=1) + "\n")


def draw_pages(zazen: str, nodes: int, out: pathlib.Path, is_quick: bool) -> None:
    job = out / "metadata-16.toml"
    job.write_text(METADATA_JOB)
    sweeps = [
        ("fusionfs", f"512..{nodes}", "path"),
        (str(job), f"512..{nodes}", "path"),
        ("metadata", "512..4096" if is_quick else "512..65536", "path"),
        ("namespace-shared", "64..512" if is_quick else "512..16384", "path"),
        ("ior-collective", "1024..16384" if is_quick else "16384..1048576", "path"),
        ("ior-collective-shared", "1024..16384" if is_quick else "16384..1048576", "path"),
    ]
    for workload, scales, fidelity in sweeps:
        folder = out / pathlib.Path(workload).stem
        command = [zazen, "sim", "run", workload, "--nodes", scales, "--net", "torus"]
        subprocess.run([*command, "--fidelity", fidelity, "-o", str(folder)], check=True)
        print(f"{folder / 'index.html'}", flush=True)


def compare_published(zazen: str, out: pathlib.Path) -> None:
    folder = out / "published"
    command = [zazen, "sim", "run", "fusionfs", "--nodes", "512..16384", "--net", "torus", "-o", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runs = json.loads((folder / "summary.json").read_text())
    print(
        f"{'nodes':>8}{'simulated TB/s':>16}{'published TB/s':>16}{'error':>9}"
        f"{'efficiency':>12}{'ideal TB/s':>12}"
    )
    for run in runs:
        published = page.PUBLISHED_BYTES_PER_S * run["nodes"]
        print(
            f"{run['nodes']:>8}{run['bytes_per_s'] / 1e12:>16.4f}{published / 1e12:>16.4f}"
            f"{100 * (run['bytes_per_s'] / published - 1):>+8.1f} %"
            f"{100 * run['efficiency']:>10.1f} %{run['ideal_bytes_per_s'] / 1e12:>12.4f}"
        )
    tell([page.published_goal(runs)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to run [default: all]")
    parser.add_argument("--zazen", default=str(ROOT / "target" / "release" / "zazen"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results" / "sim")
    parser.add_argument("--quick", action="store_true", help="32,768 nodes instead of two million")
    options = parser.parse_args()
    parts = options.parts or PARTS
    nodes = 32_768 if options.quick else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    quick = ["--quick"] if options.quick else []

    def script(name: str, *arguments: str) -> None:
        file = ROOT / "bench" / "sim" / name
        subprocess.run([sys.executable, str(file), "--out", str(options.out), *arguments], check=True)

    work: dict[str, Callable[[], None]] = {
        "cost": lambda: print_cost(options.zazen, nodes, options.out, options.quick),
        "published": lambda: compare_published(options.zazen, options.out),
        "pages": lambda: draw_pages(options.zazen, nodes, options.out, options.quick),
        "others": lambda: script("others.py", "--zazen", options.zazen, *quick),
        "spans": lambda: script("span_cost.py"),
        "validation": lambda: script("validation.py", *quick),
    }
    failed = []
    for part in work:
        if part not in parts:
            continue
        # What one part cannot do must not cost the others' half hour.
        try:
            work[part]()
        except subprocess.CalledProcessError as error:
            print(f"{part}: failed: {error}", file=sys.stderr, flush=True)
            failed.append(part)
    print(page.draw(options.out, FULL))
    if failed:
        raise SystemExit(f"bench-sim: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
