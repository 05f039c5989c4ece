"""Parsl apps on the executor of the node that holds their input.

    import parsl
    from zazen.schedulers.parsl import map_files

    # One executor for each node, labelled with the name that the node has in the namespace.
    parsl.load(Config(executors=[HighThroughputExecutor(label=name, ...) for name in nodes]))
    futures = map_files(analyse, ["/job/run1/a", "/job/run1/b"], mount="/job")

Needs ``parsl`` (``pip install 'zazen[schedulers]'``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from zazen import namespace
from zazen.schedulers import holders, most_held, several

if TYPE_CHECKING:
    from parsl.dataflow.dflow import DataFlowKernel
    from parsl.dataflow.futures import AppFuture

__all__ = ["map_files"]


def map_files(
    function: Callable[..., Any],
    inputs: Iterable[str | os.PathLike[str] | Sequence[str | os.PathLike[str]]],
    *,
    mount: str | os.PathLike[str] = "/",
    of: namespace.Namespace | None = None,
    kernel: DataFlowKernel | None = None,
) -> list[AppFuture]:
    """Runs `function` on each input, on the executor of the node that holds it; futures in the
    order of `inputs`.

    An input is a path, or several paths, which `function` gets as they are; of several the node
    counts that holds most. The executor of a node has the node's name as its label. An input whose
    node has no executor goes to any of them. ``kernel``: another one than the loaded one. ``mount``
    and ``of`` as for ``zazen.schedulers.holders``.
    """
    import parsl

    kernel = kernel or parsl.dfk()
    labels = [label for label in kernel.executors if not label.startswith("_")]
    given = [
        [one] if isinstance(one, str | os.PathLike) else list(one) for one in several(inputs, "map_files")
    ]
    tasks = [[os.fspath(path) for path in paths] for paths in given]
    held = holders(dict.fromkeys(path for task in tasks for path in task), mount=mount, of=of)
    apps: dict[str | None, Any] = {}
    futures = []
    for task in tasks:
        node = most_held(task, held)
        label = node if node in labels else None
        if label not in apps:
            chosen = [label] if label is not None else labels
            apps[label] = parsl.python_app(function, data_flow_kernel=kernel, executors=chosen)
        futures.append(apps[label](*task))
    return futures
