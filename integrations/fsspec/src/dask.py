"""Dask tasks on the workers whose node holds what they read.

    from distributed import Client
    from zazen.fsspec.dask import map_files, map_frames

    client = Client(...)                      # workers on the nodes of a cluster, each beside a daemon
    futures = map_frames(client, analyse, "/lustre/sim1")
    results = {number: result for group in client.gather(futures) for number, result in group.items()}

A worker asks the daemon of its own node what that holds. What no node holds goes to any worker.
Needs ``distributed``, which ``zazen[fsspec]`` does not install.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import zazen
from zazen.blocks import BLOCK_BYTES

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["map_files", "map_frames", "owners_of_files", "owners_of_frames"]

_Held = tuple[int, list[tuple[int, int, int]]]


def owners_of_frames(
    client: Client, path: str | os.PathLike[str], numbers: Iterable[int] | None = None, **options: Any
) -> dict[int, list[str]]:
    """For each frame, the addresses of the workers whose node holds it; none for a frame that no
    node holds.

    ``numbers``: frame numbers; None: all that exist, as this process sees them. ``options`` go to
    ``zazen.open``, on the workers too; each worker's own ``$ZAZEN_SOCKET`` counts. Raises what
    ``zazen.open`` raises on any of them.
    """
    path = os.fspath(path)
    if numbers is None:
        with zazen.open(path, **options) as dataset:
            numbers = list(dataset.extent())
    held: Mapping[str, _Held] = client.run(_held, path, options)
    sets = {worker: zazen.RunSet.from_runs(runs) for worker, (_, runs) in sorted(held.items())}
    return {number: [worker for worker, has in sets.items() if number in has] for number in numbers}


def map_frames(
    client: Client,
    function: Callable[[zazen.Frame], Any],
    path: str | os.PathLike[str],
    numbers: Iterable[int] | None = None,
    *,
    frames_per_task: int = 16,
    strict: bool = False,
    **options: Any,
) -> list[Future]:
    """Runs `function` on each frame, on a worker whose node holds it. Futures of {frame number:
    result}.

    ``function`` gets a ``zazen.Frame``, which is valid there alone, and must be picklable.
    ``strict``: never elsewhere, even if other workers are idle. ``numbers`` and ``options`` as for
    `owners_of_frames`.
    """
    if frames_per_task < 1:
        raise ValueError(f"frames_per_task is {frames_per_task}; give at least 1")
    path = os.fspath(path)
    owners = owners_of_frames(client, path, numbers, **options)
    groups = _groups(owners)
    futures = []
    for workers, some in groups.items():
        for at in range(0, len(some), frames_per_task):
            part = some[at : at + frames_per_task]
            futures.append(
                client.submit(_run_frames, function, path, options, part, **_placed(workers, strict))
            )
    return futures


def owners_of_files(
    client: Client, paths: Sequence[str], block_bytes: int = BLOCK_BYTES, **options: Any
) -> dict[str, list[str]]:
    """For each file, the workers whose node holds most blocks of it; none for a file that no node
    has blocks of."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise TypeError("several paths are wanted; give a list")
    paths = [os.fspath(path) for path in paths]
    held: Mapping[str, list[int]] = client.run(_held_of_files, paths, block_bytes, options)
    owners = {}
    for at, path in enumerate(paths):
        counts = {worker: blocks[at] for worker, blocks in sorted(held.items())}
        most = max(counts.values(), default=0)
        owners[path] = [worker for worker, count in counts.items() if count == most and most > 0]
    return owners


def map_files(
    client: Client,
    function: Callable[[str], Any],
    paths: Sequence[str],
    *,
    block_bytes: int = BLOCK_BYTES,
    strict: bool = False,
    **options: Any,
) -> list[Future]:
    """Runs `function` on each path, on a worker whose node holds most of the file; futures in the
    order of `paths`.

    The chunks of a zarr array are files: this places their readers. ``strict`` as for `map_frames`;
    ``block_bytes`` must be that of the file system that reads.
    """
    owners = owners_of_files(client, paths, block_bytes, **options)
    return [
        client.submit(function, path, **_placed(tuple(owners[os.fspath(path)]), strict)) for path in paths
    ]


def _placed(workers: tuple[str, ...], strict: bool) -> dict[str, Any]:
    where = {"workers": list(workers), "allow_other_workers": not strict} if workers else {}
    # The caches change, so the same call later is another task.
    return {"pure": False, **where}


def _groups(owners: Mapping[int, Sequence[str]]) -> dict[tuple[str, ...], list[int]]:
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, workers in owners.items():
        groups[tuple(workers)].append(number)
    return groups


# What runs on the workers.


def _held(path: str, options: dict[str, Any]) -> _Held:
    with zazen.open(path, **options) as dataset:
        native, alien = dataset.query(0, 1 << 40)
        return dataset.node, (native | alien).runs()


def _held_of_files(paths: Sequence[str], block_bytes: int, options: dict[str, Any]) -> list[int]:
    counts = []
    for path in paths:
        folder, name = os.path.split(path)
        with zazen.open(folder or "/", pattern=f"{name}{{n*{block_bytes}}}", **options) as dataset:
            blocks = dataset.extent()
            first, last = blocks.first, blocks.last
            held = dataset.query(first, last) if first is not None and last is not None else ()
            counts.append(sum(map(len, held)))
    return counts


def _run_frames(
    function: Callable[[zazen.Frame], Any], path: str, options: dict[str, Any], numbers: Sequence[int]
) -> dict[int, Any]:
    with zazen.open(path, **options) as dataset:
        return {number: function(dataset.read(number)) for number in numbers}
