"""The page of an evaluation: its first table says what was compared, on what, and whether the goal
holds."""

import ast
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "papers" / "common"))

from page import Heading, write
from result import Figure, Goal, Summary, save

PAPERS = Path(__file__).parents[2] / "bench" / "papers"


def test_the_first_table_says_what_was_compared_on_what_and_whether_it_holds(tmp_path):
    goals = [
        Goal("Zazen : plain <files>", "≥ 2", "2.5", True),
        Goal("8 readers : 1", "≥ 95 %", "87 %", False, "the disk was busy"),
        Goal("FUSE : forwarded", "≥ 10", "–", None),
    ]
    save(
        Figure("one", "Figure 1: a figure", "", "", goals=goals, setting="one node & its disk"),
        tmp_path,
    )
    save(Figure("two", "Figure 2", "", "", summaries=[Summary("a", "b", "c", "d")]), tmp_path)
    page = write(tmp_path, ["one", "two"], Heading("title", "about {machine}", "ceiling")).read_text()
    first = page[page.index("<table>") : page.index("</table>")]
    rows = [re.sub(r"<[^>]+>", "|", row) for row in first.split("<tr>")[2:]]
    assert len(rows) == len(goals)
    for row, expected in zip(rows, ["✓ holds", "✗ missed", "– not judged"], strict=True):
        assert expected in row and "one node &amp; its disk" in row
    assert "Zazen : plain &lt;files&gt;" in rows[0] and "2.5" in rows[0] and "≥ 2" in rows[0]
    assert "the disk was busy" in rows[1]


@pytest.mark.parametrize("paper", ["zazen", "zoid"])
def test_each_figure_names_its_setting(paper):
    # Parsed, not imported: figures import packages that only `make bench-*` installs.
    run = ast.parse((PAPERS / paper / "run.py").read_text())
    dicts = [node for node in ast.walk(run) if isinstance(node, ast.Dict)]
    modules = {value.value for node in dicts for value in node.values if isinstance(value, ast.Constant)}
    assert len(modules) > 5
    for module in modules:
        tree = ast.parse((PAPERS / paper / f"{module}.py").read_text())
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        assert {"TITLE", "PAPER", "SETTING"} <= names, module
