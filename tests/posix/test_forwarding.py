"""Unmodified programs, direct and forwarded: the same outcome."""

import ast
import os
import re
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from differential import ANYBODYS, Comparison, report
from harness import PREFIX, Daemon, python

HERE = Path(__file__).parent


def needs(program: str):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def compare(
    daemon, seeds, steps: int, processes: int, *options: str,
    environment=None, others=False, user=None, key=None,
) -> None:  # fmt: skip
    there = [str(daemon.direct / "d"), f"{PREFIX}/d", str(daemon.far / "d")]
    command = daemon.command(*options)
    if key is not None:
        command[command.index("--key") + 1] = str(key)
    comparison = Comparison(*there, command, environment or {}, others, user)
    for seed in seeds:
        if comparison.differs(seed, steps, processes):
            pytest.fail(report(comparison, seed, steps, processes))


def test_one_process_random(daemon):
    compare(daemon, range(1, 9), 200, 1, "--abort-on-escape")


def test_processes_random(daemon):
    compare(daemon, range(100, 105), 200, 2)
    compare(daemon, range(200, 205), 250, 4)


def test_direct_random(daemon):
    compare(daemon, range(300, 303), 200, 1, "--direct")


def test_isolated_random(isolated):
    compare(isolated, range(400, 404), 200, 3)


@pytest.mark.parametrize("clock", ["that goes slowly", "of the kernel"])
def test_others_change_files_meanwhile(node, clock):
    environment, seeds = {}, range(600, 601)
    if clock == "that goes slowly":
        # Where another user can load it.
        library = node.folder / "slow_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "slow_clock.c", "-ldl"], check=True)
        environment["LD_PRELOAD"] = str(library)
        seeds = range(610, 612)
    compare(node, seeds, 16, 1, environment=environment, others=True)
    if environment and os.getuid() == 0 and os.access(ANYBODYS, os.X_OK):
        # Another user's files come along without their bytes.
        key = Path(shutil.copy(node.key, node.folder / "key-of-another"))
        os.chown(key, 65534, 65534)
        compare(node, range(650, 651), 16, 1, environment=environment, others=True, user=65534, key=key)


def test_another_node_random(node):
    compare(node, range(500, 502), 150, 2)
    # What comes along is for programs of one process.
    compare(node, range(510, 516), 200, 1)


