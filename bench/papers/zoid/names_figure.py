"""Forwarded looks at names: stat, access, open and close, against what the kernel takes for
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from files import DIRECT, FORWARDED, microseconds
from host import Daemon, measured, workplace
from measure import cores, in_turns
from process import say
from result import Figure, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Names: stat, access, open and close"
# Where and on what it is measured, for the page's first table.
SETTING = "a program and its daemon on one machine, through shared memory"
PAPER = "The paper has no such figure."
BENEATH = "the kernel's calls that stay beneath the folder (openat2)"
# What `zazen run` does where the daemon is on the same machine, unless it is told --relay.
NEAR = "zazen run, the default: this kernel serves the folder"
OPERATIONS = ["stat", "access", "open"]
NOTE = (
    "A name three folders deep. “direct” is one system call (open: two). Only openat2 can be told to stay "
    "beneath a folder, so a look at a name takes openat2 with O_PATH, the look, and close. Forwarded calls "
    "pay this on top of their round trip. Where the exported folder is a whole mount, stat needs one call."
)


def run(context: Context) -> Figure:
    figure = Figure("names", TITLE, PAPER, "run.py names")
    rounds = 20_000 if context.quick else 200_000
    seconds = 0.05 if context.quick else 0.2
    found: dict[str, dict[str, list[dict]]] = {}
    with (
        workplace() as programs,
        Daemon(programs, [*filter(None, [programs.posix])], {cores() - 1}) as daemon,
    ):
        folder = daemon.folder / "backing"
        name = "a/b/c/file"
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
        walk, ops = programs.tool("walk"), programs.tool("ops")
        names = [DIRECT, BENEATH]
        variables: dict[str, dict[str, str]] = {}
        if programs.posix and programs.preload:
            names += [NEAR, FORWARDED]
            words = ["--forward", f"/zazen-forwarded={folder}"]
            variables = {
                NEAR: daemon.variables_for(*words, "--direct"),
                FORWARDED: daemon.variables_for(*words),
            }
        else:
            figure.skipped.append(
                "forwarded: libzazen_posix.so or libzazen_preload.so is not there; `make install`"
            )

        def one(who: str, operation: str) -> dict:
            if who in variables:
                words = [ops, operation, f"/zazen-forwarded/{name}", 1, "--seconds", seconds]
                return measured([*words, "--cpu", 0], variables[who])
            how = "plain" if who == DIRECT else "beneath"
            return measured([walk, operation, how, folder, name, rounds, 0])

        for operation in OPERATIONS:
            say(f"names: {operation}")
            found[operation] = in_turns(
                names, context.repeats, lambda who, operation=operation: one(who, operation)
            )
    rows = [[who, *(microseconds(found[operation][who]) for operation in OPERATIONS)] for who in names]
    less = [
        Value.of(
            [(a["median_ns"] - b["median_ns"]) / 1e3 for a, b in zip(of[BENEATH], of[DIRECT], strict=True)]
        )
        for of in found.values()
    ]
    rows.append(["what staying beneath the folder adds", *less])
    units = ["", *["µs"] * len(OPERATIONS)]
    figure.tables.append(
        Table("looks at a name, medians", ["", "stat", "access", "open and close"], units, rows, [NOTE])
    )
    return figure
