#!/usr/bin/env python3
"""The house's rules that a machine can check; `make check` runs it.

- arrows between crates point one way: the table below is the whole of what is allowed;
- pure crates stay pure: no files, sockets, clocks, threads or randomness in them;
- dependencies come under licences that may be shipped with an Apache-2.0 product;
- no file grows past the limit, no unfinished code lands, every decision page is listed;
- what the documentation claims, as far as scripts/tidy_docs.py can check it.
"""

import json
import pathlib
import re
import subprocess
import sys

import tidy_docs

ROOT = pathlib.Path(__file__).resolve().parent.parent

# crate -> crates of ours that it may depend on | what its tests may also use | what its build script may.
EDGES = {
    "zazen-core": "",
    "zazen-env": "zazen-core",
    "zazen-plugin-abi": "",
    "zazen-plugin-sdk": "zazen-plugin-abi",
    "zazen-wire": "zazen-core zazen-plugin-abi",
    "zazen-store": "zazen-core zazen-env zazen-wire",
    "zazen-assign": "zazen-core zazen-wire",
    "zazen-backing": "zazen-core zazen-env zazen-wire",
    "zazen-lane": "zazen-core zazen-wire",
    "zazen-call": "zazen-core zazen-wire zazen-lane",
    "zazen-plugins": "zazen-core zazen-env zazen-wire zazen-call zazen-plugin-abi | zazen-stubs",
    "zazen-stub-runtime": "zazen-core zazen-env zazen-wire zazen-call zazen-plugin-abi",
    "zazen-forward-api": "",
    "zazen-posix": "zazen-forward-api zazen-plugin-sdk | | zazen-stubs-build",
    "zazen-preload": "zazen-core zazen-forward-api zazen-lane zazen-wire | | zazen-stubs-build",
    "zazen-seccomp": "zazen-core zazen-call zazen-forward-api zazen-stub-runtime | | zazen-stubs-build",
    "zazen-stream": "zazen-plugin-sdk | | zazen-stubs-build",
    "zazen-push": "zazen-core",
    "zazen-stubs": "",
    "zazen-stubs-build": "zazen-stubs",
    "zazen-client": "zazen-core zazen-env zazen-wire zazen-assign zazen-backing zazen-call zazen-push"
    " | zazend zazen-testbed",
    "zazend": "zazen-core zazen-env zazen-wire zazen-store zazen-backing zazen-call zazen-plugins"
    " | zazen-client zazen-testbed",
    "zazen-testbed": "zazen-core zazen-env zazen-call",
    "zazen-cli": "zazen-core zazen-env zazen-wire zazen-assign zazen-backing zazen-call zazen-client"
    " zazen-forward-api zazen-push zazen-seccomp zazen-stubs zazen-mpi zazen-testbed",
    "zazen-mpi": "zazen-core zazen-assign",
    "zazen-c": "zazen-core zazen-wire zazen-assign zazen-client zazen-push zazen-mpi",
    "zazen-python": "zazen-core zazen-wire zazen-assign zazen-client zazen-push zazen-mpi",
    "zazen-fuzz": "zazen-core zazen-env zazen-wire zazen-store zazen-backing zazen-stubs zazend zazen-stream",
    "zazen-bench": "zazen-core zazen-env zazen-wire zazen-store zazen-client zazen-call zazen-push"
    " zazen-testbed",
}

# Protocol logic: events in, actions out. Test modules are exempt.
PURE = [
    "zazen-core", "zazen-wire", "zazen-lane", "zazen-push", "zazen-assign", "zazen-stubs", "zazen-forward-api",
    "zazen-plugin-abi",
]  # fmt: skip
IMPURE = re.compile(
    r"std::(fs|net|process|thread|time::(Instant|SystemTime))|\brustix::|\blibc::|\bgetrandom::"
)
# Protocol logic beside what is not, in crates that touch the machine.
PURE_FILES = [f"plugins/stream/src/{name}.rs" for name in ("bits", "integrate", "packet", "ring")]
# The carrier that runs ranks as threads of one process is assignment's own test and scenario rig.
PURE_EXCEPT = {"crates/zazen-assign/src/threads.rs"}

