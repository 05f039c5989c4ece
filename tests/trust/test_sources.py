"""A cached frame is this frame of this source, or it is not used.

Most tests need no root: one user, careless. The last ones have user B push under A's names.
"""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
import zazen
import zazen.testing

from conftest import read_frames, write_frames

SIZE = 140_000


def settle():
    """Waits until what was written is old enough to be told from what is written next."""
    time.sleep(0.03)


@pytest.fixture
def site(tmp_path_factory):
    """A daemon of this user's over an empty backing store."""
    folder = tmp_path_factory.mktemp("z")
    backing = folder / "backing"
    backing.mkdir()
    with zazen.testing.Cluster(folder / "c", backing) as cluster:
        yield cluster


def files(folder, name, marks, size=SIZE):
    """Files `name` 0, 1, … in `folder`, each full of its mark."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, mark in enumerate(marks):
        (folder / name.format(number)).write_bytes(bytes([mark]) * size)
    settle()
    return folder


def marks(site, dataset, **options):
    """What frames say: their numbers and marks; every byte of a frame is its mark."""
    found = read_frames(dataset, site.sockets[0], **options)
    assert all(len(set(data)) == 1 for data in found.values())
    return {number: data[0] for number, data in found.items()}


def tool(site, *words, status=0, **more):
    environment = zazen.testing.environment()
    environment |= {"ZAZEN_SOCKET": site.sockets[0], "ZAZEN_KEY": site.key, **more}
    done = subprocess.run(
        [zazen.testing.program("zazen"), *map(str, words)],
        capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("size", [100, SIZE])
def test_two_series_of_one_directory(site, size):
    sim = files(site.backing / "sim", "pos-{}.bin", [1, 2, 3], size)
    files(sim, "vel-{}.bin", [11, 12, 13, 14], size)
    for _ in range(2):
        assert marks(site, sim, pattern="pos-{n}.bin") == {0: 1, 1: 2, 2: 3}
        assert marks(site, sim, pattern="vel-{n}.bin") == {0: 11, 1: 12, 2: 13, 3: 14}
    with zazen.open(sim, socket=site.sockets[0], pattern="vel-{n}.bin") as opened:
        assert {frame.source for frame in opened.frames()} == {"alien"}, "both are in the cache by now"
    listed = json.loads(tool(site, "datasets", "--json").stdout)["datasets"]
    assert {(row["pattern"], row["alien"]) for row in listed} == {("pos-{n}.bin", 3), ("vel-{n}.bin", 4)}
    tool(site, "evict", sim, "--pattern", "pos-{n:03}.bin")
    listed = json.loads(tool(site, "ls", sim, "--json").stdout)["nodes"]
    assert [(row["pattern"], row["alien_frames"]) for row in listed] == [("vel-{n}.bin", 4)]
    files(sim, "pos-{}.bin", [1, 2, 3], size)
    assert marks(site, sim, pattern="pos-{n}.bin") == {0: 1, 1: 2, 2: 3}
    tool(site, "evict", sim)
    assert json.loads(tool(site, "datasets", "--json").stdout)["datasets"] == []


def test_a_width_is_another_file(site):
    sim = files(site.backing / "sim", "f-{}", [1, 2])
    files(sim, "f-{:03}", [11, 12])
    for _ in range(2):
        assert marks(site, sim, pattern="f-{n:03}") == {0: 11, 1: 12}
        assert marks(site, sim, pattern="f-{n}") == {0: 1, 1: 2}


def test_a_directory_within_another_datasets_frames(site):
    inner = files(site.backing / "proj/run1", "f-{}", [1, 2, 3])
    assert marks(site, site.backing / "proj", pattern="run1/f-{n}") == {0: 1, 1: 2, 2: 3}
    assert marks(site, inner) == {0: 1, 1: 2, 2: 3}
    assert marks(site, site.backing, pattern="proj/run1/f-{n}") == {0: 1, 1: 2, 2: 3}
    for number in range(3):
        (inner / f"f-{number}").write_bytes(bytes([number + 21]) * SIZE)
    settle()
    for dataset, pattern in [(inner, None), (site.backing / "proj", "run1/f-{n}")]:
        assert marks(site, dataset, pattern=pattern) == {0: 21, 1: 22, 2: 23}


def test_a_corrected_manifest_counts(site):
    sim = site.backing / "sim"
    sim.mkdir()
    frames = b"".join(bytes([mark]) * SIZE for mark in (1, 2, 3))
    (sim / "a.dcd").write_bytes(bytes(SIZE) + frames)
    (sim / "b.dcd").write_bytes(bytes(2 * SIZE) + frames)

    def manifest(path, offset):
        text = f'[[pieces]]\npath = "{path}"\nfirst = 0\ncount = 3\noffset = {offset}\nframe_bytes = {SIZE}\n'
        (sim / "zazen.toml").write_text(text)

    settle()
    manifest("a.dcd", 0)
    assert marks(site, sim) == {0: 0, 1: 1, 2: 2}
    manifest("a.dcd", SIZE)
    assert marks(site, sim) == {0: 1, 1: 2, 2: 3}
    manifest("b.dcd", SIZE)
    assert marks(site, sim) == {0: 0, 1: 1, 2: 2}


def rewrite_in_place(file):
    with file.open("r+b") as opened:
        opened.write(b"\x09" * SIZE)


def rewrite_with_its_time(file):
    kept = file.stat()
    rewrite_in_place(file)
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def replace_with_its_time(file):
    kept = file.stat()
    other = file.with_name(".other")
    other.write_bytes(b"\x09" * SIZE)
    os.utime(other, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    other.rename(file)


def swap_for_a_hard_link(file):
    other = file.with_name("aside")
    other.write_bytes(b"\x09" * SIZE)
    kept = file.stat()
    os.utime(other, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    file.unlink()
    os.link(other, file)


@pytest.mark.parametrize(
    "change", [rewrite_in_place, rewrite_with_its_time, replace_with_its_time, swap_for_a_hard_link]
)
def test_a_change_of_the_same_size_is_noticed(site, change):
    sim = files(site.backing / "sim", "f-{}", [1, 2, 3])
    assert marks(site, sim) == {0: 1, 1: 2, 2: 3}
    change(sim / "f-1")
    settle()
    assert marks(site, sim) == {0: 1, 1: 9, 2: 3}


def test_a_change_right_after_a_read_is_noticed(site):
    """Times are those of the kernel's last tick: two rewrites within one leave the same."""
    sim = files(site.backing / "sim", "f-{}", [1])
    for mark in range(1, 60):
        (sim / "f-0").write_bytes(bytes([mark]) * SIZE)
        assert marks(site, sim) == {0: mark}


