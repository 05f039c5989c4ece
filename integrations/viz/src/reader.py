"""A VTK algorithm that gives each rank the blocks that lie on its node.

Its output is the stock reader's tree on every rank, with None where a block is another rank's. What
it reads remotely stays on the node as a replica.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import zazen
from vtkmodules.util.vtkAlgorithm import VTKPythonAlgorithmBase
from vtkmodules.vtkCommonCore import vtkDataArraySelection, vtkVersion
from vtkmodules.vtkCommonDataModel import (
    vtkCompositeDataSet,
    vtkMultiBlockDataSet,
    vtkMultiPieceDataSet,
    vtkPartitionedDataSet,
    vtkPartitionedDataSetCollection,
)
from vtkmodules.vtkCommonExecutionModel import vtkAlgorithm, vtkStreamingDemandDrivenPipeline
from zazen import _zazen
from zazen.viz.parts import (
    GHOSTS,
    Arrays,
    LeftOut,
    ParsedAhead,
    arrays_in,
    blank,
    field_data_of,
    leaves_of,
    may_be_parsed_aside,
    read_part,
    read_vtkhdf,
    vtkhdf_parts,
    vtkhdf_times,
)
from zazen.viz.steps import Ahead, Kept
from zazen.viz.turns import Came, in_turn
from zazen.viz.visualization import Visualization, stock

__all__ = ["Reader"]

#: Files that are looked at for names of arrays before one is read.
_LOOKED_AT_MAX = 16
#: From this version on, VTK is known to let go of Python's lock while it renders and updates.
_LETS_GO = (9, 7)
OUTPUTS = {
    "multiblock": ("vtkMultiBlockDataSet", vtkMultiBlockDataSet),
    "collection": ("vtkPartitionedDataSetCollection", vtkPartitionedDataSetCollection),
}


class Reader(VTKPythonAlgorithmBase):
    """Reads a visualization; ``path`` is an index file or a pattern with ``{t}`` and ``{b}``.

    With several ranks, all ranks make the same calls: opening and each update are collective over
    ``comm`` (an mpi4py communicator; None: all ranks of the job). Setters take effect at the next
    update.

    ``strategy``, ``locator``, ``socket``: as for `Visualization`. ``output``: "multiblock", or
    "collection" for a vtkPartitionedDataSetCollection whose partitions are the leaves of the tree.
    ``keep_bytes``: memory for steps that were read; ``ahead``: steps that are fetched in advance;
    ``ahead_bytes``: memory for them. ``record``: a folder for `zazen viz report`
    ($ZAZEN_VIZ_RECORD).

    If a file of a step can't be read on one rank, the update fails on every rank (``error`` has the
    reason), and the output is empty: no picture with a hole. Arrays that not all blocks have give a
    warning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        comm: Any = None,
        *,
        strategy: str = "optimal",
        locator: str = "cache",
        output: str = "multiblock",
        socket: str | os.PathLike[str] | None = None,
        keep_bytes: int = 2 << 30,
        ahead: int = 1,
        ahead_bytes: int = 1 << 30,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise _zazen.InvalidArgumentError(f"output is {output!r}; give one of {', '.join(OUTPUTS)}")
        super().__init__(nInputPorts=0, nOutputPorts=1, outputType=OUTPUTS[output][0])
        self._output, self._comm, self._socket = output, comm, socket
        self._path = None if path is None else os.fspath(path)
        self._strategy, self._locator, self._ahead_steps = strategy, locator, ahead
        self._kept, self._ahead_bytes = Kept(keep_bytes), ahead_bytes
        self._record = Path(folder) if (folder := record or os.environ.get("ZAZEN_VIZ_RECORD")) else None
        self._opened: Visualization | None = None
        self._ahead: Ahead | None = None
        self._warned: set[str] = set()
        #: Whether a selection is changed by the reader itself, which needs no new update.
        self._quiet = False
        #: Why the last update failed, or None.
        self.error: Exception | None = None
        self._point, self._cell = vtkDataArraySelection(), vtkDataArraySelection()
        for selection in (self._point, self._cell):
            selection.AddObserver("ModifiedEvent", self._selected)

    def _selected(self, *_: Any) -> None:
        if not self._quiet:
            self.Modified()

    # What users set.

    def SetFileName(self, path: str) -> None:
        """The index file or pattern."""
        if path != self._path:
            self._path = path
            self._reopen()

    def GetFileName(self) -> str | None:
        """The index file or pattern."""
        return self._path

    def SetStrategy(self, strategy: str) -> None:
        """Who reads what: a strategy of `zazen.viz.match`, "sticky", or "stock"."""
        if strategy != self._strategy:
            self._strategy = strategy
            self._reopen()

    def SetLocator(self, locator: str) -> None:
        """What says where files are: "cache", "none", "namespace", "table:FILE",
        "hdfs://HOST:PORT/DIRECTORY"."""
        if locator != self._locator:
            self._locator = locator
            self._reopen()

    def SetAhead(self, steps: int) -> None:
        """How many steps are fetched in advance."""
        self._ahead_steps = max(0, int(steps))

    def SetKeepBytes(self, bytes_max: int) -> None:
        """Memory for steps that were read."""
        self._kept.bytes_max = int(bytes_max)

    def Reload(self) -> None:
        """Forgets what was read: the next update reads the index, asks who holds what, and reads
        the files anew."""
        self._reopen()

    def GetPointArraySelection(self) -> vtkDataArraySelection:
        """Which arrays of points are loaded."""
        return self._point

    def GetCellArraySelection(self) -> vtkDataArraySelection:
        """Which arrays of cells are loaded."""
        return self._cell

    def GetTimestepValues(self) -> list[float]:
        """The times of the steps. Opens the index (collective)."""
        return self.visualization.times

    @property
    def visualization(self) -> Visualization:
        """The opened index and its plan. Opens it if need be (collective)."""
        if self._opened is None:
            if self._path is None:
                raise _zazen.InvalidArgumentError("no file is set; SetFileName takes an index or a pattern")
            opened = Visualization(
                self._path,
                self._comm,
                strategy=self._strategy,
                locator=self._locator,
                socket=self._socket,
            )
            opened.take_times(lambda path: vtkhdf_times(path, path.name))
            self._learn_arrays(opened)
            parse = self._parse_ahead if self._parses_ahead() else None
            self._ahead = Ahead(opened, self._ahead_bytes, parse)
            self._opened = opened
        return self._opened

    def _reopen(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._opened = self._ahead = None
        self._kept.clear()
        self.Modified()

    def _learn_arrays(self, opened: Visualization) -> None:
        """Names the arrays of the first file that has some; rank 0 looks."""

        def look() -> Arrays:
            step = next((step for step in opened.steps if step.trouble is None and step.files), None)
            for at, file in enumerate(step.files[:_LOOKED_AT_MAX] if step is not None else []):
                number = opened.steps.index(step)
                try:
                    if opened.without_mount:
                        with opened.fetch(number, at) as memory:
                            found = arrays_in(memory.path, file)
                    else:
                        found = arrays_in(opened.path_of(number, at), file)
                except (zazen.Error, OSError):
                    continue
                if found.point or found.cell:
                    return found
            return Arrays()

        self._add_arrays([opened._of_rank_0(look)])

    def _add_arrays(self, every: Iterable[Arrays]) -> None:
        """New arrays are loaded unless somebody says otherwise."""
        for arrays in every:
            for selection, names in ((self._point, arrays.point), (self._cell, arrays.cell)):
                for name in names:
                    if not selection.ArrayExists(name):
                        self._quiet = True
                        selection.AddArray(name, True)
                        self._quiet = False

    # What VTK asks.

    def RequestInformation(self, request: Any, inputs: Any, outputs: Any) -> int:
        """Gives the times."""
        times = self.visualization.times
        pipeline, information = vtkStreamingDemandDrivenPipeline, outputs.GetInformationObject(0)
        information.Remove(pipeline.TIME_STEPS())
        for moment in times:
            information.Append(pipeline.TIME_STEPS(), moment)
        information.Set(pipeline.TIME_RANGE(), [times[0], times[-1]], 2)
        information.Set(vtkAlgorithm.CAN_HANDLE_PIECE_REQUEST(), 1)
        return 1

    def RequestData(self, request: Any, inputs: Any, outputs: Any) -> int:
        """Gives this rank's blocks of the step whose time is nearest to the one asked for."""
        pipeline, information = vtkStreamingDemandDrivenPipeline, outputs.GetInformationObject(0)
        output = OUTPUTS[self._output][1].GetData(outputs, 0)
        output.Initialize()
        opened = self.visualization
        moment = opened.times[0]
        if information.Has(pipeline.UPDATE_TIME_STEP()):
            moment = information.Get(pipeline.UPDATE_TIME_STEP())
        step = opened.nearest(moment)
        pieces = (0, 1)
        if opened.comm.size == 1 and information.Has(pipeline.UPDATE_NUMBER_OF_PIECES()):
            pieces = (
                information.Get(pipeline.UPDATE_PIECE_NUMBER()),
                information.Get(pipeline.UPDATE_NUMBER_OF_PIECES()),
            )
        self.error = None
        try:
            self._fill(output, opened.steps[step], self._parts(step, pieces))
        except Exception as error:
            # VTK prints it and goes on; `update` raises it.
            self.error = error
            output.Initialize()
            raise
        output.GetInformation().Set(output.DATA_TIME_STEP(), opened.times[step])
        if self._ahead is not None and self._ahead_steps and pieces == (0, 1):
            last = len(opened.times) - 1
            coming = range(step + 1, min(step + self._ahead_steps, last) + 1)
            wanted = [at for at in coming if self._kept.get((at, pieces, self._left_out())) is None]
            self._ahead.want([at for at in wanted if not opened.is_vtkhdf(at)])
        return 1

    def update(self, moment: float | None = None) -> Any:
        """Updates to a time (collective) and returns the output; raises why it failed, which VTK
        only prints."""
        self.error = None
        self.visualization  # noqa: B018  An index that can't be opened raises here.
        if moment is None:
            self.Update()
        else:
            self.UpdateTimeStep(moment)
        if self.error is not None:
            raise self.error
        return self.GetOutputDataObject(0)

    # How a step is read.

    def _parts(self, step: int, pieces: tuple[int, int]) -> dict[int, Any]:
        opened, begun = self.visualization, time.perf_counter()
        left_out = self._left_out()
        key = (step, pieces, left_out)
        parts, error, arrays = self._kept.get(key), None, {}
        trouble = opened.steps[step].trouble
        note: dict[str, Any] = {"step": step, "time": opened.times[step], "kept": parts is not None}
        if trouble is not None:
            self._write_record(note | {"failed": True})
            raise _zazen.NotFoundError(f"{self._path}, time {opened.times[step]}: {trouble}")
        if parts is not None:
            # The ranks judge the blocks of all, also where one kept its own and another did not.
            shown = opened.steps[step].files
            arrays = {shown[file]: part.arrays for file, part in parts.items()}
        else:
            files = opened.mine(step)
            if opened.is_vtkhdf(step):
                files = [0]
            elif pieces[1] > 1:
                owner = stock(len(opened.steps[step].files), pieces[1])
                files = [file for file, piece in enumerate(owner) if piece == pieces[0]]
            try:
                if opened.is_vtkhdf(step):
                    parts, arrays = self._read_vtkhdf(step, pieces, left_out, note)
                else:
                    parts, arrays = self._read(step, files, left_out, note)
            except zazen.Error as failed:
                error = failed
            except Exception as failed:
                # Whatever it is, the other ranks wait to hear of it.
                error = _zazen.IoError(f"{opened.directory}: {type(failed).__name__}: {failed}")
        # All ranks take part, also those that kept the step: so all ranks agree on what failed.
        answers = opened.comm.allgather((error, arrays))
        failed = next((error for error, _ in answers if error is not None), None)
        if failed is not None:
            self._write_record(note | {"failed": True, "seconds": time.perf_counter() - begun})
            raise failed
        every = [each for _, found in answers for each in found.items()]
        self._add_arrays(arrays for _, arrays in every)
        self._compare(every)
        if not note["kept"]:
            self._blank_what_others_have(step, parts, [arrays for _, arrays in every])
            size = sum(part.bytes for part in parts.values())
            self._kept.put(key, parts, size)
        note["seconds"] = time.perf_counter() - begun
        self._write_record(note)
        return parts

    def _read(
        self, step: int, files: list[int], left_out: LeftOut, note: dict[str, Any]
    ) -> tuple[dict[int, Any], dict[str, Arrays]]:
        """This rank's files of a step: those that came ahead, then the others."""
        opened, begin = self.visualization, time.perf_counter()
        came = self._came_ahead(step, files, left_out)
        waited = time.perf_counter() - begin
        parts, arrays, sources = {}, {}, {"local": 0, "remote": 0, "store": 0}
        reads, plan = [], opened.plan(step)
        with closing(in_turn(opened, step, files[len(came) :])) as others:
            coming = chain(came, others)
            for file in files:
                began, shown = time.perf_counter(), opened.steps[step].files[file]
                one = next(coming)
                waited += time.perf_counter() - began
                if one.part is not None:
                    parts[file] = one.part.part
                    reads.append(one.part.seconds)
                else:
                    path = one.path or os.path.join(opened.directory, shown)
                    parts[file] = read_part(path, shown, left_out)
                    one.close()
                    reads.append(time.perf_counter() - began)
                arrays[shown] = parts[file].arrays
                is_in_cache = one.source not in (None, "backing", "direct")
                is_from_store = not is_in_cache and opened.namespace is None and not opened.without_mount
                source = "store" if is_from_store else "local" if plan.is_local[file] else "remote"
                sources[source] += one.length
        note |= {"files": len(files), "ahead": len(came) == len(files) != 0, "wait_s": waited}
        note |= {"reads_s": reads} | {f"{name}_bytes": count for name, count in sources.items()}
        note["remote_files"] = sum(not plan.is_local[file] for file in files)
        return parts, arrays

    def _came_ahead(self, step: int, files: list[int], left_out: LeftOut) -> list[Came]:
        """What came ahead of the first of ``files``, as far as it can be used."""
        came = self._ahead.fetched(step) if self._ahead is not None else []
        if files != self.visualization.mine(step):
            return []
        # What was parsed with other arrays is read anew.
        good = takewhile(lambda one: one.part is None or one.part.left_out == left_out, came)
        return list(good)

    @staticmethod
    def _parses_ahead() -> bool:
        return (vtkVersion.GetVTKMajorVersion(), vtkVersion.GetVTKMinorVersion()) >= _LETS_GO

    def _parse_ahead(self, step: int, file: int, path: Any) -> ParsedAhead | None:
        """Parses a file on the background thread, from ``path`` or where it is; None if the step
        itself shall do it, and name what is wrong."""
        opened, began = self._opened, time.perf_counter()
        if opened is None or not may_be_parsed_aside(shown := opened.steps[step].files[file]):
            return None
        left_out = self._left_out()
        try:
            part = read_part(path or opened.path_of(step, file), shown, left_out)
        except Exception:
            return None
        return ParsedAhead(part, left_out, time.perf_counter() - began)

    def _read_vtkhdf(
        self, step: int, pieces: tuple[int, int], left_out: LeftOut, note: dict[str, Any]
    ) -> tuple[dict[int, Any], dict[str, Arrays]]:
        """This rank's parts of a file that holds all of them. Ranks whose nodes hold the file read
        it there; the others read their parts from where it is."""
        opened, begin = self.visualization, time.perf_counter()
        shown, path = opened.steps[step].files[0], opened.path_of(step, 0)
        moment = opened.times[step] if len(opened.times) > 1 and opened.is_index(shown) else None
        piece = pieces if pieces[1] > 1 else (opened.comm.rank, opened.comm.size)
        count = None if pieces[1] > 1 else vtkhdf_parts(path, shown, moment)
        source, waited = "store" if opened.namespace is None else "remote", 0.0
        if count is None:
            part = read_vtkhdf(path, shown, moment, [piece], left_out)
        else:
            own, is_here = opened.parts_of(step, count)
            frames = opened.dataset.read_many([shown]) if is_here and own and opened.dataset else None
            waited = time.perf_counter() - begin
            frame = frames[0] if frames else None
            if frame is not None and frame.path is not None and frame.source not in ("backing", "direct"):
                path, source = frame.path, "local"
            elif is_here and opened.namespace is not None:
                source = "local"
            # A rank without parts asks for one that is not there: it gets the tree alone.
            wanted = [(at, count) for at in own] or [(count, count + 1)]
            part = read_vtkhdf(path, shown, moment, wanted, left_out)
        seconds = time.perf_counter() - begin - waited
        note |= {"files": 1, "ahead": False, "wait_s": waited, "reads_s": [seconds], "remote_files": 0}
        note |= {"local_bytes": 0, "remote_bytes": 0, "store_bytes": 0} | {f"{source}_bytes": part.bytes}
        return {0: part}, {f"{shown} (rank {piece[0]})": part.arrays}

    def _blank_what_others_have(self, step: int, parts: dict[int, Any], arrays: list[Arrays]) -> None:
        """Structured pieces with ghost layers, where no file says which cells these are."""
        covered = self.visualization.steps[step].covered
        if not covered or any(GHOSTS in each.cell for each in arrays):
            return
        for file, part in parts.items():
            if str(file) in covered:
                part.data = blank(part.data, covered[str(file)])

    def _left_out(self) -> LeftOut:
        def names(selection: vtkDataArraySelection) -> frozenset[str]:
            count = selection.GetNumberOfArrays()
            return frozenset(
                selection.GetArrayName(at) for at in range(count) if not selection.GetArraySetting(at)
            )

        # Without their marks, cells that several blocks have would show twice.
        return LeftOut(names(self._point) - {GHOSTS}, names(self._cell) - {GHOSTS})

    def _compare(self, blocks: list[tuple[str, Arrays]]) -> None:
        """Warns once of arrays that some blocks lack, or have with another number of components."""
        blocks = [(file, arrays) for file, arrays in blocks if not arrays.empty]
        for kind in ("point", "cell"):
            by_name: dict[str, dict[str, int]] = {}
            for file, arrays in blocks:
                for name, components in getattr(arrays, kind).items():
                    by_name.setdefault(name, {})[file] = components
            # Blocks without ghost cells may lack their marks.
            by_name.pop(GHOSTS, None)
            for name, found in sorted(by_name.items()):
                if len(found) < len(blocks):
                    lacking = next(file for file, _ in blocks if file not in found)
                    more = len(blocks) - len(found) - 1
                    others = f" and {more} more blocks" if more else ""
                    self._warn_once(
                        f"array {name!r} ({kind} data) is missing in {lacking}{others}; filters will leave "
                        "these blocks out"
                    )
                loaded = {components: file for file, components in sorted(found.items()) if components}
                if len(loaded) > 1:
                    has = " and ".join(
                        f"{count} components in {file}" for count, file in sorted(loaded.items())
                    )
                    self._warn_once(f"array {name!r} ({kind} data) has {has}; filters may refuse it")

    def _warn_once(self, words: str) -> None:
        if words in self._warned:
            return
        self._warned.add(words)
        if self.visualization.comm.rank == 0:
            import warnings

            warnings.warn(f"{self._path}: {words}", zazen.ZazenWarning, stacklevel=2)

    def _write_record(self, note: dict[str, Any]) -> None:
        if self._record is None:
            return
        opened = self.visualization
        note |= {"rank": opened.comm.rank, "ranks": opened.comm.size, "strategy": self._strategy}
        note |= {"index": self._path, "at": time.time(), "run": opened.run}
        try:
            self._record.mkdir(parents=True, exist_ok=True)
            with open(self._record / f"rank-{opened.comm.rank:06}.jsonl", "a") as file:
                file.write(json.dumps(note) + "\n")
        except OSError as error:
            # The step stands, and the other ranks go on.
            import warnings

            words = f"rank {opened.comm.rank}: nothing is recorded any more: {error}"
            warnings.warn(words, zazen.ZazenWarning, stacklevel=2)
            self._record = None

    # The output.

    def _fill(self, output: Any, step: Any, parts: dict[int, Any]) -> None:
        if step.field_data is not None:
            field_data_of(step.field_data, output)
        if self._output == "collection":
            leaves: list[tuple[str | None, list[Any]]] = []
            _leaves(step.tree, None, parts, leaves)
            output.SetNumberOfPartitionedDataSets(len(leaves))
            for at, (name, pieces) in enumerate(leaves):
                partition = vtkPartitionedDataSet()
                partition.SetNumberOfPartitions(len(pieces))
                for piece, data in enumerate(pieces):
                    if data is not None:
                        partition.SetPartition(piece, data)
                output.SetPartitionedDataSet(at, partition)
                if name is not None:
                    output.GetMetaData(at).Set(vtkCompositeDataSet.NAME(), name)
            return
        tree = step.tree if "blocks" in step.tree else {"blocks": [[None, step.tree]]}
        _grow(output, tree["blocks"], parts)


def _grow(block: Any, children: list[Any], parts: dict[int, Any]) -> None:
    """Fills a vtkMultiBlockDataSet."""
    block.SetNumberOfBlocks(len(children))
    for at, (name, tree) in enumerate(children):
        block.SetBlock(at, _data_of(tree, parts))
        if name is not None:
            block.GetMetaData(at).Set(vtkCompositeDataSet.NAME(), name)


def _data_of(tree: Any, parts: dict[int, Any]) -> Any:
    if tree == "empty":
        return None
    if "file" in tree:
        part = parts.get(tree["file"])
        return None if part is None else _as_block(part.data)
    if "blocks" in tree:
        inner = vtkMultiBlockDataSet()
        _grow(inner, tree["blocks"], parts)
        return inner
    pieces = vtkMultiPieceDataSet()
    pieces.SetNumberOfPieces(len(tree["pieces"]))
    for at, (name, piece) in enumerate(tree["pieces"]):
        pieces.SetPiece(at, _data_of(piece, parts))
        if name is not None:
            pieces.GetMetaData(at).Set(vtkCompositeDataSet.NAME(), name)
    return pieces


def _as_block(data: Any) -> Any:
    """What a vtkMultiBlockDataSet takes: a file may hold partitions, which it refuses."""
    if data.IsA("vtkPartitionedDataSet") and not data.IsA("vtkMultiPieceDataSet"):
        pieces = vtkMultiPieceDataSet()
        pieces.SetNumberOfPieces(data.GetNumberOfPartitions())
        for at in range(data.GetNumberOfPartitions()):
            pieces.SetPiece(at, data.GetPartitionAsDataObject(at))
        return pieces
    if data.IsA("vtkPartitionedDataSetCollection"):
        block = vtkMultiBlockDataSet()
        block.SetNumberOfBlocks(data.GetNumberOfPartitionedDataSets())
        for at in range(data.GetNumberOfPartitionedDataSets()):
            block.SetBlock(at, _as_block(data.GetPartitionedDataSet(at)))
            if data.HasMetaData(at) and (name := data.GetMetaData(at).Get(vtkCompositeDataSet.NAME())):
                block.GetMetaData(at).Set(vtkCompositeDataSet.NAME(), name)
        return block
    return data


def _leaves(
    tree: Any, name: str | None, parts: dict[int, Any], into: list[tuple[str | None, list[Any]]]
) -> None:
    """The leaves of a tree in its order, each with the names on the way to it. Pieces of one whole
    are one leaf."""

    def data(leaf: Any) -> list[Any]:
        part = None if leaf == "empty" else parts.get(leaf["file"])
        return [None] if part is None else leaves_of(part.data) or [None]

    def is_leaf(node: Any) -> bool:
        return node == "empty" or "file" in node

    if is_leaf(tree):
        into.append((name, data(tree)))
        return
    children = tree.get("blocks") or tree.get("pieces") or []
    if "pieces" in tree and all(is_leaf(child) for _, child in children):
        into.append((name, [each for _, child in children for each in data(child)]))
        return
    for at, (inner, child) in enumerate(children):
        label = inner or (str(at) if name is not None or "blocks" in child else None)
        _leaves(child, label if name is None else f"{name}/{label}", parts, into)
