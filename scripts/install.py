#!/usr/bin/env python3
"""Installs Zazen into the environment of the running Python, and does nothing where nothing
changed.

Cargo has built the workspace with the profile that is named (`make install` does that). Pip
installs the wheel of what cargo built, unless the same files were installed before. A stamp in the
environment says which files those were.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import c_library
import places

ROOT = Path(__file__).resolve().parent.parent


def sources(profile: str) -> list[Path]:
    """The files that the installation is made of."""
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["zazen"]
    built = places.built(profile)
    files = [
        built / name
        for name in [parts["module"], *parts["libraries"], *parts["c_library"], *parts["programs"]]
    ]
    files += [path for pattern in parts["headers"] for path in sorted(ROOT.glob(pattern))]
    files += sorted((ROOT / "bindings/python/python/zazen").glob("*.py*"))
    files += sorted((ROOT / "bindings/python/python/zazen").glob("*/*.py"))
    files += sorted(ROOT.glob("integrations/*/src/**/*.py"))
    files += sorted(ROOT.glob("integrations/*/src/**/*.xml"))
    files += sorted((ROOT / "bindings/c/install").glob("*.in"))
    files += [
        ROOT / name
        for name in [
            "pyproject.toml",
            "setup.py",
            "scripts/c_library.py",
            "scripts/places.py",
            "bindings/python/python/zazen/py.typed",
        ]
    ]
    return files + [ROOT / name for name in parts["share"]]


def digest(profile: str) -> str:
    """One digest of all files' names and contents."""
    sum_of_all = hashlib.blake2b(f"{profile} {ROOT}".encode())
    for path in sources(profile):
        sum_of_all.update(str(path).encode())
        with path.open("rb") as file:
            sum_of_all.update(hashlib.file_digest(file, "blake2b").digest())
    return sum_of_all.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="dev", help="the cargo profile")
    options = parser.parse_args()
    stamp = Path(sys.prefix, ".zazen-installed")
    now = digest(options.profile)
    if stamp.is_file() and json.loads(stamp.read_text())["digest"] == now:
        return 0
    stamp.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-build-isolation", "--no-deps", "--force-reinstall", str(ROOT)]
    # Without this, setup.py would run cargo for fewer packages. Cargo then chooses other features
    # for what they share with the rest of the workspace, and compiles it a second time.
    environment = {**os.environ, "ZAZEN_PROFILE": options.profile, "ZAZEN_BUILT": "1"}
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if status == 0:
        # Files of an environment can be links, other than files of a wheel.
        for package in Path(sys.prefix, "lib").glob("python3*/site-packages/zazen"):
            c_library.link(package)
        stamp.write_text(json.dumps({"digest": now}))
    return status


if __name__ == "__main__":
    sys.exit(main())
