#!/usr/bin/env python3
"""The house's rules that a machine can check; `make check` runs it.

- arrows between crates point one way: the table below is the whole of what is allowed;
- pure crates stay pure: no files, sockets, clocks, threads or randomness in them;
- what is banned below occurs in the listed files only: integer encoding, and in what must replay
  from a seed std's hash tables, clocks and randomness;
- files of a crate do not import each other in circles: each can be read after those that it
  imports;
- dependencies come under licences that may be shipped with an Apache-2.0 product;
- a few words are the name of one type only, so that each keeps its one meaning;
- no file grows past the limit, none is empty, no unfinished code lands, every decision page is
  listed;
- no line is too wide (scripts/tidy_lines.py);
- what the documentation claims, as far as scripts/tidy_docs.py can check it.
"""

import json
import pathlib
import re
import subprocess
import sys

import tidy_docs
import tidy_lines

ROOT = pathlib.Path(__file__).resolve().parent.parent

# crate -> crates of ours that it may depend on | what its tests may also use | what its build
# script may.
EDGES = {
    "zazen-core": "",
    "zazen-features": "",
    "zazen-env": "zazen-core zazen-features",
    "zazen-plugin-abi": "",
    "zazen-plugin-sdk": "zazen-plugin-abi",
    "zazen-wire": "zazen-core zazen-features zazen-plugin-abi",
    "zazen-frames": "zazen-core zazen-wire",
    "zazen-explain": "zazen-core zazen-frames",
    "zazen-store": "zazen-core zazen-env zazen-wire zazen-frames",
    "zazen-assign": "zazen-core zazen-wire",
    "zazen-trajectory": "zazen-core zazen-wire",
    "zazen-backing": "zazen-core zazen-env zazen-trajectory zazen-wire",
    "zazen-lane": "zazen-core zazen-wire",
    "zazen-call": "zazen-core zazen-wire zazen-lane",
    "zazen-plugins": "zazen-core zazen-env zazen-wire zazen-call zazen-plugin-abi | zazen-stubs",
    "zazen-stub-runtime": "zazen-core zazen-env zazen-wire zazen-call zazen-plugin-abi",
    "zazen-forward-api": "",
    "zazen-posix": "zazen-forward-api zazen-plugin-sdk | | zazen-stubs-build",
    "zazen-preload": "zazen-core zazen-forward-api zazen-lane zazen-plugin-abi zazen-wire"
    " | | zazen-stubs-build",
    "zazen-posix-client": "zazen-plugin-abi zazen-stub-runtime | | zazen-stubs-build",
    "zazen-seccomp": "zazen-core zazen-call zazen-forward-api zazen-posix-client",
    "zazen-stream": "zazen-plugin-sdk | | zazen-stubs-build",
    "zazen-push": "zazen-core",
    "zazen-match": "zazen-core zazen-features",
    "zazen-sim": "zazen-core zazen-assign zazen-frames zazen-match zazen-namespace zazen-push zazen-spans",
    "zazen-spans": "zazen-core zazen-frames zazen-namespace zazen-wire",
    "zazen-namespace": "zazen-core zazen-wire",
    # The same sources, for zazen-vopr alone.
    "zazen-namespace-planted": "zazen-core zazen-wire",
    "zazen-namespace-node": "zazen-core zazen-env zazen-wire zazen-call zazen-namespace",
    "zazen-mount": "zazen-core zazen-env zazen-forward-api zazen-namespace zazen-namespace-client"
    " zazen-posix-client | zazen-call zazen-wire",
    "zazen-namespace-client": "zazen-core zazen-env zazen-wire zazen-call zazen-namespace",
    "zazen-stage": "zazen-core zazen-wire zazen-backing zazen-namespace-client",
    "zazen-vtk": "zazen-core zazen-features",
    "zazen-locate": "zazen-backing zazen-call zazen-client zazen-core zazen-env zazen-namespace-client"
    " zazen-vtk | zazen-testbed zazend",
    "zazen-stubs": "",
    "zazen-xtc": "zazen-core",
    "zazen-stubs-build": "zazen-stubs",
    "zazen-client": "zazen-core zazen-env zazen-wire zazen-frames zazen-assign zazen-backing"
    " zazen-call zazen-push | zazend zazen-testbed",
    "zazen-http": "",
    "zazend": "zazen-core zazen-env zazen-http zazen-wire zazen-frames zazen-spans zazen-store"
    " zazen-backing zazen-call zazen-mount zazen-plugins zazen-namespace zazen-namespace-client"
    " zazen-namespace-node | zazen-client zazen-testbed",
    "zazen-testbed": "zazen-core zazen-env zazen-wire zazen-call",
    "zazen-cli": "zazen-core zazen-env zazen-http zazen-wire zazen-explain zazen-frames zazen-assign"
    " zazen-backing zazen-call zazen-client zazen-forward-api zazen-locate zazen-match zazen-mount"
    " zazen-namespace-client zazen-push zazen-seccomp zazen-sim zazen-spans zazen-stage zazen-stubs"
    " zazen-mpi zazen-testbed",
    "zazen-mpi": "zazen-core zazen-assign",
    "zazen-c": "zazen-core zazen-wire zazen-frames zazen-assign zazen-client zazen-match zazen-push zazen-mpi"
    " zazen-namespace-client",
    "zazen-python": "zazen-core zazen-wire zazen-frames zazen-assign zazen-client zazen-locate"
    " zazen-match zazen-push zazen-mpi zazen-namespace-client zazen-xtc",
    "zazen-fuzz": "zazen-core zazen-env zazen-wire zazen-frames zazen-namespace zazen-store zazen-trajectory"
    " zazen-backing zazen-spans zazen-stubs zazend zazen-stream zazen-xtc",
    "zazen-vopr": "zazen-core zazen-env zazen-wire zazen-frames zazen-namespace-planted zazen-store"
    " zazen-assign zazen-push zazen-sim | zazen-namespace",
    "zazen-bench": "zazen-core zazen-env zazen-wire zazen-store zazen-client zazen-call zazen-push"
    " zazen-testbed",
}

