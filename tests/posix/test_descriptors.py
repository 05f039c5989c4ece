"""Descriptors: their names in /dev and /proc, and their limits."""

import os
import shutil
import subprocess

import pytest
from harness import PREFIX, Daemon, python

NAMED = """
cd {0}
printf 'one\\ntwo\\nthree\\n' > in
cat /dev/stdin < in
cat /dev/fd/0 < in; cat /proc/self/fd/0 < in
head -1 < in; (read x; cat /dev/fd/0) < in; cp /dev/stdin copy < in; cmp in copy && echo same
echo out > /dev/stdout; echo err > /dev/stderr
{{ echo to out > /dev/stdout; echo to err > /dev/stderr; }} > out 2> err; cat out err
{{ echo first; echo second >> /dev/stdout; }} >> more; cat more
tee /dev/fd/2 < in 2> copied; cat copied
exec 7<> file; echo seven >&7; cat /dev/fd/7 /proc/self/fd/7
wc -c < /dev/fd/7; stat -L -c %s /dev/fd/7; test -s /dev/fd/7 && echo big; test -L /dev/fd/7 && echo link
chmod 640 /dev/fd/7; stat -c %a file; touch -d @1000 /proc/self/fd/7; stat -c %Y file; truncate -s 3 /dev/fd/7
cat file; echo
bash -c 'basename $(readlink /proc/self/fd/7)'; basename $(realpath /dev/fd/7)
exec 8< .; ls /dev/fd/8/ | sort | tr '\\n' ' '; cat /dev/fd/8/in | wc -l; (cd /dev/fd/8 && cat in | wc -l)
rm file; cat /dev/fd/7; echo; exec 9< in; diff /dev/fd/9 in && echo equal
sort -o /dev/stdout in; awk '{{ print $1 > "/dev/stderr" }}' in 2> awked; cat awked
bash -c 'echo $((1 + 1)) | cat /dev/stdin in | wc -l'; cat <(cat in) | wc -l
echo missing | cat /dev/fd/77 2> /dev/null || echo none
"""


LINKED = """
import ctypes, os, sys
os.chdir(sys.argv[1])
fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
os.write(fd, b"linked")
print(ctypes.CDLL(None).linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"linked", 0x400))
print(open("linked").read(), open("/proc/self/cwd/linked").read())
print(os.readlink("/proc/self/cwd") == sys.argv[1])
"""


def test_a_file_that_is_not_open_has_no_locks_to_ask_for(daemon):
    words = "import fcntl, os, struct, sys; fd = os.open(sys.argv[1], os.O_PATH)\n"
    words += "try: print(fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)))\n"
    words += "except OSError as error: print(error.errno)"
    daemon.empty()
    (daemon.far / "file").touch()
    direct = subprocess.run([python(), "-c", words, daemon.far / "file"], capture_output=True, text=True)
    there = daemon.run(python(), "-c", words, f"{PREFIX}/file")
    assert (direct.stdout, there.stdout) == ("9\n", "9\n"), there.stderr


def test_a_file_without_a_name_gets_one(daemon):
    daemon.empty()
    words = [python(), "-c", LINKED]
    direct = subprocess.run([*words, daemon.direct], capture_output=True, text=True)
    assert direct.stdout == "0\nlinked linked\nTrue\n"
    there = daemon.run(*words, PREFIX)
    assert there.stdout == direct.stdout, there.stderr


@pytest.mark.parametrize("options", [[], ["--direct"], ["--seccomp"]], ids=["forwarded", "direct", "seccomp"])
def test_names_of_descriptors(daemon, options):
    daemon.empty()
    script = NAMED.replace("{1}", python()).replace("{{", "{").replace("}}", "}")
    if "--seccomp" in options:
        script = script.replace("cd /dev/fd/8 &&", "")
    words = ["bash", "-c", script.replace("{0}", str(daemon.direct))]
    direct = subprocess.run(words, capture_output=True, text=True)
    assert direct.stdout.count("\n") > 45 and "none" in direct.stdout
    there = daemon.run("bash", "-c", script.replace("{0}", PREFIX), options=options)
    forwarded = there.stdout.replace(PREFIX, str(daemon.direct)).replace("zazen-forwarded", "direct")
    if "--seccomp" in options:
        forwarded = forwarded.replace("far", "direct")
    assert forwarded.splitlines() == direct.stdout.splitlines(), there.stderr
    assert there.stderr.replace(PREFIX, str(daemon.direct)) == direct.stderr


