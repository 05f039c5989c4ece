"""The licences of everything that the programs are linked with, from cargo's own metadata.

Usage: licences.py          the list, a line for each crate (it goes into packages)
       licences.py --sbom   the same as a bill of materials, CycloneDX 1.5 (it goes into packages)
       licences.py --check  fails if a crate's licence is none that Zazen may be shipped with, or if
                            a crate comes from elsewhere than crates.io, or without a checksum

`make check` runs it: a new dependency with another licence is a decision, not an accident.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What the packages are built from.
WORKSPACES = (ROOT, ROOT / "crates/zazen-objects")
#: Licences that ask for no more than a notice; MPL-2.0 asks for changes of its own files only.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}


CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met with licences of ALLOWED alone.

    "/" is what crates.io wrote for OR before it took SPDX.
    """
    words = re.findall(r"\(|\)|[^()\s/]+|/", expression)
    at = 0

    def peek() -> str | None:
        return words[at] if at < len(words) else None

    def take() -> str:
        nonlocal at
        if at >= len(words):
            raise ValueError(f"the licence {expression!r} ends too early")
        at += 1
        return words[at - 1]

    def one() -> bool:
        word = take()
        if word == "(":
            answer = either()
            if take() != ")":
                raise ValueError(f"the licence {expression!r} lacks a parenthesis")
            return answer
        if peek() == "WITH":
            word = f"{word} {take()} {take()}"
        return word in ALLOWED

    def both() -> bool:
        answer = one()
        while peek() == "AND":
            take()
            answer = one() and answer
        return answer

    def either() -> bool:
        answer = both()
        while peek() in ("OR", "/"):
            take()
            answer = both() or answer
        return answer

    answer = either()
    if peek() is not None:
        raise ValueError(f"the licence {expression!r} cannot be read")
    return answer


def crates() -> list[dict]:
    """Every crate of another author that cargo may link on this machine's platform."""
    told = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"^host: (\S+)$", told, re.MULTILINE)
    found = {}
    for workspace in WORKSPACES:
        command = ["cargo", "metadata", "--locked", "--format-version", "1"]
        command += ["--manifest-path", str(workspace / "Cargo.toml")]
        command += ["--filter-platform", host[1]] if host else []
        told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        found |= {(crate["name"], crate["version"]): crate for crate in json.loads(told)["packages"]}
    return [crate for crate in found.values() if crate["source"] is not None]


def locked() -> list[dict]:
    """The packages of all lock files."""
    locks = [workspace / "Cargo.lock" for workspace in WORKSPACES]
    return [package for lock in locks for package in tomllib.loads(lock.read_text())["package"]]


def strangers(locked: list[dict]) -> list[str]:
    """What is wrong with the sources of the packages of a Cargo.lock: a crate of another registry,
    of a git repository, or without the checksum of its archive."""
    found = []
    for one in locked:
        name = f"{one['name']} {one['version']}"
        if "source" not in one:
            continue  # ours
        if one["source"] != CRATES_IO:
            found.append(f"{name}: it comes from {one['source']}, and not from crates.io")
        elif not re.fullmatch(r"[0-9a-f]{64}", one.get("checksum", "")):
            found.append(f"{name}: Cargo.lock has no checksum of it")
    return found


def bill(used: list[dict]) -> dict:
    """The crates as CycloneDX 1.5 has them (https://cyclonedx.org/docs/1.5/json/), with the
    checksums of the archives that cargo builds from. It says nothing of the time, so that two
    builds give the same bytes."""
    sums = {(one["name"], one["version"]): one.get("checksum") for one in locked()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    components = []
    for crate in used:
        purl = f"pkg:cargo/{crate['name']}@{crate['version']}"
        component = {
            "type": "library",
            "bom-ref": purl,
            "name": crate["name"],
            "version": crate["version"],
            "purl": purl,
        }
        if crate["license"]:
            expression = re.sub(r"\s*/\s*", " OR ", crate["license"])
            component["licenses"] = [{"expression": expression}]
        if checksum := sums.get((crate["name"], crate["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    own = {"type": "application", "bom-ref": "zazen", "name": "zazen", "version": project["version"]}
    own["licenses"] = [{"license": {"id": project["license"]}}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
    }


def main() -> int:
    refused = 0
    used = sorted(crates(), key=lambda crate: (crate["name"], crate["version"]))
    if "--sbom" in sys.argv[1:]:
        print(json.dumps(bill(used), indent=1))
        return 0
    if "--check" in sys.argv[1:]:
        wrong = strangers(locked())
        print(*wrong, sep="\n", end="\n" if wrong else "")
        refused += len(wrong)
    for crate in used:
        licence = crate["license"]
        if "--check" not in sys.argv[1:]:
            print(crate["name"], crate["version"], licence or f"see {crate['license_file']}", sep="\t")
        elif licence is None or not is_allowed(licence):
            name = f"{crate['name']} {crate['version']}"
            print(f"{name}: its licence is {licence}; licences.py lists what we take")
            refused += 1
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
