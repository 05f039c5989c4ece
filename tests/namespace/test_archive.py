"""The archive, as the command shows it and waits for it."""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zazen.testing
from zazen import namespace


def run(daemon, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [zazen.testing.program("zazen"), "namespace", *map(str, words), "--socket", daemon.socket]
    done = subprocess.run(
        command, env=zazen.testing.environment(), text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == status, done
    return done


@contextlib.contextmanager
def a_daemon(*, archives: bool) -> Iterator[tuple[zazen.testing.Daemon, Path]]:
    """A daemon with a namespace of its own, and the folder of its archive."""
    with tempfile.TemporaryDirectory(prefix="zna-", dir="/tmp") as folder:
        place, archive = Path(folder), Path(folder, "lustre")
        for name in ("backing", "node", "lustre"):
            (place / name).mkdir(mode=0o755)
        told = ["--namespace", place / "data", "--namespace-format", "--namespace-root", "trust"]
        if archives:
            told += ["--namespace-archive", archive, "--namespace-archive-after", "1"]
        with zazen.testing.Daemon(place / "node", place / "backing", arguments=told) as daemon:
            yield daemon, archive


def test_waiting_ends_when_the_archive_has_all_files_with_their_names():
    with a_daemon(archives=True) as (daemon, archive):
        ns = namespace.Namespace(daemon.socket, umask=0o022)
        ns.mkdir("/scratch")
        run(daemon, "set", "/scratch", "--archive", "no")
        assert ns.getxattr("/scratch", "user.zazen.archive") == b"no"
        ns.makedirs("/run1/deep")
        for number in range(20):
            ns.write_bytes(f"/run1/deep/{number}", os.urandom(1000 + number))
        ns.write_bytes("/scratch/f", b"not for the archive")
        ns.write_bytes("/run1/empty", b"")
        done = run(daemon, "archive", "--wait", "--json")
        found = json.loads(done.stdout)
        assert (found["waiting"], found["files"], found["names"]["lacking"]) == (0, 20, 0)
        for number in range(20):
            name = f"run1/deep/{number}"
            assert (archive / name).read_bytes() == ns.read_bytes(f"/{name}")
        assert (archive / "run1/empty").exists() and not (archive / "scratch/f").exists()
        said = run(daemon, "archive").stdout
        assert "20 files" in said and "0 wait" in said
        located = json.loads(run(daemon, "locate", "/run1/deep/3", "/scratch/f", "--json").stdout)
        assert [file["archived"] for file in located] == [True, False]
        assert "archive" in run(daemon, "locate", "/run1/deep/3").stdout


def test_files_in_chunks_are_files_there():
    with a_daemon(archives=True) as (daemon, archive):
        ns = namespace.Namespace(daemon.socket)
        ns.mkdir("/shared")
        run(daemon, "set", "/shared", "--chunks", 1)
        data = os.urandom((1 << 20) + 5)
        ns.write_bytes("/shared/f", data)
        ns.write_bytes("/plain", b"plain")
        # Nobody has written to these; one has a length.
        ns.write_bytes("/shared/empty", b"")
        ns.write_bytes("/shared/hole", b"")
        ns.truncate("/shared/hole", 3 << 20)
        found = json.loads(run(daemon, "archive", "--wait", "--json").stdout)
        # Each chunk is archived by itself, too.
        assert (found["waiting"], found["files"], found["names"]["lacking"]) == (0, 3, 0)
        assert (archive / "plain").read_bytes() == b"plain"
        assert (archive / "shared/f").read_bytes() == data == ns.read_bytes("/shared/f")
        assert (archive / "shared/empty").read_bytes() == b""
        assert (archive / "shared/hole").read_bytes() == bytes(3 << 20)
        (found,) = json.loads(run(daemon, "locate", "/shared/f", "--json").stdout)
        assert (found["chunks"], found["archived"]) == (2, True)
        assert "archive" in run(daemon, "locate", "/shared/f").stdout
        (place_of,) = ns.locate(["/shared/f"])
        assert [holder.bytes for holder in place_of.holders] == [len(data)]


def test_a_file_in_chunks_follows_its_wish():
    with a_daemon(archives=True) as (daemon, archive):
        ns = namespace.Namespace(daemon.socket)
        ns.mkdir("/scratch")
        run(daemon, "set", "/scratch", "--chunks", 1, "--archive", "no")
        ns.write_bytes("/scratch/f", b"x" * ((1 << 20) + 5))
        ns.link("/scratch/f", "/scratch/g")
        found = json.loads(run(daemon, "archive", "--wait", "--json").stdout)
        assert (found["files"], found["names"]["lacking"]) == (0, 0)
        run(daemon, "set", "/scratch/f", "--archive", "yes")
        run(daemon, "archive", "--wait")
        names = [archive / "scratch" / name for name in "fg"]
        assert [name.read_bytes() for name in names] == [ns.read_bytes("/scratch/f")] * 2
        assert os.path.samefile(*names)


def test_a_daemon_without_an_archive_says_so():
    with a_daemon(archives=False) as (daemon, _):
        namespace.Namespace(daemon.socket).listdir("/")  # it takes part by now
        assert "archives nothing" in run(daemon, "archive", "--wait", status=1).stderr
        assert "--copies" in run(daemon, "set", "/", status=1).stderr
