"""What a figure returns: tables, plots, goals and notes. They are stored as JSON, drawn by
`plot.py` and shown by `page.py`.

A figure is measured once and kept as `OUT/<key>.json`: so the page can be made again without
measuring.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# What a series or a cell is, which decides how it is drawn: never by colour alone.
Kind = Literal["ours", "paper", "peer", "model", "ceiling"]


@dataclass
class Value:
    """Repeated measurements of one thing: their median, smallest and largest."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, samples: list[float]) -> Value:
        """The median of `samples` (at least one) and their range."""
        ordered = sorted(samples)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(median, ordered[0], ordered[-1], len(ordered))


@dataclass
class Table:
    """Rows of text, numbers, `Value`s or None (not measured); one unit per column ("" without)."""

    title: str
    columns: list[str]
    units: list[str]
    rows: list[list[str | float | int | Value | None]]
    notes: list[str] = field(default_factory=list)


@dataclass
class Series:
    """One line or one group of bars; `low` and `high` are the range of each point, or empty."""

    name: str
    kind: Kind
    x: list[float | str]
    y: list[float | None]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass
class Plot:
    """One picture. `shape` bars: x are category names, the same for all series."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    shape: Literal["lines", "bars"] = "lines"
    x_log: bool = False
    y_log: bool = False


@dataclass
class Goal:
    """A goal and what was measured. `holds` is None if this machine cannot judge it; `why` says
    why."""

    what: str
    goal: str
    measured: str
    holds: bool | None
    why: str = ""


@dataclass
class Summary:
    """A row of the summary: the paper's ratio, ours, and what links and disks allow here."""

    what: str
    paper: str
    ours: str
    ceiling: str


@dataclass
class Figure:
    """All results of one figure."""

    key: str
    title: str
    # What the paper's figure shows, in one or two sentences, with its numbers.
    paper: str
    command: str
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    # How limits of this machine change the experiment.
    limits: list[str] = field(default_factory=list)
    # What could not be run, and what it needs (packages, root).
    skipped: list[str] = field(default_factory=list)
    # Where and on what it was measured, in one line, for readers who know nothing else of it.
    setting: str = ""
    seconds: float = 0.0
    quick: bool = False
    measured_at: str = ""


def save(figure: Figure, out: Path) -> None:
    """Write `out/<key>.json`."""
    text = json.dumps(dataclasses.asdict(figure), indent=1)
    (out / f"{figure.key}.json").write_text(text + "\n")


def load(file: Path) -> Figure:
    """A figure as `save` wrote it."""
    given = json.loads(file.read_text())
    cell = lambda value: Value(**value) if isinstance(value, dict) else value  # noqa: E731
    given["tables"] = [
        Table(**(table | {"rows": [[cell(value) for value in row] for row in table["rows"]]}))
        for table in given["tables"]
    ]
    given["plots"] = [
        Plot(**(plot | {"series": [Series(**series) for series in plot["series"]]}))
        for plot in given["plots"]
    ]
    given["goals"] = [Goal(**goal) for goal in given["goals"]]
    given["summaries"] = [Summary(**summary) for summary in given["summaries"]]
    return Figure(**given)


def number(value: float | int | None) -> str:
    """A number with three significant digits, as a person would write it."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    return f"{value:.3g}"


def cell_text(cell: str | float | int | Value | None) -> str:
    """A table's cell: a `Value` with its range."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Value):
        if cell.repeats == 1:
            return number(cell.median)
        return f"{number(cell.median)} ({number(cell.low)} … {number(cell.high)})"
    return number(cell)


def as_text(figure: Figure) -> str:
    """The figure for a terminal."""
    lines = [f"{figure.title}", f"  {figure.command}", f"  Paper: {figure.paper}", ""]
    for table in figure.tables:
        heads = [
            f"{name} [{unit}]" if unit else name
            for name, unit in zip(table.columns, table.units, strict=True)
        ]
        cells = [heads, *([cell_text(cell) for cell in row] for row in table.rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
        lines.append(f"  {table.title}")
        for row in cells:
            first, *rest = (
                text.ljust(width) if at == 0 else text.rjust(width)
                for at, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("    " + "  ".join([first, *rest]))
        lines += [f"    {note}" for note in table.notes] + [""]
    marks = {True: "holds", False: "MISSED", None: "not judged"}
    lines += [
        f"  {marks[goal.holds]}: {goal.what}: {goal.measured} (goal {goal.goal})"
        + (f"; {goal.why}" if goal.why else "")
        for goal in figure.goals
    ]
    lines += [f"  limit of this machine: {limit}" for limit in figure.limits]
    lines += [f"  skipped: {skipped}" for skipped in figure.skipped]
    return "\n".join(lines)
