"""Programs that no library can be put into: `zazen run --seccomp`, and the same programs on a plain
folder."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from differential import Comparison, report
from harness import PREFIX, Daemon
from test_forwarding import SCRIPTS

HERE = Path(__file__).parent


def is_static(program: str | None) -> bool:
    if program is None:
        return False
    told = subprocess.run(["ldd", program], capture_output=True, text=True)
    return "not a dynamic" in told.stderr + told.stdout or "statically" in told.stdout


@pytest.fixture(scope="session")
def static(daemon):
    """static.c as a statically linked program, where every user may run it."""
    program = daemon.folder / "static"
    words = ["cc", "-static", "-pthread", "-O1", "-o", str(program), str(HERE / "static.c")]
    done = subprocess.run(words, capture_output=True, text=True) if shutil.which("cc") else None
    if done is None or done.returncode != 0:
        pytest.skip("no C compiler with a static libc: " + (done.stderr[-200:] if done else "cc is missing"))
    program.chmod(0o755)
    return str(program)


def both(daemon, *words: str, at: int) -> tuple[str, str]:
    """What a program says of the plain folder, and of the forwarded one, which is its argument
    number `at`."""
    daemon.empty()
    direct, forwarded = list(words), list(words)
    direct[at], forwarded[at] = str(daemon.direct), PREFIX
    plain = subprocess.run(direct, capture_output=True, text=True, timeout=60)
    there = daemon.run(*forwarded, options=["--seccomp"])
    assert not os.path.lexists(PREFIX)
    assert there.returncode == plain.returncode, there.stderr
    return plain.stdout, there.stdout


def test_operations_of_a_static_program(daemon, static):
    direct, forwarded = both(daemon, static, PREFIX, at=1)
    assert len(direct.splitlines()) > 100
    assert forwarded == direct
    difference = subprocess.run(["diff", "-r", "--no-dereference", daemon.direct / "d", daemon.far / "d"])
    assert difference.returncode == 0
    # The link leads to the same file, which has another name there.
    assert os.readlink(daemon.far / "absolute") == f"{daemon.far}/a"
    assert (daemon.far / "a").stat().st_size == 5


def test_system_calls_by_number(daemon, static):
    direct, forwarded = both(daemon, static, PREFIX, "raw", at=1)
    assert forwarded == direct
    assert (daemon.far / "raw").read_bytes() == b"raw"


def test_opening_that_waits(daemon, static):
    """FIFOs: others go on meanwhile, signals end it."""
    direct, forwarded = both(daemon, static, PREFIX, "waiting", at=1)
    assert "EINTR" in direct and "through" in direct
    assert forwarded == direct


def test_between_prefix_and_rest(daemon, static, tmp_path):
    daemon.empty()
    said = daemon.run(static, PREFIX, "border", tmp_path, options=["--seccomp"]).stdout.splitlines()
    assert [line.split(": ")[1] for line in said] == ["EXDEV"] * 4 + ["EACCES", "ENOENT"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user(isolated, static):
    isolated.empty()
    for folder in (isolated.far, isolated.direct):
        for name, mode in (("secret", 0o600), ("public", 0o644)):
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
    plain = subprocess.run([static, isolated.direct, "denied", "65534"], capture_output=True, text=True)
    there = isolated.run(static, PREFIX, "denied", "65534", options=["--seccomp"])
    assert plain.stdout.count("EACCES") == 3
    assert there.stdout == plain.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_privilege(isolated, static):
    """Started by a user who is not root, with a daemon that is."""
    isolated.empty()
    isolated.far.chmod(0o777)
    zazen = Path(shutil.copy(isolated.programs / "zazen", isolated.folder))
    try:
        command = [str(zazen), *isolated.command("--seccomp")[1:], static, PREFIX, "raw"]
        user = {"user": 65534, "group": 65534, "extra_groups": []}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", **user)
    finally:
        zazen.unlink()
    assert done.returncode == 5 and 'syscall(SYS_write, fd, "raw", 3): 3' in done.stdout, done.stderr
    assert (isolated.far / "raw").stat().st_uid == 65534


def test_a_killed_daemon_is_an_error_of_the_disk(programs, static):
    with Daemon(programs) as daemon:
        command = [*daemon.command("--seccomp"), static, PREFIX, "until-lost"]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdout.readline() == "stat(root, &s): 0\n"
        daemon.kill()
        said = program.communicate("\n", timeout=60)[0].splitlines()
        assert [line.rsplit(": ")[1] for line in said] == ["10", "EIO", "EIO", "0"]
        assert program.returncode == 5


def test_how_programs_end(daemon):
    def run(script: str) -> int:
        return daemon.run("sh", "-c", script, options=["--seccomp"]).returncode

    assert run("exit 7") == 7
    assert run("kill -9 $$") == 128 + signal.SIGKILL
    missing = daemon.run("/no/such/program", options=["--seccomp"])
    assert missing.returncode == 1 and "No such file" in missing.stderr
    program = subprocess.Popen(
        [
            *daemon.command("--seccomp"),
            "sh",
            "-c",
            "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done",
        ],
        stdout=subprocess.PIPE,
    )
    program.stdout.readline()
    program.terminate()
    assert program.wait(20) == 9
    program.stdout.close()


def test_who_stays_behind_is_served_on(daemon):
    """The program has ended; what it started has not."""
    daemon.empty()
    script = f"(sleep 0.3; echo late > {PREFIX}/late) > /dev/null 2>&1 & exit 3"
    assert daemon.run("sh", "-c", script, options=["--seccomp"]).returncode == 3
    until = time.monotonic() + 60
    while not (daemon.far / "late").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert (daemon.far / "late").read_text() in ("", "late\n")


CLOSED = """
import fcntl, os, sys
os.chdir(sys.argv[1])
os.mkfifo("pipe")
for turn in range(400):
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open("pipe", os.O_WRONLY)
    os.close(reader)
    try:
        sys.exit(os.write(writer, b"into nothing"))
    except BrokenPipeError:
        os.close(writer)
    for lock in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        one = os.open("file", os.O_RDWR | os.O_CREAT)
        fcntl.flock(one, lock | fcntl.LOCK_NB)
        os.close(one)
    leased = os.open("file", os.O_RDWR)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    os.close(leased)