def test_a_directory_that_is_replaced(site):
    sim = files(site.backing / "sim", "f-{}", [1, 2])
    other = files(site.backing / "other", "f-{}", [11, 12])
    for file in other.iterdir():
        kept = (sim / file.name).stat()
        os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    settle()
    assert marks(site, sim) == {0: 1, 1: 2}
    sim.rename(site.backing / "old")
    other.rename(sim)
    assert marks(site, sim) == {0: 11, 1: 12}


def test_spellings_of_one_directory(site):
    sim = files(site.backing / "sim", "f-{}", [1, 2])
    (site.backing / "link").symlink_to("sim")
    files(site.backing / "SIM", "f-{}", [3, 4])
    files(site.backing / "si\u0301m", "f-{}", [5, 6])
    files(site.backing / "s\u00edm", "f-{}", [7, 8])
    for _ in range(2):
        for spelled in (f"{sim}/", str(sim).replace("/sim", "//sim"), site.backing / "link", sim):
            assert marks(site, spelled) == {0: 1, 1: 2}, spelled
        assert marks(site, site.backing / "SIM") == {0: 3, 1: 4}
        assert marks(site, site.backing / "si\u0301m") == {0: 5, 1: 6}
        assert marks(site, site.backing / "s\u00edm") == {0: 7, 1: 8}
    (site.backing / "link").unlink()
    (site.backing / "link").symlink_to("SIM")
    assert marks(site, site.backing / "link") == {0: 3, 1: 4}
    # Two dots after a link lead where the kernel goes, not where the text seems to.
    (site.backing / "SIM" / "deep").mkdir()
    (sim / "hop").symlink_to(site.backing / "SIM" / "deep")
    assert marks(site, f"{sim}/hop/..") == {0: 3, 1: 4}


