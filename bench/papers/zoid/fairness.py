"""Whether many clients at once get equal shares: large calls eagerly, by rendezvous, and in
place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from host import Daemon, together, workplace
from measure import in_turns
from process import say
from result import Figure, Goal, Plot, Series, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Fairness: 64 clients"
PAPER = (
    "eager messages of any size favour the compute nodes near the I/O node, to the near-starvation of the "
    "far ones; with the optional rendezvous, large messages go one at a time in FIFO order (§3); "
    "no figures are given"
)
CLIENTS = 64
BYTES = 1 << 20
WAYS = {
    "rendezvous (shared memory, streamed through grants)": ["--carrier", "shm"],
    "eager (unix socket)": ["--carrier", "unix"],
    "in place (shared memory, from the pool)": ["--carrier", "shm", "--pool"],
}
RENDEZVOUS = next(iter(WAYS))
FAIR = 1.2
# Where and on what it is measured, for the page's first table.
SETTING = "64 client processes and one daemon on one machine"


def run(context: Context) -> Figure:
    figure = Figure("fairness", TITLE, PAPER, "run.py fairness")
    seconds = 2.0 if context.quick else 5.0
    with workplace() as programs, Daemon(programs, [programs.rates]) as daemon:

        def all_at_once(name: str) -> list[float]:
            say(f"fairness: {name}")
            client = [programs.calls, daemon.socket, "put", BYTES, *WAYS[name]]
            said = together([client] * CLIENTS, seconds=seconds)
            return sorted(run["bytes"] for run in said)

        found = in_turns(list(WAYS), max(2, context.repeats - 2), all_at_once)
    rows, series = [], []
    for name, runs in found.items():
        spread = Value.of([run[-1] / max(run[0], 1) for run in runs])
        inner = Value.of([run[CLIENTS * 9 // 10] / max(run[CLIENTS // 10], 1) for run in runs])
        total = Value.of([sum(run) / seconds / 1e9 for run in runs])
        rows.append([name, spread, inner, total])
        middle = runs[len(runs) // 2]
        mean = sum(middle) / CLIENTS
        series.append(
            Series(
                name, "ours", [float(nth + 1) for nth in range(CLIENTS)], [bytes_ / mean for bytes_ in middle]
            )
        )
        if name == RENDEZVOUS:
            figure.goals.append(
                Goal(
                    "max : min of 64 clients, rendezvous",
                    f"≤ {FAIR}",
                    f"{spread.median:.2f}",
                    spread.median <= FAIR,
                )
            )
    title = f"{CLIENTS} clients that send calls of 1 MiB for {seconds:.0f} s"
    columns, units = ["", "max : min", "p90 : p10", "all together"], ["", "", "", "GB/s"]
    notes = ["Bytes of the client that got most, and of the one that got least."]
    figure.tables.append(Table(title, columns, units, rows, notes))
    figure.plots.append(
        Plot(
            "fairness",
            "What each of 64 clients got, of the mean",
            "clients, in this order",
            "share of the mean",
            series,
        )
    )
    return figure