# Protocol logic: events in, actions out. Test modules are exempt.
PURE = [
    "zazen-core", "zazen-wire", "zazen-frames", "zazen-explain", "zazen-lane", "zazen-push", "zazen-assign",
    "zazen-match", "zazen-vtk", "zazen-stubs", "zazen-forward-api", "zazen-plugin-abi", "zazen-trajectory",
    "zazen-xtc", "zazen-namespace", "zazen-sim", "zazen-spans",
]  # fmt: skip
IMPURE = re.compile(
    r"std::(fs|net|process|thread|time::(Instant|SystemTime))|\brustix::|\blibc::|\bgetrandom::"
)
# Protocol logic beside what is not, in crates that touch the machine.
PURE_FILES = [f"plugins/stream/src/{name}.rs" for name in ("bits", "integrate", "packet", "ring")]
# The carrier that runs ranks as threads of one process is assignment's own test and scenario rig.
PURE_EXCEPT = {"crates/zazen-assign/src/threads.rs"}

# What must give the same run for the same seed: std's hash tables differ in order from run to run.
REPLAYED = [*(f"crates/{crate}" for crate in [*PURE, "zazen-store", "zazen-vopr"]), *PURE_FILES]

# (what, pattern, where, instead, excepted files and folders with the reason of each). Tests are
# exempt.
BANS = [
    (
        "integer encoding",
        re.compile(r"\b(to|from)_(le|be|ne)_bytes\b"),
        ["crates", "plugins", "bindings"],
        "zazen-wire encodes",
        {
            "crates/zazen-wire/src/": "the encodings",
            "crates/zazen-xtc/src/": "GROMACS's format: big endian, and bits without padding",
            "crates/zazen-spans/src/rows.rs": "rows of spans (docs/formats/spans.md)",
            "crates/zazen-store/src/record.rs": "the records of logs (docs/formats/store.md)",
            "crates/zazen-fuzz/src/": "makes inputs for the decoders",
            "crates/zazen-call/src/contract.rs": "makes bytes to send",
            "crates/zazen-vopr/src/": "makes frames, seeds and digests of simulated runs",
            "crates/zazen-assign/src/fingerprint.rs": "words of a polynomial",
            "crates/zazen-assign/src/plane.rs": "words of a bit plane",
            "crates/zazen-assign/src/scenario.rs": "seeds a generator",
            "crates/zazen-assign/src/threads.rs": "words between threads of one process",
            "crates/zazen-env/src/random.rs": "random bytes as a number",
            "crates/zazen-env/src/sim_trace.rs": "bytes as words of a digest",
            "crates/zazen-client/src/session.rs": "a random number as the bytes of a seed",
            "crates/zazen-call/src/server/": "the kernel's eventfd",
            "crates/zazen-http/src/lib.rs": "the kernel's eventfd",
            "plugins/posix/src/sessions.rs": "random bytes as a number",
            "crates/zazen-call/src/client/mod.rs": "eight bytes that ask for memory (docs/formats/shm.md)",
            "crates/zazen-preload/src/": "the same, and the kernel's socket address; no codec without a heap",
            "crates/zazen-stub-runtime/src/interrupt.rs": "thread numbers through a pipe of one process",
            "crates/zazen-trajectory/src/bytes.rs": "the formats of trajectory files",
            "crates/zazen-locate/src/hdfs/replica.rs": "HDFS's files of checksums",
            "crates/zazen-seccomp/src/": "registers and memory of a traced program",
            "crates/zazen-cli/src/commands/bench/sample.rs": "makes bytes to measure with",
            "crates/zazen-cli/src/commands/run/shared_read": "messages of stubs (formats/plugin-wire.md)",
            "crates/zazen-mount/src/contract/fsx.rs": "makes bytes to write",
            "crates/zazen-mount/src/forwarded/entries.rs": "the kernel's directory entries",
            "crates/zazen-forward-api/src/in_order.rs": "the kernel's directory entries",
            "crates/zazen-mount/src/forwarded/far.rs": "random bytes as a number",
            "crates/zazen-mount/src/contract/names.rs": "makes bytes to write",
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
        {"crates/zazen-vopr/src/main.rs": "says how long the simulated runs took"},
    ),
]

# Names of types that once had several meanings; each is defined in one file only.
ONE_MEANING = {
    "Call": "crates/zazen-call/src/service.rs",
    "Entry": "crates/zazen-namespace/src/operation.rs",
    "Opened": "crates/zazen-mount/src/tree.rs",
    "Origin": "crates/zazen-core/src/frame.rs",
    "Place": "crates/zazen-namespace/src/attributes.rs",
    "Stat": "crates/zazen-cli/src/commands/stat.rs",
    "Window": "crates/zazen-core/src/runset/segment.rs",
}

LINES_MAX = 800
# Generated: it has as many lines as the interface has words.
LONG_FILES = {"bindings/c/include/zazen.h"}
LICENCES = re.compile(
    r"\b(MIT|Apache-2\.0|BSD-[123]-Clause|0BSD|ISC|Zlib|Unicode-3\.0|Unlicense|BSL-1\.0|CC0-1\.0|MPL-2\.0"
    r"|MIT-0)\b"
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


def crate_of(place):
    """The folder of the crate that a file or folder belongs to; None for what belongs to none."""
    folders = [place, *place.parents]
    return next((it for it in folders if it != ROOT and (it / "Cargo.toml").is_file()), None)


def check_reach():
    """No crate compiles a file of another one: it would have two homes, and no arrow in the
    table."""
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
                    problem(
                        where, "includes a file of another crate; export it there, or read it at run time"
                    )


def without_tests_and_text(text):
    """Rust code without comments, strings and what follows the first test module."""
    text = re.split(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", text)[0]
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text, flags=re.S)
    # In a module that is written out within a file, `super` is the file itself.
    for start in [match.end() for match in re.finditer(r"\bmod \w+ \{", text)]:
        depth, end = 1, start
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[:start] + text[start:end].replace("super::", "self:: ") + text[end:]
    return text


def use_paths(tree):
    """The paths of a use tree: `a::{b, c::d}` gives [a, b] and [a, c, d], each with the name that
    it gets."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, name = tree.partition(" as ")
        segments = [segment.strip() for segment in path.split("::") if segment.strip()]
        if segments and segments[-1] == "self":
            segments.pop()
        return [(segments, name.strip() or (segments[-1] if segments else ""))]
    head, _, rest = tree.partition("{")
    prefix = [segment.strip() for segment in head.split("::") if segment.strip()]
    found, depth, part = [], 0, ""
    for letter in rest[: rest.rindex("}")] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if part.strip():
                # `a::{self}` is `a` itself.
                found += [(prefix + path, name or prefix[-1]) for path, name in use_paths(part)]
            part = ""
        else:
            part += letter
    return found


def imports(crate):
    """Which files of a crate import which; a re-export leads to where the thing is defined."""
    files, code, names, uses = {}, {}, {}, {}
    for path in tracked(f"{crate}/src/*.rs", f"{crate}/src/**/*.rs"):
        module = tuple(pathlib.Path(path).relative_to(f"{crate}/src").with_suffix("").parts)
        if module in (("lib",), ("main",)) or module[-1] == "mod":
            module = module[:-1]
        files[module] = path
    for module, path in files.items():
        text = without_tests_and_text((ROOT / path).read_text())
        names[module], uses[module] = {}, []
        for public, tree in re.findall(r"\b(pub(?:\([^)]*\))? )?use ([^;]+);", text):
            for segments, name in use_paths(tree):
                (names[module].__setitem__(name, segments) if public else uses[module].append(segments))
        code[module] = re.sub(r"\buse [^;]+;", "", text)
        children = [found[-1] for found in files if found[:-1] == module and found]
        starts = "|".join(["crate", "super", *children])
        for found in re.findall(rf"(?<![\w:])(?:{starts})(?:::\w+)+", code[module]):
            uses[module].append(found.split("::"))

    def target(module, segments, seen=()):
        if not segments:
            return None
        at = {"crate": (), "self": module, "super": module[:-1]}.get(segments[0])
        rest = segments[1:]
        if at is None:
            if (*module, segments[0]) not in files:
                return None
            at, rest = module, segments
        while rest and rest[0] == "super":
            at, rest = at[:-1], rest[1:]
        while rest and (*at, rest[0]) in files:
            at, rest = (*at, rest[0]), rest[1:]
        if rest and rest[0] in names.get(at, {}) and (at, rest[0]) not in seen:
            return target(at, names[at][rest[0]], (*seen, (at, rest[0]))) or at
        return at

    edges = {module: set() for module in files}
    for module in files:
        for segments in uses[module]:
            edges[module].add(target(module, segments))
        for name, segments in names[module].items():
            found = target(module, segments)
            # A module's face shows what lies beneath it: that is no import, unless the module uses
            # it itself.
            beneath = found is not None and found[: len(module)] == module
            if found is not None and (not beneath or re.search(rf"\b{name}\b", code[module])):
                edges[module].add(found)
        edges[module] -= {None, module}
    return {
        files[module]: sorted(files[found] for found in edges[module] if found in files) for module in files
    }


def circles(graph):
    """The groups of files that reach each other (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in graph[file]:
            if other not in index:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == index[file]:
            group = stack[stack.index(file) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for file in sorted(graph):
        if file not in index:
            visit(file)
    return found


def check_circles():
    for manifest in tracked("*/Cargo.toml"):
        crate = manifest.removesuffix("/Cargo.toml")
        for group in circles(imports(crate)):
            short = ", ".join(file.removeprefix(f"{crate}/src/") for file in group)
            problem(crate, f"{len(group)} files import each other in a circle: {short}")


def check_files():
    for path in tracked("*"):
        if (
            (ROOT / path).is_file()
            and not (ROOT / path).stat().st_size
            and pathlib.Path(path).name != "py.typed"
        ):
            problem(path, "an empty file: did a program leave it here?")
    for path in tracked("*.rs", "*.py", "*.c", "*.h", "*.sh"):
        text = (ROOT / path).read_text()
        lines = text.count("\n")
        if lines > LINES_MAX and "/golden/" not in path and path not in LONG_FILES:
            problem(path, f"{lines} lines; past {LINES_MAX}, ask what second thing the file does")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\b(todo!|unimplemented!)\(|\bFIXME\b|\bXXX\b", line) and path != "scripts/tidy.py":
                problem(f"{path}:{number}", "unfinished code")
    for path in tracked("docs/decisions/*.md"):
        if pathlib.Path(path).name not in (ROOT / "ARCHITECTURE.md").read_text():
            problem(path, "is not listed in ARCHITECTURE.md")


def check_one_meaning():
    defines = re.compile(rf"\b(struct|enum|trait|type|union) ({'|'.join(ONE_MEANING)})\b")
    for path in tracked("*.rs"):
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            found = defines.search(line.split("//")[0])
            if found and path != ONE_MEANING[found[2]]:
                problem(
                    f"{path}:{number}",
                    f"{found[2]} means what {ONE_MEANING[found[2]]} says; take another name",
                )


def check_test_names():
    """One pytest run imports its test files, and what they share, by their bare names. Two tests of
    one name stop it, and of two helpers all tests get the same."""
    for folders in (["bindings/python/tests", "tests"], ["integrations/*/tests"]):
        seen = {}
        for path in tracked(*(f"{folder}/**/*.py" for folder in folders)):
            name = pathlib.PurePath(path).name
            # pytest tells these apart by their folders.
            other = path if name in ("conftest.py", "__init__.py") else seen.setdefault(name, path)
            if other != path:
                problem(path, f"has the name of {other}; pytest cannot run both")


def check_samples():
    """A code block of a Rust comment that names no other language is a test, and `make test` runs
    none of these: it runs test programs (scripts/rust_tests.py)."""
    for path in tracked("*.rs"):
        opened = False
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if fence := re.match(r"\s*//[/!]\s*```(\w*)", line):
                opened = not opened
                if opened and fence[1] not in ("text", "json", "toml", "c", "python", "sh", "console"):
                    problem(
                        f"{path}:{number}",
                        "a code block that nobody compiles: name its language, or make it a test",
                    )


def check_lines():
    for path in tracked("*.rs", "*.py", "*.pyi", "*.c", "*.h"):
        tidy_lines.check_lines(ROOT, path, problem)


def check_docs():
    tidy_docs.check_docs(ROOT, tracked, problem)


def main():
    check_dependencies()
    check_purity()
    check_bans()
    check_reach()
    check_circles()
    check_files()
    check_one_meaning()
    check_test_names()
    check_samples()
    check_lines()
    check_docs()
    for line in problems:
        print(line)
    print(f"tidy: {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
