"""Which rank reads which file, where files have replicas on several nodes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from zazen import _zazen

__all__ = ["PARTS_PER_STEP", "Matched", "match", "sticky"]

#: With a pattern that has ``{t}`` and ``{b}``, a frame's number is t · PARTS_PER_STEP + b.
PARTS_PER_STEP = 1 << 20


@dataclass(frozen=True)
class Matched:
    """Who reads what, and how good that is.

    ``assigned``: by rank, the indices of its files, ascending. ``remote``: how many files are not
    on their rank's node. ``bound``: no map has fewer. ``bytes_max``, ``bytes_mean``: bytes that a
    rank reads, at most and on average. ``bytes_bound``: in no map does every rank read fewer bytes
    (None for `sticky`).
    """

    assigned: list[list[int]]
    remote: int
    bound: int
    bytes_max: int
    bytes_mean: int
    bytes_bound: int | None = None


def match(
    ranks: Sequence[Hashable],
    files: Iterable[tuple[int, Iterable[Hashable]]],
    strategy: str = "optimal",
    seed: int = 0,
) -> Matched:
    """Give every file to exactly one rank.

    ``ranks``: the node of each rank, any hashable name. ``files``: (bytes, nodes that hold it) of
    each file.
    ``strategy``:

    - "blind": file i goes to rank i mod ranks, wherever it lies;
    - "first-come": files in an order drawn from ``seed``, each to a drawn holder with room;
    - "scarcest": VisIO (IPDPS'11, Algorithm 2): the file with the fewest holders left is next, and
      goes to the first of them;
    - "least-demand": the same, to the holder that the fewest other files ask for;
    - "optimal": no map reads fewer files remotely;
    - "bytes": every file that a rank's node holds is read there, and the ranks' bytes are balanced.

    A rank gets at most ceil(files / ranks) files, but for "bytes". The result depends on the
    arguments only, so that all ranks of a job can compute it alike. Raises InvalidArgumentError or
    TooLargeError. Threads may call it at the same time.
    """
    number = _numbering()
    nodes = [*map(number, ranks)]
    # Flat lists: ten thousand files take as long in Python as in the matching itself.
    lengths, ends, holders = list[int](), list[int](), list[int]()
    for length, held in files:
        holders += map(number, held)
        lengths.append(int(length))
        ends.append(len(holders))
    try:
        return Matched(*_zazen.match_files(nodes, lengths, ends, holders, strategy, seed))
    except OverflowError as error:
        raise _zazen.InvalidArgumentError(f"bytes and seed are numbers of 0 to 2^64 - 1: {error}") from None


def sticky(ranks: Sequence[Hashable], steps: Iterable[Iterable[tuple[int, Iterable[Hashable]]]]) -> Matched:
    """Give every block to one rank for all time steps, with the fewest remote reads over all steps.

    ``ranks``: the node of each rank. ``steps``: the files of each step as for `match`; file i of
    each step is block i. ``bound`` of the result is what maps of their own for each step would
    reach.
    """
    number = _numbering()
    nodes = [number(node) for node in ranks]
    each = ",".join([f"[{_json(number, files)}]" for files in steps])
    scenario = f'{{"ranks":{nodes},"steps":[{each}],"strategy":"sticky"}}'
    return Matched(**json.loads(_zazen.match_json(scenario)))


def _numbering() -> Callable[[Hashable], int]:
    """Numbers for nodes, whatever names them: in the order in which they are first asked for."""
    numbers: defaultdict[Hashable, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers.__getitem__


def _json(number: Callable[[Hashable], int], files: Iterable[tuple[int, Iterable[Hashable]]]) -> str:
    """The files of a scenario."""
    return ",".join([f'{{"bytes":{int(length)},"holders":{[*map(number, held)]}}}' for length, held in files])
