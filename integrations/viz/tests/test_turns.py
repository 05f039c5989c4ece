"""Files that are brought while others are parsed: order, bounded memory, faults in their turn."""

import threading
from types import SimpleNamespace

import pytest
from zazen.viz import steps as steps_module
from zazen.viz import turns
from zazen.viz.steps import Ahead
from zazen.viz.turns import Remote, in_turn
from zazen.viz.visualization import Memory


class Files:
    """Stands in for a visualization without a mount, whose files have these sizes."""

    without_mount = brings_files = True

    def __init__(self, sizes, bad=(), remote=()):
        self.steps = [SimpleNamespace(bytes=sizes)]
        self.bad, self.remote = bad, remote
        #: Bytes that were brought and not let go, and the most of them that there ever were.
        self.held = self.most = 0
        self.lock = threading.Lock()
        self.brought = [threading.Event() for _ in sizes]

    def plan(self, step):
        return SimpleNamespace(is_local=[file not in self.remote for file in range(len(self.brought))])

    def fetch(self, step, file):
        if file in self.bad:
            raise OSError(f"file {file} is bad")
        with self.lock:
            self.held += self.steps[0].bytes[file]
            self.most = max(self.most, self.held)
        self.brought[file].set()
        return SimpleNamespace(length=self.steps[0].bytes[file], file=file)

    def let_go(self, came):
        with self.lock:
            self.held -= came.length


def bringers():
    return [thread for thread in threading.enumerate() if thread.name == "zazen-viz-bring"]


def others():
    return [thread for thread in threading.enumerate() if thread.name.startswith("zazen-viz-remote")]


@pytest.fixture(autouse=True)
def earlier_tests_are_over():
    """A thread that brings steps ahead closes what fetches for it after its last step was taken."""
    for thread in threading.enumerate():
        if thread.name == "zazen-viz-ahead":
            thread.join(60)
            assert not thread.is_alive()


def test_the_next_file_comes_while_one_is_parsed(monkeypatch):
    monkeypatch.setattr(turns, "_GROUP_BYTES", 1)
    files = Files([10] * 5)
    for at, came in enumerate(in_turn(files, 0, range(5))):
        assert came.item.file == at
        # While this one is in hand, the next one comes without being asked for.
        assert at == 4 or files.brought[at + 1].wait(60)
    assert bringers() == []


@pytest.mark.parametrize("group_bytes", [1, 25])
def test_memory_is_bounded(monkeypatch, group_bytes):
    monkeypatch.setattr(turns, "_GROUP_BYTES", group_bytes)
    monkeypatch.setattr(turns, "_AHEAD_BYTES", 60)
    files = Files([10, 20, 5, 100, 10, 10, 0, 30, 30, 10] * 20)
    order = list(range(200))[::-1]
    seen = []
    for came in in_turn(files, 0, order):
        seen.append(came.item.file)
        files.let_go(came)
    assert seen == order
    # What is in hand, and what waits. One file has more than all may have.
    assert files.most <= 60 + 100 + group_bytes
    assert files.held == 0


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_the_thread_ends_with_its_reader(monkeypatch, taken):
    monkeypatch.setattr(turns, "_GROUP_BYTES", 1)
    monkeypatch.setattr(turns, "_AHEAD_BYTES", 20)
    coming = in_turn(Files([10] * 9), 0, range(9))
    for _ in range(taken):
        next(coming)
    coming.close()
    assert bringers() == []


def test_a_fault_is_raised_in_its_turn(monkeypatch):
    monkeypatch.setattr(turns, "_GROUP_BYTES", 1)
    coming = in_turn(Files([10] * 6, bad=[3]), 0, range(6))
    assert [next(coming).item.file for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="file 3"):
        next(coming)
    assert bringers() == []