AT_THE_LIMIT = """
import errno, mmap, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.chdir(sys.argv[1])
open("f", "w").write("hello")
def attempt(what, *words):
    try:
        print(what.__name__, type(what(*words)).__name__)
    except OSError as error:
        print(what.__name__, errno.errorcode[error.errno])
fds = []
while True:
    try:
        fds.append(os.open("f", os.O_RDONLY))
    except OSError as error:
        print(len(fds) > 20, errno.errorcode[error.errno])
        break
attempt(os.open, "new", os.O_CREAT | os.O_WRONLY)
attempt(os.open, "f", os.O_RDONLY)
attempt(os.dup, fds[0])
attempt(open, "f")
attempt(os.scandir, ".")
print(os.stat("f").st_size, os.path.exists("new"), os.read(fds[5], 2))
os.rename("f", "g")
sys.stdout.flush()
if os.fork() == 0:
    print("child", os.read(fds[5], 2), os.fstat(fds[-1]).st_size, [os.read(fd, 1) for fd in fds[10:14]])
    sys.stdout.flush()
    os._exit(0)
os.wait()
print(os.read(fds[5], 5))
os.close(fds.pop())
fds.append(os.open("g", os.O_RDONLY))
for fd in fds[10:]:
    os.close(fd)
print(open("g").read(), os.listdir("."))
"""


@pytest.mark.parametrize("mode", ["forwarded", "direct", "seccomp", "node", "detector"])
def test_a_program_at_its_limit(request, mode):
    """--direct hung for ever; a file was created though open said EMFILE; the detector of escapes
    took two numbers for an open."""
    daemon = request.getfixturevalue("node" if mode == "node" else "isolated")
    daemon.empty()
    options = {"direct": ["--direct"], "seccomp": ["--seccomp"], "detector": ["--abort-on-escape"]}
    options = options.get(mode, [])
    words = [python(), "-c", AT_THE_LIMIT]
    direct = subprocess.run([*words, daemon.direct], capture_output=True, text=True, timeout=60)
    assert "True EMFILE" in direct.stdout and "['g']" in direct.stdout
    there = daemon.run(*words, PREFIX, options=options, timeout=60)
    expected = direct.stdout
    if mode == "seccomp":
        # The supervisor learns that there is no room when it hands over what it opened.
        expected = expected.replace("5 False", "5 True").replace("['g']", "['new', 'g']")
        assert (daemon.far / "new").stat().st_size == 0
    assert there.stdout == expected, there.stderr


HOLDER = """
import errno, os, sys
fds = []
while True:
    try:
        fds.append(os.open(sys.argv[1], os.O_RDONLY))
    except OSError as error:
        print(errno.errorcode[error.errno], len(fds), flush=True)
        break
sys.stdin.read()
"""


def test_one_program_does_not_take_the_descriptors_of_another(programs, tmp_path):
    limit = 1000
    wrapper = tmp_path / "programs"
    wrapper.mkdir()
    for name in os.listdir(programs):
        if name in ("zazen", "libzazen_posix.so", "libzazen_preload.so"):
            (wrapper / name).symlink_to(programs / name)
    (wrapper / "zazend").write_text(f'#!/bin/sh\nulimit -n {limit}\nexec {programs}/zazend "$@"\n')
    (wrapper / "zazend").chmod(0o755)
    with Daemon(wrapper, isolated=True) as daemon:
        (daemon.far / "f").write_text("still here")
        words = [*daemon.command(), python(), "-c", HOLDER, f"{PREFIX}/f"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            name, count = holder.stdout.readline().split()
            assert name == "EMFILE" and 100 < int(count) <= limit // 4
            done = daemon.run("cat", *[f"{PREFIX}/f"] * 20)
            assert done.stdout == "still here" * 20, done.stderr
            holder.stdin.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
def test_more_streams_than_before(daemon, tmp_path):
    """fileno failed beyond 4,096 streams."""
    source = tmp_path / "many.c"
    source.write_text(
        "#include <stdio.h>\nint main(int c, char **v) { int i, good = 0; for (i = 0; i < 4500; i++) {"
        ' FILE *f = fopen(v[1], "a"); if (!f) return 1; good += fileno(f) > 2; fputc(46, f); }'
        ' printf("%d %d\\n", good, i); return 0; }\n'
    )
    subprocess.run(["cc", "-o", tmp_path / "many", source], check=True)
    daemon.empty()
    script = f"ulimit -n 8000 && {tmp_path}/many {PREFIX}/f"
    done = daemon.run("bash", "-c", script)
    if "ulimit" in done.stderr:
        pytest.skip("no more than 8,000 descriptors are allowed here")
    assert done.stdout == "4500 4500\n" and (daemon.far / "f").stat().st_size == 4500
