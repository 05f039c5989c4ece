import itertools
import random

import pytest
import zazen
from zazen import RunSet


def test_a_billion_numbers_cost_nothing():
    numbers = RunSet.range(0, 10**9 - 1)
    assert len(numbers) == 10**9
    assert numbers.runs() == [(0, 10**9, 1)]
    assert list(itertools.islice(numbers, 3)) == [0, 1, 2]
    assert 999_999_999 in numbers and 10**9 not in numbers
    assert (numbers.first, numbers.last) == (0, 10**9 - 1)


def test_agrees_with_set():
    for seed in range(30):
        rng = random.Random(seed)
        a = {rng.randrange(3000) for _ in range(rng.randrange(600))}
        b = set(range(rng.randrange(2000), 3000, 1 + rng.randrange(5)))
        x, y = RunSet(a), RunSet(b)
        assert list(x) == sorted(a), seed
        assert list(x | y) == list(x.union(y)) == sorted(a | b), seed
        assert list(x & y) == list(x.intersection(y)) == sorted(a & b), seed
        assert list(x - y) == list(x.difference(y)) == sorted(a - b), seed
        assert (x == y) == (a == b) and (x != y) == (a != b) and bool(x) == bool(a), seed
        assert (x & y) <= x and x >= (x & y) and (x <= y) == (a <= b), seed
        assert (x < y) == (a < b) and (x > y) == (a > b), seed
        assert RunSet.from_runs(x.runs()) == x, seed


def test_iteration_crosses_blocks():
    numbers = RunSet(n for n in range(10_000) if n % 7 in (0, 3))
    assert list(numbers) == [n for n in range(10_000) if n % 7 in (0, 3)]


def test_edges():
    empty = RunSet()
    assert not empty and len(empty) == 0 and list(empty) == [] and empty.first is None and empty.last is None
    assert RunSet.range(5, 4) == empty
    assert repr(empty) == "<RunSet of 0>"
    assert repr(RunSet([1, 5, 7, 9])) == "<RunSet of 4: 1 5..9:2>" or repr(RunSet([1, 5, 7, 9])).startswith(
        "<RunSet of 4:"
    )
    assert "x" not in RunSet([1]) and -1 not in RunSet([1]) and RunSet([1]) != [1]
    assert RunSet(RunSet([3])) == RunSet([3])
    with pytest.raises(zazen.InvalidArgumentError):
        RunSet.from_runs([(0, 0, 1)])
    with pytest.raises(zazen.TooLargeError):
        RunSet.from_runs([(2**63, 2**63, 3)])
    with pytest.raises((OverflowError, ValueError, TypeError)):
        RunSet([-1])
    with pytest.raises(TypeError):
        RunSet([1]) | [2]