class Slow(Files):
    """Remote files come when they may, and it is counted how many are on their way at once."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.may_come = threading.Event()
        self.under_way = self.most_under_way = 0

    def fetch(self, step, file):
        if file in self.remote:
            with self.lock:
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
            assert self.may_come.wait(60)
            with self.lock:
                self.under_way -= 1
        return super().fetch(step, file)


@pytest.mark.parametrize("group_bytes", [1, 25, 1000])
def test_files_of_other_nodes_are_on_their_way_before_their_turn(monkeypatch, group_bytes):
    monkeypatch.setattr(turns, "_GROUP_BYTES", group_bytes)
    files = Slow([10] * 9, remote=[3, 5, 6, 8])

    def let_come():
        # The first two are asked for, though nobody has taken anything yet.
        while files.under_way < 2:
            assert not over.wait(0.01)
        files.may_come.set()

    over = threading.Event()
    thread = threading.Thread(target=let_come)
    thread.start()
    try:
        assert [came.item.file for came in in_turn(files, 0, range(9))] == list(range(9))
    finally:
        over.set()
        files.may_come.set()
        thread.join()
    assert files.most_under_way == 2
    assert others() == bringers() == []


def test_memory_for_files_of_other_nodes_is_bounded(monkeypatch):
    monkeypatch.setattr(turns, "_GROUP_BYTES", 1)
    monkeypatch.setattr(turns, "_AHEAD_BYTES", 60)
    monkeypatch.setattr(turns, "REMOTE_BYTES", 60)
    files = Files([10, 20, 5, 100, 10, 10, 0, 30, 30, 10] * 20, remote=range(0, 200, 3))
    for at, came in enumerate(in_turn(files, 0, range(200))):
        assert came.item.file == at
        files.let_go(came)
    # As much again as without other nodes, and one file that alone has more.
    assert files.most <= 60 + 60 + 2 * 100
    assert files.held == 0 and others() == []


@pytest.mark.parametrize("group_bytes", [1, 1000])
def test_a_fault_of_another_node_is_raised_in_its_turn(monkeypatch, group_bytes):
    monkeypatch.setattr(turns, "_GROUP_BYTES", group_bytes)
    coming = in_turn(Files([10] * 6, bad=[3], remote=[2, 3, 4]), 0, range(6))
    with pytest.raises(OSError, match="file 3"):
        list(coming)
    assert others() == bringers() == []


def test_few_bytes_need_no_thread():
    files = Files([10, 20])
    for came in in_turn(files, 0, [1, 0]):
        assert bringers() == [] and came.length in (10, 20)
    assert list(in_turn(files, 0, [])) == []


def test_files_that_are_read_where_they_are_need_no_thread_and_are_asked_for_one_ahead(monkeypatch):
    asked = []
    monkeypatch.setattr(turns, "advise", lambda visualization, step, files: asked.extend(files))
    files = Files([10 << 20] * 3)
    files.brings_files = files.without_mount = False
    for at, came in enumerate(in_turn(files, 0, [2, 0, 1])):
        assert (came.item, came.path, came.bytes, came.length) == (None, None, 0, 10 << 20)
        assert asked == [0, 1][: at + 1] and bringers() == []


class Steps:
    """Stands in for steps without a mount, of which this rank has two files each: file 1 lies at
    another node. File 0 of the first step comes when it may."""

    without_mount = brings_files = True

    def __init__(self, count):
        self.steps = [SimpleNamespace(bytes=[10, 10]) for _ in range(count)]
        self.may_come = threading.Event()
        self.came = [threading.Event() for _ in range(count)]
        self.closed = []

    def mine(self, step):
        return [0, 1]

    def plan(self, step):
        return SimpleNamespace(is_local=[True, False])

    def fetch(self, step, file):
        if file == 1:
            self.came[step].set()
        elif step == 0:
            assert self.may_come.wait(60)
        return Held(self.closed, step, file)


class Held(Memory):
    """A file in memory that says that it is let go."""

    def __init__(self, closed, step, file):
        super().__init__(f"{step} {file}")
        self.closed, self.step, self.file = closed, step, file

    @property
    def length(self):
        return 10

    def close(self):
        if self._descriptor >= 0:
            self.closed.append((self.step, self.file))
        super().close()


def test_what_other_nodes_hold_of_later_steps_comes_while_an_earlier_step_is_under_way():
    steps = Steps(4)
    ahead = Ahead(steps, 1000)
    ahead.want([0, 1, 2])
    try:
        # Of the first step, file 0 does not come. Those of other nodes do, also of later steps.
        assert all(steps.came[step].wait(60) for step in (0, 1, 2))
    finally:
        steps.may_come.set()
    for step in (0, 1, 2):
        assert [came.item.file for came in ahead.fetched(step)] == [0, 1]
    assert not steps.came[3].is_set()


def test_files_that_nobody_wants_any_more_are_let_go():
    steps = Steps(4)
    with Remote(steps) as remote:
        remote.want({1: [0, 1], 2: [0, 1]})
        assert all(steps.came[step].wait(60) for step in (1, 2))
        remote.want({2: [0, 1], 3: [1]})
        kept = remote.fetch(2, 1)
        assert steps.came[3].wait(60)
    assert sorted(steps.closed) == [(1, 1), (3, 1)]
    kept.close()
    assert others() == []


class Small(Files):
    """Small files whose number is bounded: the most that were held at a time."""

    def __init__(self, count, remote):
        super().__init__([1] * count, remote=remote)


@pytest.mark.parametrize("remote", [(), range(1000)])
def test_many_small_files_need_few_descriptors(remote):
    files = Small(1000, remote)
    for at, came in enumerate(in_turn(files, 0, range(1000))):
        assert came.item.file == at
        files.let_go(came)
    # What is in hand, what waits, and what is on its way.
    assert files.most <= 3 * turns._FILES and files.held == 0


def test_small_files_of_coming_steps_need_few_descriptors(monkeypatch):
    monkeypatch.setattr(steps_module, "_FILES_MAX", 3)
    files = Steps(9)
    files.may_come.set()
    ahead = Ahead(files, 1000)
    ahead.want([0, 1, 2, 3])
    thread = ahead._thread
    if thread is not None:
        thread.join(60)
    assert [len(ahead.fetched(step)) for step in range(4)] == [2, 1, 0, 0]


def test_what_there_is_no_room_for_does_not_come_in_vain():
    files = Steps(4)
    files.may_come.set()
    ahead = Ahead(files, 30)
    ahead.want([0, 1, 2])
    thread = ahead._thread
    if thread is not None:
        thread.join(60)
    assert [len(ahead.fetched(step)) for step in range(3)] == [2, 1, 0]
    # What came was taken. File 1 of steps 1 and 2 did not come.
    assert [step for step in range(4) if files.came[step].is_set()] == [0]
