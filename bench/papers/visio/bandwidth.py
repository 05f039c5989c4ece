"""Read rate against the number of nodes, for many small files and for few large ones."""

from __future__ import annotations

import itertools
import statistics

from evaluation import Context
from nodes import (
    AHEAD,
    LIMITS,
    LINKS,
    NODES,
    SERVERS,
    SYSTEMS,
    Nodes,
    ahead_of,
    allowed_seconds,
    nodes,
    rate,
    samples,
)
from result import Figure, Goal, Plot, Series, Summary, Table, Value

TITLE = "Read rate against the number of nodes"
SETTING = LINKS
# A pass takes several times the tenth of a second in which the kernel shares out a disk's rate.
SETS = {
    "many small": (16, (4, 4, 1), 17),
    "few large": (8, (4, 1, 1), 49),
    "few huge": (2, (4, 1, 1), 129),
}
#: What the largest files are read from: no systems behind links, which would take minutes for them.
NEAR = ["HDFS, Zazen", AHEAD, "bare program", "own disk"]
SHOWN = {data: NEAR if data == "few huge" else list(SYSTEMS) for data in SETS}


def run(context: Context) -> Figure:
    figure = Figure(
        "bandwidth",
        TITLE,
        "On 128 nodes VisIO read 64.4 % (VPIC) and 51.4 % (ocean salinity) faster than Lustre served the "
        "stock reader.",
        "make bench-viz FIGURES=bandwidth",
        limits=[
            *LIMITS,
            "The file server and the parallel file system (files in stripes over "
            f"{SERVERS} servers) are stand-ins: a program that sends from memory, without locks and "
            "metadata, so they are no slower than real ones on such links.",
            "The bare program is VTK's reader on the files of each node's own disk, and a collective "
            "after each step. It does the least that any reader of these files must do.",
        ],
    )
    with nodes(context, figure, SETS) as running:
        if running is not None:
            measure(running, figure, context)
    return figure


def sets_of(ranks: int) -> list[str]:
    """The data sets that so many ranks read: fewer ranks would read the largest for minutes."""
    return [data for data in SETS if ranks == NODES or data != "few huge"]


def measure(running: Nodes, figure: Figure, context: Context) -> None:
    counts = [NODES] if context.quick else [1, 2, NODES]
    found = {}
    for ranks in counts:
        cases = [running.case(data, system) for data in sets_of(ranks) for system in SHOWN[data]]
        found[ranks] = samples(running.job(ranks, cases, repeats=context.repeats, ahead=[1]))
    for data, (steps, blocks, points) in SETS.items():
        counts = [ranks for ranks in found if data in sets_of(ranks)]
        rows, lines = [], []
        for system in SHOWN[data]:
            kind = SYSTEMS[system][0]
            own = {ranks: found[ranks][f"{data} | {system} | {ahead_of(system)}"] for ranks in counts}
            values = {ranks: Value.of([rate(sample) for sample in own[ranks]]) for ranks in counts}
            rows += [
                [
                    system,
                    ranks,
                    values[ranks],
                    Value.of([sample["seconds"] for sample in own[ranks]]),
                    Value.of([1e9 * sample["cpu_s"] / sample["bytes"] for sample in own[ranks]]),
                    f"{100 * own[ranks][0]['remote'] / own[ranks][0]['bytes']:.0f}",
                ]
                for ranks in counts
            ]
            line = Series(system, kind, list(counts), [values[ranks].median for ranks in counts])
            line.low = [values[ranks].low for ranks in counts]
            line.high = [values[ranks].high for ranks in counts]
            lines.append(line)
        figure.tables.append(
            Table(
                f"{data}: {steps} steps of {blocks[0] * blocks[1] * blocks[2]} blocks of {points}³ points",
                ["from", "ranks", "read rate", "all steps", "processor time", "over links"],
                ["", "", "MB/s", "s", "ns a byte", "% of bytes"],
                rows,
                notes=["With several ranks, processor time includes that of waiting for other ranks."],
            )
        )
        figure.plots.append(
            Plot(
                f"bandwidth-{data.replace(' ', '-')}",
                f"Read rate, {data} files",
                "ranks, one on each node",
                "MB/s of all ranks",
                lines,
                y_log=True,
            )
        )
        every = {system: found[NODES][f"{data} | {system} | {ahead_of(system)}"] for system in SHOWN[data]}
        judge(data, every, figure)
        if "parallel FS" in every:
            beside_stock(data, every, figure)


def judge(data: str, found: dict[str, list[dict]], figure: Figure) -> None:
    """How near the read rate is to what links, disks and VTK allow, with all ranks."""
    allowing = (("own disk", "what links and disks allow"), ("bare program", "a bare program's"))
    for ours, (system, what) in itertools.product(("HDFS, Zazen", AHEAD), allowing):
        allowed = [allowed_seconds(sample, found[system]) / sample["seconds"] for sample in found[ours]]
        share = Value.of([100 * each for each in allowed])
        steps = ahead_of(ours)
        figure.goals.append(
            Goal(
                f"{data}: read rate, {steps} step{'s' * (steps > 1)} ahead, of {what}",
                "≥ 95 %",
                f"{share.median:.0f} % ({share.low:.0f} to {share.high:.0f})",
                share.median >= 95,
            )
        )


def beside_stock(data: str, found: dict[str, list[dict]], figure: Figure) -> None:
    """Against the parallel file system and VTK's split, with all ranks."""
    ours, stock = found["HDFS, Zazen"], found["HDFS, VTK's split"]
    median = {system: statistics.median(map(rate, each)) for system, each in found.items()}
    ratio = median["HDFS, Zazen"] / median["parallel FS"]
    figure.summaries.append(
        Summary(
            f"{data}: matched reads against the parallel file system, {NODES} ranks",
            "1.64 and 1.51 (Lustre)",
            f"{ratio:.2f}",
            f"{median['own disk'] / median['parallel FS']:.2f}",
        )
    )
    # By step, the slowest rank's wait; medians over the passes.
    slowest = {
        name: [
            statistics.median(max(rank[step] for rank in sample["waits"]) for sample in each)
            for step in range(len(each[0]["waits"][0]))
        ]
        for name, each in (("ours", ours), ("stock", stock))
    }
    behind = sum(mine > theirs for mine, theirs in zip(slowest["ours"], slowest["stock"], strict=True))
    largest = max(mine / theirs for mine, theirs in zip(slowest["ours"], slowest["stock"], strict=True))
    figure.goals.append(
        Goal(
            f"{data}: no step slower than VTK's split",
            "0 steps",
            f"{behind} of {len(slowest['ours'])}; the worst takes {largest:.2f} times as long",
            behind == 0,
        )
    )
