"""Frames of scientific datasets, read from the disks of the nodes that compute on them.

Read a dataset, on a laptop or on every rank of a job::

    import zazen
    from mpi4py import MPI

    with zazen.open("/lustre/sim1") as dataset:
        for number, data, path in dataset.frames(comm=MPI.COMM_WORLD):
            ...  # data is a read-only memoryview of the frame's bytes

Every frame is read by exactly one rank, mostly from the disk of the node it runs on. Without
``comm`` one process reads all frames. (If a launcher started several ranks this is an error; give
``comm=None`` to do it on purpose.) Without a daemon the backing store is read directly, with the
same result.

``path`` is the path of a file with exactly the frame's bytes: a str, or an ``os.PathLike`` whose
file is made when it is used. ``Frame.container`` and ``Frame.offset`` say where a packed frame or a
piece is stored.

Errors are ``zazen.Error`` and its subclasses. Each subclass is also a builtin exception
(``NotFoundError`` is a ``FileNotFoundError``). Warnings are ``ZazenWarning``.
"""

from __future__ import annotations

import atexit
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zazen import _zazen
from zazen._collectives import Collectives
from zazen._zazen import (
    Assignment,
    AuthenticationError,
    BusyError,
    ConfigError,
    ConflictError,
    CorruptError,
    Counters,
    Dataset,
    Error,
    Frame,
    Frames,
    InvalidArgumentError,
    IoError,
    MpiError,
    NoSpaceError,
    NoSuchFrameError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ReadStats,
    RunSet,
    ShuttingDownError,
    StaleError,
    TimedOutError,
    TooLargeError,
    Trajectory,
    UnavailableError,
    UnsupportedError,
    Writer,
    ZazenWarning,
    __version__,
    open,
)

__all__ = [
    "Assignment",
    "AuthenticationError",
    "BusyError",
    "Collectives",
    "ConfigError",
    "ConflictError",
    "CorruptError",
    "Counters",
    "Dataset",
    "Error",
    "Frame",
    "Frames",
    "InvalidArgumentError",
    "IoError",
    "MpiError",
    "NoSpaceError",
    "NoSuchFrameError",
    "NotFoundError",
    "PermissionDeniedError",
    "ProtocolError",
    "ReadStats",
    "RunSet",
    "ShuttingDownError",
    "StaleError",
    "TimedOutError",
    "TooLargeError",
    "Trajectory",
    "UnavailableError",
    "UnsupportedError",
    "Writer",
    "ZazenWarning",
    "__version__",
    "assign_scenario",
    "get_include",
    "get_library",
    "get_prefix",
    "open",
]


atexit.register(_zazen._remove_frame_files)

#: What a terminal obeys, or what shows other characters elsewhere than they stand.
_ORDERS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def _text(error: Error) -> str:
    """An error's text on one line. Other users choose names of files: nothing in them reaches a
    terminal as an order."""
    return _ORDERS.sub(lambda order: ascii(order[0])[1:-1], super(Error, error).__str__())


Error.__str__ = _text  # type: ignore[method-assign]


def assign_scenario(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Run the assignment protocol over in-process ranks.

    ``scenario``: ``nodes_of_ranks`` (the node of each rank), ``begin``, ``end`` (inclusive),
    ``stride``, ``native`` and ``alien`` (by node, runs ``[first, count, step]``), ``rules`` ("full"
    or "paper"), ``protocol`` ("owner" or "bitmaps"); the last five but ``native`` may be left out.

    Returns ``assigned`` (by rank, runs), ``native``, ``alien``, ``residue``, ``path``
    ("fingerprint" or "exchange"), ``bytes_sent`` (by rank) and ``rounds``. Raises
    InvalidArgumentError naming the field that is wrong.
    """
    return json.loads(_zazen.scenario_json(json.dumps(dict(scenario))))


def get_include() -> str:
    """The folder of ``zazen.h``, ``zazen_mpi.h`` and ``zazen.f90``, for a compiler's ``-I``.

    Raises NotFoundError if this installation does not carry the C library.
    """
    return str(_carried("include"))


def get_library() -> str:
    """The path of the C library, to link a program with or to load.

    It is the file of the SONAME (``libzazen.so.0``); programs that link with it ask the loader for
    that name. Raises NotFoundError if this installation does not carry the C library.
    """
    folder = _carried("lib")
    named = folder / "libzazen.so.0"
    return str(named if named.exists() else (folder / "libzazen.so").resolve())


def get_prefix() -> str:
    """The folder above ``include`` and ``lib``, for ``CMAKE_PREFIX_PATH``.

    For ``PKG_CONFIG_PATH`` take ``lib/pkgconfig`` in it.

    Raises NotFoundError if this installation does not carry the C library.
    """
    return str(_carried("lib").parent)


def _carried(folder: str) -> Path:
    path = Path(__file__).resolve().parent / folder
    if not path.is_dir():
        raise NotFoundError(
            2, f"{path} is not there: this installation carries no C library; reinstall the package"
        )
    return path
