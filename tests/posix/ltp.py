"""LTP's file system calls, direct and forwarded, as a table.

    git clone --depth 1 https://github.com/linux-test-project/ltp /tmp/ltp
    apt-get install autoconf automake m4 pkg-config        # what building it needs
    python tests/posix/ltp.py --sources /tmp/ltp            # builds it first, if need be
    python tests/posix/ltp.py --sources /tmp/ltp --json ltp.json --mode kernel read01 readv01

Each test runs directly and in each mode, at the same time, each in a folder of its own. Only tests
that pass directly are compared: in a mode, the same numbers must have passed, failed and been left
out. A test that differs is run once more, alone: what then agrees was chance. Tests that want a
block device are left out. The table goes to standard output, and what differs, with its last lines,
to standard error. Run it as root: many tests become another user.

Results are kept in the file of --json; a run that was cut off goes on where it stopped.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import PREFIX

CALLS = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 execl execv execve execvp faccessat
faccessat2 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock
fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat getcwd getdents getxattr inotify lchown
lgetxattr link linkat listxattr llistxattr llseek lremovexattr lseek lstat mkdir mkdirat mknod mknodat mmap mprotect
msync munmap name_to_handle_at open open_by_handle_at openat openat2 pathconf fpathconf poll ppoll pread preadv
preadv2 pwrite pwritev pwritev2 read readahead readlink readlinkat readv realpath removexattr rename renameat
renameat2 rmdir select sendfile setxattr splice stat statfs statvfs statx symlink symlinkat sync sync_file_range
syncfs tee truncate umask unlink unlinkat utime utimensat utimes vfork vmsplice write writev
""".split()
MODES = {"kernel": ("daemon", ["--direct"]), "relay": ("daemon", []), "seccomp": ("daemon", ["--seccomp"]),
         "node": ("node", [])}  # fmt: skip
NAMES = {"kernel": "default", "relay": "`--relay`", "seccomp": "`--seccomp`", "node": "`--node`"}
VERDICTS = ("TPASS", "TFAIL", "TBROK", "TCONF")
# The test's own time limit, and this script's.
SECONDS = 60


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build(sources: Path) -> None:
    """LTP's library and the tests of CALLS."""

    def run(*words):
        subprocess.run(words, cwd=sources, check=True, stdout=subprocess.DEVNULL)

    if not (sources / "include/mk/config.mk").exists():
        run("make", "autotools")
        run("./configure", "--disable-metadata")
    for part in ("lib", "libs"):
        run("make", "-j2", "-C", part)
    for call in CALLS:
        folder = sources / "testcases/kernel/syscalls" / call
        if folder.is_dir():
            subprocess.run(["make", "-k", "-j2", "-C", folder], stdout=subprocess.DEVNULL, check=False)


def tests(sources: Path) -> dict[str, list[str]]:
    """Name → command, of the tests that were built and want no block device."""
    found = {}
    folders = [sources / "testcases/kernel/syscalls" / call for call in CALLS]
    for line in (sources / "runtest/syscalls").read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, program, *arguments = words
        place = next((folder / program for folder in folders if os.access(folder / program, os.X_OK)), None)
        if place is None or (place.parent / program).is_dir():
            continue
        text = place.with_suffix(".c")
        wants = r"needs_device|mount_device|format_device|tst_acquire_device|needs_rofs|all_filesystems"
        if text.exists() and re.search(wants, text.read_text()):
            continue
        found[name] = [str(place), *arguments]
    return found


