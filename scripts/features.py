#!/usr/bin/env python3
"""Whether cargo compiles each library once: `make check` runs it with --check.

Cargo gives a library the features that the packages of one build ask for together. A package that
is built by itself must therefore get the same features of each library as the whole workspace, or
`cargo build -p` compiles that library, and all that rests on it, again. crates/zazen-features asks
for what would differ.

usage: features.py [--check]     prints the features that differ; --check: status 1 if any does
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Interfaces for others' plug-ins, and what reads them: they rest on libc at most.
ALONE = {"zazen-core", "zazen-plugin-abi", "zazen-plugin-sdk", "zazen-forward-api", "zazen-stubs"}
TREE = [
    "cargo", "tree", "--locked", "--edges", "normal,build", "--target", "x86_64-unknown-linux-gnu",
    "--prefix", "none", "--format", "{p} [{f}]",
]  # fmt: skip


def libraries(*packages: str) -> set[str]:
    """Each library that the packages are built from, with its features."""
    done = subprocess.run([*TREE, *packages], check=True, capture_output=True, text=True)
    return {re.sub(r" \((?:/|proc-macro|\*)[^)]*\)", "", line) for line in done.stdout.splitlines() if line}


def main() -> int:
    parser = argparse.ArgumentParser(usage="features.py [--check]")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    packages = sorted({package["name"] for package in metadata["packages"]} - ALONE)
    whole = libraries("--workspace")
    with ThreadPoolExecutor(4) as pool:
        each = list(pool.map(lambda package: libraries("--package", package), packages))
    different = 0
    for package, found in zip(packages, each, strict=True):
        for library in sorted(found - whole):
            name = library.split()[0]
            wanted = sorted(line for line in whole if line.startswith(f"{name} "))
            print(f"{package} alone builds {library}, the workspace {' and '.join(wanted)}")
            different += 1
    if different:
        print("crates/zazen-features/Cargo.toml has to ask for these features", file=sys.stderr)
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
