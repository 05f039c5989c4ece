"""Programs that proof.py runs direct and forwarded: a script each, what it needs, and how its output is read.

Scripts run in an empty folder with bash. $DATA is a folder of some files, $LOCAL a folder that is never forwarded,
$PYTHON the interpreter.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def lines(text: str) -> dict[str, str]:
    """Every line counts, in its order."""
    return {f"line {number}": "ok " + line for number, line in enumerate(text.splitlines(), 1)}


def whole(text: str) -> dict[str, str]:
    """One part: all that was said."""
    return {"output": text}


COLOUR = re.compile("\x1b\\[[0-9;]*m")


def pjdfstest_parts(text: str) -> dict[str, str]:
    found = {}
    for line in COLOUR.sub("", text).splitlines():
        match = re.match(r"^(\S+)\s+(ok|FAILED|skipped)$", line)
        if match:
            found[match[1]] = {"FAILED": "failed"}.get(match[2], match[2])
    return found


@dataclass
class Program:
    script: str
    needs: Sequence[str] = ()
    parts: Callable[[str], dict[str, str]] = lines
    # Patterns of parts that differ by a limit which docs/forwarding.md states, and which.
    stated: Sequence[tuple[str, str]] = field(default_factory=tuple)


FIO = (
    "fio --name=v --directory=. --size=8m --bs={bs} --rw={rw} --verify=crc32c --ioengine={engine} {more} "
    "--iodepth=4 --do_verify=1 --verify_fatal=1 --randseed=7 --fallocate=none --minimal >$LOCAL/fio.$$ 2>&1; status=$?\n"
    "echo status $status; [ $status = 0 ] || head -3 $LOCAL/fio.$$; rm $LOCAL/fio.$$; stat -c %s v.0.0; exit $status"
)


def fio(engine: str, rw: str = "randrw", bs: str = "4k", more: str = "", **about) -> Program:
    return Program(FIO.format(engine=engine, rw=rw, bs=bs, more=more), ["fio"], **about)


NO_RINGS = (("*", "io_uring and libaio are ENOSYS"),)

PROGRAMS = {
    "coreutils": Program(
        """set -e; cp -a $DATA t; find t -name __pycache__ -prune -exec rm -r {} +; cp -a t u; diff -r t u && echo same
        (cd u; find . -type f | sort | xargs sha256sum) | sha256sum; find t -type f | sort | xargs cat | sort | uniq -c | sort -rn | head
        du -a --apparent-size t | sort | head; for f in t/*.py; do wc $f; stat -c '%n %s %A %h %F' $f; done
        ln t/message.py h; ln -s t/message.py s; readlink s; stat -c '%h %N' h s; cmp h s; mv u v; ls v | head
        split -b 3000 h p.; cat p.* | cmp - h; rm p.*; dd if=h of=e bs=512 skip=1 count=3 conv=notrunc status=none; sha256sum e
        truncate -s 123456 e; stat -c %s e; tac h | tac | cmp - h; shuf -i 1-1000 | sort -n | md5sum; chmod 751 h; stat -c %A h
        touch -d '2001-02-03 04:05:06' h; stat -c %Y h; install -D -m 640 h a/b/c; stat -c '%A %s' a/b/c; rmdir a 2>/dev/null || echo full
        mkfifo f; (cat f | wc -c) & cat h > f; wait; rm -rf t v; ls -R; csplit -s h 10 20; wc xx*; join xx00 xx01 | wc -l; paste xx00 xx01 | md5sum
        sort -S 100K -T . h | md5sum; tail -n 3 h; head -c 100 h | od -c | head -3; nl h | tail -2; expand h | fold -w 40 | md5sum
        mktemp -p . x.XXXX | wc -c; realpath h; test -x h && echo x; df . >/dev/null; sync h; shred -n 1 xx00; stat -c %s xx00""",
        ["shuf", "csplit"],
    ),
    "shell": Program(
        """for i in $(seq 40); do echo line $i >> log; done; exec 7<>log; read -u 7 a; echo "$a"; echo more >&7; exec 7>&-; wc log
        while read -r l; do case $l in *3*) echo "$l" >> three;; esac; done < log; cat three; (echo sub; (exec >>log; echo deep)); tail -1 log
        set -C; echo x > log || echo noclobber; set +C; trap 'echo bye >> trapped' EXIT; for j in 1 2 3 4; do (echo $j > p$j; cat p$j >/dev/null) & done; wait
        cat p1 p2 p3 p4; cat <<< here > h; cat h; { echo o; echo e >&2; } > both 2>&1; cat both; cd ..; cd - >/dev/null; pushd . >/dev/null; popd >/dev/null
        printf '%s\\n' *; bash -c 'echo $PPID > ppid; test -s ppid' && echo child; exec 3< log 4< log; read -u 3 x; read -u 4 y; echo "$x $y"
        echo 'echo script $1' > s; chmod +x s; ./s arg; . ./s; mapfile -t m < log; echo ${#m[@]}; coproc cat; echo co >&"${COPROC[1]}"; read -u "${COPROC[0]}" z; echo $z"""
    ),
    "tar": Program(
        """set -e; cp -r $DATA s; ln -s message.py s/l; ln s/message.py s/h; tar cf a.tar --sort=name s; mkdir o; tar xpf a.tar -C o; diff -r s o/s && echo same
        tar czf a.tgz s; gzip -t a.tgz && echo gz; tar tf a.tar | sort | md5sum; tar --delete -f a.tar s/l; tar df a.tar s | head; tar rf a.tar s/l
        tar tf a.tar | tail -1; stat -c %h o/s/h; truncate -s 10M sparse; echo x >> sparse; tar cSf b.tar sparse; rm sparse; tar xSf b.tar; stat -c %s sparse; md5sum sparse""",
        ["tar", "gzip"],
    ),
    "rsync": Program(
        """set -e; cp -r $DATA s; find s -name __pycache__ -prune -exec rm -r {} +; find s -exec touch -d 2001-02-03 {} +
        rsync -a s/ d/; diff -r s d && echo same; echo x >> s/message.py; touch -d 2002-02-03 s/message.py; rm s/charset.py; touch -d 2001-02-03 s
        rsync -ac --delete --itemize-changes s/ d/; diff -r s d && echo same; rsync -a --inplace --no-whole-file s/ d/; rsync -aH --backup --suffix=~ s/ d/
        ls d; rsync -an --stats s/ d/ | grep -c 'Number of files'; rsync -a --link-dest=$PWD/d s/ e/; stat -c %h e/message.py""",
        ["rsync"],
    ),
    "perl": Program(
        r"""perl -e 'for (1..200) { open F, ">f$_"; print F "x" x 1000; close F; die unless -s "f$_" == 1000 } print "made\n";
        opendir D, "."; print scalar(grep /^f/, readdir D), "\n"; open F, "+<f1" or die; flock(F, 2); seek F, 0, 2; print F "end\n"; close F; print -s "f1", "\n";
        my @s = stat "f1"; print $s[7], "\n"; rename "f1", "g"; print -e "f1" ? 1 : 0, -e "g" ? 1 : 0, "\n"; truncate "g", 5; print -s "g", "\n"; symlink "g", "s"; print readlink "s", "\n";
        my $p = open(P, "-|", "cat g"); print <P>, "\n"; if (my $c = fork) { waitpid $c, 0; print $? >> 8, "\n" } else { open F, ">c"; print F $$; close F; exit 3 } print -s "c" > 0 ? 1 : 0, "\n";
        utime 1000, 2000, "g"; print((stat "g")[9], "\n"); mkdir "d", 0700; chdir "d"; open F, ">i"; close F; chdir ".."; print -e "d/i" ? 1 : 0, "\n"; sysopen(F, "x", 0102) or die; syswrite F, "abc"; sysseek F, 1, 0; sysread F, my $b, 5; print "$b\n"'""",
        ["perl"],
    ),
    "git": Program(
        """set -e; export GIT_AUTHOR_DATE='2001-01-01 00:00 +0000' GIT_COMMITTER_DATE='2001-01-01 00:00 +0000' GIT_CONFIG_GLOBAL=/dev/null
        git init -q -b main r; cd r; git config user.email e@x; git config user.name n; for i in 1 2 3 4 5 6; do seq $i 3000 > f$i; cp -r $DATA d$i; git add .; git commit -qm $i; done
        git log --format=%H | md5sum; git clone -q . ../c; git clone -q --no-local . ../w; cd ../c; git checkout -qb side HEAD~2; echo z > z; git add z; git -c user.name=n -c user.email=e@x commit -qm z
        git -c user.name=n -c user.email=e@x merge -q -m m origin/main; git log --format=%H -1; git gc -q; git fsck --full --strict 2>&1; git count-objects -v | grep -E 'count|in-pack|packs'; git status --short | head
        git stash list; echo q >> f1; git diff --stat; git stash -q 2>/dev/null || true; git tag t; git rev-parse t; git archive HEAD | md5sum; git bundle create -q ../b HEAD; git bundle verify -q ../b; git grep -c import HEAD -- d1/message.py
        cd ../w; git pull -q ../c side; git log --format=%H -1; git repack -adq; git fsck 2>&1; git worktree add -q ../wt HEAD; ls ../wt | md5sum""",
        ["git"],
    ),
    "sqlite3": Program(
        """sqlite3 db "create table t(x, y); with recursive c(v) as (select 1 union all select v+1 from c where v<20000) insert into t select v, v*7 % 1000 from c; create index i on t(y); pragma integrity_check;"
        sqlite3 db "select count(*), sum(y) from t; begin; delete from t; rollback; select count(*) from t; vacuum; pragma integrity_check; update t set y=y+1 where x%2; select sum(y) from t;"
        sqlite3 db .dump | md5sum; sqlite3 db ".backup copy"; sqlite3 copy "pragma integrity_check; select count(*) from t"; sqlite3 db "pragma journal_mode=truncate; insert into t values(1,1)"
        sqlite3 db "pragma journal_mode=persist; insert into t values(1,1); attach 'copy' as c; begin; insert into c.t select * from main.t where x<10; commit; select count(*) from c.t\"; ls | sort""".replace('\\"', '"'),
        ["sqlite3"],
    ),
    "sqlite3-two": Program(
        """sqlite3 db 'create table c(n); insert into c values(0);'
        for w in 1 2; do (for i in $(seq 40); do echo 'begin immediate; update c set n=n+1; commit;'; done | sqlite3 -cmd '.timeout 60000' db >/dev/null) & done; wait
        sqlite3 db 'select n from c; pragma integrity_check'""",
        ["sqlite3"],
    ),
    "fio-psync": fio("psync"),
    "fio-sync": fio("sync", more="--fsync=16"),
    "fio-vsync": fio("vsync"),
    "fio-pvsync": fio("pvsync", bs="64k"),
    "fio-pvsync2": fio("pvsync2", bs="1m"),
    "fio-threads": fio("psync", more="--thread --numjobs=1 --rwmixread=30"),
    "fio-append": fio("sync", rw="write", bs="3000"),
    "fio-posixaio": fio("posixaio"),
    "fio-libaio": fio("libaio", stated=NO_RINGS),
    "fio-io_uring": fio("io_uring", stated=NO_RINGS),
    "pjdfstest": Program(
        """cat > $LOCAL/pjd.$$.toml <<X
[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
rename_ctime = {}
stat_st_birthtime = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
X
        chmod 755 .; $PJDFSTEST -c $LOCAL/pjd.$$.toml -p .""",
        parts=pjdfstest_parts,
        stated=(
            ("symlink::enametoolong_path", "a target below a prefix is stored as the far side's, which is longer"),
            ("*::etxtbsy", "far programs run from a copy"),
            ("rmdir::ebusy", "mount(2) is not forwarded"),
            ("exit", "it counts the above"),
        ),
    ),
}  # fmt: skip


def missing(name: str, pjdfstest: Path | None) -> str | None:
    """What a program needs and isn't there."""
    if name == "pjdfstest" and pjdfstest is None:
        return "pjdfstest is not installed (cargo install pjdfstest, or --pjdfstest)"
    absent = [need for need in PROGRAMS[name].needs if shutil.which(need) is None]
    return f"{', '.join(absent)} not installed" if absent else None
