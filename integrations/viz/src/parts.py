"""One file of a visualization, read by VTK's own reader.

A file that VTK would read in part, because it is cut, is an error that names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
from vtkmodules import vtkIOLegacy, vtkIOXML
from vtkmodules.util.numpy_support import numpy_to_vtk
from vtkmodules.vtkCommonCore import VTK_UNSIGNED_CHAR, vtkOutputWindow, vtkStringOutputWindow
from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
from zazen import _zazen
from zazen.viz.legacy import check_whole

__all__ = [
    "Arrays",
    "LeftOut",
    "ParsedAhead",
    "Part",
    "arrays_in",
    "blank",
    "field_data_of",
    "leaves_of",
    "may_be_parsed_aside",
    "read_part",
    "read_vtkhdf",
    "vtkhdf_parts",
    "vtkhdf_times",
]

READERS = {
    "vti": "vtkXMLImageDataReader",
    "vtr": "vtkXMLRectilinearGridReader",
    "vts": "vtkXMLStructuredGridReader",
    "vtu": "vtkXMLUnstructuredGridReader",
    "vtp": "vtkXMLPolyDataReader",
    "htg": "vtkXMLHyperTreeGridReader",
    "vtt": "vtkXMLTableReader",
}
#: VTK's array that marks cells which another piece has as its own, and the mark.
GHOSTS, _DUPLICATE = "vtkGhostType", 1
#: More pieces than any VTKHDF file has parts: the last one is empty.
_PIECES = 1 << 20
#: The end of a complete XML file.
_END = b"</VTKFile>"


@dataclass(frozen=True)
class Arrays:
    """Arrays of points and of cells: by name, the number of components (0: the array was not
    loaded).

    ``empty``: the block has neither points nor cells nor rows, so it is no wonder if it lacks
    arrays.
    """

    point: dict[str, int] = field(default_factory=dict)
    cell: dict[str, int] = field(default_factory=dict)
    empty: bool = False


@dataclass(frozen=True)
class LeftOut:
    """Names of arrays that are not to be loaded. Others are, whether they are known by now or
    not."""

    point: frozenset[str] = frozenset()
    cell: frozenset[str] = frozenset()


@dataclass
class Part:
    """What a file holds: VTK's data object, its arrays, and its size in memory."""

    data: Any
    arrays: Arrays
    bytes: int


@dataclass
class ParsedAhead:
    """A part that was read in the background, without the arrays ``left_out``, and how long that
    took."""

    part: Part
    left_out: LeftOut
    seconds: float

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return self.part.bytes


def may_be_parsed_aside(shown: str) -> bool:
    """Whether a thread may read the file while another one renders: VTK's other readers tell their
    faults to the one output window of the process, or use libraries that are for one thread."""
    return shown.rpartition(".")[2].lower() in READERS


def read_part(path: str | os.PathLike[str], shown: str, left_out: LeftOut | None = None) -> Part:
    """Reads the file ``path``, which errors call ``shown``, without the arrays ``left_out``.

    Raises CorruptError for a damaged file, UnsupportedError for a kind that VTK's readers here do
    not know.
    """
    left_out = left_out or LeftOut()
    ending = shown.rpartition(".")[2].lower()
    names: Names = (frozenset(), frozenset())
    if ending == "vtk":
        data = _legacy(path, shown)
    elif ending == "vtkhdf":
        data = _vtkhdf(path, shown)
    elif ending in READERS:
        data, names = _xml(path, shown, getattr(vtkIOXML, READERS[ending])(), left_out)
    else:
        raise _zazen.UnsupportedError(f"{shown}: no reader for .{ending} files")
    return _part(data, names, left_out)


def _part(data: Any, names: Names, left_out: LeftOut) -> Part:
    copy = data.NewInstance()
    copy.ShallowCopy(data)
    leaves = leaves_of(copy)
    for leaf in leaves:
        for attributes, names_out in zip(_attributes(leaf), (left_out.point, left_out.cell), strict=True):
            for name in names_out:
                if attributes is not None:
                    attributes.RemoveArray(name)
    arrays = next((_arrays_of(leaf, names) for leaf in leaves if not _is_empty(leaf)), Arrays(empty=True))
    return Part(copy, arrays, copy.GetActualMemorySize() * 1024)


def leaves_of(data: Any) -> list[Any]:
    """The data sets in what a file holds."""
    if not data.IsA("vtkCompositeDataSet"):
        return [data]
    iterator, found = data.NewIterator(), []
    iterator.InitTraversal()
    while not iterator.IsDoneWithTraversal():
        found.append(iterator.GetCurrentDataObject())
        iterator.GoToNextItem()
    return found


def _is_empty(data: Any) -> bool:
    return not any(data.GetNumberOfElements(kind) for kind in (data.POINT, data.CELL, data.ROW))


