"""Runs a paper's evaluation: measures figures, stores and draws each, and makes the page.

A figure is a module with TITLE, PAPER, SETTING and `run(Context) -> Figure`; an `Evaluation` lists
them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import shutil
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import page
import plot
import result
from process import BenchError, say


@dataclass
class Context:
    """What a figure may use."""

    # Use smaller inputs and fewer repeats, to test that everything works.
    quick: bool
    # The folder in which it may write, on the disk that is measured. Emptied afterwards.
    scratch: Path
    repeats: int
    # Use only the peers that are installed; else they are installed first.
    install: bool


@dataclass
class Evaluation:
    """A paper's figures, and what its page says about them."""

    description: str
    # Module of each figure, in the order of the page.
    figures: dict[str, str]
    heading: page.Heading
    out: Path
    # The free space that the largest figure needs.
    needed_bytes: int
    # Why nothing can be measured without being root; "" if much can.
    needs_root: str = ""


def measure_figure(evaluation: Evaluation, key: str, context: Context, out: Path) -> result.Figure:
    module = importlib.import_module(evaluation.figures[key])
    say(f"{key}: {module.TITLE}")
    began = time.monotonic()
    context.scratch.mkdir(parents=True, exist_ok=True)
    try:
        figure: result.Figure = module.run(context)
    finally:
        shutil.rmtree(context.scratch, ignore_errors=True)
    figure.seconds = round(time.monotonic() - began, 1)
    figure.quick = context.quick
    figure.setting = getattr(module, "SETTING", "")
    figure.measured_at = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    for picture in figure.plots:
        plot.draw(picture, out)
    result.save(figure, out)
    print(result.as_text(figure), end="\n\n", flush=True)
    return figure


def parse(evaluation: Evaluation) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=evaluation.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # The empty list is a choice too for argparse.
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="FIGURE",
        help=f"of {', '.join(evaluation.figures)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats: does it work?")
    parser.add_argument("--repeats", type=int, help="repeats of each side of a ratio (default 5, quick 2)")
    parser.add_argument("--out", type=Path, default=evaluation.out, help="where the page goes")
    parser.add_argument("--page", action="store_true", help="only make the page again")
    parser.add_argument("--no-install", action="store_true", help="use only the peers that are installed")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.figures if name not in evaluation.figures]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(evaluation.figures)}")
    return arguments


def main(evaluation: Evaluation) -> int:
    """What `run.py` does; its exit code."""
    arguments = parse(evaluation)
    # A terminated bench cleans up like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    order = list(evaluation.figures)
    failed = []
    wanted = [] if arguments.page else arguments.figures or order
    if wanted and evaluation.needs_root and os.geteuid() != 0:
        say(f"not root: {evaluation.needs_root}")
        return 1
    if wanted and (free := shutil.disk_usage(out).free) < evaluation.needed_bytes:
        say(
            f"{out}: {free / 1e9:.0f} GB are free, {evaluation.needed_bytes / 1e9:.0f} GB are needed: "
            "systems that run out of room fail or crawl; free some, or choose another folder with --out"
        )
        return 1
    for key in wanted:
        context = Context(
            quick=arguments.quick,
            scratch=out / "scratch",
            repeats=arguments.repeats or (2 if arguments.quick else 5),
            install=not arguments.no_install,
        )
        try:
            measure_figure(evaluation, key, context, out)
        except KeyboardInterrupt:
            say("interrupted; everything is taken down")
            return 130
        except Exception as error:
            # If one figure fails, the others still run.
            if not isinstance(error, BenchError):
                traceback.print_exc()
            say(f"{key} FAILED: {error}")
            failed.append(key)
        page.write(out, order, evaluation.heading)
    say(f"page: {page.write(out, order, evaluation.heading)}")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0
