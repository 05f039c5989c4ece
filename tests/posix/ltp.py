"""LTP's file system calls, direct and forwarded, as a table.

    apt-get install autoconf automake m4 pkg-config        # what building it needs
    python tests/posix/ltp.py --sources /tmp/ltp            # builds it first, if need be
    python tests/posix/ltp.py --sources /tmp/ltp --json ltp.json --mode kernel read01 readv01
    python tests/posix/ltp.py --installed /opt/ltp          # as a package or `make install` leaves it
    python tests/posix/ltp.py --json ltp.json --table docs/ltp.md   # only writes the page

LTP's sources are those of the Linux Test Project (`git clone --depth 1` of linux-test-project/ltp),
given with --sources or $ZAZEN_LTP. Each test runs directly and in each mode, at the same time, each
in a folder of its own. Only tests that pass directly are compared: in a mode, the same numbers must
have passed, failed and been left out. A test that differs is run once more, alone: what then agrees
was chance. Tests that want a block device are left out. What differs goes to standard error with
its last lines, and the table to standard output. Run it as root: many tests become another user.

Results are kept in the file of --json; a run that was cut off goes on where it stopped.
"""

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
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
# This script's limit for a test; LTP's own is about as long, by LTP_TIMEOUT_MUL.
SECONDS = 150


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
        # Some are built once more, for the calls of another width.
        text = place.with_name(re.sub("_(16|64)$", "", program) + ".c")
        wants = r"needs_device|mount_device|format_device|tst_acquire_device|needs_rofs|all_filesystems"
        if text.exists() and re.search(wants, text.read_text()):
            continue
        found[name] = [str(place), *arguments]
    return found


def installed_tests(folder: Path) -> dict[str, list[str]]:
    """The same of an installed LTP, whose tests notice that there is no block device."""
    found = {}
    for line in (folder / "runtest/syscalls").read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, program, *arguments = words
        call = re.match(r"[a-z_]+(?:[0-9](?=[0-9]{2}))?", program)
        place = folder / "testcases/bin" / program
        if call and call[0].rstrip("_") in CALLS and os.access(place, os.X_OK):
            found[name] = [str(place), *arguments]
    return found


# How many descriptors a test may have: what most machines give a program.
DESCRIPTORS = 1024


def outcome(command: list[str], prefix: list[str], folder: Path, named: str) -> dict:
    """How a test ended in `folder`, which it calls `named`."""
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o1777)
    path = os.pathsep.join([os.path.dirname(command[0]), os.environ["PATH"]])
    mark = f"{os.getpid()}-{named}"
    environment = os.environ | {
        "PATH": path,
        "LTP_COLORIZE_OUTPUT": "0",
        "KCONFIG_SKIP_CHECK": "1",
        "LTP_TIMEOUT_MUL": "4",
        "ZAZEN_LTP_MARK": mark,
    }
    limit = ["sh", "-c", f'ulimit -Sn {DESCRIPTORS}; exec "$@"', "-"]
    words = [*limit, *prefix, "env", f"TMPDIR={named}", *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace",
                          env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                          cwd=folder) as child:  # fmt: skip
        try:
            said, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            end_all(mark)
            said, _ = child.communicate()
            said += "\ntoo long"
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)
    counts = [len(re.findall(rf"\b{verdict}\b", said)) for verdict in VERDICTS]
    return {"status": child.returncode, "counts": counts, "said": said[-1500:]}


def end_all(mark: str) -> None:
    """Ends what a test left behind: LTP gives its processes groups of their own."""
    wanted = f"ZAZEN_LTP_MARK={mark}".encode()
    for _ in range(10):
        left = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                    os.kill(int(process), signal.SIGKILL)
                    left.append(process)
        if not left:
            return
        time.sleep(0.1)


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


# What docs/forwarding.md states that it can't be: a pattern of tests, the modes, and the limit.
HERE, SUPERVISED, NODE = ("relay",), ("seccomp",), ("node",)
LIMITS: list[tuple[str, tuple[str, ...], str]] = [
    ("realpath01", ("kernel", "relay", "seccomp", "node"), "`chroot` to a far folder"),
    ("readahead01", ("relay", "node"), "no io_uring"),
    ("splice07", ("relay", "node"), "no io_uring"),
    ("openat202", ("relay", "seccomp", "node"), "links that lead out of the exported folders"),
    ("statx01", ("relay", "node"), "`/proc/self/fdinfo` describes the placeholder"),
    ("fcntl33*", ("relay", "seccomp"), "who waits for a lease is no writer meanwhile"),
    ("fcntl3[89]*", HERE, "`si_fd` of `F_SETSIG`"),
    ("access02", SUPERVISED, "far programs are not executed"),
    ("execve03", SUPERVISED, "far programs are not executed"),
    ("open13", SUPERVISED, "`O_PATH` opens for reading"),
    ("readahead01", SUPERVISED, "`O_PATH` opens for reading"),
    ("readlinkat01", SUPERVISED, "`O_PATH` opens for reading"),
    ("openat03", SUPERVISED, "`linkat` of `/proc/self/fd/N`"),
    ("openat201", (*SUPERVISED, *NODE), "`openat2` with `resolve` flags"),
    ("name_to_handle_at02", SUPERVISED, "an answer to memory that can only be read is written"),
    ("fcntl2[34567]*", NODE, "no leases, owners, notifications and new commands of `fcntl`"),
    ("fcntl3[2389]*", NODE, "no leases, owners, notifications and new commands of `fcntl`"),
    ("fcntl40*", NODE, "no leases, owners, notifications and new commands of `fcntl`"),
    ("inotify*", NODE, "no watches of another node's files"),
    ("*listxattr0*", NODE, "`security.*` and `trusted.*` of another node's files"),
    ("lgetxattr0*", NODE, "`security.*` and `trusted.*` of another node's files"),
    ("mmap*", NODE, "no shared writable mappings of another node's files"),
    ("mprotect*", NODE, "no shared writable mappings of another node's files"),
    ("msync*", NODE, "no shared writable mappings of another node's files"),
    ("munmap*", NODE, "no shared writable mappings of another node's files"),
    ("*handle_at*", NODE, "no handles of another node's files"),
    ("faccessat202", NODE, "what was open before a program became another user"),
    ("fchmod02", NODE, "what was open before a program became another user"),
    ("fchown03", NODE, "what was open before a program became another user"),
]