print("closed")
"""


def test_what_the_program_closes_is_closed(daemon):
    """The supervisor keeps no copy: not a FIFO's end, nor a lock, nor a lease, for no moment."""
    daemon.empty()
    done = daemon.run("python3", "-c", CLOSED, PREFIX, options=["--seccomp"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_random_operations(daemon):
    """Of a dynamically linked program: its system calls are the same."""
    for seeds, steps, processes in ((range(600, 604), 200, 1), (range(700, 703), 200, 3)):
        command = daemon.command("--seccomp")
        comparison = Comparison(str(daemon.direct / "d"), f"{PREFIX}/d", str(daemon.far / "d"), command, {})
        for seed in seeds:
            if comparison.differs(seed, steps, processes):
                pytest.fail(report(comparison, seed, steps, processes))


@pytest.mark.parametrize("name", ["coreutils", "shell", "tar"])
def test_dynamically_linked_programs(daemon, name):
    script = f"cd $0\n{SCRIPTS[name]}"
    direct, forwarded = both(daemon, "bash", "-c", script, PREFIX, at=3)
    assert direct and forwarded == direct
    # Archives have the time in them; a link to nothing is a trouble to diff, not a difference.
    words = ["diff", "-r", "--exclude=*.t*", str(daemon.direct), str(daemon.far)]
    assert subprocess.run(words, capture_output=True, text=True).stdout == ""


@pytest.mark.skipif(not is_static(shutil.which("busybox")), reason="no statically linked busybox")
def test_busybox(daemon):
    script = (
        "cd $0; seq 1000 > n; sort -r n > r; mkdir d; cp n r d; tar c d | tar t | sort; rm n; ls; wc -c d/*"
    )
    direct, forwarded = both(daemon, "busybox", "sh", "-c", script, PREFIX, at=4)
    assert forwarded == direct


GO = """package main
import ("fmt"; "os"; "sync")
func main() {
	var all sync.WaitGroup
	for i := 0; i < 100; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			name := fmt.Sprintf("%s/f%d", os.Args[1], i)
			if err := os.WriteFile(name, []byte(name[len(os.Args[1]):]), 0644); err != nil { fmt.Println(err) }
			if read, err := os.ReadFile(name); err != nil || string(read) != name[len(os.Args[1]):] { fmt.Println(err) }
		}()
	}
	all.Wait()
	entries, err := os.ReadDir(os.Args[1])
	fmt.Println(len(entries), err)
}
"""


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go compiler")
@pytest.mark.skipif("ZAZEN_TEST_GO" not in os.environ, reason="takes a minute at first: set ZAZEN_TEST_GO")
def test_go(daemon, tmp_path):
    (tmp_path / "go.mod").write_text("module x\ngo 1.22\n")
    (tmp_path / "x.go").write_text(GO)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    subprocess.run(["go", "build", "-o", "x"], cwd=tmp_path, env=environment, check=True)
    direct, forwarded = both(daemon, str(tmp_path / "x"), PREFIX, at=1)
    assert forwarded == direct == "100 <nil>\n"


def test_refusals_name_the_next_step(daemon, static):
    without = daemon.run(static, PREFIX)
    assert without.returncode == 1 and "statically linked" in without.stderr and "--seccomp" in without.stderr
    words = ["run", "--node", "127.0.0.1:1", "--key", "k", "--seccomp", "--forward", PREFIX, "--", "true"]
    other = subprocess.run([str(daemon.programs / "zazen"), *words], capture_output=True, text=True)
    assert other.returncode == 2 and "--seccomp" in other.stderr and "--node" in other.stderr
    # One supervisor is all that the kernel allows.
    again = daemon.run(*daemon.command("--seccomp"), "true", options=["--seccomp"])
    assert again.returncode == 1 and "supervised already" in again.stderr
