"""The report page: every figure measured so far, its tables, plots, goals, and its limits on this
machine."""

from __future__ import annotations

import html
import platform
from dataclasses import dataclass
from pathlib import Path

import measure
from result import Figure, Table, cell_text, load

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem; }
th, td { text-align: right; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
.scroll { overflow-x: auto; } figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; background: white; }
figcaption, .quiet { font-size: .88rem; opacity: .8; }
code { background: var(--soft); padding: 0 .25em; }
.mark { font-weight: 700; white-space: nowrap; } nav a { margin-right: .75rem; }
"""
MARKS = {True: "✓ holds", False: "✗ missed", None: "– not judged"}


@dataclass
class Heading:
    """What a page is about: title, a paragraph in which {machine} is replaced, what bounds a ratio
    here."""

    title: str
    about: str
    ceiling: str


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(table: Table) -> str:
    heads = "".join(
        f"<th>{_text(name)}{f'<br><span class=quiet>{_text(unit)}</span>' if unit else ''}</th>"
        for name, unit in zip(table.columns, table.units, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{_text(cell_text(cell))}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    notes = "".join(f"<p class=quiet>{_text(note)}</p>" for note in table.notes)
    head = f"<h3>{_text(table.title)}</h3>"
    return f"{head}<div class=scroll><table><tr>{heads}</tr>{rows}</table></div>{notes}"


def _items(title: str, items: list[str]) -> str:
    if not items:
        return ""
    return f"<h3>{title}</h3><ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"


def _goals(figure: Figure) -> str:
    if not figure.goals:
        return ""
    rows = "".join(
        f"<tr><td>{_text(goal.what)}</td><td>{_text(goal.goal)}</td><td>{_text(goal.measured)}</td>"
        f"<td class=mark>{MARKS[goal.holds]}</td><td>{_text(goal.why)}</td></tr>"
        for goal in figure.goals
    )
    heads = "<tr><th>goal</th><th></th><th>measured</th><th></th><th></th></tr>"
    return f"<h3>Goals</h3><div class=scroll><table>{heads}{rows}</table></div>"


def _figure(figure: Figure) -> str:
    pictures = "".join(
        f'<figure><img src="{plot.name}.svg" alt="{_text(plot.title)}"><figcaption>{_text(plot.title)} '
        f'(<a href="{plot.name}.svg">SVG</a>, <a href="{plot.name}.png">PNG</a>)</figcaption></figure>'
        for plot in figure.plots
    )
    quick = " Quick run: smaller inputs, fewer repeats." if figure.quick else ""
    return (
        f'<h2 id="{figure.key}">{_text(figure.title)}</h2>'
        f"<p><strong>In the paper:</strong> {_text(figure.paper)}</p>"
        f"<p class=quiet><code>{_text(figure.command)}</code> — measured {_text(figure.measured_at)} in "
        f"{figure.seconds:.0f} s.{quick}</p>"
        + pictures
        + "".join(_table(table) for table in figure.tables)
        + _goals(figure)
        + _items("Where this machine changes the experiment", figure.limits)
        + _items("Not run", figure.skipped)
    )


def _results(figures: list[Figure], machine: str) -> str:
    """The first table: each goal with what was compared, on what, what came out, and whether it
    holds."""
    rows = "".join(
        f"<tr><td>{_text(goal.what)}"
        f"{f'<br><span class=quiet>{_text(goal.why)}</span>' if goal.why else ''}</td>"
        f'<td class=words>{_text(figure.setting or machine)} (<a href="#{figure.key}">details</a>)</td>'
        f"<td>{_text(goal.measured)}</td><td>{_text(goal.goal)}</td>"
        f"<td class=mark>{MARKS[goal.holds]}</td></tr>"
        for figure in figures
        for goal in figure.goals
    )
    if not rows:
        return ""
    heads = "<tr><th>what was compared</th><th class=words>on what</th>"
    heads += "<th>measured</th><th>goal</th><th></th></tr>"
    note = "“A : B” is A divided by B. “of X” is the share of X that was reached."
    return f"<h2>Results</h2><p class=quiet>{note}</p><div class=scroll><table>{heads}{rows}</table></div>"


def _summary(figures: list[Figure], ceiling: str) -> str:
    rows = [
        [summary.what, summary.paper, summary.ours, summary.ceiling]
        for figure in figures
        for summary in figure.summaries
    ]
    columns = ["", "the paper", "here", ceiling]
    return _table(Table("Beside the paper", columns, ["", "", "", ""], rows)) if rows else ""


def write(out: Path, order: list[str], heading: Heading) -> Path:
    """Make `out/index.html` of the figures stored in `out`; those of `order` first, in that
    order."""
    figures = [load(out / f"{key}.json") for key in order if (out / f"{key}.json").is_file()]
    links = "".join(f'<a href="#{figure.key}">{_text(figure.title.split(":")[0])}</a>' for figure in figures)
    missing = [key for key in order if not (out / f"{key}.json").is_file()]
    machine = f"{measure.cores()} cores, Linux {platform.release()}"
    absent = f"<p>Not measured yet: {_text(', '.join(missing))}.</p>" if missing else ""
    body = "".join(_figure(figure) for figure in figures)
    page = out / "index.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(heading.title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{_text(heading.title)}</h1><p>{_text(heading.about.format(machine=machine))}</p>"
        f"<nav>{links}</nav>{absent}{_results(figures, machine)}{_summary(figures, heading.ceiling)}{body}"
        "</body></html>\n"
    )
    return page
