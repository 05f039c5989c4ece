"""One file of a visualization, read by VTK's own reader.

A file that VTK would read in part, because it is cut, is an error that names it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from vtkmodules import vtkIOLegacy, vtkIOXML
from zazen import _zazen

__all__ = ["Arrays", "Part", "read_part"]

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
    """Names of arrays, of points and of cells."""

    point: frozenset[str] = field(default_factory=frozenset)
    cell: frozenset[str] = field(default_factory=frozenset)

    def __or__(self, other: Arrays) -> Arrays:
        return Arrays(self.point | other.point, self.cell | other.cell)


@dataclass
class Part:
    """What a file holds: VTK's data object, the names of all its arrays, and its size in memory."""

    data: Any
    arrays: Arrays
    bytes: int


def read_part(path: str | os.PathLike[str], shown: str, wanted: Arrays | None = None) -> Part:
    """Reads the file ``path``, which errors call ``shown``.

    ``wanted``: the arrays to load; None: all. Raises CorruptError for a damaged file, UnsupportedError for a kind
    that VTK's readers here do not know.
    """
    ending = shown.rpartition(".")[2].lower()
    if ending == "vtk":
        reader = vtkIOLegacy.vtkGenericDataObjectReader()
    elif ending in READERS:
        reader = getattr(vtkIOXML, READERS[ending])()
        _check_end(path, shown)
    else:
        raise _zazen.UnsupportedError(f"{shown}: no reader for .{ending} files")
    errors: list[str] = []
    watch(reader, errors)
    reader.SetFileName(os.fspath(path))
    reader.UpdateInformation()
    _check(errors, reader, shown)
    arrays = _arrays_of(reader)
    if wanted is not None and ending in READERS:
        _select(reader, wanted)
    reader.Update()
    _check(errors, reader, shown)
    data = reader.GetOutputDataObject(0)
    if data is None:
        raise _zazen.CorruptError(f"{shown}: VTK's reader got nothing from it")
    copy = data.NewInstance()
    copy.ShallowCopy(data)
    return Part(copy, arrays, copy.GetActualMemorySize() * 1024)


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


def _arrays_of(reader: Any) -> Arrays:
    def names(count: str, name: str) -> frozenset[str]:
        if not hasattr(reader, count):
            return frozenset()
        return frozenset(getattr(reader, name)(at) for at in range(getattr(reader, count)()))

    return Arrays(
        names("GetNumberOfPointArrays", "GetPointArrayName"),
        names("GetNumberOfCellArrays", "GetCellArrayName"),
    )


def _select(reader: Any, wanted: Arrays) -> None:
    for kind, names in (("Point", wanted.point), ("Cell", wanted.cell)):
        count = getattr(reader, f"GetNumberOf{kind}Arrays", None)
        if count is None:
            continue
        for at in range(count()):
            name = getattr(reader, f"Get{kind}ArrayName")(at)
            getattr(reader, f"Set{kind}ArrayStatus")(name, int(name in names))
