#!/usr/bin/env python3
"""Builds the Rust tests with one cargo call, then runs the test programs side by side.

usage: rust_tests.py [--jobs N] [--no-run] [CARGO ARGUMENT...]

`cargo test` runs one test program after the other, and many of them wait for processes and clocks:
half of two cores stands idle. Each program runs here as cargo would run it: in its package's
folder, with the paths of the libraries that cargo builds. What a program prints is shown when it
fails, and of each how long it took, with the processor time of it and of what it waited for. The
status is 0 if every program was built and passed.

Most tests are compiled unoptimised (scripts/rustc_tests), unless the environment has a
RUSTC_WRAPPER of its own.

Needs no package. The documentation's code blocks are no tests here (scripts/tidy.py refuses such
blocks).
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# These programs take longest: they start first, so that none of them is left alone at the end.
LONG = (
    "namespace_nodes",
    "namespace_kills",
    "fuzz",
    "joined",
    "zazen_namespace",
    "pushing",
    "many_datasets",
)

# This one has more threads that compute than there are cores: they leave some time to others.
POLITE = ("fuzz",)


def built(arguments: list[str]) -> list[dict] | None:
    """The test programs, as cargo describes them. None: the build failed, and cargo said why."""
    command = ["cargo", "test", "--no-run", *arguments, "--message-format=json-render-diagnostics"]
    wrapper = str(Path(__file__).resolve().parent / "rustc_tests")
    environment = {"RUSTC_WRAPPER": wrapper} | os.environ
    programs = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as cargo:
        for line in cargo.stdout:
            message = json.loads(line) if line.startswith("{") else {}
            if (
                message.get("reason") == "compiler-artifact"
                and message["profile"]["test"]
                and message["executable"]
            ):
                programs.append(message)
    return programs if cargo.returncode == 0 else None


class Ended(NamedTuple):
    """One program that has ended. The processor time has that of the processes it waited for."""

    program: dict
    status: int
    output: str
    seconds: float
    processor_seconds: float


def run(program: dict, libraries: str) -> Ended:
    folder = Path(program["manifest_path"]).parent
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(folder), LD_LIBRARY_PATH=libraries)
    begun = time.monotonic()
    polite = ["nice", "-n", "10"] if program["target"]["name"] in POLITE else []
    running = subprocess.Popen(
        [*polite, program["executable"]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with running.stdout:
        output = running.stdout.read()
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    processor = usage.ru_utime + usage.ru_stime
    return Ended(program, running.returncode, output, time.monotonic() - begun, processor)


def name(program: dict) -> str:
    return f"{Path(program['manifest_path']).parent.name}: {program['target']['name']}"


def rank(program: dict) -> int:
    target = program["target"]["name"]
    return LONG.index(target) if target in LONG else len(LONG)


def library_path(programs: list[dict]) -> str:
    """Where a program finds the shared libraries that cargo built, and those of the compiler."""
    deps = sorted({str(Path(p["executable"]).parent) for p in programs})
    folders = [*deps, *[str(Path(d).parent) for d in deps]]
    compiler = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    if compiler.returncode == 0:
        folders.append(str(Path(compiler.stdout.strip()) / "lib"))
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*folders, *([inherited] if inherited else [])])


def main() -> int:
    parser = argparse.ArgumentParser(usage="rust_tests.py [--jobs N] [--no-run] [CARGO ARGUMENT...]")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument("--no-run", action="store_true", help="only build")
    given, arguments = parser.parse_known_args()
    programs = built(arguments)
    if programs is None:
        return 101
    if given.no_run:
        return 0
    if not programs:
        print("cargo built no test program", file=sys.stderr)
        return 1
    libraries = library_path(programs)
    failed = []
    passed, processor = 0, 0.0
    with concurrent.futures.ThreadPoolExecutor(max(1, given.jobs)) as pool:
        waiting = [pool.submit(run, p, libraries) for p in sorted(programs, key=rank)]
        for ready in concurrent.futures.as_completed(waiting):
            ended = ready.result()
            called = name(ended.program)
            processor += ended.processor_seconds
            if ended.status != 0:
                failed.append(called)
                print(
                    f"\n---- {called} failed with status {ended.status}; its output:\n{ended.output}",
                    flush=True,
                )
                continue
            results = [line for line in ended.output.splitlines() if line.startswith("test result: ok.")]
            tests = sum(int(line.split()[3]) for line in results)
            passed += tests
            if tests:
                took = f"{ended.seconds:.1f} s, processor {ended.processor_seconds:.1f} s"
                print(f"{called}: {tests} passed in {took}", flush=True)
    print(
        f"Rust: {len(programs)} test programs, {passed} tests passed, {len(failed)} programs failed; "
        f"processor {processor:.0f} s"
    )
    for each in failed:
        print(f"  failed: {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