def test_pushed_frames_stand_for_their_sources(site):
    """Pushed from memory: a native counts once its file is there, and while it stays what it was
    then."""
    sim = site.backing / "sim"
    sim.mkdir()
    with zazen.Writer(sim, site.nodes, key=site.key, pattern="f-{n}.bin", on_slow="block") as writer:
        for number in range(3):
            writer.push(number, bytes([number + 1]) * SIZE)
    assert writer.counters.pushed == 3, writer.problems
    with zazen.open(sim, socket=site.sockets[0], pattern="f-{n}.bin") as opened:
        with pytest.raises(zazen.NotFoundError):
            opened.read(0)
    files(sim, "f-{}.bin", [1, 2, 3])
    (sim / "f-2.bin").write_bytes(b"\x03" * (SIZE + 1))
    settle()
    with zazen.open(sim, socket=site.sockets[0]) as opened:
        found = {frame.number: (frame.source, len(frame.data)) for frame in opened.frames()}
    assert found == {0: ("native", SIZE), 1: ("native", SIZE), 2: ("backing", SIZE + 1)}
    rewrite_in_place(sim / "f-1.bin")
    settle()
    assert marks(site, sim) == {0: 1, 1: 9, 2: 3}


def test_a_pattern_goes_before_the_manifest(site):
    sim = files(site.backing / "sim", "pos-{}", [1, 2])
    files(sim, "vel-{}", [11, 12])
    (sim / "zazen.toml").write_text('pattern = "pos-{n}"\n')
    assert marks(site, sim) == {0: 1, 1: 2}
    assert marks(site, sim, pattern="vel-{n}") == {0: 11, 1: 12}


def test_left_out_files_are_an_error(site):
    sim = files(site.backing / "pets", "cat_{}.jpg", [1] * 10)
    files(sim, "dog_{}.jpg", [2] * 9)
    (sim / "README").write_text("x")
    words = r"cat_{n}\.jpg \(10 files\), dog_{n}\.jpg \(9 files\)"
    for options in ({"socket": site.sockets[0]}, {"direct": True}):
        with pytest.raises(zazen.InvalidArgumentError, match=words), zazen.open(sim, **options) as opened:
            opened.frames()
    with pytest.raises(zazen.InvalidArgumentError, match=words):
        zazen.Writer(sim, site.nodes, key=site.key)
    for command in (["load", sim], ["push", "--watch", sim, "--nodes", site.nodes[0], "--idle-exit", "1s"]):
        assert "dog_{n}.jpg (9 files)" in tool(site, *command, status=1).stderr
    cats = [sim / f"cat_{number}.jpg" for number in range(10)]
    told = tool(site, "push", *cats, sim / "dog_0.jpg", sim / "dog_1.jpg", "--nodes", site.nodes[0], status=1)
    assert "dog_{n}.jpg (2 files)" in told.stderr
    assert set(marks(site, sim, pattern="dog_{n}.jpg").values()) == {2}
    # All of them, by a list: numbers stay when files come.
    tool(site, "number", sim, "--ending", ".jpg")
    both = marks(site, sim)
    assert len(both) == 19 and both[0] == 1 and both[18] == 2
    files(sim, "ant_{}.jpg", [3])
    tool(site, "number", sim, "--ending", ".jpg", "--update")
    assert marks(site, sim) == both | {19: 3}
    # Or by their sorted names, without a list: ants, cats, dogs.
    by_name = marks(site, sim, pattern="*.jpg")
    assert [by_name[number] for number in range(20)] == [3] + [1] * 10 + [2] * 9
    with pytest.raises(zazen.InvalidArgumentError, match="zazen number"):
        zazen.Writer(sim, site.nodes, key=site.key, pattern="*.jpg")


