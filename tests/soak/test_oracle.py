"""The oracle of `namespace_kills.py` must see a loss."""

from __future__ import annotations

import random

import oracle
import pytest
from oracle import File, Folder, Journal


def test_each_planted_loss_of_a_byte_is_seen():
    data = random.Random(1).randbytes(300)
    file = File(data)
    assert file.judge(data) is None
    for at in range(len(data)):
        assert file.judge(data[:at] + data[at + 1 :]), f"byte {at} is missing"
        other = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert f"byte {at} " in (file.judge(other) or ""), f"byte {at} is another"
    assert file.judge(data + b"\0") and file.judge(b"")


def test_an_acknowledged_change_that_the_files_do_not_show_is_seen():
    file, rng = File(), random.Random(2)
    for _ in range(200):
        before, offset, data = file.data, rng.randrange(400), rng.randbytes(rng.randrange(1, 60))
        expected = bytearray(max(len(before), offset + len(data)))
        expected[: len(before)] = before
        expected[offset : offset + len(data)] = data
        file.put(offset, data)
        assert file.judge(bytes(expected)) is None
        assert bytes(expected) == before or file.judge(before), "the write is not there"
        if rng.random() < 0.1:
            before, length = file.data, rng.randrange(400)
            file.cut(length)
            assert file.judge((before + bytes(400))[:length]) is None
            assert len(before) == length or file.judge(before), "the cut did not happen"


@pytest.mark.parametrize("found", [b"aaaa", b"aabb", b"aabbbb", b"aabaa"[:4], b"aabbb\0"])
def test_of_a_write_that_failed_any_part_may_be_there(found):
    file = File(b"aaaa")
    file.may_have_put(2, b"bbbb")
    assert file.judge(found) is None


@pytest.mark.parametrize("found", [b"aaa", b"baaa", b"aacb", b"aabbbbb", b"aa\0\0", b"aabbba"])
def test_of_a_write_that_failed_nothing_else_may_be_there(found):
    file = File(b"aaaa")
    file.may_have_put(2, b"bbbb")
    assert file.judge(found)


def test_of_a_replacement_and_a_cut_that_failed():
    file = File(b"aaaa")
    file.may_have_replaced(b"bb")
    assert not any(file.judge(found) for found in (b"aaaa", b"", b"b", b"bb"))
    assert file.judge(b"bc") and file.judge(b"aaaaa")
    file = File(b"aaaa")
    file.may_have_cut(2)
    assert file.judge(b"aa") is None and file.judge(b"aaaa") is None
    assert file.judge(b"a") and file.judge(b"ab")
    assert not file.is_sure


def test_names_that_are_lost_or_come_back_are_seen():
    folder, one, two = Folder(), File(b"1"), File(b"2")
    folder.files = {"one": one, "two": two}
    assert folder.judge({"one", "two"}) == ({"one": one, "two": two}, {})
    assert folder.judge({"two"}) == ({"two": two}, {"one": "is lost"})
    assert "three" in folder.judge({"one", "two", "three"})[1]
    # A rename that failed leaves exactly one name.
    folder.doubt({"one": one, "new": None}, {"one": None, "new": one})
    assert folder.judge({"two", "new"}) == ({"two": two, "new": one}, {})
    assert folder.judge({"two", "one"}) == ({"two": two, "one": one}, {})
    assert folder.judge({"two"})[1].keys() == {"one", "new"}
    assert folder.judge({"two", "one", "new"})[1].keys() == {"one", "new"}
    # One that replaces a file: the target has the bytes of either.
    folder.doubt({"two": two, "old": one}, {"two": None, "old": two})
    assert folder.judge({"one", "old"})[0]["old"] is two
    assert folder.judge({"one", "old", "two"})[0]["old"] is one


def test_the_journal_shows_what_was_done_with_a_name(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        first = journal.begin("p1", "make", "a", bytes=7)
        journal.end(first, "done")
        other = journal.begin("p2", "make", "b")
        journal.event("n2 is killed")
        journal.end(other, "EIO")
        second = journal.begin("p1", "rename", "a", "c")
        journal.end(second, "done")
        assert len(journal.about("a")) == 4 and len(journal.about("c")) == 2
        assert '"outcome": "EIO"' in journal.about("b")[1]
        assert journal.about("d") == []


def test_spread():
    assert oracle.spread([])["max"] is None
    assert oracle.spread([3.0, 1.0, 2.0]) == {"count": 3, "median": 2.0, "p99": 3.0, "max": 3.0}
