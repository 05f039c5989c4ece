"""Figure 4: the time of an assignment by number of nodes, for a billion frames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import assigning
from assigning import Run, assign, shaped
from cluster import call, say
from result import Figure, Goal, Plot, Series, Summary, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 4: time to assign a billion frames"
PAPER = (
    "On 100 nodes with 1-Gbit Ethernet, a billion frames take 14.9 s; the time grows only marginally from 1 "
    "node to 100, with a dip at 4. The curve's other points cannot be read off the printed figure exactly."
)
PAPER_NODES, PAPER_S = 100, 14.9
# 1 GbE: what a link carries in payload, and a usual small-message latency; assumed for 100 nodes.
MODEL = ["--model-nodes", PAPER_NODES, "--model-link", "117e6", "--model-latency", "50e-6"]
PAPERS = ["--placement", "aliens", "--rules", "paper"]
# Name of each column of times and what it is.
KINDS = {
    "paper's": "the paper's protocol, its set-up",
    "model": "its model + local work",
    "owner": "Zazen, the same set-up",
    "regular": "Zazen, round robin",
    "random": "Zazen, random",
    "dead": "Zazen, random, one node dead",
}
# Where and on what it is measured, for the page's first table.
SETTING = "up to 16 nodes (network namespaces) with links of 1 Gbit/s, one rank each; no frames are read"


def run(context: Context) -> Figure:
    """Measure and draw."""
    frames = 10**7 if context.quick else 10**9
    nodes = [1, 2, 4] if context.quick else [1, 2, 4, 8, 16]
    repeats = context.repeats
    # The paper, too, took the mean of three of its runs; ours are short enough for more.
    few = min(3, repeats)
    figure = Figure("fig4", TITLE, PAPER, "make bench-zazen FIGURES=fig4", limits=list(assigning.LIMITS))
    runs: dict[tuple[str, int], Run] = {}
    eight_each: dict[str, Run] = {}
    most = 4 if context.quick else 8
    for count in nodes:
        say(f"fig4: {count} nodes")
        with shaped(context.scratch, count) as cluster:
            # Half a minute each at 16 nodes, where no goal rests on it.
            papers = few if count <= most else 1
            runs["papers", count] = assign(cluster, frames, papers, *PAPERS, "--protocol", "both")
            runs["regular", count] = assign(cluster, frames, repeats)
            sides = ["--protocol", "both"] if count == most else []
            runs["random", count] = assign(cluster, frames, few, "--placement", "random", *sides)
            if count > 1:
                dead = ["--placement", "random", "--dead-nodes", 1]
                runs["dead", count] = assign(cluster, frames, few, *dead)
            if count == most:
                for placement in ("round-robin", "random"):
                    words = ["--placement", placement, "--ranks-per-node", 8]
                    eight_each[placement] = assign(cluster, frames, few, *words, ranks=8 * count)
    times = {count: _times(runs, count) for count in nodes}
    figure.tables += [_table(frames, times, runs), _parts(nodes, runs), _eight(most, runs, eight_each)]
    figure.plots.append(_plot(frames, times))
    figure.goals += _goals(frames, most, runs, eight_each)
    say("fig4: 100 nodes, modelled")
    # A hundred ranks in one process are run only once. Processor time and bytes count there.
    figure.tables.append(_model(frames, 1))
    ratio = runs["random", most].ratio()
    figure.summaries.append(
        Summary(
            f"time to assign {frames:.0e} frames",
            f"{PAPER_S} s at {PAPER_NODES} nodes",
            f"{times[most]['regular'].median * 1e3:.0f} ms regular, {times[most]['random'].median:.2f} s "
            f"random at {most} nodes; {ratio:.1f}x as fast as the paper's protocol in the same run",
            "a pass over what a node holds, and some tens of bytes",
        )
    )
    return figure


def _times(runs: dict[tuple[str, int], Run], count: int) -> dict[str, Value | float | None]:
    papers = runs["papers", count]
    dead = runs.get(("dead", count))
    return {
        "paper's": papers.total("bitmaps"),
        "model": papers.model_s(),
        "owner": papers.total("owner"),
        "regular": runs["regular", count].total("owner"),
        "random": runs["random", count].total("owner"),
        "dead": dead.total("owner") if dead else None,
    }


def _table(frames: int, times: dict, runs: dict[tuple[str, int], Run]) -> Table:
    rows = [[str(count), *(times[count][kind] for kind in KINDS)] for count in times]
    rows.append([f"{PAPER_NODES}, the paper", PAPER_S, None, None, None, None, None])
    notes = [f"{count} nodes: {runs['papers', count].rates_text()}" for count in times if count > 1]
    notes.append(
        "The model is T = 2(p−1)α + 2n(1−1/p)β + n(1−1/p)γ (§5.1) for n = N/8 (or) and n = N/4 (two-bit) "
        "bytes, its parameters measured in the same run over the same links, plus the local work as measured."
    )
    return Table(f"Seconds for {frames:,} frames", ["nodes", *KINDS.values()], ["", *["s"] * 6], rows, notes)


def _parts(nodes: list[int], runs: dict[tuple[str, int], Run]) -> Table:
    rows = []
    for count in nodes:
        for name, key, protocol in (
            ("the paper's protocol", "papers", "bitmaps"),
            ("Zazen, its set-up", "papers", "owner"),
            ("Zazen, round robin", "regular", "owner"),
            ("Zazen, random", "random", "owner"),
            ("Zazen, random, one dead", "dead", "owner"),
        ):
            if (key, count) in runs:
                one = runs[key, count]
                sent, peak = one.sent(protocol), one.peak(protocol) / count / 1e6
                rows.append(
                    [str(count), name, one.local_s(protocol), one.local_cpu_s(protocol), sent / 1e6, peak]
                )
    columns = ["nodes", "", "local work", "its processor time", "sent per rank", "memory per rank"]
    return Table("Where it goes (the slowest rank)", columns, ["", "", "s", "s", "MB", "MB"], rows)


def _eight(nodes: int, runs: dict[tuple[str, int], Run], eight: dict[str, Run]) -> Table:
    rows = [
        [placement, runs[key, nodes].total("owner"), eight[placement].total("owner")]
        for placement, key in (("round-robin", "regular"), ("random", "random"))
    ]
    notes = [f"{8 * nodes} ranks share this machine's cores."]
    columns = ["placement", "one rank per node", "eight per node"]
    return Table(
        f"Several ranks of a node share its cache ({nodes} nodes)", columns, ["", "s", "s"], rows, notes
    )


def _plot(frames: int, times: dict) -> Plot:
    series = []
    for kind, name in KINDS.items():
        points = {count: times[count][kind] for count in times if times[count][kind] is not None}
        values = [
            value if isinstance(value, Value) else Value(value, value, value, 1) for value in points.values()
        ]
        draw = {"paper's": "peer", "model": "model"}.get(kind, "ours")
        spread = ([], []) if draw == "model" else ([v.low for v in values], [v.high for v in values])
        series.append(
            Series(name, draw, [float(count) for count in points], [v.median for v in values], *spread)
        )
    series.append(Series("the paper, 100 nodes", "paper", [float(PAPER_NODES)], [PAPER_S]))
    title = f"Time to assign {frames:,} frames"
    return Plot("fig4", title, "nodes", "seconds", series, x_log=True, y_log=True)


def _goals(frames: int, most: int, runs: dict[tuple[str, int], Run], eight: dict[str, Run]) -> list[Goal]:
    def below(what: str, value: Value, limit_s: float) -> Goal:
        measured = f"{value.median * 1e3:.2f} ms ({value.low * 1e3:.2f} … {value.high * 1e3:.2f})"
        return Goal(what, f"< {limit_s * 1e3:.0f} ms", measured, value.median < limit_s)

    ratio = runs["random", most].ratio()
    eights = {name: run.report["protocols"][0] for name, run in eight.items()}
    whole = all(side["adds_up"] for side in eights.values())
    said = ", ".join(f"{name} {side['total_s']['median']:.3g} s" for name, side in eights.items())
    return [
        below(f"{frames:,} regular frames, one node", runs["regular", 1].total("owner"), 0.010),
        below(f"{frames:,} regular frames, {most} nodes", runs["regular", most].total("owner"), 0.050),
        Goal(
            f"random natives, {most} nodes: the paper's protocol / Zazen", ">= 5", f"{ratio:.1f}", ratio >= 5
        ),
        Goal("eight ranks per node, every frame assigned once", "works", said, whole),
    ]


def _model(frames: int, repeats: int) -> Table:
    rows, notes = [], []
    for name, words in (
        ("the paper's set-up", [*PAPERS, "--protocol", "both"]),
        ("round robin", ["--protocol", "owner"]),
        ("random", ["--placement", "random", "--protocol", "both"]),
    ):
        report = json.loads(call(assigning.command(frames, repeats, "--ranks", 1, *words, *MODEL)))
        times = {time["protocol"]: time for time in report["elsewhere"]["times"]}
        paper_s = times["bitmaps"]["seconds"] if "bitmaps" in times else None
        rows.append([name, times["owner"]["seconds"], paper_s])
        notes += [f"{name}, {protocol}: {time['arithmetic']}" for protocol, time in times.items()]
    notes.append(
        f"Assumed: 117 MB/s per link, 50 µs per message, no contention in the switch. Measured here: local "
        f"work (Zazen's with {PAPER_NODES} ranks in one process, no more of them at a time than cores), "
        f"bytes sent, combining rates."
    )
    columns = ["holdings", "Zazen", "the paper's protocol"]
    return Table(
        f"Modelled: {PAPER_NODES} nodes on 1 GbE (the paper: {PAPER_S} s)",
        columns,
        ["", "s", "s"],
        rows,
        notes,
    )