def test_single_files_beside_the_frames_are_left_alone(site):
    sim = files(site.backing / "sim", "f-{}.bin", [1, 2, 3])
    for name in ("top.pdb", "run7.log", ".hidden-1.bin", "f-9.bin.tmp"):
        (sim / name).write_text("x")
    assert marks(site, sim) == {0: 1, 1: 2, 2: 3}


@pytest.mark.parametrize("name", ["traj.xtc", "run-1.nc", "md.TRR"])
def test_a_trajectory_is_not_one_frame(site, name):
    sim = site.backing / "sim"
    sim.mkdir()
    (sim / name).write_bytes(b"\x01" * SIZE)
    (sim / "top.pdb").write_text("x")
    settle()
    for options in ({"socket": site.sockets[0]}, {"direct": True}):
        with (
            pytest.raises(zazen.InvalidArgumentError, match=f"{name}.*(zazen.toml|no trajectory)"),
            zazen.open(sim, **options) as opened,
        ):
            opened.frames()
    if "1" in name:
        assert marks(site, sim, pattern=name.replace("1", "{n}")) == {1: 1}


def path_is_the_frame(frame):
    number, data, path = frame
    assert Path(path).read_bytes() == bytes(data) and os.path.isabs(path)
    assert Path(frame.path).read_bytes() == bytes(data)
    if frame.container is not None:
        with open(frame.container, "rb") as file:
            file.seek(frame.offset)
            assert file.read(frame.length) == bytes(data)
    return number


@pytest.mark.parametrize("size", [100, SIZE])
def test_a_path_leads_to_this_frame_alone(site, size):
    sim = files(site.backing / "sim", "f-{}.npy", range(1, 20), size)
    trajectory = site.backing / "traj"
    trajectory.mkdir()
    (trajectory / "t.dcd").write_bytes(b"".join(bytes([mark]) * size for mark in range(20)))
    (trajectory / "zazen.toml").write_text(
        f'[[pieces]]\npath = "t.dcd"\nfirst = 0\ncount = 20\nframe_bytes = {size}\n'
    )
    settle()
    for dataset, count in ((sim, 19), (trajectory, 20)):
        for options in ({"socket": site.sockets[0]}, {"socket": site.sockets[0]}, {"direct": True}):
            with zazen.open(dataset, **options) as opened:
                assert len({path_is_the_frame(frame) for frame in opened.frames()}) == count
    with zazen.open(sim, socket=site.sockets[0]) as opened:
        frame = opened.read(3)
        path = Path(frame.path)
        assert path.suffix == ".npy" or size == 100
        made = path.is_symlink()
        assert made == (size == 100)
        del frame
        assert path.exists() != made, "a made file goes with its frame"


def test_a_forgotten_communicator_is_an_error(site, monkeypatch):
    sim = files(site.backing / "sim", "f-{}.bin", [1, 2, 3])
    with zazen.open(sim, socket=site.sockets[0]) as opened:
        monkeypatch.setenv("PMI_SIZE", "4")
        for call in (opened.frames, opened.assign):
            with pytest.raises(zazen.InvalidArgumentError, match=r"4 ranks.*comm=MPI.COMM_WORLD"):
                call()
            call(comm=None)
            call(comm="self")
        monkeypatch.setenv("PMI_SIZE", "1")
        assert len(list(opened.frames())) == 3


def test_the_same_files_pushed_again_are_found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("z")
    sim = files(folder / "backing/sim", "f-{}.bin", range(1, 21))
    with zazen.testing.Cluster(folder / "c", folder / "backing", nodes=3) as cluster:
        for again in range(3):
            names = [sim / f"f-{number}.bin" for number in range(20)]
            told = tool(cluster, "push", *names, "--nodes", ",".join(cluster.nodes), "--json")
            told = json.loads(told.stdout)
            assert (told["pushed"], told["already_there"]) == ((0, 20) if again else (20, 0)), told
        listed = tool(cluster, "ls", sim, "--nodes", ",".join(cluster.nodes), "--json")
        assert sum(row["native_frames"] for row in json.loads(listed.stdout)["nodes"]) == 20
        # A rewritten file takes the place of its copy, on the node that has it.
        (sim / "f-7.bin").write_bytes(b"\x63" * SIZE)
        settle()
        told = json.loads(
            tool(cluster, "push", sim / "f-7.bin", "--nodes", ",".join(cluster.nodes), "--json").stdout
        )
        assert (told["pushed"], told["already_there"]) == (1, 0), told
        listed = tool(cluster, "ls", sim, "--nodes", ",".join(cluster.nodes), "--json")
        assert sum(row["native_frames"] for row in json.loads(listed.stdout)["nodes"]) == 20


