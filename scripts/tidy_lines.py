"""How wide lines may be; scripts/tidy.py checks it.

- prose and comments have at most 100 columns; tables may be wider;
- code has at most 110, which is what rustfmt and ruff format to. Neither formatter splits strings,
  nor what macros hold, so this checks what they leave.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Callable

PROSE_MAX = 100
CODE_MAX = 110
# Files and folders whose lines may be wider, with the reason of each.
WIDE = {
    "crates/zazen-stubs/src/emit/": "writes C, Rust and Python: a line here is a line there",
    "crates/zazen-stubs/tests/headers/": "headers as people write them",
    "tests/posix/proof.py": "shell programs, a line each",
    "tests/posix/proof_programs.py": "shell programs, a line each",
    "tests/posix/test_forwarding.py": "shell programs, a line each",
}
# Rows of tables in Rust's comments, and the line that begins an interface of a plug-in.
TABLE = re.compile(r"\s*//[/!] \||/\* START-Z")

Report = Callable[[str, str], None]


def docstring_lines(text: str) -> dict[int, int]:
    """The lines of the docstrings of a Python file, with the column in which each docstring
    begins."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            if isinstance(first.value.value, str):
                lines = range(first.lineno, (first.end_lineno or first.lineno) + 1)
                found.update(dict.fromkeys(lines, first.col_offset))
    return found


def foreign_lines(text: str) -> set[int]:
    """The lines of a Python file within strings of several lines: programs in other languages."""
    found: set[int] = set()
    begins = []
    starts, ends = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == starts:
            begins.append(token.start[0])
        first = begins.pop() if token.type == ends else token.start[0]
        if token.type in (tokenize.STRING, ends) and token.end[0] > first:
            found.update(range(first, token.end[0] + 1))
    return found


def check_lines(root: pathlib.Path, path: str, report: Report) -> None:
    """Checks a source file in Rust, C or Python."""
    if "/golden/" in path or path.startswith(tuple(WIDE)):
        return
    text = (root / path).read_text()
    is_python = path.endswith((".py", ".pyi"))
    comment = r"\s*#[ :]" if is_python else r"\s*(//|/?\*[ /])"
    docstrings = docstring_lines(text) if is_python else {}
    foreign = foreign_lines(text) - docstrings.keys() if is_python else set()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) <= PROSE_MAX or number in foreign or TABLE.match(line):
            continue
        # Commands and tables in docstrings are indented further than the text.
        indent = len(line) - len(line.lstrip())
        is_prose = re.match(comment, line) or indent == docstrings.get(number)
        if is_prose:
            report(f"{path}:{number}", f"a comment of {len(line)} columns; at most {PROSE_MAX}")
        elif len(line) > CODE_MAX:
            report(f"{path}:{number}", f"{len(line)} columns; code has at most {CODE_MAX}")
