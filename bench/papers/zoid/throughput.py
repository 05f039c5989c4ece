"""What Figures 4 to 7 share: throughput by buffer size and number of clients, forwarded and not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from host import together
from measure import Watch, in_turns
from process import say
from result import Figure, Kind, Plot, Series, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

KIB = 1024
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB]
QUICK_SIZES = [4 * KIB, 1024 * KIB]


@dataclass
class Contender:
    """A contender: the command of client number n for a direction and a size."""

    name: str
    kind: Kind
    command: Callable[[str, int, int], list[object]]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Grid:
    """The measurements: all combinations of these."""

    figure: Figure
    contenders: list[Contender]
    # Names in the clients' programs, and names in tables.
    directions: dict[str, str]
    clients: list[int]
    seconds: float
    sizes: list[int] = field(default_factory=lambda: list(SIZES))
    repeats: int = 5
    notes: list[str] = field(default_factory=list)

    def measure(self, context: Context) -> dict[tuple[str, int, str, int], Value]:
        """Fills the figure; the rates in GB/s by direction, clients, contender and size."""
        if context.quick:
            self.sizes, self.seconds, self.repeats = QUICK_SIZES, self.seconds / 2, 2
        found: dict[tuple[str, int, str, int], Value] = {}
        by_name = {contender.name: contender for contender in self.contenders}
        with Watch() as load:
            for count in self.clients:
                for direction in self.directions:
                    say(f"{self.figure.key}: {self.directions[direction]}, {clients(count)}")
                    for size in self.sizes:
                        runs = in_turns(
                            list(by_name),
                            self.repeats,
                            lambda name, direction=direction, size=size, count=count: self.rate(
                                by_name[name], direction, size, count
                            ),
                        )
                        for name, rates in runs.items():
                            found[direction, count, name, size] = Value.of(rates)
        self.show(found)
        self.figure.limits.append(
            f"clients, daemon and servers share the cores, which were {100 * load.cpu_share:.0f} % busy: in "
            "the paper they had a machine each"
        )
        return found

    def rate(self, contender: Contender, direction: str, size: int, count: int) -> float:
        commands = [contender.command(direction, size, nth) for nth in range(count)]
        said = together(commands, contender.variables, self.seconds)
        return sum(run["bytes"] for run in said) / max(run["seconds"] for run in said) / 1e9

    def show(self, found: dict[tuple[str, int, str, int], Value]) -> None:
        columns = ["", *(f"{size // KIB} KiB" for size in self.sizes)]
        units = ["", *["GB/s"] * len(self.sizes)]
        for direction, title in self.directions.items():
            rows = [
                [f"{contender.name}, {clients(count)}"]
                + [found[direction, count, contender.name, size] for size in self.sizes]
                for count in self.clients
                for contender in self.contenders
            ]
            self.figure.tables.append(Table(title, columns, units, rows, self.notes))
            self.figure.plots.append(
                Plot(f"{self.figure.key}_{direction.replace('-', '_')}", title, "buffer size [KiB]", "GB/s",
                     list(self.series(found, direction)), x_log=True, y_log=True)
            )  # fmt: skip

    def series(self, found: dict, direction: str) -> Iterable[Series]:
        for count in self.clients:
            for contender in self.contenders:
                values = [found[direction, count, contender.name, size] for size in self.sizes]
                yield Series(
                    f"{contender.name}, {clients(count)}",
                    contender.kind,
                    [size / KIB for size in self.sizes],
                    [value.median for value in values],
                    [value.low for value in values],
                    [value.high for value in values],
                )


def clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def prepare(folder: Path, count: int, span: int) -> None:
    """Files 0 … of `span` bytes in `folder`: what is read is there."""
    for nth in range(count):
        (folder / str(nth)).write_bytes(bytes(span))
