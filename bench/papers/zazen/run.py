#!/usr/bin/env python3
"""The Zazen paper's evaluation (§5, Figures 4–10), run again on one machine, and what goes beyond it.

    make bench-zazen                                   # everything, in less than 40 minutes
    make bench-zazen FIGURES="fig7 fig8"               # some
    .venv/bin/python bench/papers/zazen/run.py fig4 --quick
    .venv/bin/python bench/papers/zazen/run.py --page  # the page again, without measuring

Each figure prints its table and writes OUT/<figure>.json, .svg and .png; OUT/index.html shows all that have
been measured. Needs root: network namespaces, I/O control groups, dropping caches.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page
import plot
import result
from cluster import ROOT, BenchError, say

# Module of each figure, in the order of the page. A module has TITLE, PAPER and run(Context) -> Figure.
FIGURES = {
    "fig4": "fig04",
    "fig5": "fig05",
    "fig6": "fig06",
    "fig7": "fig07",
    "fig8": "fig08",
    "fig9": "fig09",
    "fig10": "fig10",
    "small": "small_frames",
    "scan": "scan_twice",
    "death": "node_death",
}


# What the largest figure, with a copy of its datasets in each system, leaves room beside.
NEEDED_BYTES = 25_000_000_000


@dataclass
class Context:
    """What a figure may use."""

    # Smaller inputs and fewer repeats: to see that everything works.
    quick: bool
    # Where it may write; on the disk that is measured. Emptied afterwards.
    scratch: Path
    repeats: int
    # Use only the peers that are installed; else they are installed first.
    install: bool


def measure_figure(key: str, context: Context, out: Path) -> result.Figure:
    module = importlib.import_module(FIGURES[key])
    say(f"{key}: {module.TITLE}")
    began = time.monotonic()
    context.scratch.mkdir(parents=True, exist_ok=True)
    try:
        figure: result.Figure = module.run(context)
    finally:
        shutil.rmtree(context.scratch, ignore_errors=True)
    figure.seconds = round(time.monotonic() - began, 1)
    figure.quick = context.quick
    figure.measured_at = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    for picture in figure.plots:
        plot.draw(picture, out)
    result.save(figure, out)
    print(result.as_text(figure), end="\n\n", flush=True)
    return figure


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # The empty list is a choice too for argparse.
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats: does it work?")
    parser.add_argument("--repeats", type=int, help="repeats of each side of a ratio (default 5, quick 2)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / "zazen", help="where the page goes"
    )
    parser.add_argument("--page", action="store_true", help="only make the page again")
    parser.add_argument("--no-install", action="store_true", help="use only the peers that are installed")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    return arguments


def main() -> int:
    arguments = parse()
    # A terminated bench cleans up like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    wanted = [] if arguments.page else arguments.figures or list(FIGURES)
    if wanted and os.geteuid() != 0:
        say("not root: no namespaces, no throttled disks, no dropped caches; run `sudo make bench-zazen`")
        return 1
    if wanted and (free := shutil.disk_usage(out).free) < NEEDED_BYTES:
        say(
            f"{out}: {free / 1e9:.0f} GB are free, {NEEDED_BYTES / 1e9:.0f} GB are needed: systems that run "
            "out of room fail or crawl; free some, or choose another folder with --out"
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
            measure_figure(key, context, out)
        except KeyboardInterrupt:
            say("interrupted; everything is taken down")
            return 130
        except Exception as error:
            # One figure that cannot be had must not cost the others.
            if not isinstance(error, BenchError):
                traceback.print_exc()
            say(f"{key} FAILED: {error}")
            failed.append(key)
        page.write(out, list(FIGURES))
    say(f"page: {page.write(out, list(FIGURES))}")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
