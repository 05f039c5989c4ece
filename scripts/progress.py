#!/usr/bin/env python3
"""Runs one step of a make target, and says which one it is, what it waits for, and about how long
it takes.

usage: progress.py STEP NAME SECONDS COMMAND...     (SECONDS: the usual time on 2 cores)

Every half minute a line says how far it is. Needs no package: the first step runs before there are
any.
"""

import os
import subprocess
import sys
import threading
import time

EVERY_S = 30


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    if len(arguments) < 4:
        say(__doc__)
        return 2
    step, name, usual, command = arguments[0], arguments[1], float(arguments[2]), arguments[3:]
    # More cores help; fewer take longer.
    cores = len(os.sched_getaffinity(0))
    expected = usual * 2 / max(1, min(cores, 4))
    say(
        f"[{step}] {name}: about {span(expected)} on {cores} core{'s' if cores > 1 else ''}, less if little "
        "changed"
    )
    begun = time.monotonic()
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(EVERY_S):
            so_far = time.monotonic() - begun
            left = expected - so_far
            rest = f"about {span(left)} left" if left > 0 else "longer than usual: is the machine busy?"
            say(f"[{step}] {name}: {span(so_far)} so far, {rest}")

    threading.Thread(target=tell, daemon=True).start()
    try:
        status = subprocess.run(command).returncode
    except KeyboardInterrupt:
        status = 130
    except FileNotFoundError as error:
        say(f"[{step}] {name}: {error}")
        status = 127
    ended.set()
    so_far = span(time.monotonic() - begun)
    say(
        f"[{step}] {name}: "
        + (f"done in {so_far}" if status == 0 else f"failed with status {status} after {so_far}")
    )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
