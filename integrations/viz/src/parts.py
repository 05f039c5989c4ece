"""One file of a visualization, read by VTK's own reader.

A file that VTK would read in part, because it is cut, is an error that names it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from vtkmodules import vtkIOLegacy, vtkIOXML
from vtkmodules.vtkCommonCore import vtkOutputWindow, vtkStringOutputWindow
from zazen import _zazen

__all__ = ["Arrays", "LeftOut", "Part", "arrays_in", "read_part"]

READERS = {
    "vti": "vtkXMLImageDataReader",
    "vtr": "vtkXMLRectilinearGridReader",
    "vts": "vtkXMLStructuredGridReader",
    "vtu": "vtkXMLUnstructuredGridReader",
    "vtp": "vtkXMLPolyDataReader",
    "htg": "vtkXMLHyperTreeGridReader",
    "vtt": "vtkXMLTableReader",
}
#: The end of a complete XML file.
_END = b"</VTKFile>"


@dataclass(frozen=True)
class Arrays:
    """Arrays of points and of cells: by name, the number of components (0: the array was not loaded).

    ``empty``: the block has neither points nor cells nor rows, so it is no wonder if it lacks arrays.
    """

    point: dict[str, int] = field(default_factory=dict)
    cell: dict[str, int] = field(default_factory=dict)
    empty: bool = False


@dataclass(frozen=True)
class LeftOut:
    """Names of arrays that are not to be loaded. Others are, whether they are known by now or not."""

    point: frozenset[str] = frozenset()
    cell: frozenset[str] = frozenset()


@dataclass
class Part:
    """What a file holds: VTK's data object, its arrays, and its size in memory."""

    data: Any
    arrays: Arrays
    bytes: int


def read_part(path: str | os.PathLike[str], shown: str, left_out: LeftOut | None = None) -> Part:
    """Reads the file ``path``, which errors call ``shown``, without the arrays ``left_out``.

    Raises CorruptError for a damaged file, UnsupportedError for a kind that VTK's readers here do not know.
    """
    left_out = left_out or LeftOut()
    ending = shown.rpartition(".")[2].lower()
    if ending == "vtk":
        data = _legacy(path, shown)
        names: Names = (frozenset(), frozenset())
    elif ending in READERS:
        data, names = _xml(path, shown, getattr(vtkIOXML, READERS[ending])(), left_out)
    else:
        raise _zazen.UnsupportedError(f"{shown}: no reader for .{ending} files")
    copy = data.NewInstance()
    copy.ShallowCopy(data)
    for attributes, names_out in zip(_attributes(copy), (left_out.point, left_out.cell), strict=True):
        for name in names_out:
            if attributes is not None:
                attributes.RemoveArray(name)
    return Part(copy, _arrays_of(copy, names), copy.GetActualMemorySize() * 1024)


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
    reader.UpdateInformation()
    _check(errors, reader, shown)
    names = _names_of(reader)
    for kind, names_out in (("Point", left_out.point), ("Cell", left_out.cell)):
        for name in names_out:
            if hasattr(reader, f"Set{kind}ArrayStatus"):
                getattr(reader, f"Set{kind}ArrayStatus")(name, 0)
    reader.Update()
    _check(errors, reader, shown)
    data = reader.GetOutputDataObject(0)
    if data is None:
        raise _zazen.CorruptError(f"{shown}: VTK's reader got nothing from it")
    return data, names


def _legacy(path: str | os.PathLike[str], shown: str) -> Any:
    """A file of VTK's legacy format. Its readers say only to VTK's output window that a file is cut."""
    kinds = vtkIOLegacy.vtkGenericDataObjectReader()
    kinds.SetFileName(os.fspath(path))
    before, window = vtkOutputWindow.GetInstance(), vtkStringOutputWindow()
    vtkOutputWindow.SetInstance(window)
    try:
        kinds.Update()
        data = kinds.GetOutputDataObject(0)
    finally:
        vtkOutputWindow.SetInstance(before)
    said = " ".join(window.GetOutput().split())
    if said or kinds.GetErrorCode() or data is None:
        raise _zazen.CorruptError(f"{shown}: {said or 'VTK could not read it'}")
    return data


def watch(algorithm: Any, errors: list[str]) -> None:
    """Appends what ``algorithm`` reports as errors to ``errors``, instead of printing it."""

    def note(_algorithm: Any, _event: str, text: str) -> None:
        errors.append(" ".join(text.split()))

    note.CallDataType = "string0"  # type: ignore[attr-defined]
    algorithm.AddObserver("ErrorEvent", note)
    executive = algorithm.GetExecutive()
    if executive is not None:
        executive.AddObserver("ErrorEvent", note)


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
    kinds = (data.POINT, data.CELL, data.ROW)
    return Arrays(found[0], found[1], not any(data.GetNumberOfElements(kind) for kind in kinds))
