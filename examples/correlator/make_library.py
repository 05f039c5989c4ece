#!/usr/bin/env python3
"""Makes the library that streams.py needs: the client generated from stream.h, and a runtime.

    # libstream.so, whose calls go to a daemon:
    python make_library.py --out build
    # libstream.so that runs the plug-in beside it, in its own process:
    python make_library.py --out alone --loopback

Needs a C compiler and the program `zazen`; prints the library's path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "plugins" / "stream" / "stream.h"


def make(out, loopback=False, zazen="zazen", cc=None):
    """The library's path."""
    out = Path(out)
    sdk, generated = out / "sdk", out / "generated"
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run([zazen, "plugin", "sdk", sdk], **run)
    subprocess.run([zazen, "plugin", "generate", HEADER, "--out", generated], **run)
    library = out / "libstream.so"
    command = [cc or os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"]
    command += [f"-I{path}" for path in (sdk, generated, HEADER.parent)]
    command += [generated / "stream_client.c", "-o", library]
    if loopback:
        command += [sdk / "zazen_loopback.c", "-ldl", "-lpthread"]
    else:
        command += ["-L", sdk, "-lzazen_stub", f"-Wl,-rpath,{sdk.resolve()}"]
    subprocess.run(command, **run)
    return library


def installed(name):
    """A library of Zazen's: beside the plug-in that $ZAZEN_STREAM_PLUGIN names, in Python's
    package, or what cargo built last. None if it is nowhere."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / name for profile in ("release", "debug")]
    built = sorted((path for path in built if path.is_file()), key=lambda path: -path.stat().st_mtime)
    named = os.environ.get("ZAZEN_STREAM_PLUGIN")
    beside = [Path(named).with_name(name)] if named else []
    packages = [Path(folder) / "zazen" / "lib" / name for folder in sys.path]
    return next((path for path in [*beside, *packages, *built] if path.is_file()), None)


def plugin():
    """The plug-in: $ZAZEN_STREAM_PLUGIN, the one of Python's package, or what cargo built last."""
    found = os.environ.get("ZAZEN_STREAM_PLUGIN") or installed("libzazen_stream.so")
    if found is None:
        raise FileNotFoundError(
            "no libzazen_stream.so: cargo build --release -p zazen-stream, or set $ZAZEN_STREAM_PLUGIN"
        )
    return Path(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder (default: build)")
    parser.add_argument("--loopback", action="store_true", help="without a daemon")
    parser.add_argument("--zazen", default="zazen", help="the program (default: zazen, on the PATH)")
    arguments = parser.parse_args()
    try:
        library = make(arguments.out, arguments.loopback, arguments.zazen)
        if arguments.loopback:
            shutil.copy(plugin(), arguments.out)
        print(library)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(error.stdout + error.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