SCRIPTS = {
    "coreutils": """
        set -e; mkdir -p a/b; seq 1 2000 > a/n; sort -r a/n > a/r; head -5 a/r; tail -3 a/n
        cp -a a c; diff -r a c && echo same; sed -i s/7/seven/ c/n; ! cmp -s a/n c/n; wc -lc c/n
        mv c d; ln -s d/n l; cat l | md5sum; ln d/n h; stat -c '%h %s %A' h; chmod 640 h; ls -l h | cut -c1-10
        dd if=a/n of=e bs=100 count=3 conv=notrunc status=none; dd if=/dev/zero of=e bs=1 seek=5000 count=1 status=none
        stat -c %s e; truncate -s 10 e; cat e; tee f < a/r | tail -1; rm -r d; ls -R; find . -type f | sort
        echo x >> a/n; tail -1 a/n; touch -d 2001-02-03 a/n; stat -c %Y a/n; split -l 500 a/r p; cat p* | cmp - a/r
        grep -c 7 a/n; awk '{s+=$1} END {print s}' a/r; tr 1 2 < a/r | uniq | wc -l; cut -c1 a/r | sort -u | tr -d '\\n'
        comm -12 a/n a/n | wc -l; du --apparent-size -b a/r | cut -f1; (cd a && pwd | sed 's/.*\\///' && ls ../a)
        """,
    "shell": """
        set -e; echo one > f; echo two >> f; cat < f; exec 5<>f; read line <&5; echo "$line"; echo three >&5; exec 5>&-
        cat f; while read l; do echo "got $l"; done < f; { echo g1; echo g2 >&2; } > out 2> err; cat out err
        (echo sub; (echo subsub)) > s; cat s; cat <<X > here
hello $((1+2))
X
        cat here; echo a | tee t1 t2 | cat - t1; printf '%s\\n' x y z > p; mapfile -t m < p; echo ${#m[@]}; test -s p && echo big
        for i in 1 2 3; do echo $i > n$i & done; wait; cat n1 n2 n3; sh -c 'echo inner; exit 3' > in || echo status $?; cat in
        """,
    "tar": """
        set -e; mkdir -p t/x/y; for i in $(seq 50); do echo $i > t/x/f$i; done; ln -s f1 t/x/l; ln t/x/f2 t/x/y/h
        find t -exec touch -h -d @1000000000 {} +; tar cf a.tar --sort=name t; mkdir o; tar xf a.tar -C o; diff -r t o/t && echo same; tar czf a.tgz --sort=name t; tar tzf a.tgz | wc -l
        tar --delete -f a.tar t/x/f3; tar tf a.tar | grep -c f3$ || true; rm -rf t; tar xpf a.tar; stat -c %h t/x/y/h
        """,
    "perl": """
        perl -e 'open(F,">f") or die; print F "line $_\\n" for 1..100; close F; open(F,"<f"); my @l=<F>; print scalar @l, " ", -s "f", "\\n";
        seek(F,10,0); read(F,$b,5); print "$b\\n"; open(G,"+<f"); flock(G,2) or die; print G "X"; close G;
        opendir(D,"."); print join(" ",sort grep !/^\\./, readdir D),"\\n"; rename "f","g"; print -e "g" ? 1 : 0, "\\n"; truncate "g", 7; print -s "g", "\\n";
        symlink "g","s"; print readlink "s", "\\n"; mkdir "d"; rmdir "d"; utime 1000,2000,"g"; print((stat "g")[9], "\\n"); print `cat g`; unlink "g","s"'
        """,
    "git": """
        set -e; export HOME=$PWD GIT_AUTHOR_DATE='2001-01-01 00:00 +0000' GIT_COMMITTER_DATE='2001-01-01 00:00 +0000'
        git init -q -b main r; cd r; git config user.name n; git config user.email e@x
        for i in 1 2 3 4 5; do seq $i 1000 > f$i; git add .; git commit -q -m "c$i"; done
        git clone -q . ../c; cd ../c; git log --format=%H | head -1; git gc -q; git fsck 2>&1 | grep -v dangling; git status --short
        git checkout -q -b b HEAD~2; git merge -q main 2>&1; ls; git rev-list --count --all; git grep -c 999 | sort
        """,
    "sqlite3": """
        set -e; sqlite3 db 'create table t(x integer primary key, y); insert into t select value, value*2 from generate_series(1,2000);' 2>/dev/null ||
        sqlite3 db 'create table if not exists t(x integer primary key, y); with recursive c(v) as (select 1 union all select v+1 from c where v<2000) insert or ignore into t select v, v*2 from c;'
        sqlite3 db 'create index i on t(y); select count(*), sum(y) from t; begin; delete from t where x>1000; rollback; vacuum; pragma integrity_check;'
        ls | sort
        """,
}  # fmt: skip
PROGRAM = {"coreutils": "sort", "shell": "bash"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs(daemon, name):
    if shutil.which(PROGRAM.get(name, name)) is None:
        pytest.skip(f"{PROGRAM.get(name, name)} is not installed")
    daemon.empty()
    script = SCRIPTS[name]
    direct = subprocess.run(
        ["bash", "-c", script], cwd=daemon.direct, capture_output=True, text=True, timeout=120
    )
    forwarded = daemon.run("bash", "-c", f"cd {PREFIX}\n" + script, options=["--abort-on-escape"])
    assert forwarded.stdout == direct.stdout
    assert forwarded.returncode == direct.returncode, forwarded.stderr
    difference = subprocess.run(
        ["diff", "-r", "--exclude=.git", daemon.direct, daemon.far], capture_output=True, text=True
    )
    if name != "sqlite3":
        assert difference.stdout == "", difference.stdout


def test_a_socket_whose_path_is_too_long_for_an_address(programs):
    with Daemon(programs, isolated=True, name="z" * 110) as daemon:
        done = daemon.run("sh", "-c", f"echo here > {PREFIX}/a; cat {PREFIX}/a")
        assert (done.stdout, done.stderr) == ("here\n", "")
        assert (daemon.far / "a").read_text() == "here\n"


@needs("sqlite3")
def test_two_processes_of_sqlite(daemon):
    """Locks keep a counter right that two processes raise."""
    daemon.empty()
    add = "pragma busy_timeout=60000; begin immediate; update c set n=n+1; commit;\n" * 40
    daemon.run("sqlite3", f"{PREFIX}/db", "create table c(n); insert into c values(0);")
    command = [*daemon.command(), "sqlite3", f"{PREFIX}/db"]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write(add)
        process.stdin.close()
    assert [process.wait(120) for process in both] == [0, 0]
    assert daemon.run("sqlite3", f"{PREFIX}/db", "select n from c").stdout.strip() == "80"


@pytest.mark.parametrize("which", ["daemon", "isolated", "node"])
def test_waiting_calls(request, which):
    daemon = request.getfixturevalue(which)
    daemon.empty()
    done = daemon.run(python(), str(HERE / "waiting.py"), PREFIX, options=["--sockets"])
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) >= 13, done.stdout + done.stderr
    assert not [line for line in lines if "False" in line]


