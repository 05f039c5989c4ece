"""Dask tasks on the workers of the node that holds their input.

    from distributed import Client
    from zazen.schedulers.dask import map_files

    client = Client(...)                      # workers on the nodes, each beside the node's daemon
    futures = map_files(client, analyse, ["/job/run1/a", "/job/run1/b"], mount="/job")

Needs ``distributed`` (``pip install 'zazen[schedulers]'``).
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import zazen
from zazen import namespace
from zazen.schedulers import holders, most_held, several

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["map_files", "workers_of_nodes"]


def workers_of_nodes(client: Client) -> dict[str, list[str]]:
    """The addresses of the workers of each node, by the name that the node has in the namespace.

    Each worker asks the daemon of its own node; one without a daemon is of no node.
    """
    workers = defaultdict(list)
    for worker, name in sorted(client.run(_own_node).items()):
        if name is not None:
            workers[name].append(worker)
    return dict(workers)


def map_files(
    client: Client,
    function: Callable[..., Any],
    inputs: Iterable[str | os.PathLike[str] | Sequence[str | os.PathLike[str]]],
    *,
    mount: str | os.PathLike[str] = "/",
    strict: bool = False,
    of: namespace.Namespace | None = None,
) -> list[Future]:
    """Runs `function` on each input, on a worker of the node that holds it; futures in the order of
    `inputs`.

    An input is a path, or several paths, which `function` gets as they are; of several the node
    counts that holds most. ``strict``: never elsewhere, even if other workers are idle; raises
    UnavailableError, and submits nothing, if that node has no worker. What no node holds runs
    anywhere. ``mount`` and ``of`` as for `zazen.schedulers.holders`.
    """
    given = [
        [one] if isinstance(one, str | os.PathLike) else list(one) for one in several(inputs, "map_files")
    ]
    tasks = [[os.fspath(path) for path in paths] for paths in given]
    held = holders(dict.fromkeys(path for task in tasks for path in task), mount=mount, of=of)
    workers = workers_of_nodes(client)
    nodes = [most_held(task, held) for task in tasks]
    for task, node in zip(tasks, nodes, strict=True):
        if strict and node is not None and node not in workers:
            raise zazen.UnavailableError(
                errno.EHOSTUNREACH,
                f"node {node}, which holds most of {', '.join(task[:3])}, has no worker",
                task[0],
            )
    futures = []
    for task, node in zip(tasks, nodes, strict=True):
        beside = workers.get(node, []) if node is not None else []
        where = {"workers": beside, "allow_other_workers": not strict} if beside else {}
        # Files move and change, so the same call later is another task.
        futures.append(client.submit(function, *task, pure=False, **where))
    return futures


# What runs on the workers.


def _own_node() -> str | None:
    try:
        return namespace.Namespace().status().get("name")
    except (OSError, zazen.Error):
        return None
