"""Programs' own tests, direct and forwarded, as a table: CPython's modules, then programs with a verdict of their own.

    python tests/posix/proof.py                     # all; some minutes
    python tests/posix/proof.py test_os test_io     # these modules of CPython
    python tests/posix/proof.py --programs          # only the programs
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import harness
from harness import PREFIX

MODULES = """test_os test_posix test_io test_fileio test_file test_largefile test_fileinput test_shutil test_tempfile
test_pathlib test_posixpath test_genericpath test_glob test_subprocess test_socket test_select test_poll test_selectors
test_fcntl test_resource test_mmap test_zipfile test_tarfile test_gzip test_bz2 test_dbm test_shelve test_mailbox
test_sqlite3 test_import test_zipimport""".split()
# These hang or fail without forwarding, too, on machines without the hardware or services.
IGNORED = ["*VSOCK*"]
RESULT = re.compile(r"^(?:(\S+) \(([^)]*)\))?.*\.\.\. (ok|FAIL|ERROR|skipped|expected failure)", re.MULTILINE)


def results(text: str) -> dict[str, str]:
    """What each test came to; those with a docstring are known by it."""
    found = {}
    for line in text.splitlines():
        match = RESULT.match(line)
        if match:
            found[match[2] or line.split(" ... ")[0]] = match[3]
    return found


def module(daemon, name: str, seconds: int) -> list:
    """(name, ok direct, ok forwarded, tests that differ)."""
    outcome = []
    for forwarded in (False, True):
        daemon.empty()
        folder = PREFIX if forwarded else str(daemon.direct)
        words = [harness.python(), "-m", "test", "-v", "--tempdir", folder]
        words += [word for pattern in IGNORED for word in ("-i", pattern)]
        command = (daemon.command() if forwarded else []) + [*words, name]
        environment = {**os.environ, "TMPDIR": folder}
        cwd = None if forwarded else str(daemon.direct)
        try:
            done = subprocess.run(
                command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=seconds, errors="replace"
            )
            outcome.append(results(done.stdout + done.stderr))
        except subprocess.TimeoutExpired as expired:
            outcome.append(results((expired.stdout or b"").decode(errors="replace")) | {"(time ran out)": "ERROR"})
    direct, forwarded = outcome
    ok = [sum(result == "ok" for result in found.values()) for found in outcome]
    differ = sorted(test for test in direct.keys() | forwarded.keys() if direct.get(test) != forwarded.get(test))
    return [name, *ok, differ]


PROGRAMS = {
    "fio": "fio --name=v --directory=. --size=4m --bs=4k --rw=randrw --verify=crc32c --ioengine={engine} "
    "--iodepth=4 --do_verify=1 --verify_fatal=1 --minimal >/dev/null",
    "git": "git init -q r && cd r && git config user.email e@x && git config user.name n && for i in 1 2 3 4 5 6; do "
    "seq $i 3000 > f$i; git add .; git commit -qm $i; done; git clone -q . ../c && cd ../c && git gc -q && git fsck",
    "sqlite3": "sqlite3 db \"create table t(x); with recursive c(v) as (select 1 union all select v+1 from c where "
    "v<20000) insert into t select v from c; pragma integrity_check;\"",
    "rsync": "mkdir s && cp -r /usr/include/linux s/ && rsync -a s/ d/ && diff -r s d && rsync -ac --delete s/ d/",
    "tar": "cp -r /usr/include/linux s && tar cf a.tar s && mkdir o && tar xf a.tar -C o && diff -r s o/s",
    "perl": "perl -e 'for (1..200) { open F, \">f$_\"; print F \"x\" x 1000; close F; die unless -s \"f$_\" == 1000 }'",
}  # fmt: skip


def program(daemon, name: str, script: str) -> list:
    if shutil.which(name) is None:
        return [name, "not installed", "", []]
    codes = []
    for forwarded in (False, True):
        daemon.empty()
        folder = PREFIX if forwarded else str(daemon.direct)
        command = (daemon.command() if forwarded else []) + ["bash", "-c", f"cd {folder} && {script}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        codes.append(done.returncode)
    return [name, *codes, [] if codes[0] == codes[1] else [script]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--isolated", action="store_true", help="the plug-in in a process of its own")
    parser.add_argument("--seconds", type=int, default=300, help="for one module")
    arguments = parser.parse_args()
    modules = arguments.modules or ([] if arguments.programs else MODULES)
    differing = 0
    with harness.Daemon(harness.build(), isolated=arguments.isolated) as daemon:
        if modules and importlib.util.find_spec("test.test_os") is None:
            print("this Python has no tests of its own; skipped", file=sys.stderr)
            modules = []
        if modules:
            print("| CPython's module | ok, direct | ok, forwarded | different |\n|---|---|---|---|")
        for name in modules:
            name, direct, forwarded, differ = module(daemon, name, arguments.seconds)
            differing += len(differ)
            shown = ", ".join(differ[:8]) + (" …" if len(differ) > 8 else "")
            print(f"| `{name}` | {direct} | {forwarded} | {len(differ) or ''} {shown} |", flush=True)
        if not arguments.modules:
            print("\n| program | exit, direct | exit, forwarded |\n|---|---|---|")
            scripts = [(name, script) for name, script in PROGRAMS.items() if name != "fio"]
            scripts += [("fio", PROGRAMS["fio"].format(engine=engine)) for engine in ("psync", "pvsync", "sync")]
            for name, script in scripts:
                name, direct, forwarded, differ = program(daemon, name, script)
                differing += len(differ)
                print(f"| {name} | {direct} | {forwarded} |", flush=True)
    print(f"\n{differing} different")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
