"""Whole programs, direct and forwarded in each mode: what they print, how they end, and what they
leave must be the same.

    python tests/posix/programs.py                            # all, in all modes
    python tests/posix/programs.py --json programs.json       # goes on where it was cut off
    python tests/posix/programs.py --mode node redis sqlite   # these, in this mode
    python tests/posix/programs.py --packages                 # what Debian 12 calls what they need

Each program works in an empty folder: directly, then in each mode. It prints what can be compared:
no times, no ports, no numbers of processes. What is left of a folder is compared too: names, kinds,
modes, and contents. Where a mode differs, the program runs once more in it, and directly: what then
agrees was chance. What is not installed is left out, and said.

A program in a mode ends in one of four ways:

    same        the same output, status and files
    refused     another status than direct, and not 0: by a limit that docs/forwarding.md states
    different   another status than direct, and no such limit is known
    wrong       status 0 and another output or other files: never to be

Exit: 0 if nothing is different or wrong. It takes some minutes, and is not part of `make test`.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import harness
from harness import PREFIX

MODES = {"default": ("daemon", ["--direct"]), "relay": ("daemon", []), "node": ("node", []),
         "seccomp": ("daemon", ["--seccomp"])}  # fmt: skip
SECONDS = 240


@dataclass
class Program:
    """A bash script, run in the folder. $LOCAL is a folder that is never forwarded."""

    script: str
    packages: str
    needs: tuple[str, ...] = ()
    # What is left behind with other contents each time: patterns of names.
    unlike: tuple[str, ...] = ()
    # Mode -> the limit that docs/forwarding.md states.
    limits: dict[str, str] = field(default_factory=dict)


STATIC = "a statically linked program, of another node's files"
PROGRAMS_BELOW = "executing a file below a prefix"

GO = """package main
import ("bufio"; "fmt"; "os"; "path/filepath"; "sync")
func main() {
	var all sync.WaitGroup
	for i := 0; i < 50; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			os.MkdirAll(fmt.Sprintf("d%d", i%7), 0755)
			os.WriteFile(fmt.Sprintf("d%d/f%d", i%7, i), []byte(fmt.Sprint(i)), 0644)
		}(i)
	}
	all.Wait()
	n := 0
	filepath.Walk(".", func(p string, i os.FileInfo, e error) error { n++; return e })
	f, err := os.Create("out"); w := bufio.NewWriter(f)
	for i := 0; i < 100000; i++ { fmt.Fprintln(w, i) }
	w.Flush(); s, _ := f.Stat(); f.Close(); os.Rename("out", "moved")
	fmt.Println(n, err, s.Size())
}
"""
RUST = """use std::io::{Read, Seek, Write};
fn main() -> std::io::Result<()> {
    let all: Vec<_> = (0..8).map(|t| std::thread::spawn(move || -> std::io::Result<u64> {
        std::fs::create_dir_all(format!("d{t}/e"))?;
        let mut file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true)
            .open(format!("d{t}/e/f"))?;
        for i in 0..2000 { writeln!(file, "{t} {i}")?; }
        file.seek(std::io::SeekFrom::Start(0))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        file.set_len(100)?;
        Ok(text.len() as u64 + file.metadata()?.len())
    })).collect();
    let sum: u64 = all.into_iter().map(|t| t.join().unwrap().unwrap()).sum();
    std::fs::copy("d1/e/f", "copy")?;
    std::fs::rename("copy", "moved")?;
    println!("{sum} {}", std::fs::read_dir(".")?.count());
    Ok(())
}
"""
NODE = """
const fs = require('fs'), path = require('path'), zlib = require('zlib');
(async () => {
  await fs.promises.mkdir('a/b', {recursive: true});
  await Promise.all([...Array(60).keys()].map(i => fs.promises.writeFile(`a/b/f${i}`, 'x'.repeat(i * 100))));
  const sizes = await Promise.all((await fs.promises.readdir('a/b')).map(n => fs.promises.stat('a/b/' + n)));
  console.log(sizes.reduce((s, x) => s + x.size, 0));
  await new Promise(r => fs.createReadStream('a/b/f59').pipe(zlib.createGzip()).pipe(fs.createWriteStream('z')).on('finish', r));
  console.log(zlib.gunzipSync(fs.readFileSync('z')).length);
  const h = await fs.promises.open('a/b/f59', 'r+'); await h.write('start', 0); await h.sync(); await h.truncate(10); await h.close();
  console.log(fs.readFileSync('a/b/f59', 'utf8'));
  await fs.promises.cp('a', 'c', {recursive: true}); await fs.promises.rename('c', 'd'); fs.rmSync('a', {recursive: true});
  fs.symlinkSync('d', 'l'); console.log(fs.realpathSync('l/b/f1').split('/').slice(-3).join('/'), fs.existsSync('a'));
  for await (const e of await fs.promises.opendir('d')) console.log(e.name, e.isDirectory());
})();
"""
LEVELDB = """
import plyvel
for run in range(3):
    db = plyvel.DB("db", create_if_missing=True, write_buffer_size=20000)
    with db.write_batch() as batch:
        for i in range(2000):
            batch.put(b"%d" % (run * 1000 + i), b"value %d %d" % (run, i))
    for i in range(0, 2000, 3):
        db.delete(b"%d" % i)
    db.compact_range()
    db.close()