def arrays_in(path: str | os.PathLike[str], shown: str) -> Arrays:
    """The arrays that a file has, without loading them where VTK can say so."""
    ending = shown.rpartition(".")[2].lower()
    if ending not in READERS:
        return read_part(path, shown).arrays
    reader, errors = getattr(vtkIOXML, READERS[ending])(), list[str]()
    _check_end(path, shown)
    watch(reader, errors)
    reader.SetFileName(os.fspath(path))
    reader.UpdateInformation()
    _check(errors, reader, shown)
    point, cell = _names_of(reader)
    return Arrays(dict.fromkeys(point, 0), dict.fromkeys(cell, 0))


Names = tuple[frozenset[str], frozenset[str]]


def _xml(path: str | os.PathLike[str], shown: str, reader: Any, left_out: LeftOut) -> tuple[Any, Names]:
    """The data, and the names of all arrays of points and cells in the file."""
    _check_end(path, shown)
    errors: list[str] = []
    watch(reader, errors)
    reader.SetFileName(os.fspath(path))
    if left_out.point or left_out.cell:
        # The reader knows its arrays only then.
        reader.UpdateInformation()
        _check(errors, reader, shown)
    for kind, names_out in (("Point", left_out.point), ("Cell", left_out.cell)):
        for name in names_out:
            if hasattr(reader, f"Set{kind}ArrayStatus"):
                getattr(reader, f"Set{kind}ArrayStatus")(name, 0)
    reader.Update()
    _check(errors, reader, shown)
    names = _names_of(reader)
    data = reader.GetOutputDataObject(0)
    if data is None:
        raise _zazen.CorruptError(f"{shown}: VTK's reader got nothing from it")
    return data, names


def _legacy(path: str | os.PathLike[str], shown: str) -> Any:
    """A file of VTK's legacy format. Its readers tell some faults to VTK's output window only."""
    check_whole(path, shown)
    reader = vtkIOLegacy.vtkGenericDataObjectReader()
    with _told() as told:
        reader.SetFileName(os.fspath(path))
        reader.Update()
        data = reader.GetOutputDataObject(0)
    if told or reader.GetErrorCode() or data is None:
        raise _zazen.CorruptError(f"{shown}: {told[0] if told else 'VTK could not read it'}")
    return data


def _vtkhdf(path: str | os.PathLike[str], shown: str) -> Any:
    """A VTKHDF file as a whole: all its parts, and the first of its time steps."""
    return _vtkhdf_piece(path, shown, None, (0, 1))


def _vtkhdf_piece(
    path: str | os.PathLike[str], shown: str, time: float | None, piece: tuple[int, int]
) -> Any:
    reader = _vtkhdf_reader(shown)
    with _told() as told:
        reader.SetFileName(os.fspath(path))
        reader.UpdateInformation()
        if time is None:
            reader.UpdatePiece(*piece, 0)
        else:
            reader.UpdateTimeStep(time, *piece, 0)
        data = reader.GetOutputDataObject(0)
    if told or reader.GetErrorCode() or data is None:
        raise _zazen.CorruptError(f"{shown}: {told[0] if told else 'VTK could not read it'}")
    return data


def read_vtkhdf(
    path: str | os.PathLike[str],
    shown: str,
    time: float | None,
    pieces: list[tuple[int, int]],
    left_out: LeftOut | None = None,
) -> Part:
    """Pieces (number, count) of a VTKHDF file, as VTK shares it out, at ``time`` if it has several.

    Several pieces must be of as many as the file has parts, see `vtkhdf_parts`."""
    data = _vtkhdf_piece(path, shown, time, pieces[0])
    for piece in pieces[1:]:
        _take_part(data, _vtkhdf_piece(path, shown, time, piece), piece[0])
    return _part(data, (frozenset(), frozenset()), left_out or LeftOut())


def _take_part(into: Any, data: Any, number: int) -> None:
    """Puts part ``number`` of ``data`` into a tree of the same form."""
    if into.IsA("vtkPartitionedDataSetCollection"):
        for at in range(into.GetNumberOfPartitionedDataSets()):
            _take_part(into.GetPartitionedDataSet(at), data.GetPartitionedDataSet(at), number)
    elif number < data.GetNumberOfPartitions():
        into.SetPartition(number, data.GetPartitionAsDataObject(number))


def vtkhdf_parts(path: str | os.PathLike[str], shown: str, time: float | None) -> int | None:
    """How many parts a VTKHDF file has at ``time``: of its blocks, the one with most parts counts.
    None if it is of another kind, such as an image, which VTK cuts as it likes."""
    data = _vtkhdf_piece(path, shown, time, (_PIECES - 1, _PIECES))
    if data.IsA("vtkPartitionedDataSetCollection"):
        blocks = [data.GetPartitionedDataSet(at) for at in range(data.GetNumberOfPartitionedDataSets())]
        return max((block.GetNumberOfPartitions() for block in blocks), default=None)
    if data.IsA("vtkPartitionedDataSet"):
        return int(data.GetNumberOfPartitions()) or None
    return 1 if data.IsA("vtkPolyData") or data.IsA("vtkUnstructuredGrid") else None


