"""Read bandwidth over a real HDFS on shaped links: stock split, by index, VisIO's strategy, and the
optimum.

A name node and four data nodes in network namespaces; ranks on the first N of them. Two data sets:
many small files and few large ones. Then two jobs at once, and the next step fetched while one is
rendered.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path

from evaluation import Context
from process import ROOT, BenchError
from result import Figure, Goal, Plot, Series, Summary, Table, Value
from zazen.viz.generate import write

sys.path.insert(0, str(ROOT / "integrations/viz/tests"))
sys.path.insert(0, str(ROOT / "tests"))
from hdfs_cluster import Hdfs, lacking
from launching import mpi_environment, mpiexec

TITLE = "Read bandwidth over HDFS"
RATE_MBIT = 100
SETTING = (
    f"4 data nodes and a name node in network namespaces, links of {RATE_MBIT} Mbit/s, r=2, pages cached"
)
NODES, COPIES = 4, 2
STRATEGIES = ["stock", "blind", "scarcest", "optimal"]
RANK = Path(__file__).with_name("visio_rank.py")
#: Steps, blocks and points along each edge of a block.
SETS = {"many small": (4, (4, 2, 2), 17), "few large": (3, (4, 1, 1), 49)}


def job(hdfs: Hdfs, ranks: int, **more: object):
    """Starts a job."""
    words = json.dumps({"repeats": 1, "render_s": 0, "ahead": 0, **more})
    return hdfs.ranks(mpiexec(), mpi_environment(), ranks, RANK, words)


def samples(process) -> dict[str, list[dict]]:
    """What a job measured."""
    output, errors = process.communicate(timeout=300)
    line = next((line for line in output.splitlines() if line.startswith("SAMPLES ")), None)
    if process.returncode != 0 or line is None:
        raise BenchError(f"a job failed: {(output + errors)[-2000:]}")
    return json.loads(line.removeprefix("SAMPLES "))


def rate(sample: dict) -> float:
    return sample["bytes"] / sample["seconds"] / 1e6


def run(context: Context) -> Figure:
    figure = Figure(
        "bandwidth",
        TITLE,
        "On 128 nodes VisIO read 64.4 % (VPIC) and 51.4 % (ocean salinity) faster than Lustre served the "
        "stock reader.",
        "make bench-viz FIGURES=bandwidth",
        limits=[
            "Data nodes answer over HTTP in Java, and all nodes share this machine's processors: a local "
            "read is bound by them, and its rate does not grow with the nodes.",
            "No parallel file system is measured.",
        ],
    )
    if (why := lacking()) is not None:
        figure.skipped.append(why)
        return figure
    hdfs = Hdfs(context.scratch / "hdfs", NODES)
    (context.scratch / "hdfs").mkdir(parents=True)
    try:
        hdfs.up()
        urls = {}
        for name, (steps, blocks, points) in SETS.items():
            index = write(context.scratch / name, steps=steps, blocks=blocks, points=points)
            urls[name] = f"hdfs://node0:9870/{name.replace(' ', '_')}/ts.vtm.series"
            hdfs.zazen("viz", "load", index, urls[name].rpartition("/")[0], "--copies", COPIES)
        hdfs.shape(f"{RATE_MBIT}mbit")
        measure_nodes(hdfs, urls, figure, context)
        measure_two_jobs(hdfs, urls, figure, context)
        measure_ahead(hdfs, urls["few large"], figure, context)
    finally:
        hdfs.down()
        shutil.rmtree(context.scratch / "hdfs", ignore_errors=True)
    return figure


def measure_nodes(hdfs: Hdfs, urls: dict[str, str], figure: Figure, context: Context) -> None:
    counts = [NODES] if context.quick else [1, 2, NODES]
    found = {
        ranks: samples(
            job(hdfs, ranks, indexes=list(urls.values()), strategies=STRATEGIES, repeats=context.repeats)
        )
        for ranks in counts
    }
    for name, url in urls.items():
        rows, lines = [], {strategy: Series(strategy, _kind(strategy), [], []) for strategy in STRATEGIES}
        links = Series("links alone, by index", "ceiling", [], [])
        for ranks in counts:
            for strategy in STRATEGIES:
                own = found[ranks][f"{url} {strategy}"]
                value = Value.of([rate(sample) for sample in own])
                share = 100 * own[0]["remote"] / own[0]["bytes"]
                rows.append([ranks, strategy, value, Value.of([s["seconds"] for s in own]), f"{share:.1f}"])
                lines[strategy].x.append(ranks)
                lines[strategy].y.append(value.median)
                lines[strategy].low.append(value.low)
                lines[strategy].high.append(value.high)
            most = found[ranks][f"{url} blind"][0]
            links.x.append(ranks)
            links.y.append(most["bytes"] / max(most["remote_most"] * 8 / (RATE_MBIT * 1e6), 1e-9) / 1e6)
        steps, blocks, points = SETS[name]
        count = blocks[0] * blocks[1] * blocks[2]
        figure.tables.append(
            Table(
                f"{name}: {steps} steps of {count} blocks of {points}³ points",
                ["ranks", "strategy", "read rate", "all steps", "remote"],
                ["", "", "MB/s", "s", "% of bytes"],
                rows,
            )
        )
        figure.plots.append(
            Plot(
                f"bandwidth-{name.replace(' ', '-')}",
                f"Read rate, {name} files",
                "ranks, one on each node",
                "MB/s of all ranks",
                [*lines.values(), links],
            )
        )
        ours = [rate(sample) for sample in found[NODES][f"{url} optimal"]]
        stock = [rate(sample) for sample in found[NODES][f"{url} stock"]]
        ratio = statistics.median(ours) / statistics.median(stock)
        figure.summaries.append(
            Summary(
                f"{name}: optimum against VTK's split, {NODES} ranks",
                "1.64 and 1.51 (Lustre)",
                f"{ratio:.2f}",
                "–",
            )
        )
        figure.goals.append(
            Goal(
                f"{name}: no slower than the stock split",
                "≥ 1.0 times its rate",
                f"{ratio:.2f} times",
                ratio >= 1,
            )
        )


def _kind(strategy: str) -> str:
    return {"optimal": "ours", "scarcest": "paper"}.get(strategy, "peer")


def measure_two_jobs(hdfs: Hdfs, urls: dict[str, str], figure: Figure, context: Context) -> None:
    rows = []
    small, large = urls["many small"], urls["few large"]
    for strategy in ("stock", "optimal"):
        alone, beside = [], []
        for _ in range(context.repeats):
            alone += samples(job(hdfs, 2, indexes=[small], strategies=[strategy]))[f"{small} {strategy}"]
            other = job(hdfs, 2, indexes=[large], strategies=[strategy], repeats=2)
            beside += samples(job(hdfs, 2, indexes=[small], strategies=[strategy]))[f"{small} {strategy}"]
            samples(other)
        waits = [[wait for sample in own for wait in sample["waits"]] for own in (alone, beside)]
        means, deviations = [statistics.mean(own) for own in waits], [statistics.stdev(own) for own in waits]
        texts = [f"{1000 * mean:.0f} ± {1000 * own:.0f}" for mean, own in zip(means, deviations, strict=True)]
        rows.append([strategy, *texts, f"{means[1] / means[0]:.2f}"])
    figure.tables.append(
        Table(
            "Two jobs at once: a rank's wait for a step of the many small files, beside a job on the large "
            "ones",
            ["strategy", "alone", "beside the other", "increase"],
            ["", "ms", "ms", "times"],
            rows,
        )
    )


def measure_ahead(hdfs: Hdfs, url: str, figure: Figure, context: Context) -> None:
    """By index, so that most reads cross the links."""
    read = samples(job(hdfs, 2, indexes=[url], strategies=["blind"], repeats=context.repeats))
    bare = [wait for sample in read[f"{url} blind"] for wait in sample["waits"]]
    render_s = 1.5 * max(bare)
    waits = {}
    for ahead in (0, 1):
        found = samples(
            job(
                hdfs,
                2,
                indexes=[url],
                strategies=["blind"],
                repeats=context.repeats,
                ahead=ahead,
                render_s=render_s,
            )
        )
        steps = SETS["few large"][0]
        # The first step of a pass has nothing to be fetched behind.
        every = [sample["waits"] for sample in found[f"{url} blind"]]
        waits[ahead] = [wait for own in every for at, wait in enumerate(own) if at % steps]
    # Without links: what parsing takes.
    local = samples(job(hdfs, 1, indexes=[url], strategies=["optimal"], repeats=context.repeats))
    hidden = 1 - statistics.mean(waits[1]) / statistics.mean(waits[0])
    figure.tables.append(
        Table(
            f"A step's wait while the one before it is rendered for {render_s:.2f} s; "
            "read by index over the links",
            ["next step", "wait for a step"],
            ["", "ms"],
            [
                ["not fetched ahead", Value.of([1000 * wait for wait in waits[0]])],
                ["fetched ahead", Value.of([1000 * wait for wait in waits[1]])],
            ],
            notes=[
                f"Of the wait {100 * hidden:.0f} % is hidden.",
                f"One rank alone waits {1000 * statistics.median(_waits(local)):.0f} ms for a step.",
            ],
        )
    )
    figure.goals.append(
        Goal(
            "fetching ahead hides reading", "≥ 90 %, parsing included", f"{100 * hidden:.0f} %", hidden >= 0.9
        )
    )


def _waits(found: dict[str, list[dict]]) -> list[float]:
    return [wait for own in found.values() for sample in own for wait in sample["waits"]]