db = plyvel.DB("db")
print(sum(1 for _ in db), db.get(b"1"), db.get(b"3"), db.get(b"3999"))
"""
POSTGRES = """
set -e; B=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)"); D=$PWD/data; chmod 711 .
run() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
install -d -o nobody -g nogroup -m 700 data; install -d -o nobody -g nogroup -m 700 "$LOCAL/pg"
run $B/initdb -D $D -A trust -U me --no-locale -E UTF8 >/dev/null
start() { run $B/pg_ctl -D $D -s -w -t 200 -o "-k $LOCAL/pg -h '' -c fsync=off -c shared_buffers=16MB" -l $D/log start; }
sql() { psql -h "$LOCAL/pg" -U me -d postgres -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
start; sql "create table t (a int primary key, b text); insert into t select i, repeat('x', i % 200) from generate_series(1, 20000) i"
sql "create index on t (b); update t set b = b || 'y' where a % 3 = 0; select count(*), sum(length(b)) from t"
run $B/pg_ctl -D $D -s -m immediate stop; start
sql "select count(*), sum(length(b)) from t"; sql vacuum; sql "select count(*) from t where b like 'xxx%'"
run $B/pg_ctl -D $D -s -m fast stop; $B/pg_controldata $D | grep 'cluster state'; chown -R 0:0 data; rm -rf data
"""
REDIS = """
set -e; redis-server --port 0 --unixsocket "$LOCAL/redis" --dir "$PWD" --appendonly yes --save '' --daemonize no --logfile "$LOCAL/log" & P=$!
cli() { redis-cli -s "$LOCAL/redis" "$@"; }
await() { for i in $(seq 600); do [ "$(cli ping 2>/dev/null)" = PONG ] && return; sleep 0.1; done; echo no server; cat "$LOCAL/log"; exit 1; }
await; seq 1 3000 | sed 's/.*/set key& value&/' | cli >/dev/null; cli lpush list a b c; cli incrby n 7; cli save; cli set after save
kill -9 $P; wait $P || true
redis-server --port 0 --unixsocket "$LOCAL/redis" --dir "$PWD" --appendonly yes --save '' --logfile "$LOCAL/log" & P=$!
await; cli dbsize; cli get key2999; cli lrange list 0 -1; cli get after; cli bgrewriteaof >/dev/null
until [ "$(cli info persistence | tr -d '\\r' | grep aof_rewrite_in_progress)" = aof_rewrite_in_progress:0 ]; do sleep 0.1; done
cli shutdown nosave; wait $P; ls -R | grep -c aof
"""

PROGRAMS = {
    "git": Program("""
        set -e; export GIT_AUTHOR_DATE='2001-01-01 00:00 +0000' GIT_COMMITTER_DATE='2001-01-01 00:00 +0000'
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null; git init -q -b main r; cd r; git config user.email e@x; git config user.name n
        for i in 1 2 3 4; do seq $i 2000 > f$i; mkdir -p d$i; seq 50 > d$i/g; git add .; git commit -qm $i; done
        git log --format=%H; git clone -q . ../c; cd ../c; git checkout -qb side HEAD~2; echo z > z; git add z
        git -c user.name=n -c user.email=e@x commit -qm z; git -c user.name=n -c user.email=e@x merge -q -m m origin/main
        git log --format=%H -1; git gc -q; git fsck --full --strict; git status --short; git archive HEAD | tar tf - | wc -l; git grep -c 1999
        """, "git", ("git",), unlike=("index", "ORIG_HEAD", "*.rev", "*.bitmap", "HEAD", "main", "side", "config")),
    "tar": Program("""
        set -e; mkdir s; for i in $(seq 300); do seq $i > s/f$i; done; ln -s f1 s/l; ln s/f2 s/h; mkfifo s/p; chmod 640 s/f3
        find s -exec touch -h -d @1000000000 {} +; tar cf a.tar --sort=name s; mkdir o; tar xpf a.tar -C o; diff -r s o/s 2>&1 | grep -v fifo || true
        tar czf a.tgz --sort=name s; tar tzf a.tgz | wc -l; tar --delete -f a.tar s/f3; tar df a.tar; tar rf a.tar s/f3; tar tvf a.tar | tail -1 | cut -c1-10; rm a.tgz
        truncate -s 20M sparse; echo x >> sparse; tar cSf b.tar sparse; rm sparse; tar xSf b.tar; md5sum sparse; rm b.tar
        """, "tar", ("tar",)),
    "cpp": Program("""
        set -e; cmake --version > version; test -s version; head -1 version; cp version "$LOCAL/version"; mkdir src b; cat > src/CMakeLists.txt <<X
cmake_minimum_required(VERSION 3.10)
project(p CXX)
add_executable(p p.cc)
X
        cat > src/p.cc <<X
#include <fstream>
#include <iostream>
#include <filesystem>
int main() { std::ofstream("o") << "out " << 5 << std::endl; std::ifstream i("o"); std::string s; std::getline(i, s); std::cout << s << std::endl;
for (auto &e : std::filesystem::directory_iterator(".")) std::cerr << ""; std::filesystem::resize_file("o", 2); std::cout << std::filesystem::file_size("o") << "\\n"; }
X
        cmake -S src -B "$LOCAL/b" >/dev/null; cmake --build "$LOCAL/b" >/dev/null; "$LOCAL/b/p" > said; cat said
        """, "cmake g++ make", ("cmake", "c++", "make")),
    "sqlite": Program("""
        sqlite3 db "create table t(x, y); with recursive c(v) as (select 1 union all select v+1 from c where v<20000) insert into t select v, v*7 % 1000 from c; create index i on t(y);"
        for w in 1 2 3; do (for i in $(seq 30); do echo 'begin immediate; update t set y=y+1 where x=1; commit;'; done | sqlite3 -cmd '.timeout 60000' db >/dev/null) & done; wait
        sqlite3 db "select count(*), sum(y) from t; begin; delete from t; rollback; vacuum; pragma integrity_check; select y from t where x=1"; sqlite3 db .dump | md5sum; rm -f db-journal
        sqlite3 db "pragma journal_mode=truncate; insert into t values (1, 1); pragma mmap_size=1000000; select count(*) from t"
        """, "sqlite3", ("sqlite3",), unlike=("db",)),
    "sqlite-wal": Program("""
        sqlite3 db "create table t(x); pragma journal_mode=wal" || exit 5; for w in 1 2 3; do (for i in $(seq 30); do echo "insert into t values ($i);"; done | sqlite3 -cmd '.timeout 60000' db) & done; wait
        sqlite3 db "select count(*), sum(x) from t; pragma integrity_check; pragma wal_checkpoint(truncate)"
        """, "sqlite3", ("sqlite3",), unlike=("db*",), limits={"node": "SQLite's WAL mode"}),
    "redis": Program(REDIS, "redis-server", ("redis-server", "redis-cli"), unlike=("*.aof", "*.rdb")),
    "postgres": Program(POSTGRES, "postgresql postgresql-client",
                        ("psql", "setpriv", "/usr/lib/postgresql/*/bin/initdb")),
    "leveldb": Program('cat > "$LOCAL/l.py"; /usr/bin/python3 "$LOCAL/l.py"', "python3-plyvel",
                       ("py:plyvel",), unlike=("LOG*", "*.ldb", "*.log", "MANIFEST*", "CURRENT")),
    "rocksdb": Program("""
        set -e; seq 2000 | sed 's/.*/key& ==> value&/' > "$LOCAL/kv"; ldb --db=db --create_if_missing load < "$LOCAL/kv" >/dev/null; ldb --db=db put a b; ldb --db=db get key77
        ldb --db=db delete key78; ldb --db=db scan | wc -l; ldb --db=db compact; ldb --db=db scan | md5sum; ldb --db=db checkconsistency
        sst_dump --file=db --command=verify 2>&1 | grep -ci corrupt || true
        """, "rocksdb-tools", ("ldb", "sst_dump"), unlike=("LOG*", "*.sst", "*.log", "MANIFEST*", "OPTIONS*", "IDENTITY", "CURRENT")),
    "lmdb": Program("""
        set -e; seq 500 | sed 's/.*/ key&\\n value&/' > "$LOCAL/body"; { printf 'VERSION=3\\nformat=print\\ntype=btree\\nmapsize=10485760\\nHEADER=END\\n'; cat "$LOCAL/body"; echo DATA=END; } > "$LOCAL/dump"
        mkdir db; mdb_load -f "$LOCAL/dump" db; mdb_stat db | grep Entries; mkdir copy; mdb_copy db copy; mdb_dump -p copy | md5sum
        """, "lmdb-utils", ("mdb_load", "mdb_dump"), unlike=("lock.mdb",), limits={"node": "shared writable mappings"}),
    "hdf5": Program("""
        set -e; seq 1000 > "$LOCAL/n"; printf 'PATH /g/d\\nINPUT-CLASS TEXTIN\\nRANK 1\\nDIMENSION-SIZES 1000\\n' > "$LOCAL/conf"; h5import "$LOCAL/n" -c "$LOCAL/conf" -o a.h5 >/dev/null
        h5dump -d /g/d a.h5 | md5sum; h5repack -f GZIP=5 -l CHUNK=100 a.h5 b.h5; h5diff a.h5 b.h5 && echo equal; h5copy -i a.h5 -o c.h5 -s /g/d -d /e; h5ls -r c.h5; h5stat b.h5 | grep -ci chunk
        """, "hdf5-tools", ("h5dump", "h5import"), unlike=("*.h5",)),
    "netcdf": Program("""
        set -e; { echo 'netcdf x { dimensions: t = UNLIMITED, x = 100; variables: double v(t, x); data: v = '; seq -s, 5000; echo '; }'; } > "$LOCAL/x.cdl"; ncgen -o a.nc "$LOCAL/x.cdl"; ncgen -k nc4 -o b.nc "$LOCAL/x.cdl"
        ncdump a.nc | tail -n +2 | md5sum; ncdump b.nc | tail -n +2 | md5sum; nccopy -d 5 a.nc c.nc; ncdump -h c.nc | tail -n +2
        """, "netcdf-bin", ("ncgen", "ncdump", "nccopy"), unlike=("b.nc", "c.nc")),
    "node": Program('cat > "$LOCAL/n.js"; node "$LOCAL/n.js"', "nodejs", ("node",)),
    "go": Program("""
        set -e; cat > "$LOCAL/x.go"; printf 'module x\\ngo 1.18\\n' > "$LOCAL/go.mod"; (cd "$LOCAL"; [ -x ../go-program ] || { CGO_ENABLED=0 GOCACHE="$LOCAL/cache" GOFLAGS=-mod=mod go build -o x . && cp x ../go-program; })
        "$LOCAL/../go-program"
        """, "golang-go", ("go",), limits={"node": STATIC}),
    "rust": Program("""
        set -e; cat > "$LOCAL/x.rs"; [ -x "$LOCAL/../rust-program" ] || rustc -O -o "$LOCAL/../rust-program" "$LOCAL/x.rs"; "$LOCAL/../rust-program"
        """, "rustc", ("rustc",)),
    "busybox": Program("""
        busybox sh -c 'seq 1000 > n; sort -r n > r; mkdir d; cp n r d; tar c d | tar t | sort; rm n; ls; wc -c d/*; find . | sort; sed -i s/5/five/ r; md5sum r'
        """, "busybox-static", ("busybox",), limits={"node": STATIC}),
    "own-program": Program("""
        set -e; cp /bin/cat ./mine; echo text > f; ./mine f; printf '#!/bin/sh\\necho script $1\\n' > s; chmod +x s; ./s word
        """, "", limits={"seccomp": PROGRAMS_BELOW}),
}  # fmt: skip
INPUT = {"leveldb": LEVELDB, "node": NODE, "go": GO, "rust": RUST}


def missing(program: Program) -> str | None:
    """What is not installed."""
    for need in program.needs:
        if need.startswith("py:"):
            found = (
                subprocess.run(
                    ["/usr/bin/python3", "-c", f"import {need[3:]}"], capture_output=True
                ).returncode
                == 0
            )
        elif need.startswith("/"):
            found = bool(list(Path("/").glob(need[1:])))
        else:
            found = shutil.which(need) is not None
        if not found:
            return need.removeprefix("py:")
    return None


def left(folder: Path, unlike: tuple[str, ...]) -> dict[str, str]:
    """What is in a folder: kind, mode and a sum of the contents, by name."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(top) / name
            info = path.lstat()
            text = stat.filemode(info.st_mode)
            if any(path.match(pattern) for pattern in unlike):
                # Its name may have a number in it, too.
                continue
            if stat.S_ISLNK(info.st_mode):
                text += " " + os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                text += " " + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            found[str(path.relative_to(folder))] = text
    return found


class Race:
    def __init__(self, daemons: dict[str, harness.Daemon], local: Path) -> None:
        self.daemons, self.local = daemons, local

    def once(self, name: str, mode: str | None) -> dict:
        program = PROGRAMS[name]
        daemon = self.daemons[MODES[mode][0] if mode else "daemon"]
        daemon.empty()
        folder = daemon.direct if mode is None else daemon.far
        folder.chmod(0o755)
        named = str(folder) if mode is None else PREFIX
        prefix = [] if mode is None else daemon.command(*MODES[mode][1])
        local = Path(tempfile.mkdtemp(dir=self.local))
        local.chmod(0o755)
        script = f"cd {named} || exit 99\n{program.script}"
        with (
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
            tempfile.TemporaryFile() as given,
        ):
            given.write(INPUT.get(name, "").encode())
            given.seek(0)
            environment = {**os.environ, "LC_ALL": "C", "LOCAL": str(local), "HOME": str(local)}
            with subprocess.Popen([*prefix, "bash", "-c", script], stdin=given, stdout=output, stderr=errors,
                                  env=environment, start_new_session=True) as child:  # fmt: skip
                try:
                    status = child.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    status = "too long"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(
                    file.read().decode(errors="replace").replace(named, "FOLDER").replace(str(local), "LOCAL")
                )
        found = left(folder, program.unlike)
        shutil.rmtree(local, ignore_errors=True)
        return {"status": status, "output": texts[0][-4000:], "errors": texts[1][-1500:], "left": found}

    def compare(self, name: str, mode: str, plain: dict) -> dict:
        verdict, found = "different", {}
        for _turn in range(2):
            found = self.once(name, mode)
            verdict = self.verdict(name, mode, plain, found)
            if verdict in ("same", "refused"):
                break
            plain = self.once(name, None)
        names = sorted(key for key in plain["left"].keys() | found["left"].keys()
                       if plain["left"].get(key) != found["left"].get(key))  # fmt: skip
        told = {"verdict": verdict, "status": found["status"]}
        if verdict != "same":
            told |= {"output": found["output"], "errors": found["errors"], "files": names[:20]}
        return told

    def verdict(self, name: str, mode: str, plain: dict, found: dict) -> str:
        same = [found[part] == plain[part] for part in ("status", "output", "left")]
        if all(same):
            return "same"
        if found["status"] == 0:
            return "wrong"
        return "refused" if mode in PROGRAMS[name].limits else "different"


def table(results: dict[str, dict], modes: list[str]) -> str:
    lines = ["| | " + " | ".join(modes) + " |", "|---" * (len(modes) + 1) + "|"]
    for name, result in results.items():
        if "missing" in result:
            cells = [f"not done: {result['missing']} is not installed"] + [""] * (len(modes) - 1)
        elif result["plain"]["status"] != 0:
            cells = [f"fails directly: {result['plain']['status']}"] + [""] * (len(modes) - 1)
        else:
            cells = []
            for mode in modes:
                verdict = result["modes"].get(mode, {}).get("verdict", "")
                limit = PROGRAMS[name].limits.get(mode, "")
                cells.append(f"{verdict}: {limit}" if verdict == "refused" else verdict)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where results are kept")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; repeat it")
    parser.add_argument("--packages", action="store_true", help="names the packages, and does nothing")
    parser.add_argument("names", nargs="*", help="only these programs")
    words = parser.parse_args()
    if unknown := set(words.names) - PROGRAMS.keys():
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    if words.packages:
        print(
            " ".join(
                sorted({package for program in PROGRAMS.values() for package in program.packages.split()})
            )
        )
        return 0
    modes = words.mode or list(MODES)
    results = json.loads(words.json.read_text()) if words.json and words.json.exists() else {}
    programs = harness.build()
    with tempfile.TemporaryDirectory(prefix="zzp-") as local, \
            harness.Daemon(programs, isolated=True) as daemon, \
            harness.Daemon(programs, isolated=True, listen=True) as node:  # fmt: skip
        os.chmod(local, 0o755)
        race = Race({"daemon": daemon, "node": node}, Path(local))
        for name in words.names or PROGRAMS:
            result = results.setdefault(name, {})
            if lacks := missing(PROGRAMS[name]):
                results[name] = {"missing": lacks}
                print(f"{name}: {lacks} is not installed", file=sys.stderr)
                continue
            result.pop("missing", None)
            left_to_do = [mode for mode in modes if mode not in result.get("modes", {})]
            if not left_to_do:
                continue
            plain = race.once(name, None)
            result["plain"] = plain | {"left": len(plain["left"])}
            for mode in left_to_do if plain["status"] == 0 else []:
                told = result.setdefault("modes", {})[mode] = race.compare(name, mode, plain)
                print(f"{name} {mode}: {told['verdict']}", file=sys.stderr, flush=True)
                if told["verdict"] in ("different", "wrong"):
                    print(json.dumps(told, indent=1), file=sys.stderr, flush=True)
                if words.json:
                    words.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table({name: results[name] for name in words.names or results}, modes))
    verdicts = [told["verdict"] for result in results.values() for told in result.get("modes", {}).values()]
    return 1 if {"different", "wrong"} & set(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
