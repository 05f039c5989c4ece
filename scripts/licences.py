"""The licences of everything that the programs are linked with, from cargo's own metadata.

Usage: licences.py          the list, a line for each crate (it goes into packages)
       licences.py --check  fails if a crate's licence is none that Zazen may be shipped with

`make check` runs it: a new dependency with another licence is a decision, not an accident.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    command += ["--filter-platform", host[1]] if host else []
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [crate for crate in json.loads(told)["packages"] if crate["source"] is not None]


def main() -> int:
    refused = 0
    for crate in sorted(crates(), key=lambda crate: (crate["name"], crate["version"])):
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
