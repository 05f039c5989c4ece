#!/usr/bin/env python3
"""The house's rules that a machine can check; `make check` runs it.

- arrows between crates point one way: the table below is the whole of what is allowed;
- pure crates stay pure: no files, sockets, clocks, threads or randomness in them;
- what is banned below occurs in the listed files only: integer encoding, and in what must replay from a seed std's
  hash tables, clocks and randomness;
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
    "zazen-wire": "zazen-core",
    "zazen-store": "zazen-core zazen-env zazen-wire",
    "zazen-assign": "zazen-core zazen-wire",
    "zazen-backing": "zazen-core zazen-env zazen-wire",
    "zazen-call": "zazen-core zazen-wire",
    "zazen-plugins": "zazen-core zazen-env zazen-wire zazen-call | zazen-stubs",
    "zazen-stub-runtime": "zazen-core zazen-env zazen-wire zazen-call",
    "zazen-posix": " | | zazen-stubs",
    "zazen-preload": "zazen-core zazen-wire | | zazen-stubs",
    "zazen-stream": " | | zazen-stubs",
    "zazen-push": "zazen-core",
    "zazen-stubs": "",
    "zazen-client": "zazen-core zazen-env zazen-wire zazen-assign zazen-backing zazen-call zazen-push"
    " | zazend zazen-testbed",
    "zazend": "zazen-core zazen-env zazen-wire zazen-store zazen-backing zazen-call zazen-plugins"
    " | zazen-client zazen-testbed",
    "zazen-testbed": "zazen-core zazen-env zazen-call",
    "zazen-cli": "zazen-core zazen-env zazen-wire zazen-assign zazen-backing zazen-call zazen-client"
    " zazen-push zazen-stub-runtime zazen-stubs zazen-mpi zazen-testbed | | zazen-stubs",
    "zazen-mpi": "zazen-core zazen-assign",
    "zazen-c": "zazen-core zazen-wire zazen-assign zazen-client zazen-push zazen-mpi",
    "zazen-python": "zazen-core zazen-wire zazen-assign zazen-client zazen-push zazen-mpi",
    "zazen-fuzz": "zazen-core zazen-env zazen-wire zazen-store zazen-backing zazen-stubs zazend zazen-stream",
    "zazen-bench": "zazen-core zazen-env zazen-wire zazen-store zazen-client zazen-call zazen-push"
    " zazen-testbed",
}

# Protocol logic: events in, actions out. Test modules are exempt.
PURE = ["zazen-core", "zazen-wire", "zazen-push", "zazen-assign", "zazen-stubs"]
IMPURE = re.compile(
    r"std::(fs|net|process|thread|time::(Instant|SystemTime))|\brustix::|\blibc::|\bgetrandom::"
)
# Protocol logic beside what is not, in crates that touch the machine.
PURE_FILES = [f"plugins/stream/src/{name}.rs" for name in ("bits", "integrate", "packet", "ring")]
# The carrier that runs ranks as threads of one process is assignment's own test and scenario rig.
PURE_EXCEPT = {"crates/zazen-assign/src/threads.rs"}

# What must give the same run for the same seed: std's hash tables differ in order from run to run.
REPLAYED = [*(f"crates/{crate}" for crate in PURE), "crates/zazen-store", *PURE_FILES]

# (what, pattern, where, instead, excepted files and folders with the reason of each). Tests are exempt.
BANS = [
    (
        "integer encoding",
        re.compile(r"\b(to|from)_(le|be|ne)_bytes\b"),
        ["crates", "plugins", "bindings"],
        "zazen-wire encodes",
        {
            "crates/zazen-wire/src/": "the encodings",
            "crates/zazen-fuzz/src/": "makes inputs for the decoders",
            "crates/zazen-assign/src/fingerprint.rs": "words of a polynomial",
            "crates/zazen-assign/src/plane.rs": "words of a bit plane",
            "crates/zazen-assign/src/scenario.rs": "seeds a generator",
            "crates/zazen-assign/src/threads.rs": "words between threads of one process",
            "crates/zazen-env/src/random.rs": "random bytes as a number",
            "crates/zazen-env/src/sim_trace.rs": "bytes as words of a digest",
            "crates/zazen-client/src/session.rs": "a random number as the bytes of a seed",
            "crates/zazen-call/src/server.rs": "the kernel's eventfd",
            "crates/zazen-call/src/shm/parking.rs": "the kernel's eventfd",
            "crates/zazend/src/http.rs": "the kernel's eventfd",
            "plugins/posix/src/session.rs": "the kernel's eventfd",
            "crates/zazen-call/src/connection.rs": "the eight bytes that ask for memory (docs/formats/shm.md)",
            "crates/zazen-preload/src/": "the same, and the kernel's socket address; no codec without a heap",
            "crates/zazen-stub-runtime/src/interrupt.rs": "thread numbers through a pipe of one process",
            "crates/zazen-cli/src/commands/run/elf.rs": "the ELF format",
            "crates/zazen-cli/src/commands/run/seccomp/": "registers and memory of a traced program",
            "crates/zazen-cli/src/commands/bench/sample.rs": "makes bytes to measure with",
            "plugins/stream/src/integrate.rs": "adds the elements of samples",
            "plugins/stream/src/packet.rs": "the stations' packets (docs/streams.md)",
            "plugins/stream/src/store.rs": "the header of results (docs/streams.md)",
            "bindings/mpi/src/": "words and handles for MPI",
            "bindings/c/src/collectives.rs": "a length for the user's broadcast",
            "bindings/python/src/carrier.rs": "words for the user's collectives",
        },
    ),
    (
        "std's HashMap or HashSet",
        re.compile(r"\bHash(Map|Set)\b"),
        REPLAYED,
        "use BTreeMap or BTreeSet",
        {},
    ),
    (
        "a clock or randomness",
        re.compile(r"\bInstant::now\b|\bSystemTime\b|\bgetrandom\b|\brandom_u128\b|\brand::"),
        REPLAYED,
        "take time and randomness as arguments",
        {},
    ),
]

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
        for number, line in code_of(path):
            if IMPURE.search(line):
                problem(f"{path}:{number}", "what is pure touches the machine")


def code_of(path):
    """The numbered lines of a source file up to its tests, without comments."""
    code = (ROOT / path).read_text().split("#[cfg(test)]")[0]
    return [(number, line.split("//")[0]) for number, line in enumerate(code.splitlines(), 1)]


def check_bans():
    sources = [path for path in tracked("*.rs") if "/tests/" not in path and not path.endswith("/tests.rs")]
    for what, pattern, where, instead, excepted in BANS:
        used = set()
        for path in sources:
            inside = any(path == place or path.startswith(f"{place}/") for place in where)
            if not inside or "/examples/" in path:
                continue
            found = [number for number, line in code_of(path) if pattern.search(line)]
            exception = next((name for name in excepted if path.startswith(name)), None)
            if found and exception is not None:
                used.add(exception)
            elif found:
                problem(
                    f"{path}:{found[0]}",
                    f"{what} does not belong here: {instead}, or say why in scripts/tidy.py",
                )
        for name in excepted.keys() - used:
            problem(name, f"is excepted from the ban of {what}, but has none; remove it from scripts/tidy.py")


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
    check_bans()
    check_files()
    tidy_docs.check_docs(ROOT, tracked, problem)
    for line in problems:
        print(line)
    print(f"tidy: {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
