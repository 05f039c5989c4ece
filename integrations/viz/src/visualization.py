"""A visualization that the ranks of a job opened together: its time steps, and who reads which
file.

It knows no VTK. Every rank computes the same plan from the same locations, which were taken once.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zazen
import zazen.namespace
from zazen import _zazen
from zazen.viz.matching import match, sticky
from zazen.viz.spread import missing_beneath, spread_over

__all__ = ["Alone", "Memory", "Plan", "Step", "Visualization", "world"]

STRATEGIES = ("blind", "first-come", "scarcest", "least-demand", "optimal", "bytes", "sticky", "stock")

#: Names this process's job in records, if it is rank 0.
_RUN = uuid.uuid4().hex


class Alone:
    """A communicator of one rank, as far as this module uses one."""

    rank, size = 0, 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def world() -> Any:
    """mpi4py's COMM_WORLD if this process is one of several ranks, else `Alone`.

    In ParaView and in MPI jobs, MPI is up already. mpi4py is not imported where no launcher started
    this process.
    """
    import sys

    if "mpi4py.MPI" not in sys.modules and not _zazen.is_launched():
        return Alone()
    try:
        from mpi4py import MPI
    except ImportError:
        warnings.warn(
            "a launcher started this process, but mpi4py is not installed (pip install 'zazen[mpi]'): this "
            "rank reads all files",
            zazen.ZazenWarning,
            stacklevel=3,
        )
        return Alone()
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else Alone()


@dataclass(frozen=True)
class Step:
    """A time step: its files beneath the directory, their lengths (-1: missing), and the tree of
    its blocks.

    ``tree`` is "empty", {"file": i}, {"blocks": [[name, tree], …]} or {"pieces": [[name, tree],
    …]}. ``covered``: by file (as text), extents of other pieces that have some of its cells too.
    ``field_data``: that of the whole step, as a file of VTK's, or None. ``trouble`` says why the
    step can't be shown, or is None. ``blocks``: by file, which block of the visualization it is,
    the same text in all steps; empty: the files are the blocks in their order.
    """

    time: float
    files: list[str]
    bytes: list[int]
    tree: Any
    trouble: str | None
    covered: dict[str, list[list[int]]] = field(default_factory=dict)
    field_data: str | None = None
    blocks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Who reads what of a step: the rank of each file, and whether the rank's node holds the
    file."""

    rank_of_file: list[int]
    is_local: list[bool]
    bound: int

    @property
    def remote(self) -> int:
        """Files that their rank reads remotely."""
        return self.is_local.count(False)


def _tell_missing(directory: str, step: dict[str, Any]) -> None:
    missing = [file for file, found in zip(step["files"], step["bytes"], strict=True) if found < 0]
    if missing and step["trouble"] is None:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        step["trouble"] = f"{directory}/{missing[0]}{more}: there is no such file"


def _look_into_vtkhdf(index: dict[str, Any]) -> None:
    """Puts the files that hold the data in place of VTKHDF files that only point to them."""
    directory, found = index["directory"], list[dict[str, Any]]()
    for at, step in enumerate(index["steps"]):
        if len(step["files"]) != 1 or not _is_vtkhdf(step["files"][0]) or step["trouble"] is not None:
            return
        path = os.path.join(directory, step["files"][0])
        try:
            over = spread_over(path)
        except ImportError:
            warnings.warn(
                f"{path}: whether its data lie in other files can't be seen without h5py (pip install "
                "h5py); HDF5 gives zeros for files that are missing",
                zazen.ZazenWarning,
                stacklevel=2,
            )
            return
        if over is None or (len(over) > 1 and len(index["steps"]) > 1):
            files = [[os.path.join(directory, file) for file in each["files"]] for each in index["steps"]]
            _tell_missing_sources(index["steps"], files)
            return
        if at > 0 or len(index["steps"]) > 1:
            over[0]["time"] = step["time"]
        found += over
    placed = json.loads(_zazen.place_json(directory, [step["files"] for step in found]))
    steps = [
        {**each, "files": files, "covered": {}, "field_data": None, "trouble": None, "blocks": []}
        for each, files in zip(found, placed["steps"], strict=True)
    ]
    _tell_missing_sources(steps, [each["files"] for each in found])
    index |= {
        "directory": placed["directory"],
        "template": placed["template"],
        "steps": steps,
        "spread": True,
    }


