#!/usr/bin/env python3
"""Ordinary programs inside a mounted folder, with their own checks. By hand; tests of mounts run
some of them.

    .venv/bin/python tests/namespace/forwarded_programs.py FOLDER [NAME…]

FOLDER is an empty directory in a mount. Prints a line for each program: as expected, or why it was
not run. Ends with 1 if one failed. PostgreSQL runs as the user `postgres`, or `nobody`, and needs a
mount that all may enter.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zazen.testing

NOBODY = pwd.getpwnam("nobody").pw_uid


class NotRunError(Exception):
    """What is missing."""


def need(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise NotRunError(f"no program {name}")


def as_nobody(*words: object, status: int = 0) -> str:
    """What a program says that the user `nobody` starts, and that ends with `status`."""
    done = subprocess.run(
        list(map(str, words)),
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=zazen.testing.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done
    return done.stdout + done.stderr


def sh(folder: Path, script: str, **options: object) -> None:
    done = subprocess.run(
        ["sh", "-ec", script], cwd=folder, capture_output=True, text=True, timeout=900, check=False, **options
    )
    if done.returncode != 0:
        raise AssertionError(f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def git(folder: Path) -> None:
    need("git")
    sh(
        folder,
        """
        git init -q r && cd r && git config user.email a@b && git config user.name a
        for n in $(seq 300); do mkdir -p d$((n % 7)) && seq $n > d$((n % 7))/f$n; done
        git add . && git commit -qm one && git checkout -qb side && git mv d1 moved && git commit -qm two
        git checkout -q - && echo x >> d2/f2 && git commit -qam three && git merge -q -m four side
        git gc -q && git fsck --strict && test -z "$(git status --porcelain)"
        git clone -q . ../clone && diff -r --exclude=.git . ../clone
        """,
    )


def tar_and_rsync(folder: Path, files: int = 200) -> None:
    need("tar", "rsync")
    sh(
        folder,
        f"""
        mkdir src && for n in $(seq {files}); do head -c $((n * 997)) /dev/urandom > src/f$n; done
        ln -s f1 src/link && ln src/f2 src/hard && chmod 0640 src/f3 && touch -d @1234567890.5 src/f4
        tar cf a.tar src && mkdir t && tar xpf a.tar -C t && diff -r src t/src
        test "$(stat -c %a%Y t/src/f3)" = "$(stat -c %a%Y src/f3)"
        rsync -aHX src/ r/ && rsync -aHXc --dry-run --itemize-changes src/ r/ > changes && test ! -s changes
        test "$(stat -c %h r/hard)" = 2
        """,
    )


def sqlite(folder: Path) -> None:
    for mode in ("delete", "wal"):
        path = folder / f"{mode}.db"
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=60)\n"
            "for n in range(100):\n"
            "    with c: c.execute('update t set n = n + 1')"
        )
        with sqlite3.connect(path) as database:
            database.execute(f"pragma journal_mode={mode}")
            database.execute("create table t (n)")
            database.execute("insert into t values (0)")
        database.close()
        workers = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(3)]
        if any(worker.wait(600) for worker in workers):
            raise AssertionError("a worker failed")
        database = sqlite3.connect(path)
        assert database.execute("select n from t").fetchone() == (300,)
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        database.close()


def c_build(folder: Path) -> None:
    need("cc", "make")
    sources = "".join(f"int f{n}(int x) {{ return x + {n}; }}\n" for n in range(3))
    for n in range(40):
        (folder / f"m{n}.c").write_text(sources.replace("int f", f"int m{n}_f"))
    calls = " + ".join(f"m{n}_f1({n})" for n in range(40))
    externs = "".join(f"int m{n}_f1(int);\n" for n in range(40))
    (folder / "main.c").write_text(f"{externs}int main(void) {{ return ({calls}) == 820 ? 0 : 1; }}\n")
    (folder / "Makefile").write_text(
        "O = $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(O)\n\tcc -o $@ $^\n"
        "%.o: %.c\n\tcc -O1 -g -c -o $@ $<\n"
    )
    sh(folder, "make -j4 > log && ./program && make -q program && rm m1.o && make > log && ./program")


def postgres(folder: Path) -> None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise NotRunError("no PostgreSQL (package postgresql)")
    tools = found[-1].parent
    name = "postgres" if any(user.pw_name == "postgres" for user in pwd.getpwall()) else "nobody"
    user = pwd.getpwnam(name)
    data = folder / "data"
    data.mkdir(mode=0o700)
    os.chown(data, user.pw_uid, user.pw_gid)
    options = {
        "user": user.pw_uid,
        "group": user.pw_gid,
        "extra_groups": [],
        "env": {"PATH": f"{tools}:/usr/bin:/bin"},
    }
    socket = Path("/tmp") / f"pg-{os.getpid()}"
    socket.mkdir()
    os.chown(socket, user.pw_uid, user.pw_gid)
    sh(data, f"initdb -D {data} -A trust -U {name} > /dev/null", **options)
    sh(
        data,
        f"pg_ctl -D {data} -w -l {data}/log -o \"-k {socket} -c listen_addresses=''\" start > /dev/null",
        **options,
    )
    try:
        base = f"-h {socket} -U {name} postgres"
        sh(data, f"pgbench -i -q -s 2 {base} && pgbench -c 4 -j 2 -t 250 {base}", **options)
        # A crash, and what was committed is there.
        sh(data, f"psql {base} -c 'create table kept as select generate_series(1, 100000) as n'", **options)
        sh(data, f"pg_ctl -D {data} -m immediate stop > /dev/null", **options)
        started = (
            f"pg_ctl -D {data} -w -l {data}/log -o \"-k {socket} -c listen_addresses=''\" start > /dev/null"
        )
        sh(data, started, **options)
        sh(
            data,
            f'test "$(psql {base} -Atc "select count(*), sum(n) from kept")" = "100000|5000050000"',
            **options,
        )
        sh(data, f'test "$(psql {base} -Atc "select count(*) from pgbench_history")" = 1000', **options)
    finally:
        subprocess.run(
            [tools / "pg_ctl", "-D", data, "-m", "fast", "stop"], capture_output=True, check=False, **options
        )
        shutil.rmtree(socket, ignore_errors=True)


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "git": git,
    "tar_and_rsync": tar_and_rsync,
    "sqlite": sqlite,
    "c_build": c_build,
    "postgres": postgres,
}


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    top, wanted = Path(sys.argv[1]), sys.argv[2:] or list(PROGRAMS)
    failed = 0
    for name in wanted:
        folder = top / name
        folder.mkdir()
        began = time.monotonic()
        try:
            PROGRAMS[name](folder)
            print(f"{name}: as expected, {time.monotonic() - began:.1f} s", flush=True)
            shutil.rmtree(folder)
        except NotRunError as error:
            print(f"{name}: NOT RUN: {error}", flush=True)
            folder.rmdir()
        except Exception as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
