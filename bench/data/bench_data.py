#!/usr/bin/env python3
"""Analyses of real data through Zazen beside the plain way: `make bench-data`.

    .venv/bin/python bench/data/bench_data.py                    all rows
    .venv/bin/python bench/data/bench_data.py xtc-frame          one of them
    .venv/bin/python bench/data/bench_data.py --bytes 2e9        a larger trajectory

Rows, each with its peer measured turn by turn in the same run:

    xtc-frame    a warm XTC frame of 47,681 atoms in one process without a daemon, over the same
                 frame by MDAnalysis's own XTCReader; the goal is at most 1.05
    rmsf         RMSF of a protein in water, an XTC of --bytes on 4 nodes with MPI: read from a file
                 server that gives --server-rate, over read from the nodes' disks; the goal is at
                 least 3
    rmsf-disks   the same analysis of a file that each rank has on its own disk, read by
                 MDAnalysis's XTCReader and dealt out in equal parts, over read from the nodes'
                 disks through Zazen. All nodes are on this machine, so that is what links and
                 disks allow; the goal is at least 0.95
    rmsf-cores   what the processors of this machine allow: the same analysis with the same decoder
                 of a file in memory, without daemons, server and disks, over read from the nodes'
                 disks through Zazen (goal: at least 0.95); and read from the server over it, which
                 no cache can exceed here

Printed: median and (smallest … largest) of the ratios of the turns, and the times behind them. It
needs an idle machine; the load average is printed with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

NODES = 4
ATOMS = 47_681
PROTEIN = 3_341


def say(text: str) -> None:
    print(f"bench-data: {text}", file=sys.stderr, flush=True)


def write_xtc(path: Path, atoms: int, size: int) -> int:
    """A box of water that jitters, as large as wanted; returns the number of frames."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    rng = np.random.default_rng(1)
    side = (atoms / 100) ** (1 / 3)
    oxygens = rng.uniform(0, side, ((atoms + 2) // 3, 1, 3))
    water = np.array([[0, 0, 0], [0.0957, 0, 0], [-0.024, 0.0927, 0]])
    positions = (oxygens + water).reshape(-1, 3)[:atoms].astype(np.float32)
    box = (side * np.eye(3)).astype(np.float32)
    # Some frames again and again: writing is no part of the measurement.
    with XTCFile(str(path), "w") as file:
        for step in range(8):
            file.write(
                positions + rng.normal(0, 0.02, positions.shape).astype(np.float32), box, step, step, 1000.0
            )
    block = path.read_bytes()
    repeats = max(1, round(size / len(block)))
    with path.open("wb") as out:
        for _ in range(repeats):
            out.write(block)
    return 8 * repeats


def write_topology(path: Path, atoms: int) -> None:
    """A GRO file whose first atoms are a protein's."""
    lines = ["bench", str(atoms)]
    for atom in range(atoms):
        kind = ("ALA", "CA") if atom < PROTEIN else ("SOL", "OW")
        lines.append(
            f"{atom % 99999 + 1:5d}{kind[0]:<5}{kind[1]:>5}{(atom + 1) % 100000:5d}" + "   0.000" * 3
        )
    path.write_text("\n".join([*lines, "   8.0 8.0 8.0", ""]))


def turns(repeats: int, measured: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds of each, turn by turn. The order changes so that each comes as often first, and as
    often after each other: one that waits for a slow server leaves another machine behind than one
    that computes, with memory that has been given back and processors that rest."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(repeats):
        first = turn // 2 % len(measured)
        names = [*list(measured)[first:], *list(measured)[:first]]
        if turn % 2:
            names.reverse()
        for name in names:
            seconds[name].append(measured[name]())
    return seconds


def row(name: str, goal: str, seconds: dict[str, list[float]], above: str, below: str) -> dict:
    """The ratio of two series, turn by turn."""
    ratios = [a / b for a, b in zip(seconds[above], seconds[below], strict=True)]
    return {
        "row": name,
        "goal": goal,
        "ratio": f"{above} / {below}",
        "median": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "seconds": {name: statistics.median(series) for name, series in seconds.items()},
        "turns": len(ratios),
    }


# One process, a warm frame


def xtc_frame(folder: Path, arguments: argparse.Namespace) -> list[dict]:
    from MDAnalysis.coordinates.XTC import XTCReader
    from zazen.mdanalysis import ZazenReader

    path = folder / "frames.xtc"
    frames = write_xtc(path, ATOMS, 50_000_000)
    plain = XTCReader(str(path))
    mine = ZazenReader(f"zazen:{path}", open_options={"direct": True})
    for expected, found in zip(plain, mine, strict=True):
        assert np.array_equal(expected.positions, found.positions)

    def loop(reader: object) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            for _ in reader:
                pass
            return (time.perf_counter() - began) / frames

        return run

    seconds = turns(arguments.repeats, {"zazen": loop(mine), "XTCReader": loop(plain)})
    return [row("xtc-frame", "<= 1.05", seconds, "zazen", "XTCReader")]


# Four nodes


class Testbed:
    """Daemons and a slow file server on this machine."""

    def __init__(self, folder: Path, rate: str) -> None:
        self.folder = folder / "testbed"
        self.zazen = str(Path(sys.executable).with_name("zazen"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}
        self._environment = kept | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PATH": path}
        self("up", NODES, "--budget", "4G", "--server-rate", rate)

    def __call__(self, *words: object) -> str:
        command = [self.zazen, "testbed", "--dir", self.folder, *words]
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
        return done.stdout


def rmsf(folder: Path, arguments: argparse.Namespace) -> list[dict]:
    return rmsf_rows(folder, arguments, ["rmsf"])


def rmsf_disks(folder: Path, arguments: argparse.Namespace) -> list[dict]:
    return rmsf_rows(folder, arguments, ["rmsf-disks"])


def rmsf_cores(folder: Path, arguments: argparse.Namespace) -> list[dict]:
    return rmsf_rows(folder, arguments, ["rmsf", "rmsf-cores"])


def rmsf_rows(folder: Path, arguments: argparse.Namespace, wanted: list[str]) -> list[dict]:
    # A testbed that is taken down keeps its file server's data.
    folder = folder / "-".join(wanted)
    folder.mkdir()
    testbed = Testbed(folder, arguments.server_rate)
    try:
        data = testbed.folder / "server" / "sim"
        data.mkdir(parents=True)
        frames = write_xtc(data / "md.xtc", ATOMS, int(float(arguments.bytes)))
        write_topology(folder / "top.gro", ATOMS)
        say(f"pushing {frames} frames, {(data / 'md.xtc').stat().st_size / 1e9:.2f} GB")
        (data / "done").touch()
        nodes = testbed.folder / "nodes.txt"
        pusher = [testbed.zazen, "push", "--watch", data, "--nodes", nodes, "--until", "done", "--json"]
        testbed("run", "--on", "sim", "--", *pusher)
        testbed("run", "-n", NODES, "--", testbed.zazen, "index", data / "md.xtc")

        # Else the kernel writes twice the trajectory to the disk during the first turns.
        say("waiting until all of it is on the disk")
        os.sync()

        # No daemon and no server knows this name of the file.
        own = folder / "own.xtc"
        os.link(data / "md.xtc", own)

        def analyse(*how: str, path: Path = data / "md.xtc") -> Callable[[], float]:
            def run() -> float:
                words = [
                    sys.executable,
                    "-m",
                    "mpi4py",
                    __file__,
                    "--analyse",
                    path,
                    folder / "top.gro",
                ]
                out = testbed("run", "-n", NODES, "--", *words, *how)
                report = json.loads(out.strip().splitlines()[-1])
                results.add(report["result"])
                return report["seconds"]

            return run

        results: set[str] = set()
        ways = {"zazen": analyse()}
        if "rmsf" in wanted:
            ways = {"server": analyse("--direct")} | ways
        if "rmsf-disks" in wanted:
            ways["disks"] = analyse("--plain")
        if "rmsf-cores" in wanted:
            ways["cores"] = analyse("--direct", path=own)
            ways["cores"]()
        # Once before: the files come into memory, and Python's modules.
        ways["zazen"]()
        seconds = turns(arguments.repeats, ways)
        assert len(results) == 1, "the results differ"
        goals = {
            "rmsf": (">= 3", "server"),
            "rmsf-disks": (">= 0.95", "disks"),
            "rmsf-cores": (">= 0.95", "cores"),
        }
        found = [row(name, goals[name][0], seconds, goals[name][1], "zazen") for name in wanted]
        if "rmsf-cores" in wanted:
            found.append(row("rmsf-most", "none", seconds, "server", "cores"))
        return found
    finally:
        testbed("down")
        shutil.rmtree(folder, ignore_errors=True)


def analyse(path: str, topology: str, direct: bool, plain: bool) -> None:
    """A rank of the analysis."""
    import hashlib

    import MDAnalysis
    import zazen.mdanalysis
    from MDAnalysis.analysis.rms import RMSF
    from mpi4py import MPI

    warnings.simplefilter("ignore")
    comm = MPI.COMM_WORLD
    if plain:
        universe = MDAnalysis.Universe(topology, path)
    else:
        universe = MDAnalysis.Universe(topology, f"zazen:{path}", open_options={"direct": direct})
    atoms = universe.select_atoms("name CA")
    comm.Barrier()
    began = time.perf_counter()
    found = RMSF(atoms).run(backend=zazen.mdanalysis.MPI(comm)).results.rmsf
    comm.Barrier()
    if comm.rank == 0:
        digest = hashlib.sha256(found.tobytes()).hexdigest()
        print(json.dumps({"seconds": time.perf_counter() - began, "result": digest}))


ROWS = {"xtc-frame": xtc_frame, "rmsf": rmsf, "rmsf-disks": rmsf_disks, "rmsf-cores": rmsf_cores}
#: `rmsf-cores` measures `rmsf` too.
DEFAULT = ("xtc-frame", "rmsf-cores", "rmsf-disks")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="row", help=f"some of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="turns (default 5)")
    parser.add_argument("--bytes", default="1e9", help="size of the trajectory of rmsf (default 1e9)")
    parser.add_argument(
        "--server-rate", default="100M", help="what the file server gives per second (default 100M)"
    )
    parser.add_argument("--folder", type=Path, help="where data goes (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--analyse", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--direct", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.analyse:
        analyse(*arguments.analyse, arguments.direct, arguments.plain)
        return 0
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(ROWS)}")
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="zazen-bench-", dir=arguments.folder))
    try:
        found = [one for name in arguments.rows or DEFAULT for one in ROWS[name](folder, arguments)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": found}, indent=1))
        return 0
    print(machine)
    for one in found:
        low, high = one["range"]
        times = ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in one["seconds"].items())
        print(
            f"{one['row']:10} {one['ratio']:18} {one['median']:.3f} ({low:.3f} … {high:.3f}), goal "
            f"{one['goal']}; {times}; {one['turns']} turns"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
