#!/usr/bin/env python3
"""xfstests' generic tests over mounts of two namespaces of one node each. By hand, as root:

    .venv/bin/python tests/namespace/xfstests.py XFSTESTS [-g quick | -g auto | generic/001 …]

XFSTESTS is a built checkout of xfstests (Debian: xfslibs-dev, uuid-dev, libaio-dev, libattr1-dev,
libacl1-dev, libtool-bin, libgdbm-dev, gawk, bc, attr, acl; then `make`). Prints what xfstests
prints, and counts. Tests of `xfstests.exclude` are left out: the file says why for each. Ends with
1 if one failed.

All runs in a mount namespace of its own, with the users that xfstests wants in an /etc/passwd and
the helper that mount(8) wants in a /sbin of its own: nothing on the machine is changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import zazen.testing

from conftest import run_alone

EXCLUDE = Path(__file__).with_name("xfstests.exclude")
SECONDS_MAX = 24 * 3600.0
# mount(8) calls this with the device, the mount point, and `-o OPTIONS`. A device is the name of a
# daemon, whose socket has this name below FOLDER.
HELPER = """\
#!/bin/sh
device=$1 place=$2
shift 2
while getopts o:svnf option; do
  [ $option = o ] && options=$OPTARG
done
case ,$options, in *,remount,*) echo "zazen: no remounting" >&2; exit 32;; esac
case ,$options, in *,ro,*) only=--read-only;; esac
ZAZEN mount "$place" --socket "FOLDER/$device/zazend.sock" --source "$device" $only || exit 32
"""
# xfstests takes only `fuse` for a mount of FUSE.
DF = """\
#!/bin/sh
/usr/bin/df "$@" | sed 's/fuse[.]zazen/fuse/'
"""
USERS = ("fsgqa", "fsgqa2", "123456-fsgqa")


def own_files(folder: Path) -> None:
    """Users and groups, and the helper, for this mount namespace alone."""
    passwd, group, shadow = (Path(f"/etc/{name}").read_text() for name in ("passwd", "group", "shadow"))
    for number, name in enumerate(USERS, start=60_000):
        if not passwd.startswith(f"{name}:") and f"\n{name}:" not in passwd:
            passwd += f"{name}:x:{number}:{number}::/tmp:/bin/bash\n"
            group += f"{name}:x:{number}:\n"
            shadow += f"{name}:*:19000:0:99999:7:::\n"
    for name, text, mode in (("passwd", passwd, 0o644), ("group", group, 0o644), ("shadow", shadow, 0o600)):
        mine = folder / name
        mine.touch(mode)
        mine.write_text(text)
        subprocess.run(["mount", "--bind", mine, f"/etc/{name}"], check=True)
    # An overlay's upper folder may not itself be on one.
    memory = folder / "sbin"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", memory], check=True)
    for name in ("upper", "work"):
        (memory / name).mkdir()
    sbin = Path("/sbin").resolve()
    layers = f"lowerdir={sbin},upperdir={memory}/upper,workdir={memory}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, sbin], check=True)
    helper = sbin / "mount.fuse.zazen"
    text = HELPER.replace("ZAZEN", str(zazen.testing.program("zazen"))).replace("FOLDER", str(folder))
    helper.write_text(text)
    helper.chmod(0o755)


def run(folder: Path, xfstests: Path, words: list[str], results: Path) -> None:
    own_files(folder)
    places = {}
    daemons = []
    for name in ("ztest", "zscratch"):
        for place in (folder / name, folder / f"{name}-backing", folder / f"{name}-mount"):
            place.mkdir()
        places[name] = folder / f"{name}-mount"
        arguments = ["--namespace", folder / name / "data", "--namespace-format", "--namespace-root", "trust"]
        daemon = zazen.testing.Daemon(folder / name, folder / f"{name}-backing", arguments=arguments)
        daemon.start()
        daemons.append(daemon)
        socket = folder / name / "zazend.sock"
        if not socket.exists():
            socket.symlink_to(daemon.socket)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "df").write_text(DF)
    (programs / "df").chmod(0o755)
    environment = zazen.testing.environment()
    environment |= {
        "PATH": f"{programs}:{environment['PATH']}",
        "FSTYP": "fuse",
        "FUSE_SUBTYP": ".zazen",
        "TEST_DEV": "ztest",
        "TEST_DIR": str(places["ztest"]),
        "SCRATCH_DEV": "zscratch",
        "SCRATCH_MNT": str(places["zscratch"]),
        "RESULT_BASE": str(results),
    }
    # Each line: a test, then why it is left out.
    lines = [line.split("#")[0].strip() for line in EXCLUDE.read_text().splitlines()]
    excluded = folder / "exclude"
    excluded.write_text("".join(f"{line}\n" for line in lines if line))
    command = ["./check", "-fuse", "-E", excluded, *words]
    # `check` fails if a test did; its summary tells more.
    subprocess.run([str(word) for word in command], cwd=xfstests, env=environment, check=False)
    for daemon in daemons:
        daemon.kill()


def count(results: Path) -> int:
    """Prints how many ran, passed, and could not run.

    Returns how many failed.
    """
    log = results / "check.log"
    found: dict[str, list[str]] = {"Ran": [], "Not run": [], "Failures": []}
    for line in log.read_text().splitlines() if log.exists() else []:
        head, _, names = line.partition(":")
        if head in found:
            found[head] = names.split()
    ran, skipped, failed = (set(found[head]) for head in ("Ran", "Not run", "Failures"))
    ran -= skipped
    passed = len(ran - failed)
    print(f"xfstests: {len(ran)} ran, {passed} passed, {len(failed)} failed, {len(skipped)} not for FUSE")
    return len(failed) if ran else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="xfstests' generic tests over a mount")
    parser.add_argument("xfstests", type=Path, help="a built checkout")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="words for its `check` (default: -g quick)")
    parser_words = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root", file=sys.stderr)
        return 2
    words = parser_words.words or ["-g", "quick"]
    folder = Path(tempfile.mkdtemp(prefix="zazen-xfstests-"))
    folder.chmod(0o755)
    results = folder / "results"
    run_alone(lambda: run(folder, parser_words.xfstests.resolve(), words, results), SECONDS_MAX)
    failed = count(results)
    if failed:
        print(f"what they wrote is in {results}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