def _tell_missing_sources(steps: list[dict[str, Any]], files: Iterable[list[str]]) -> None:
    """Notes in each of ``steps`` if its ``files`` take data from files that are not there."""
    for step, own in zip(steps, files, strict=True):
        missing = missing_beneath(own)
        if missing is None:
            # The steps of a series are all of one kind.
            return
        if missing and step["trouble"] is None:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            step["trouble"] = f"its data are in {missing[0]}{more}: there is no such file"


def _is_vtkhdf(file: str) -> bool:
    return file.lower().endswith(".vtkhdf")


def _sizes_without_mount(index: dict[str, Any], socket: Any) -> None:
    """Lengths and holders of all files, asked for once, at one moment."""
    files = [file for step in index["steps"] for file in step["files"]]
    located = iter(json.loads(_zazen.locate_json(index["directory"], index["directory"], files, socket)))
    for step in index["steps"]:
        found = [next(located) for _ in step["files"]]
        # A file without blocks is empty, and an empty file is no file of VTK's.
        step["bytes"] = [length if length > 0 else -1 for length, _, _ in found]
        step["holders"] = [hosts for _, hosts, _ in found]
        _tell_missing(index["directory"], step)


def _blocks_in_hdfs(index: dict[str, Any]) -> dict[str, str]:
    """By file in HDFS, the block that it is, if hosts may open replicas as files."""
    if not index["directory"].startswith("hdfs://"):
        return {}
    files = [file for step in index["steps"] for file in step["files"]]
    try:
        found = _zazen.hdfs_blocks_json(index["directory"], files)
    except zazen.Error:
        # A gateway such as HttpFS may not say which blocks a file is; it gives the bytes.
        found = None
    blocks = [None] * len(files) if found is None else json.loads(found)
    return {file: json.dumps(block) for file, block in zip(files, blocks, strict=True) if block}