@pytest.mark.parametrize("which", ["daemon", "isolated", "node"])
def test_bytes_of_every_size(request, which):
    daemon = request.getfixturevalue(which)
    daemon.empty()
    done = daemon.run(python(), str(HERE / "sizes.py"), PREFIX, options=["--sockets"])
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 6, done.stdout + done.stderr
    # Over TCP nobody shares memory: there is none to be had.
    if which == "node":
        pools = [ast.literal_eval(line.removeprefix("pool: ")) for line in lines if line.startswith("pool: ")]
        assert {why for pool in pools for why, _ in pool} == {"no memory"}
        lines = [line for line in lines if not line.startswith("pool: ")]
    assert [line for line in lines if not line.endswith(": []")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("which", ["isolated"])
def test_becoming_another_user(request, which):
    daemon = request.getfixturevalue(which)
    daemon.empty()
    for folder in (daemon.far, daemon.direct):
        folder.chmod(0o777)
    words = [python(), str(HERE / "identity.py")]
    direct = subprocess.run([*words, str(daemon.direct)], capture_output=True, text=True, timeout=120)
    forwarded = daemon.run(*words, PREFIX)
    assert direct.returncode == 0, direct.stderr
    assert forwarded.stdout == direct.stdout, forwarded.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_becoming_another_user_of_another_nodes_files(node):
    """They had ENOENT for a working directory, and could reach nothing. What was open before does
    not come along, and says so."""
    node.empty()
    for folder in (node.far, node.direct):
        folder.chmod(0o777)
    words = [python(), str(HERE / "identity.py")]
    direct = subprocess.run([*words, str(node.direct)], capture_output=True, text=True, timeout=120)
    forwarded = node.run(*words, PREFIX)
    assert direct.returncode == 0, direct.stderr
    expected = direct.stdout
    # cat's standard input is a file that was open before: it says so.
    cat = re.compile(r"cat: -: (Bad file descriptor|Input/output error)\n(cat: .*\n)*")
    assert cat.search(forwarded.stdout), forwarded.stdout
    for before, after in (("held done", "held EIO"), ("ydenied", "denied")):
        assert before in expected
        expected = expected.replace(before, after)
    assert cat.sub("", forwarded.stdout) == expected, forwarded.stderr


ROOT_AGAIN = """
    import os, sys
    os.chdir(sys.argv[1])
    names = sorted(os.listdir("."))

    def read(name):
        fd = os.open(name, os.O_RDONLY)
        try:
            return os.read(fd, 100)
        finally:
            os.close(fd)

    def each(some):
        said = []
        for name in some:
            try:
                said.append(read(name))
            except OSError as error:
                said.append(error.errno)
        print(said)

    for _ in range(2):
        os.seteuid(65534)
        each(names[:20])
        os.seteuid(0)
        held = os.open(names[0], os.O_RDONLY)
        each(names)
        each(names)
        print(os.pread(held, 100, 0))
        os.close(held)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_program_that_is_root_again_keeps_what_it_opens(node):
    """It goes from one kind of connection to another, and back. What was said on the first kind
    (that there is shared memory) was believed of the other: a call failed with EIO, and the session
    was lost with all that it had open."""
    node.empty()
    said = []
    for folder in (node.direct, node.far):
        for number in range(40):
            file = folder / f"{number:02}"
            file.write_text(f"secret {number}")
            file.chmod(0o644 if number % 3 == 0 else 0o600)
        words = [python(), "-S", "-c", textwrap.dedent(ROOT_AGAIN)]
        if folder == node.direct:
            done = subprocess.run([*words, folder], capture_output=True, text=True, timeout=120)
        else:
            done = node.run(*words, PREFIX)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


BY_NUMBER = """
    import ctypes, os, sys
    os.chdir(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    print(len(os.listdir(".")), open("secret").read())
    number = {"x86_64": 117, "aarch64": 147}[os.uname().machine]
    assert libc.syscall(number, -1, 65534, -1) == 0
    for name in ("secret", "open"):
        try:
            print(open(name).read())
        except OSError as error:
            print(error.errno)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("which", ["isolated", "node"])
def test_becoming_another_user_by_a_calls_number(request, which):
    """setresuid by syscall(): its far files were root's as before."""
    daemon = request.getfixturevalue(which)
    daemon.empty()
    said = []
    for folder in (daemon.direct, daemon.far):
        folder.chmod(0o755)
        (folder / "secret").write_text("secret")
        (folder / "secret").chmod(0o600)
        (folder / "open").write_text("open to all")
        words = [python(), "-S", "-c", textwrap.dedent(BY_NUMBER)]
        if folder == daemon.direct:
            done = subprocess.run([*words, folder], capture_output=True, text=True, timeout=120)
        else:
            done = daemon.run(*words, PREFIX)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] == "2 secret\n13\nopen to all\n"


ALLOCATES = """
    import ctypes, os, sys
    os.chdir(sys.argv[1])
    held = os.open("held", os.O_RDONLY)
    for name in ("one", "two"):
        os.close(os.open(name, os.O_RDONLY))
    library = ctypes.CDLL(None)
    library.zazen_forward_allocate.restype = ctypes.c_void_p
    print(library.zazen_forward_allocate(ctypes.c_size_t(4096)), os.pread(held, 10, 0), open("one").read())
"""


def test_a_program_that_asks_for_memory_keeps_what_is_open(node):
    """The library's own memory, which is not to be had from another node: a close that nobody waits
    for was answered in place of that, and the session was lost."""
    node.empty()
    for name in ("held", "one", "two"):
        (node.far / name).write_text(name)
    done = node.run(python(), "-S", "-c", textwrap.dedent(ALLOCATES), PREFIX)
    assert done.stdout == "None b'held' one\n", done.stderr


# Tells its go-between's socket, and ends with its input.
SOCKET_IS = "import os; print(os.environ['ZAZEN_FORWARD_SOCKET'], flush=True); input()"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stranger_at_a_go_between(node):
    """A program of root's that becomes another user gets to its files; that user's other programs
    don't, though they get to the socket. With a tight umask, too."""
    node.empty()
    ask = [node.programs / "zazen", "run", "--relay", "--forward", f"{PREFIX}={node.far}"]
    ask += ["--library", node.library]
    command = ["sh", "-c", 'umask 077; exec "$@"', "-", *node.command(), python(), "-c", SOCKET_IS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        socket = program.stdout.readline().strip()
        words = [*ask, "--socket", socket, "--", "/bin/true"]
        refused = subprocess.run(
            words, user=65534, group=65534, extra_groups=[], capture_output=True, text=True
        )
        program.communicate("\n", timeout=60)
    assert (refused.returncode != 0, "serves another user" in refused.stderr) == (True, True), refused.stderr
    (node.far / "secret").write_text("secret")
    (node.far / "secret").chmod(0o600)
    (node.far / "told").write_text("told")
    code = "import os, sys; os.setgroups([]); os.setresgid(5, 5, 5); os.setresuid(5, 5, 5)\n"
    code += f"print(open('{PREFIX}/told').read())\n"
    code += f"try: open('{PREFIX}/secret')\n"
    code += "except PermissionError: print('denied')\n"
    words = ["sh", "-c", 'umask 077; exec "$@"', "-", *node.command(), python(), "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["told", "denied"], done.stderr


LINKS_WITH_SLASHES = """
import errno, os, sys
os.chdir(sys.argv[1])
os.mkdir("folder"); open("folder/file", "w").close(); open("file", "w").close()
for name in ("file", "folder", "none", "folder/file", "file/..", "file/.", "folder/..", "folder/."):
    for end in ("", "/"):
        os.symlink(f"{sys.argv[1]}/{name}{end}", "link")
        os.symlink("link", "second")
        for at in ("link", "second", "link/", "second/"):
            for flags in (os.O_RDONLY, os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_PATH | os.O_DIRECTORY):
                try:
                    os.close(os.open(at, flags))
                    said = "opened"
                except OSError as error:
                    said = errno.errorcode[error.errno]
                print(name + end, at, flags, said)
            for call in (os.stat, os.lstat, os.listdir):
                try:
                    call(at)
                    said = "done"
                except OSError as error:
                    said = errno.errorcode[error.errno]
                print(name + end, at, call.__name__, said)
        os.unlink("link"); os.unlink("second")
"""


@pytest.mark.parametrize("which", ["daemon", "isolated", "node"])
def test_absolute_links_with_slashes_at_their_end(request, which):
    """One that named a file with a slash behind it was opened by O_PATH."""
    daemon = request.getfixturevalue(which)
    daemon.empty()
    words = [python(), "-c", LINKS_WITH_SLASHES]
    direct = subprocess.run([*words, daemon.direct], capture_output=True, text=True, timeout=60)
    there = daemon.run(*words, PREFIX)
    assert "ENOTDIR" in direct.stdout and direct.returncode == 0, direct.stderr
    assert there.stdout == direct.stdout, there.stderr


def test_addresses_that_are_none(daemon):
    """EFAULT, not a crash."""
    daemon.empty()
    code = (
        "import ctypes,os,sys\n"
        "c=ctypes.CDLL(None,use_errno=True); f=sys.argv[1].encode()+b'/f'; fd=os.open(f,os.O_RDWR|os.O_CREAT)\n"
        "p=ctypes.c_void_p; bad=(p(None),p(-1),p(8))\n"
        "def said(r): return r, ctypes.get_errno()\n"
        "print([said(c.mkdir(b,0o755)) for b in bad], [said(c.link(f,b)) for b in bad], [said(c.rename(b,f)) for b in bad])\n"
        "print([said(c.symlink(b,f)) for b in bad], [said(c.write(fd,b,5)) for b in bad])\n"
        "os.write(fd,b'x'*9); print([said(c.pread(fd,b,5,0)) for b in bad], os.pread(fd,9,0))\n"
    )
    direct = subprocess.run([python(), "-c", code, str(daemon.direct)], capture_output=True, text=True)
    forwarded = daemon.run(python(), "-c", code, PREFIX)
    assert forwarded.returncode == 0, forwarded.stderr
    assert forwarded.stdout == direct.stdout


def test_paths_as_long_as_they_may_be(daemon):
    """Also where they are longer at the far side: FAR is longer than PREFIX here."""
    daemon.empty()
    code = (
        "import os,sys\n"
        "p=sys.argv[1]\n"
        "while len(p)<3850: p+='/'+'d'*200; os.mkdir(p)\n"
        "f=p+'/'+'f'*(4094-len(p)); open(f,'w').write('x'); print(len(f), os.stat(f).st_size)\n"
        "g=f[:-1]+'g'; os.rename(f,g); os.link(g,f); os.chmod(f,0o600); os.truncate(f,5)\n"
        "print(len(os.listdir(p)), os.path.exists(g), open(g).read()); os.unlink(g)\n"
        "if os.fork()==0: print(os.stat(f).st_nlink, flush=True); os._exit(0)\n"
        "os.wait(); print(os.system(f'test -f {f}'))\n"
        "try: open(f+'h','w')\n"
        "except OSError as e: print(e.errno)\n"
    )
    direct = subprocess.run([python(), "-c", code, str(daemon.direct)], capture_output=True, text=True)
    forwarded = daemon.run(python(), "-c", code, PREFIX, options=["--abort-on-escape"])
    assert direct.returncode == 0, direct.stderr
    assert forwarded.stdout == direct.stdout, forwarded.stderr


def test_direct_gives_real_descriptors(daemon):
    daemon.empty()
    code = (
        "import mmap,os,sys\n"
        "f=open(sys.argv[1],'w+b'); f.truncate(4096); m=mmap.mmap(f.fileno(),4096); m[:5]=b'abcde'; m.flush()\n"
        "print(open(sys.argv[1],'rb').read(5), os.readlink(f'/proc/self/fd/{f.fileno()}'))\n"
    )
    done = daemon.run(python(), "-c", code, f"{PREFIX}/m", options=["--direct"])
    assert done.stdout.strip() == f"b'abcde' {PREFIX}/m"
    mapped = daemon.run(python(), "-c", code, f"{PREFIX}/m")
    assert mapped.stdout.strip() == f"b'abcde' {PREFIX}/m"


@needs("strace")
def test_nothing_reaches_this_kernel(daemon):
    """No system call names the forwarded prefix."""
    daemon.empty()
    log = daemon.folder / "strace"
    script = f"cd {PREFIX} && seq 99 > a && sort -r a > b && cp b c && tar cf d c && ls -l && cat < d | wc -c"
    done = daemon.run("strace", "-f", "-s", "200", "-e", "trace=file", "-o", str(log), "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    calls = [line for line in log.read_text().splitlines() if f'"{PREFIX}' in line]
    assert [line for line in calls if "execve(" not in line] == []


def test_killed_clients_leave_nothing(daemon):
    daemon.empty()
    code = (
        "import fcntl,os,sys,time\n"
        "fs=[open(f'{sys.argv[1]}/f{i}','w+') for i in range(20)]\n"
        "[fcntl.lockf(f,fcntl.LOCK_SH) for f in fs]; os.fork(); print('up',flush=True); time.sleep(100)\n"
    )
    before = daemon.descriptors()
    for _ in range(5):
        command = [*daemon.command(), python(), "-c", code, PREFIX]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        process.stdout.readline(), process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    until = time.monotonic() + 60
    while daemon.descriptors() > before and time.monotonic() < until:
        time.sleep(0.1)
    assert daemon.descriptors() <= before
    locked = "import fcntl,sys; fcntl.lockf(open(sys.argv[1]+'/f1','r+'),fcntl.LOCK_EX|fcntl.LOCK_NB)"
    assert daemon.run(python(), "-c", locked, PREFIX).returncode == 0


def test_refusals_say_what_to_do(daemon):
    def said(*words):
        done = subprocess.run([str(daemon.programs / "zazen"), "run", *words], capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    assert "no daemon" in said("--socket", "/nowhere/s", "--forward", "/x", "--", "true")
    assert "far side's path" in said("--forward", "/x=y", "--", "true")
    assert "not found" in said(
        "--socket", str(daemon.socket), "--forward", "/x", "--", "no-such-program-there"
    )
