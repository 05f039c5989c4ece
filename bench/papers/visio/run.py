"""VisIO's evaluation (IPDPS'11), as far as it is repeated here: which share of files is read
remotely.

    make bench-viz

N nodes with a rank each; F files with r replicas on nodes drawn at random, as HDFS places them. All
strategies get the same placements, so that their differences are paired. The table says mean and
standard deviation over placements, in percent. It depends on the seed, not on the machine.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import zazen.viz

STRATEGIES = ["blind", "first-come", "scarcest", "least-demand", "optimal"]
#: (ranks, files, replicas, placements)
CASES = [
    (16, 16, 3, 200),
    (64, 64, 3, 100),
    (128, 128, 3, 100),
    (128, 128, 2, 50),
    (1024, 1024, 3, 5),
    (128, 1280, 3, 20),
]
#: VisIO, 128 nodes: VPIC and ocean salinity.
PAPER = (7.42, 7.68)
RESULTS = Path(__file__).resolve().parents[2] / "results" / "visio"


def shares(ranks, files, replicas, placements, seed):
    """By strategy, the remote share of each placement, in percent."""
    draw = random.Random(seed)
    found = {strategy: [] for strategy in STRATEGIES}
    for placement in range(placements):
        placed = [(1, draw.sample(range(ranks), replicas)) for _ in range(files)]
        for strategy in STRATEGIES:
            matched = zazen.viz.match(list(range(ranks)), placed, strategy, seed=placement)
            found[strategy].append(100 * matched.remote / files)
    return found


def main():
    parser = argparse.ArgumentParser(description="The remote share of each strategy.")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rows = []
    print(f"{'ranks':>6}{'files':>7}{'r':>3}{'n':>5}" + "".join(f"{name:>18}" for name in STRATEGIES))
    for ranks, files, replicas, placements in CASES:
        found = shares(ranks, files, replicas, placements, given.seed)
        cells = {name: (statistics.mean(each), statistics.stdev(each)) for name, each in found.items()}
        rows.append({"ranks": ranks, "files": files, "replicas": replicas, "placements": placements} | cells)
        text = "".join(f"{f'{mean:.2f} ({deviation:.2f})':>18}" for mean, deviation in cells.values())
        print(f"{ranks:>6}{files:>7}{replicas:>3}{placements:>5}{text}")
    print(f"paper, 128 ranks, 128 files, r=3: {PAPER[0]} and {PAPER[1]} % (its strategy is 'scarcest')")
    placed = [(1, random.Random(given.seed + file).sample(range(1024), 3)) for file in range(10_240)]
    begun = time.perf_counter()
    zazen.viz.match(list(range(1024)), placed, "optimal")
    print(
        f"optimal, 10,240 files on 1,024 ranks: {1000 * (time.perf_counter() - begun):.0f} ms, JSON and Python included"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "remote_share.json").write_text(json.dumps({"seed": given.seed, "rows": rows}, indent=1))
    (RESULTS / "index.html").write_text(page(rows))
    print(f"page: {RESULTS / 'index.html'}")


def page(rows):
    """The table as a page."""
    head = "".join(f"<th>{name}</th>" for name in ["ranks", "files", "replicas", "placements", *STRATEGIES])
    body = ""
    for row in rows:
        cells = [row[name] for name in ("ranks", "files", "replicas", "placements")]
        cells += [f"{row[name][0]:.2f} ± {row[name][1]:.2f}" for name in STRATEGIES]
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>VisIO</title>'
        "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.3em 1em;text-align:right}</style>"
        "<h1>Files read remotely, percent</h1><p>Mean and standard deviation over placements. Paper, 128 ranks: "
        f"{PAPER[0]} and {PAPER[1]}.</p><table><tr>{head}</tr>{body}</table></html>\n"
    )


main()
