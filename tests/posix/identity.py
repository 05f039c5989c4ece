"""Run direct and forwarded, as root: what a process may that becomes another user, and what its
files are."""

import errno
import os
import subprocess
import sys

NOBODY, GAMES = 65534, 5


def attempt(what: str, call, *arguments, **more) -> None:
    try:
        result = call(*arguments, **more)
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(what, result if isinstance(result, str) else "done", flush=True)


def write(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def owners(*paths: str) -> None:
    print("owners", [(os.stat(path).st_uid, os.stat(path).st_gid) for path in paths], flush=True)


def main() -> None:
    os.chdir(sys.argv[1])
    os.chmod(".", 0o755)
    os.mkdir("open")
    os.chmod("open", 0o1777)
    write("secret")
    os.chmod("secret", 0o600)
    write("grouped")
    os.chown("grouped", 0, 60)
    os.chmod("grouped", 0o640)
    held = os.open("secret", os.O_RDWR)

    os.setgroups([60])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    attempt("secret", open, "secret")
    attempt("grouped", open, "grouped")
    attempt("grouped, writing", write, "grouped")
    attempt("held", os.pwrite, held, b"y", 0)
    attempt("make", write, "made")
    attempt("make in open", write, "open/made")
    attempt("device", os.mknod, "open/device", 0o20666, os.makedev(1, 3))
    attempt("fifo", os.mkfifo, "open/fifo")
    child = os.fork()
    if child == 0:
        attempt("child: secret", open, "secret")
        write("open/child")
        os._exit(0)
    os.waitpid(child, 0)
    os.seteuid(0)
    os.setegid(0)
    os.setgroups([])
    attempt("root again: secret", open, "secret")
    owners("open/made", "open/fifo", "open/child")
    attempt("device", os.mknod, "open/device", 0o20666, os.makedev(1, 3))
    os.unlink("open/device")

    # One that every user can execute.
    words = ["/bin/sh", "-c", "set -C; echo > open/started; cat; cat secret 2>/dev/null || echo denied"]
    with open("secret") as file:
        done = subprocess.run(
            words, user=NOBODY, group=GAMES, extra_groups=[], stdin=file, capture_output=True, text=True
        )
    print(done.stdout, done.stderr, flush=True)
    owners("open/started")
    os.setresuid(GAMES, GAMES, GAMES)
    attempt("for good: secret", open, "secret")
    attempt("back", os.seteuid, 0)
    write("open/last")
    owners("open/last")


if __name__ == "__main__":
    main()
