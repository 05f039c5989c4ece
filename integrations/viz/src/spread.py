"""VTKHDF files whose data lie in other files.

VTK writes partitions, blocks or time steps to files of their own if it is asked to (vtkHDFWriter's
``UseExternalPartitions``, ``…Composite``, ``…TimeSteps``). The main file then has HDF5's virtual
datasets or external links, and is an index like others: its parts can be matched to the ranks that
hold them. This module reads it with h5py and without VTK.

HDF5 gives zeros for a virtual dataset whose file is missing, without a word. As an index, the main
file names the files that must be there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

__all__ = ["missing_beneath", "spread_over"]

#: VTK writes files that point to files that point to files. Others may point in a circle.
_DEPTH_MAX = 2


def spread_over(path: str) -> list[dict[str, Any]] | None:
    """The time steps of the VTKHDF file ``path``, if the data of each are in files of their own:
    "time", "files" (absolute paths) and "tree" of each step, as an index has them. Otherwise None.

    Raises ImportError without h5py. What is wrong with the file itself is left to VTK's reader.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            root = file["VTKHDF"]
            kind = root.attrs.get("Type", b"")
            kind = kind.decode() if isinstance(kind, bytes) else str(kind)
            steps = _blocks(h5py, root) if kind == "PartitionedDataSetCollection" else _parts(root)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError):
        return None
    folder = os.path.dirname(os.path.abspath(path))
    for step in steps or []:
        step["files"] = [_resolved(folder, name) for name in step["files"]]
    return steps


def missing_beneath(files: Iterable[str], depth: int = 0) -> list[str] | None:
    """The files that the VTKHDF files ``files`` take data from and that are not there, as they are
    named. The parts of a file may take theirs from further files.

    ``files`` are of one kind: None, if the first of them that is there takes data from no other
    file. Raises ImportError without h5py.
    """
    import h5py

    missing, takes = list[str](), False
    for path in files:
        try:
            with h5py.File(path, "r") as file:
                named = _named_files(h5py, file["VTKHDF"]) - {"", "."}
        except (OSError, KeyError, ValueError, TypeError, RuntimeError):
            continue
        if not named and not takes:
            return None
        takes, folder = True, os.path.dirname(os.path.abspath(path))
        # HDF5 puts numbers in the place of "%b".
        places = {name: _resolved(folder, name) for name in sorted(named) if "%" not in name}
        missing += [
            name for name, at in places.items() if not os.path.exists(at) and not os.path.exists(name)
        ]
        if depth < _DEPTH_MAX:
            missing += missing_beneath(places.values(), depth + 1) or []
    return missing


def _named_files(h5py: Any, group: Any) -> set[str]:
    """The files that arrays and links beneath a group name."""
    found = set[str]()
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            found.add(link.filename)
        elif isinstance(link, h5py.HardLink):
            one = group[name]
            if isinstance(one, h5py.Group):
                found |= _named_files(h5py, one)
            elif isinstance(one, h5py.Dataset) and one.is_virtual:
                found |= {source.file_name for source in one.virtual_sources()}
    return found


def _resolved(folder: str, name: str) -> str:
    """As HDF5 looks for it: as named, or beside the main file."""
    if os.path.isabs(name) and not os.path.exists(name):
        beside = os.path.join(folder, os.path.basename(name))
        return beside if os.path.exists(beside) else name
    return os.path.normpath(os.path.join(folder, name))


def _parts(group: Any) -> list[dict[str, Any]] | None:
    """Polygons or an unstructured grid, in partitions."""
    files = _by_partition(group)
    if files is None:
        return None
    if "Steps" in group:
        return _over_time(group["Steps"]["Values"][...], _by_step(group, files))
    if len(set(files)) != len(files):
        return None
    pieces = [[None, {"file": at}] for at in range(len(files))]
    return [{"time": 0.0, "files": files, "tree": {"blocks": [[None, {"pieces": pieces}]]}}]


def _by_partition(group: Any) -> list[str] | None:
    """By partition of all steps, the other file that it is in."""
    counts = group["NumberOfPoints"]
    if not counts.is_virtual:
        return None
    files: list[str] = [""] * counts.shape[0]
    for source in counts.virtual_sources():
        (begin,), (last,) = source.vspace.get_select_bounds()
        files[begin : last + 1] = [source.file_name] * (last + 1 - begin)
    # "." is the file itself.
    return None if set(files) & {"", "."} else files


def _by_step(group: Any, files: list[str]) -> list[set[str]]:
    """By step, the files of its partitions."""
    steps = group["Steps"]
    begins, counts = steps["PartOffsets"][...], steps["NumberOfParts"][...]
    return [
        set(files[int(begin) : int(begin) + int(count)]) for begin, count in zip(begins, counts, strict=True)
    ]


def _over_time(times: Any, by_step: list[set[str]]) -> list[dict[str, Any]] | None:
    """Steps of one file each, of which no other step has some."""
    found = [file for files in by_step for file in files]
    if len(found) != len(by_step) or len(set(found)) != len(found) or len(times) != len(found):
        return None
    return [
        {"time": float(time), "files": [file], "tree": {"file": 0}}
        for time, file in zip(times, found, strict=True)
    ]


def _blocks(h5py: Any, root: Any) -> list[dict[str, Any]] | None:
    """A collection: each block in a file of its own, or each time step."""
    links = {name: root.get(name, getlink=True) for name in root if name != "Assembly"}
    if links and all(isinstance(link, h5py.ExternalLink) for link in links.values()):
        if any(link.path.strip("/") != "VTKHDF" for link in links.values()):
            return None
        named = [(name, link.filename) for name, link in links.items()]
        # Without its file, nobody knows a block's place; the step can't be shown then anyway.
        order = {name: _place_of(root, name) for name, _ in named}
        named.sort(key=lambda each: order[each[0]])
        blocks = [[name, {"pieces": [[None, {"file": at}]]}] for at, (name, _) in enumerate(named)]
        tree = {"blocks": [[None, {"blocks": blocks}]]}
        return [{"time": 0.0, "files": [file for _, file in named], "tree": tree}]
    by_step: list[set[str]] | None = None
    times: Any = ()
    for name in links:
        files = _by_partition(root[name])
        if files is None or "Steps" not in root[name]:
            return None
        own = _by_step(root[name], files)
        times = root[name]["Steps"]["Values"][...]
        by_step = own if by_step is None else [a | b for a, b in zip(by_step, own, strict=True)]
    return None if by_step is None else _over_time(times, by_step)


def _place_of(root: Any, name: str) -> int:
    try:
        return int(root[name].attrs["Index"])
    except (OSError, KeyError):
        return -1