LINES_MAX = 800
LICENCES = re.compile(
    r"\b(MIT|Apache-2\.0|BSD-[123]-Clause|0BSD|ISC|Zlib|Unicode-3\.0|Unlicense|BSL-1\.0|CC0-1\.0|MPL-2\.0|MIT-0)\b"
)

problems = []


def problem(where, what):
    problems.append(f"{where}: {what}")


def tracked(*patterns):
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in out.stdout.splitlines() if (ROOT / line).is_file()]


def check_dependencies():
    out = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    packages = json.loads(out.stdout)["packages"]
    ours = {package["name"] for package in packages if package["source"] is None}
    for package in packages:
        name = package["name"]
        if package["source"] is not None:
            licence = package["license"] or "none named"
            if not LICENCES.search(licence):
                problem(f"dependency {name}", f"licence {licence} is not on the list in scripts/tidy.py")
            continue
        if name not in EDGES:
            problem(name, "is not in the table of crates in scripts/tidy.py; add its allowed edges")
            continue
        normal, test, build = (part.split() for part in (EDGES[name] + "||").split("|")[:3])
        allowed = {None: set(normal), "build": set(build), "dev": {*normal, *test}}
        for dependency in package["dependencies"]:
            if dependency["name"] in ours and dependency["name"] not in allowed[dependency["kind"]] | {name}:
                problem(name, f"must not depend on {dependency['name']} (table in scripts/tidy.py)")


def check_purity():
    patterns = [f"crates/{crate}/src/{files}" for crate in PURE for files in ("*.rs", "**/*.rs")]
    for path in tracked(*patterns, *PURE_FILES):
        if path in PURE_EXCEPT or "/tests" in path:
            continue
        code = (ROOT / path).read_text().split("#[cfg(test)]")[0]
        for number, line in enumerate(code.splitlines(), 1):
            stripped = line.split("//")[0]
            if IMPURE.search(stripped):
                problem(f"{path}:{number}", "what is pure touches the machine")


def crate_of(place):
    """The folder of the crate that a file or folder belongs to; None for what belongs to none."""
    folders = [place, *place.parents]
    return next((it for it in folders if it != ROOT and (it / "Cargo.toml").is_file()), None)


def check_reach():
    """No crate compiles a file of another one: it would have two homes, and no arrow in the table."""
    takes = re.compile(r"#!?\[\s*(cfg_attr\(.*,\s*)?path\s*=|\binclude(_str|_bytes)?!\s*[(\[{]([^;]*)")
    for path in tracked("*.rs"):
        file = ROOT / path
        text = file.read_text()
        for match in takes.finditer(text):
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            literals = re.findall(r'"([^"]*)"', match.group(3) or "")
            if match.group(3) is None:
                problem(where, "#[path]: put the module where it belongs, or make it a crate")
            elif literals and literals[0] != "OUT_DIR":
                in_manifest = literals[0] == "CARGO_MANIFEST_DIR"
                base = crate_of(file) if in_manifest else file.parent
                place = (base / literals[in_manifest].lstrip("/")).resolve()
                if crate_of(place) not in (None, crate_of(file)):
                    problem(where, "includes a file of another crate; export it there, or read it at run time")


def check_files():
    for path in tracked("*.rs", "*.py", "*.c", "*.h", "*.sh"):
        text = (ROOT / path).read_text()
        lines = text.count("\n")
        if lines > LINES_MAX and "/golden/" not in path:
            problem(path, f"{lines} lines; past {LINES_MAX}, ask what second thing the file does")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\b(todo!|unimplemented!)\(|\bFIXME\b|\bXXX\b", line) and path != "scripts/tidy.py":
                problem(f"{path}:{number}", "unfinished code")
    for path in tracked("docs/decisions/*.md"):
        if pathlib.Path(path).name not in (ROOT / "ARCHITECTURE.md").read_text():
            problem(path, "is not listed in ARCHITECTURE.md")


def main():
    check_dependencies()
    check_purity()
    check_reach()
    check_files()
    tidy_docs.check_docs(ROOT, tracked, problem)
    for line in problems:
        print(line)
    print(f"tidy: {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