def outcome(command: list[str], prefix: list[str], folder: Path, named: str) -> dict:
    """How a test ended in `folder`, which it calls `named`."""
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o1777)
    path = os.pathsep.join([os.path.dirname(command[0]), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "LTP_COLORIZE_OUTPUT": "0", "KCONFIG_SKIP_CHECK": "1"}
    words = [*prefix, "env", f"TMPDIR={named}", *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace",
                          env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                          cwd=folder) as child:  # fmt: skip
        try:
            said, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            said, _ = child.communicate()
            said += "\ntoo long"
    shutil.rmtree(folder, ignore_errors=True)
    counts = [len(re.findall(rf"\b{verdict}\b", said)) for verdict in VERDICTS]
    return {"status": child.returncode, "counts": counts, "said": said[-1500:]}


def same(one: dict, other: dict) -> bool:
    return (one["status"], one["counts"]) == (other["status"], other["counts"])


class Race:
    """The daemons, and the folders in which tests run."""

    def __init__(self, daemons: dict[str, harness.Daemon], modes: list[str]) -> None:
        self.daemons, self.modes = daemons, modes
        self.plain = next(iter(daemons.values())).direct

    def once(self, command: list[str], mode: str | None, number: int) -> dict:
        if mode is None:
            folder = self.plain / f"t{number}"
            return outcome(command, [], folder, str(folder))
        which, options = MODES[mode]
        daemon = self.daemons[which]
        folder = daemon.far / f"{mode}{number}"
        return outcome(command, daemon.command(*options), folder, f"{PREFIX}/{mode}{number}")

    def compare(self, command: list[str], number: int) -> dict:
        """What the test came to: None directly, then by mode."""
        with concurrent.futures.ThreadPoolExecutor(len(self.modes) + 1) as pool:
            started = {mode: pool.submit(self.once, command, mode, number) for mode in [None, *self.modes]}
            ended = {mode: future.result() for mode, future in started.items()}
        plain = ended.pop(None)
        if plain["status"] != 0 or plain["counts"][0] == 0:
            return {"plain": plain | {"said": ""}, "comparable": False}
        for mode, found in ended.items():
            if not same(plain, found):
                ended[mode] = self.once(command, mode, number)
                if not same(plain, ended[mode]):
                    plain = self.once(command, None, number)
        modes = {mode: found | {"same": same(plain, found)} for mode, found in ended.items()}
        for found in modes.values():
            if found["same"]:
                del found["said"]
        return {"plain": plain | {"said": ""}, "comparable": plain["status"] == 0, "modes": modes}


def table(results: dict[str, dict], modes: list[str]) -> str:
    compared = {name: result for name, result in results.items() if result["comparable"]}
    lines = ["| | tests | same as direct | % | different |", "|---|---|---|---|---|"]
    for mode in modes:
        verdicts = {name: result["modes"][mode]["same"] for name, result in compared.items()}
        good = sum(verdicts.values())
        others = ", ".join(f"`{name}`" for name, is_same in sorted(verdicts.items()) if not is_same)
        share = 100 * good / max(1, len(verdicts))
        lines.append(f"| {NAMES[mode]} | {len(verdicts)} | {good} | {share:.1f} | {others} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True, help="LTP's sources")
    parser.add_argument("--json", type=Path, help="where results are kept")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; repeat it")
    parser.add_argument("tests", nargs="*", help="only these")
    words = parser.parse_args()
    build(words.sources) if not list(words.sources.glob("testcases/kernel/syscalls/read/read01")) else None
    modes = words.mode or list(MODES)
    wanted = {name: command for name, command in tests(words.sources).items()
              if not words.tests or name in words.tests}  # fmt: skip
    results = json.loads(words.json.read_text()) if words.json and words.json.exists() else {}
    programs = harness.build()
    with tempfile.TemporaryDirectory() as _, harness.Daemon(programs, isolated=True) as daemon, \
            harness.Daemon(programs, isolated=True, listen=True) as node:  # fmt: skip
        race = Race({"daemon": daemon, "node": node}, modes)
        for number, (name, command) in enumerate(wanted.items()):
            if name in results:
                continue
            results[name] = found = race.compare(command, number)
            for mode, end in found.get("modes", {}).items():
                if not end["same"]:
                    say(f"{name} {mode}: {found['plain']['counts']} {end['counts']} {end['status']}")
            if words.json:
                words.json.write_text(json.dumps(results, indent=1))
    print(table(results, modes))
    compared = [result for result in results.values() if result["comparable"]]
    shares = [sum(r["modes"][m]["same"] for r in compared) / max(1, len(compared)) for m in modes]
    return 0 if min(shares, default=1) >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