class Visualization:
    """Opens an index file, or a pattern with ``{t}`` and ``{b}``, with all ranks of ``comm``
    (collective).

    ``comm``: an mpi4py communicator; None: `world()`. ``strategy``: one of `match`, or "sticky"
    (one map for all steps), or "stock" (contiguous runs of blocks, as VTK's own reader).
    ``locator``: "cache" (the nodes' daemons), "none", "namespace", "table:FILE", or
    "hdfs://HOST:PORT/DIRECTORY". Files in HDFS or in the namespace say themselves where they are,
    unless another locator than "cache" is given. ``socket``: as for `zazen.open`.

    Rank 0 alone reads the index files; every rank raises what rank 0 raises. Locations are those of
    this moment. A rank whose daemon does not answer holds nothing, and reads from the backing
    store.
    """

    #: What a directory begins with that is no directory of this machine.
    _WITHOUT_MOUNT = ("hdfs://", "namespace:")

    def __init__(
        self,
        path: str | os.PathLike[str],
        comm: Any = None,
        *,
        strategy: str = "optimal",
        locator: str = "cache",
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise _zazen.InvalidArgumentError(
                f"strategy is {strategy!r}; give one of {', '.join(STRATEGIES)}"
            )
        self.comm = world() if comm is None else comm
        self.strategy = strategy
        self._socket = socket
        index = self._of_rank_0(
            lambda: {**self._read_index(os.fspath(path)), "path": os.fspath(path), "run": _RUN}
        )
        #: The job, by the name that rank 0 gives it.
        self.run: str = index["run"]
        #: The index that rank 0 opened: what the ranks do together must not depend on each one's
        #: own words.
        self.path: str = index["path"]
        self.directory: str = index["directory"]
        #: By file, its block in HDFS, for replicas that are opened as files.
        self._blocks: dict[str, str] = index.get("blocks", {})
        #: Whether the index is a VTKHDF file whose data are in other files.
        self._is_spread = index.get("spread", False)
        #: Whether the files come as bytes, from HDFS or the namespace, and not from a directory of
        #: this machine.
        self.without_mount = self.directory.startswith(self._WITHOUT_MOUNT)
        #: The directory's path in the namespace, if it is there.
        self.namespace: str | None = index["namespace"]
        holders = [step.pop("holders", None) for step in index["steps"]]
        #: The pattern that the files follow, or None.
        self.template: str | None = index["template"]
        self.steps = [Step(**step) for step in index["steps"]]
        if index["note"] is not None and self.comm.rank == 0:
            warnings.warn(f"{self.path}: {index['note']}", zazen.ZazenWarning, stacklevel=3)
        self.times = [step.time for step in self.steps]
        self._names_of_namespace = self.namespace is not None and locator in ("cache", "namespace")
        is_cached = not self.without_mount and self.namespace is None
        #: The frames of the files; None if no cache can hold them.
        self.numbers: list[list[int]] | None = None
        self.dataset = self._open_dataset(socket) if is_cached else None
        self._rank_nodes: list[Any] = list(range(self.comm.size))
        #: By holder, its node's identity; None if no node is asked for what it holds.
        self._node_of_holder: dict[int, int] | None = None
        if self.without_mount and locator in ("cache", "namespace"):
            self._holders = self._by_host(holders)
        else:
            self._holders = self._locate(locator)
        self._plans: dict[int, Plan] = {}
        self._sticky: dict[str, int] | None = None

    def _of_rank_0(self, find: Any) -> Any:
        """What ``find`` gives on rank 0; its exception on every rank."""
        found: tuple[Any, BaseException | None] = (None, None)
        if self.comm.rank == 0:
            try:
                found = (find(), None)
            except Exception as error:
                found = (None, error)
        value, error = self.comm.bcast(found, root=0)
        if error is not None:
            raise error
        return value

    def _read_index(self, path: str) -> dict[str, Any]:
        index = json.loads(_zazen.index_json(path, self._socket))
        if index["directory"].startswith(self._WITHOUT_MOUNT):
            _sizes_without_mount(index, self._socket)
            index["blocks"] = _blocks_in_hdfs(index)
            return index

        def size(file: str) -> int:
            try:
                return os.stat(os.path.join(index["directory"], file)).st_size
            except OSError:
                return -1

        _look_into_vtkhdf(index)
        with ThreadPoolExecutor(16) as threads:
            for step in index["steps"]:
                step["bytes"] = list(threads.map(size, step["files"]))
                _tell_missing(index["directory"], step)
        return index

    def _open_dataset(self, socket: Any) -> zazen.Dataset | None:
        """The frames behind the files, on all ranks or on none."""
        dataset, why = None, "the index names no files"
        if any(step.files for step in self.steps):
            try:
                dataset = zazen.open(self.directory, pattern=self.template, socket=socket)
                # Of all files: a list may be older than the last steps.
                self.numbers = [[dataset.number_of(file) for file in step.files] for step in self.steps]
            except Exception as error:
                # The other ranks wait to hear of it.
                dataset, why = None, str(error)
        whys = self.comm.allgather(None if dataset is not None else why)
        wrong = next((why for why in whys if why is not None), None)
        if wrong is None:
            return dataset
        self.numbers = None
        if self.comm.rank == 0:
            warnings.warn(
                f"{self.path}: its files are read from where they are, without caches: {wrong}. Files that "
                "follow no pattern can be listed: zazen number DIR",
                zazen.ZazenWarning,
                stacklevel=4,
            )
        return None

    def _locate(self, locator: str) -> list[list[list[Any]]]:
        """By step and file, the nodes that hold it."""
        nowhere: list[list[list[Any]]] = [[[] for _ in step.files] for step in self.steps]
        if locator == "none":
            return nowhere
        if locator != "cache":
            return self._locate_by_host(locator)
        if self.namespace is not None:
            return self._locate_in_namespace()
        if self.dataset is None:
            return nowhere
        comm = None if isinstance(self.comm, Alone) else self.comm
        self._rank_nodes, held = self.dataset.holders(comm)
        nodes = self.comm.allgather(self.dataset.node)
        self._node_of_holder = dict(zip(self._rank_nodes, nodes, strict=True))
        assert self.numbers is not None, "a dataset has numbers for all files"
        holders: dict[int, list[int]] = {}
        for node, numbers in enumerate(held):
            for number in numbers:
                holders.setdefault(number, []).append(node)
        return [[holders.get(number, []) for number in step] for step in self.numbers]

    def _locate_by_host(self, locator: str) -> list[list[list[Any]]]:
        def find() -> list[list[list[str]]]:
            files = [file for step in self.steps for file in step.files]
            found = iter(json.loads(_zazen.locate_json(locator, self.directory, files, self._socket)))
            return [[next(found)[1] for _ in step.files] for step in self.steps]

        return self._by_host(self._of_rank_0(find))

    def _locate_in_namespace(self) -> list[list[list[Any]]]:
        """In a mount of the namespace, which nobody named as the locator: without an answer the
        files are read all the same."""
        try:
            return self._locate_by_host("namespace")
        except zazen.Error as error:
            if self.comm.rank == 0:
                warnings.warn(
                    f"{self.path}: the namespace does not say where its files are, so all count as remote: "
                    f"{error}",
                    zazen.ZazenWarning,
                    stacklevel=5,
                )
            return [[[] for _ in step.files] for step in self.steps]

    def _by_host(self, holders: list[list[list[str]]]) -> list[list[list[Any]]]:
        """Ranks by their hosts, under the names that the locator has for these."""
        known = {host for step in holders for file in step for host in file}
        hosts = self.comm.allgather(self._own_host())
        self._rank_nodes = [_named(host, known) for host in hosts]
        return holders

    def _own_host(self) -> str:
        """This node's name: in the namespace the one that its daemon has there."""
        if self._names_of_namespace:
            try:
                name = zazen.namespace.Namespace(self._socket).status().get("name")
            except (OSError, zazen.Error):
                # It holds nothing then.
                name = None
            if name:
                return str(name)
        return socket.gethostname()

    def plan(self, step: int) -> Plan:
        """Who reads what of a step: alike on all ranks, without communication."""
        if step not in self._plans:
            self._plans[step] = self._planned(step)
        return self._plans[step]

    def _planned(self, at: int) -> Plan:
        step, holders, ranks = self.steps[at], self._holders[at], self._rank_nodes
        files = list(zip([max(size, 0) for size in step.bytes], holders, strict=True))
        bound = 0
        if not files:
            return Plan([], [], 0)
        if self.strategy == "stock":
            rank_of_file = stock(len(files), len(ranks))
        elif self.strategy == "sticky":
            rank_of_block, rank_of_file = self._sticky_map(), [0] * len(files)
            for block, file in self._file_of_block(at).items():
                # A step with missing files cannot be shown, and may have blocks of its own.
                rank_of_file[file] = rank_of_block.get(block, 0)
        else:
            matched = match(ranks, files, self.strategy)
            bound = matched.bound
            rank_of_file = [0] * len(files)
            for rank, own in enumerate(matched.assigned):
                for file in own:
                    rank_of_file[file] = rank
        is_local = [ranks[rank] in holders[file] for file, rank in enumerate(rank_of_file)]
        return Plan(rank_of_file, is_local, bound)

    def _file_of_block(self, at: int) -> dict[str, int]:
        """By block, its file in a step."""
        step = self.steps[at]
        blocks = step.blocks or [f"{file:09}" for file in range(len(step.files))]
        return {block: file for file, block in enumerate(blocks)}

    def _sticky_map(self) -> dict[str, int]:
        """By block, its rank in all steps."""
        if self._sticky is None:
            shown = [at for at, step in enumerate(self.steps) if step.trouble is None]
            counts = {len(self.steps[at].files) for at in shown}
            blocks = [self._file_of_block(at) for at in shown]
            if len(counts) != 1:
                raise _zazen.InvalidArgumentError(
                    f"{self.path}: strategy 'sticky' keeps each block on its rank, but the steps have "
                    f"{min(counts, default=0)} to {max(counts, default=0)} files; take another strategy"
                )
            # Steps may list the same blocks in unlike orders.
            order = list(blocks[0])
            for at, own in zip(shown, blocks, strict=True):
                if own.keys() != blocks[0].keys():
                    raise _zazen.InvalidArgumentError(
                        f"{self.path}: strategy 'sticky' keeps each block on its rank, but the step of time "
                        f"{self.times[at]} has other blocks than that of time {self.times[shown[0]]}; take "
                        "another strategy"
                    )
            steps = [
                [(max(self.steps[at].bytes[own[block]], 0), self._holders[at][own[block]]) for block in order]
                for at, own in zip(shown, blocks, strict=True)
            ]
            matched = sticky(self._rank_nodes, steps)
            self._sticky = {order[block]: rank for rank, own in enumerate(matched.assigned) for block in own}
        return self._sticky

    def mine(self, step: int, rank: int | None = None) -> list[int]:
        """The files of a step that this rank (or ``rank``) reads."""
        rank = self.comm.rank if rank is None else rank
        return [file for file, reader in enumerate(self.plan(step).rank_of_file) if reader == rank]

    def is_vtkhdf(self, step: int) -> bool:
        """Whether a step is one VTKHDF file, of which every rank reads a piece."""
        files = self.steps[step].files
        return not self.without_mount and len(files) == 1 and _is_vtkhdf(files[0])

    def parts_of(self, step: int, count: int) -> tuple[list[int], bool]:
        """Of the ``count`` parts of a step that is one VTKHDF file, those that this rank reads; and
        whether its node holds the file. Alike on all ranks, without communication."""
        ranks, holders = self._rank_nodes, self._holders[step][0]
        is_here = ranks[self.comm.rank] in holders
        if self.strategy == "stock":
            # VTK's own reader deals out parts by turns.
            return list(range(self.comm.rank, count, self.comm.size)), is_here
        strategy = "optimal" if self.strategy == "sticky" else self.strategy
        each = max(self.steps[step].bytes[0], 0) // max(count, 1)
        return match(ranks, [(each, holders)] * count, strategy).assigned[self.comm.rank], is_here

    def is_index(self, file: str) -> bool:
        """Whether a file of a step is the index itself."""
        return os.path.basename(self.path) == os.path.basename(file)

    def take_times(self, find: Callable[[Path], list[float]]) -> None:
        """If the index is itself a VTKHDF file, its steps are those that ``find`` says
        (collective)."""
        if self._is_spread or not _is_vtkhdf(self.path) or self.steps[0].trouble is not None:
            return
        if self.without_mount:
            raise _zazen.UnsupportedError(
                f"{self.path}: a VTKHDF file without a mount cannot be an index; "
                "copy it into a directory that all ranks see, or mount the namespace"
            )
        times = self._of_rank_0(lambda: find(self.path_of(0, 0)))
        if times:
            self.steps = [replace(self.steps[0], time=time) for time in times]
            self._holders = self._holders * len(times)
            self.numbers = None if self.numbers is None else self.numbers * len(times)
            self.times = times

    def path_of(self, step: int, file: int) -> Path:
        """The file in the directory that the index names."""
        return Path(self.directory, self.steps[step].files[file])

    @property
    def brings_files(self) -> bool:
        """Whether files come by `read` or `fetch`. Otherwise VTK's readers read each file where it
        is."""
        return self.without_mount or (self.dataset is not None and self.dataset.has_daemon)

    def read(self, step: int, files: Sequence[int]) -> list[zazen.Frame] | None:
        """The frames of some files, through this node's daemon, which keeps what was remote; None
        without caches, or without a daemon: VTK's reader then reads each file where it is, once.
        What another node of the job holds comes from that node, if the daemons know each other."""
        if self.dataset is None or not self.brings_files or not files:
            return None
        self._bring(step, files)
        return self.dataset.read_many([self.steps[step].files[file] for file in files])

    def _bring(self, step: int, files: Sequence[int]) -> None:
        """Brings the remote ones of ``files`` from nodes that hold them. What does not come so is
        read from the backing store."""
        if self._node_of_holder is None or self.dataset is None:
            return
        is_local, by_holder = self.plan(step).is_local, dict[int, list[str]]()
        for file in files:
            if holders := self._holders[step][file] if not is_local[file] else []:
                # Ranks and files are spread over the replicas.
                holder = holders[(file + self.comm.rank) % len(holders)]
                by_holder.setdefault(holder, []).append(self.steps[step].files[file])
        for holder, names in by_holder.items():
            try:
                self.dataset.bring(names, self._node_of_holder[holder])
            except _zazen.UnsupportedError:
                # This node's daemon knows no other nodes, and will not learn of them.
                self._node_of_holder = None
                return
            except (zazen.Error, OSError):
                continue

    def fetch(self, step: int, file: int) -> Memory:
        """A file without a mount. If this node has it, it is the node's own file, where this user
        may open that: in the namespace and in HDFS. Otherwise its bytes come from the holder. In
        HDFS that is this host's data node, if it has a replica, and else all that have one."""
        name, length = self.steps[step].files[file], self.steps[step].bytes[file]
        is_here = self.plan(step).is_local[file]
        if is_here and (here := self._open_here(name, length)) is not None:
            return here
        memory = Memory(name)
        _zazen.fetch_remote(self.directory, name, length, memory.path, self._socket, is_here)
        return memory

    def _open_here(self, name: str, length: int) -> Memory | None:
        """The node's own file of a file without a mount."""
        if self.namespace is not None:
            descriptor = _zazen.namespace_descriptor(self.directory, name, self._socket)
        else:
            descriptor = _zazen.hdfs_descriptor(block) if (block := self._blocks.get(name)) else None
        if descriptor is None:
            return None
        here = Memory(name, descriptor)
        # VTK opens it again, which the folder of another user's daemon may forbid.
        if here.length == length and os.access(here.path, os.R_OK):
            return here
        here.close()
        return None

    def nearest(self, time: float) -> int:
        """The step whose time is nearest to ``time``."""
        return min(range(len(self.times)), key=lambda at: (abs(self.times[at] - time), at))

    def close(self) -> None:
        """Lets go of the dataset."""
        self.dataset = None


class Memory:
    """Bytes in memory, or behind ``descriptor``, that have a path, so that VTK's readers read them
    as a file."""

    def __init__(self, name: str, descriptor: int | None = None) -> None:
        #: Without one, if none can be had.
        self._descriptor = -1
        if descriptor is None:
            descriptor = os.memfd_create(name[-200:].replace("/", "_"), os.MFD_CLOEXEC)
        self._descriptor = descriptor
        self.path = f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def length(self) -> int:
        """Bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Lets go of the bytes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close


def stock(files: int, ranks: int) -> list[int]:
    """VTK's own split: contiguous runs, the first ranks with one more."""
    each, more = divmod(files, ranks)
    counts = [each + (rank < more) for rank in range(ranks)]
    return [rank for rank, count in enumerate(counts) for _ in range(count)]


def _named(host: str, known: set[str]) -> str:
    """A host by the name that a locator has for it: alike, or one of them without its domain. As
    everywhere, small and capital letters are the same."""
    if host in known:
        return host
    lower = host.lower()
    short = lower.partition(".")[0]
    for name in sorted(known):
        if name.lower() == lower:
            return name
    if lower.replace(".", "").isdigit():
        return host
    for name in sorted(known):
        if name.lower().partition(".")[0] == short and ("." not in name or "." not in host):
            return name
    return host