def vtkhdf_times(path: str | os.PathLike[str], shown: str) -> list[float]:
    """The times of a VTKHDF file; none if it has no time steps."""
    reader = _vtkhdf_reader(shown)
    with _told() as told:
        reader.SetFileName(os.fspath(path))
        reader.UpdateInformation()
    if told or reader.GetErrorCode():
        raise _zazen.CorruptError(f"{shown}: {told[0] if told else 'VTK could not read it'}")
    information = reader.GetOutputInformation(0)
    steps = vtkStreamingDemandDrivenPipeline.TIME_STEPS()
    return list(information.Get(steps)) if information.Has(steps) else []


def _vtkhdf_reader(shown: str) -> Any:
    """VTK's reader of VTKHDF, which old or small builds of VTK lack."""
    try:
        from vtkmodules.vtkIOHDF import vtkHDFReader
    except ImportError:
        raise _zazen.UnsupportedError(
            f"{shown}: this VTK has no reader for VTKHDF (pip install 'vtk>=9.3')"
        ) from None
    return vtkHDFReader()


@contextmanager
def _told() -> Iterator[list[str]]:
    """What VTK says meanwhile to its output window, which is every process's one."""
    before, window, told = vtkOutputWindow.GetInstance(), vtkStringOutputWindow(), list[str]()
    vtkOutputWindow.SetInstance(window)
    try:
        yield told
    finally:
        vtkOutputWindow.SetInstance(before)
        if said := " ".join(window.GetOutput().split()):
            told.append(said)


def watch(algorithm: Any, errors: list[str]) -> None:
    """Appends what ``algorithm`` reports as errors to ``errors``, instead of printing it."""

    def note(_algorithm: Any, _event: str, text: str) -> None:
        errors.append(" ".join(text.split()))

    note.CallDataType = "string0"  # type: ignore[attr-defined]
    algorithm.AddObserver("ErrorEvent", note)
    executive = algorithm.GetExecutive()
    if executive is not None:
        executive.AddObserver("ErrorEvent", note)


def blank(data: Any, covered: list[list[int]]) -> Any:
    """A copy of a structured piece whose cells within the extents ``covered`` count as ghosts.

    Other pieces have these cells too. VTK's filters leave ghost cells out, so each cell is shown
    once.
    """
    low = data.GetExtent()[::2]
    cells = [max(1, count - 1) for count in data.GetDimensions()]
    ghost = numpy.zeros(cells[::-1], dtype=numpy.uint8)
    for extent in covered:
        (x0, x1), (y0, y1), (z0, z1) = (
            (extent[2 * axis] - low[axis], max(extent[2 * axis + 1], extent[2 * axis] + 1) - low[axis])
            for axis in range(3)
        )
        ghost[max(0, z0) : max(0, z1), max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)] = _DUPLICATE
    copy = data.NewInstance()
    copy.ShallowCopy(data)
    array = numpy_to_vtk(ghost.ravel(), deep=True, array_type=VTK_UNSIGNED_CHAR)
    array.SetName(GHOSTS)
    copy.GetCellData().AddArray(array)
    return copy


def field_data_of(text: str, output: Any) -> None:
    """Gives ``output`` the field data that ``text``, a file of polygons, has."""
    reader = vtkIOXML.vtkXMLPolyDataReader()
    reader.ReadFromInputStringOn()
    reader.SetInputString(text)
    reader.Update()
    output.GetFieldData().ShallowCopy(reader.GetOutput().GetFieldData())


def _check(errors: list[str], reader: Any, shown: str) -> None:
    if errors or reader.GetErrorCode():
        why = errors[0] if errors else f"VTK's error code is {reader.GetErrorCode()}"
        raise _zazen.CorruptError(f"{shown}: {why}")


def _check_end(path: str | os.PathLike[str], shown: str) -> None:
    with open(path, "rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - 64))
        tail = file.read()
    if _END not in tail:
        raise _zazen.CorruptError(f"{shown}: it is cut: its {length} bytes do not end with {_END.decode()}")


def _names_of(reader: Any) -> Names:
    def names(kind: str) -> frozenset[str]:
        count = getattr(reader, f"GetNumberOf{kind}Arrays", None)
        if count is None:
            return frozenset()
        return frozenset(getattr(reader, f"Get{kind}ArrayName")(at) for at in range(count()))

    return names("Point"), names("Cell")


def _attributes(data: Any) -> tuple[Any, Any]:
    """The arrays of points and of cells that a data object has; None where it can have none."""
    return data.GetAttributes(data.POINT), data.GetAttributes(data.CELL)


def _arrays_of(data: Any, names: Names) -> Arrays:
    found: list[dict[str, int]] = []
    for attributes, known in zip(_attributes(data), names, strict=True):
        arrays = dict.fromkeys(sorted(known), 0)
        for at in range(attributes.GetNumberOfArrays() if attributes is not None else 0):
            array = attributes.GetAbstractArray(at)
            if array.GetName():
                arrays[array.GetName()] = array.GetNumberOfComponents()
        found.append(arrays)
    return Arrays(found[0], found[1])
