"""Random access: by number, by name, by slice, many at once; the files themselves are the
oracle."""

import multiprocessing
import os
import pickle
import random
import warnings

import pytest
import zazen
from sample import FRAMES, frame_bytes


@pytest.fixture(params=["daemon", "direct"])
def opened(request, pushed, dataset):
    options = {"socket": pushed.sockets[0]} if request.param == "daemon" else {"direct": True}
    with zazen.open(dataset, **options) as opened:
        assert opened.has_daemon == (request.param == "daemon")
        yield opened


def test_one_by_one(opened):
    assert len(opened) == FRAMES and bool(opened)
    order = list(range(FRAMES)) * 2
    random.Random(3).shuffle(order)
    for number in order:
        frame = opened[number]
        assert frame.number == number and bytes(frame.data) == frame_bytes(number)
        back = opened[number - FRAMES]
        assert back.number == number
    numpy = pytest.importorskip("numpy")
    for index in (numpy.int64(5), numpy.uint8(5), numpy.int16(5 - FRAMES)):
        assert opened[index].number == 5


def test_many(opened):
    rng = random.Random(4)
    for count in (0, 1, 7, FRAMES, 3 * FRAMES):
        numbers = [rng.randrange(FRAMES) for _ in range(count)]
        frames = opened.read_many(numbers)
        assert [frame.number for frame in frames] == numbers
        assert all(bytes(frame.data) == frame_bytes(frame.number) for frame in frames)
    numpy = pytest.importorskip("numpy")
    for form in (
        range(5),
        iter([3, 1]),
        numpy.array([9, 2, 2]),
        zazen.RunSet([1, 5]),
        (2,),
        {4: "x"},
        ["frame-0000003.bin", 4],
    ):
        kept = list(form) if not hasattr(form, "__next__") else [3, 1]
        expected = [3 if n == "frame-0000003.bin" else n for n in kept]
        assert [frame.number for frame in opened.read_many(form)] == expected


def test_slices(opened):
    numbers = list(range(FRAMES))
    bounds = [None, 0, 1, 5, FRAMES - 1, FRAMES, FRAMES + 9, -1, -3, -FRAMES, -FRAMES - 9, 2**70, -(2**70)]
    for start in bounds:
        for stop in bounds:
            for step in (None, 1, 3, -1, -4, FRAMES + 5):
                part = slice(start, stop, step)
                got = [frame.number for frame in opened[part]]
                assert got == numbers[part], part
    with pytest.raises(zazen.InvalidArgumentError, match="step"):
        opened[::0]
    with pytest.raises(TypeError):
        opened["a":"b"]


def test_gaps_are_no_positions(dataset):
    for number in (0, 3, 4, 10):
        (dataset / f"frame-{number:07}.bin").unlink()
    opened = zazen.open(dataset, direct=True)
    held = [number for number in range(FRAMES) if number not in (0, 3, 4, 10)]
    assert len(opened) == len(held) and opened[-1].number == held[-1] and opened[-len(held)].number == held[0]
    assert [frame.number for frame in opened[:12]] == [1, 2, 5, 6, 7, 8, 9, 11]
    assert [frame.number for frame in opened[0:12:2]] == [2, 6, 8]
    assert [frame.number for frame in opened[11:2:-2]] == [11, 9, 7, 5]
    assert 1 in opened and 3 not in opened and -1 in opened and "frame-0000001.bin" in opened
    assert "frame-0000003.bin" not in opened and None not in opened and 2**70 not in opened
    for missing in (0, 3, 10, FRAMES, 2**40, 2**40 + 1, 2**63, 2**70, -len(held) - 1, -(2**63)):
        with pytest.raises(IndexError) as caught:
            opened[missing]
        assert isinstance(caught.value, (zazen.NoSuchFrameError, KeyError, zazen.NotFoundError))
        assert str(abs(missing)) in str(caught.value)


def test_errors_name_their_frames(opened):
    with pytest.raises(zazen.NoSuchFrameError, match=r"99.*2 of the frames asked for failed: 77, 99"):
        opened.read_many([1, 99, 2, 77, 99])
    kept = opened.read_many([1, 99, 2], on_error="return")
    assert [getattr(item, "number", None) for item in kept] == [1, None, 2]
    assert isinstance(kept[1], IndexError) and "99" in str(kept[1])
    for bad, kind in [
        ([-1], zazen.InvalidArgumentError),
        ([2**63], zazen.TooLargeError),
        ([2**70], zazen.TooLargeError),
        (range(2**40), zazen.TooLargeError),
        (zazen.RunSet.range(0, 2**40), zazen.TooLargeError),
        ([1.5], TypeError),
        (["nothing.bin"], zazen.NoSuchFrameError),
        ("12", TypeError),
        (7, TypeError),
        ([None], TypeError),
    ]:
        with pytest.raises(kind):
            opened.read_many(bad)
    for bad in (1.0, None, [1], b"x\xff"):
        with pytest.raises(TypeError):
            opened[bad]
    with pytest.raises(zazen.InvalidArgumentError, match="on_error"):
        opened.read_many([1], on_error="ignore")
    with pytest.raises(TypeError, match="frames"):
        iter(opened)
    with pytest.raises(TypeError, match=r"dataset\[::-1\]"):
        reversed(opened)


def test_by_name(opened, dataset):
    for number in (0, 7, FRAMES - 1):
        name = f"frame-{number:07}.bin"
        for spelled in (name, dataset / name, str(dataset / name)):
            assert opened[spelled].number == opened.number_of(spelled) == number
    for missing in ("frame-7.bin", "frame-9999999.bin", "other/frame-0000001.bin", "/etc/passwd"):
        with pytest.raises(KeyError):
            opened[missing]