def limit_of(name: str, mode: str) -> str | None:
    return next(
        (why for pattern, modes, why in LIMITS if mode in modes and fnmatch.fnmatch(name, pattern)), None
    )


def table(results: dict[str, dict], modes: list[str]) -> str:
    """Counts by mode, and the tests that differ."""
    compared = {name: result for name, result in results.items() if result["comparable"]}
    lines = ["| | tests | same as direct | % | a stated limit | different |", "|---|---|---|---|---|---|"]
    by_limit: dict[str, list[str]] = {}
    for mode in modes:
        verdicts = {
            name: result["modes"][mode]["same"]
            for name, result in compared.items()
            if mode in result["modes"]
        }
        good = sum(verdicts.values())
        others = []
        stated = 0
        for name in sorted(name for name, is_same in verdicts.items() if not is_same):
            if why := limit_of(name, mode):
                by_limit.setdefault(why, []).append(f"`{name}` ({NAMES[mode]})")
                stated += 1
            else:
                others.append(f"`{name}`")
        share = 100 * good / max(1, len(verdicts))
        lines.append(
            f"| {NAMES[mode]} | {len(verdicts)} | {good} | {share:.1f} | {stated} | {', '.join(others)} |"
        )
    if by_limit:
        lines += ["", "| limit | tests |", "|---|---|"]
        lines += [f"| {why} | {', '.join(names)} |" for why, names in sorted(by_limit.items())]
    return "\n".join(lines)


BEGIN, END = "<!-- begin: tests/posix/ltp.py -->", "<!-- end: tests/posix/ltp.py -->"


def write_page(page: Path, text: str) -> None:
    """Puts the table between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sources", type=Path, default=os.environ.get("ZAZEN_LTP"), help="LTP's sources [$ZAZEN_LTP]"
    )
    parser.add_argument("--installed", type=Path, help="an installed LTP, instead")
    parser.add_argument("--build", action="store_true", help="only build, and stop")
    parser.add_argument("--table", type=Path, help="the page that gets the table")
    parser.add_argument("--json", type=Path, help="where results are kept")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; repeat it")
    parser.add_argument("tests", nargs="*", help="only these")
    words = parser.parse_args()
    modes = words.mode or list(MODES)
    results = json.loads(words.json.read_text()) if words.json and words.json.exists() else {}
    if words.installed:
        found = installed_tests(words.installed)
    elif words.sources:
        sources = Path(words.sources)
        if words.build or not (sources / "testcases/kernel/syscalls/writev/writev01").exists():
            build(sources)
        found = tests(sources)
    elif words.table and results:
        found = {}
    else:
        parser.error("say where LTP is: --sources, $ZAZEN_LTP or --installed")
    if words.build:
        return 0
    wanted = {name: command for name, command in found.items() if not words.tests or name in words.tests}
    programs = harness.build()
    with (
        harness.Daemon(programs, isolated=True) as daemon,
        harness.Daemon(programs, isolated=True, listen=True) as node,
    ):
        race = Race({"daemon": daemon, "node": node}, modes)
        for number, (name, command) in enumerate(wanted.items()):
            if name in results and set(modes) <= set(results[name].get("modes", modes)):
                continue
            results[name] = found = race.compare(command, number)
            for mode, end in found.get("modes", {}).items():
                if not end["same"]:
                    say(f"{name} {mode}: {found['plain']['counts']} {end['counts']} {end['status']}")
            if words.json:
                words.json.write_text(json.dumps(results, indent=1))
    text = table(results, modes)
    print(text)
    if words.table:
        write_page(words.table, text)
    compared = [result for result in results.values() if result["comparable"]]
    shares = [sum(r["modes"][m]["same"] for r in compared) / max(1, len(compared)) for m in modes]
    return 0 if min(shares, default=1) >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
