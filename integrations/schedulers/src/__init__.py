"""Tasks where their files lie: which node of the namespace holds the inputs, for schedulers.

    from zazen.schedulers import holders, nodelist

    holders(["/job/run1/a", "/job/run1/b"], mount="/job")    # {"/job/run1/a": "n3", ...}
    nodelist(paths, mount="/job")                            # "n3,n7", for srun --nodelist

``zazen.schedulers.dask`` and ``zazen.schedulers.parsl`` submit tasks there. This module needs
neither.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from zazen import namespace

__all__ = ["holders", "namespace_path", "nodelist"]

#: Inputs that one call asks about.
_AT_ONCE = 1024


def namespace_path(path: str | os.PathLike[str], mount: str | os.PathLike[str] = "/") -> str:
    """The path within the namespace of a path beneath its mount. ValueError if it is not beneath
    it."""
    path, top = os.path.normpath(os.fspath(path)), os.path.normpath(os.fspath(mount))
    if not os.path.isabs(path) or not os.path.isabs(top):
        raise ValueError(f"{path}: give absolute paths, and the namespace's mount ({top})")
    if os.path.commonpath([path, top]) != top:
        raise ValueError(f"{path} is not beneath the mount {top}")
    return "/" + os.path.relpath(path, top) if path != top else "/"


def holders(
    paths: Iterable[str | os.PathLike[str]],
    *,
    mount: str | os.PathLike[str] = "/",
    of: namespace.Namespace | None = None,
) -> dict[str, str | None]:
    """For each file the name of the node that holds its bytes.

    None for an empty file, and if the node is down and its name is not known.

    ``mount``: where the namespace is mounted, if the paths are paths of the mount. ``of``: another
    namespace than that of this machine's daemon. Raises what ``Namespace.locate`` raises, for the
    first path that it cannot find.
    """
    given = [os.fspath(path) for path in several(paths, "holders")]
    within = [namespace_path(path, mount) for path in given]
    source = namespace.connect() if of is None else of
    found: dict[str, str | None] = {}
    for at in range(0, len(given), _AT_ONCE):
        places = source.locate(within[at : at + _AT_ONCE])
        names = [place.name or None for place in places]
        found.update(zip(given[at : at + _AT_ONCE], names, strict=True))
    return found


def several(given: Iterable[Any], called: str) -> list[Any]:
    """`given` as a list. One path alone would be taken apart into its characters."""
    if isinstance(given, str | bytes | os.PathLike):
        raise TypeError(f"{called} takes several paths; give a list")
    return list(given)


def nodelist(
    paths: Iterable[str | os.PathLike[str]],
    *,
    mount: str | os.PathLike[str] = "/",
    of: namespace.Namespace | None = None,
) -> str:
    """The nodes that hold any of the files, most files first, as ``srun --nodelist`` and ``sbatch``
    take them."""
    counts = Counter(name for name in holders(paths, mount=mount, of=of).values() if name is not None)
    return ",".join(name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def most_held(inputs: Sequence[str], held: dict[str, str | None]) -> str | None:
    """The node that holds most of a task's inputs; of several, the first by name. None if no node
    holds any."""
    counts = Counter(held[path] for path in inputs if held[path] is not None)
    most = max(counts.values(), default=0)
    return min((name for name, count in counts.items() if count == most and name is not None), default=None)