def test_class_folders(folder):
    root = folder / "images"
    names = sorted(f"{c}/{k}_{n}_x{n}.jpg" for c in ("cat", "dog") for k in ("a", "b2") for n in range(30))
    names = sorted([*names, "cat/plain.jpg", "dog/plain.jpg"])
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 9)
    (root / "zazen.toml").write_text("files = [" + ", ".join(f'"{name}"' for name in names) + "]")
    opened = zazen.open(root, direct=True)
    assert len(opened) == len(names)
    for number, name in enumerate(names):
        assert opened[name].number == number and bytes(opened[number].data) == name.encode() * 9
    assert "cat/plain.jpg" in opened and "cat/none.jpg" not in opened


def test_owners(pushed, dataset):
    with zazen.open(dataset, socket=pushed.sockets[0]) as opened:
        natives, _ = opened.query(0, FRAMES)
        for owners in (opened.owners(), opened.owners(comm=None)):
            assert list(owners) == [0 if number in natives else -1 for number in range(FRAMES)]
        assert owners.typecode == "i" and memoryview(owners).format == "i"
        opened.read_many(range(FRAMES))
        assert list(opened.owners()) == [0] * FRAMES
    with zazen.open(dataset, direct=True) as opened:
        assert list(opened.owners()) == [-1] * FRAMES


def child(opened, numbers, queue):
    queue.put([bytes(frame.data) == frame_bytes(frame.number) for frame in opened.read_many(numbers)])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_other_processes(opened, method):
    opened[3]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    numbers = [5, 1, 5, FRAMES - 1]
    process = context.Process(target=child, args=(opened, numbers, queue))
    process.start()
    assert queue.get(timeout=60) == [True] * 4
    process.join()
    again = pickle.loads(pickle.dumps(opened))
    assert again[1].number == 1 and opened[2].number == 2


def test_one_by_one_beside_forks_and_changes(opened, dataset):
    """Enough reads that the daemon gives places ahead."""
    changed = {}

    def read_all():
        for _ in range(4):
            for number in random.sample(range(FRAMES), FRAMES):
                expected = changed.get(number, frame_bytes(number))
                assert bytes(opened[number].data) == expected, number

    read_all()
    for number in range(0, FRAMES, 9):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                read_all()
                status = 0
            finally:
                os._exit(status)
        read_all()
        assert os.waitpid(child, 0)[1] == 0
        # At the same length.
        changed[number] = frame_bytes(number)[::-1]
        (dataset / f"frame-{number:07}.bin").write_bytes(changed[number])
        assert bytes(opened[number].data) == changed[number]
        read_all()


def test_a_dead_daemon_costs_no_frame(pushed, dataset):
    opened = zazen.open(dataset, socket=pushed.sockets[0])
    assert opened[1].source in ("native", "alien", "backing")
    pushed.kill(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zazen.ZazenWarning)
        frames = opened.read_many([2, 1, 2])
        assert [bytes(frame.data) for frame in frames] == [frame_bytes(n) for n in (2, 1, 2)]
        assert opened[3].source == "direct"


@pytest.fixture(params=["daemon", "direct"])
def pictures(request, cluster, folder):
    """Pictures in folders of classes, and how to open them."""
    where = folder / "backing" / "images"
    for name in ("dog/img 1.jpg", "cat/img_003.jpg", "cat/run2_img_004.jpg", "no digits.jpg"):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(name.encode() * 50)
    options = {"socket": cluster.sockets[0]} if request.param == "daemon" else {"direct": True}
    return where, options | {"pattern": "**/*.jpg"}


NAMES = ["cat/img_003.jpg", "cat/run2_img_004.jpg", "dog/img 1.jpg", "no digits.jpg"]


def test_files_by_their_sorted_names(pictures):
    where, options = pictures
    with pytest.raises(zazen.NotFoundError, match=r"\*\*/\*\.jpg"), zazen.open(where, direct=True) as opened:
        (where / "no digits.jpg").rename(where / "elsewhere")
        opened.frames()
    (where / "elsewhere").rename(where / "no digits.jpg")
    with zazen.open(where, **options) as opened:
        for _ in range(2):
            assert [bytes(frame.data) for frame in opened[:]] == [name.encode() * 50 for name in NAMES]
            assert opened["dog/img 1.jpg"].number == 2 and opened.number_of(NAMES[1]) == 1
            assert {frame.number for frame in opened.frames()} == set(range(4))
        copy = pickle.loads(pickle.dumps(opened))
        assert bytes(copy[3].data) == NAMES[3].encode() * 50


def read_first(opened, tells):
    try:
        tells.send(bytes(opened[0].data).decode())
    except zazen.Error as error:
        tells.send(type(error).__name__)


def test_files_that_come_and_go_change_no_number_unseen(pictures):
    where, options = pictures
    with zazen.open(where, **options) as opened:
        pickled = pickle.dumps(opened)
        assert len(opened) == 4
        (where / "ant.jpg").write_bytes(b"ant")
        with pytest.raises(zazen.StaleError, match="open it again"):
            pickle.loads(pickled)
        if opened.has_daemon:
            # A scan asks the daemon again. Without one, the files are those that were found at
            # first.
            with pytest.raises(zazen.StaleError, match=r"frame 0 .*cat/img_003\.jpg"):
                list(opened.frames())
        else:
            assert bytes(opened[0].data) == NAMES[0].encode() * 50
        fork = multiprocessing.get_context("fork")
        told, tells = fork.Pipe(duplex=False)
        child = fork.Process(target=read_first, args=(opened, tells))
        child.start()
        assert told.poll(60) and told.recv() == "StaleError"
        child.join()
    with zazen.open(where, **options) as opened:
        assert bytes(opened[0].data) == b"ant"