# Two users and root's daemon.


def writes(dataset, nodes, key, mark, pattern="f-{n}.bin", count=4):
    """Pushes `count` frames full of `mark` as the user that runs this."""
    with zazen.Writer(dataset, nodes, key=key, pattern=pattern, on_slow="block") as writer:
        for number in range(count):
            writer.push(number, bytes([mark]) * SIZE)
    return writer.counters.pushed, writer.problems


@pytest.fixture
def open_node(start_node, ground):
    """Root's daemon, which listens for writers; `.listen`, and `.key(user)` for a copy of its
    key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    secret = ground / "key"
    secret.write_text("x" * 64)
    secret.chmod(0o600)
    node = start_node("--listen", listen, "--key", secret)
    node.listen = listen

    def key(user):
        copy = ground / f"key-{user.name}"
        copy.write_text(secret.read_text())
        return str(user.own(copy, 0o600))

    node.key = key
    return node


def read_one(dataset, socket_path):
    with zazen.open(str(dataset), socket=str(socket_path), pattern="f-{n}.bin") as opened:
        return bytes(opened.read(0).data)


def as_frames(a, folder):
    """A's frames 0 to 3, marked 0x41 and on."""
    for number, file in enumerate(write_frames(folder, a)):
        file.write_bytes(bytes([number + 0x41]) * SIZE)
    settle()
    return {number: bytes([number + 0x41]) * SIZE for number in range(4)}


@pytest.mark.parametrize("first", ["the push", "the files"])
def test_b_pushes_under_as_names(a, b, open_node, first):
    """In a directory like /tmp, B pushes what A's files are called."""
    shared = open_node.backing / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    key = open_node.key(b)
    if first == "the files":
        as_frames(a, shared)
    b.run(writes, shared, [open_node.listen], key, 0x42)
    expected = as_frames(a, shared)
    for _ in range(2):
        assert a.run(read_frames, shared, open_node.socket) == expected
        assert b.run(read_frames, shared, open_node.socket) == expected


def test_b_pushes_into_what_is_not_there_yet(a, b, open_node):
    above = open_node.backing / "shared"
    above.mkdir()
    above.chmod(0o1777)
    pushed, problems = b.run(writes, above / "sim", [open_node.listen], open_node.key(b), 0x42)
    assert pushed == 4, problems
    with pytest.raises((zazen.NotFoundError, zazen.PermissionDeniedError, zazen.UnavailableError)):
        a.run(read_one, above / "sim", open_node.socket)
    expected = as_frames(a, a.own(_made(above / "sim")))
    assert a.run(read_frames, above / "sim", open_node.socket) == expected


def _made(folder):
    folder.mkdir()
    return folder


def test_b_gets_no_frame_into_as_names(a, b, node, ground):
    """A directory like /tmp: B may make files in it, and takes A's names before A does."""
    shared = node.backing / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    write_frames(shared, b)
    settle()
    assert b.run(read_frames, shared, node.socket)[0] == b"\x01" * SIZE
    for file in shared.iterdir():
        file.unlink()
    for number, file in enumerate(write_frames(shared, a, name="f-{}.bin")):
        file.write_bytes(bytes([number + 0x41]) * SIZE)
        kept = file.stat().st_mtime_ns
        os.utime(file, ns=(kept, kept))
    settle()
    expected = {number: bytes([number + 0x41]) * SIZE for number in range(4)}
    assert a.run(read_frames, shared, node.socket) == expected
    assert b.run(read_frames, shared, node.socket) == expected
