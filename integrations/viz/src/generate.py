"""Makes visualizations to try things with: time steps of several blocks, in VTK's file formats.

    python -m zazen.viz.generate /tmp/ocean --steps 4 --blocks 2 2 2 --points 33 --kind image
    python -m zazen.viz.generate /tmp/vpic --shape vector      # as the data sets of VisIO's paper,
    python -m zazen.viz.generate /tmp/ocean --shape ocean      # with as many blocks as you say

The field is analytic: blocks share the points of their common faces, so a contour has no seams.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy
from vtkmodules import vtkIOXML
from vtkmodules.util.numpy_support import numpy_to_vtk
from vtkmodules.vtkCommonCore import vtkPoints
from vtkmodules.vtkCommonDataModel import (
    VTK_HEXAHEDRON,
    vtkCellArray,
    vtkImageData,
    vtkRectilinearGrid,
    vtkStructuredGrid,
    vtkUnstructuredGrid,
)

__all__ = ["KINDS", "MODES", "SHAPES", "block", "write"]

KINDS = {
    "image": ("vti", "vtkXMLImageDataWriter"),
    "rectilinear": ("vtr", "vtkXMLRectilinearGridWriter"),
    "structured": ("vts", "vtkXMLStructuredGridWriter"),
    "unstructured": ("vtu", "vtkXMLUnstructuredGridWriter"),
}
MODES = ("raw", "base64", "ascii", "zlib", "lz4")
#: The data sets of VisIO's evaluation: a field of vectors (VPIC), and an ocean with ten variables.
SHAPES: dict[str, dict[str, Any]] = {
    "vector": {"kind": "image", "steps": 20, "variables": 0},
    "ocean": {"kind": "rectilinear", "steps": 36, "variables": 10, "vector": False},
}


def _field(x: Any, y: Any, z: Any, time: float) -> dict[str, Any]:
    """A scalar with a wandering bump, and a vector that turns."""
    r2 = (x - 0.5 - 0.2 * numpy.sin(time)) ** 2 + (y - 0.5) ** 2 + (z - 0.4) ** 2
    salinity = 35 + 3 * numpy.exp(-8 * r2) + 0.3 * numpy.sin(9 * x + time) * numpy.cos(7 * y)
    vector = numpy.stack([-(y - 0.5), x - 0.5, 0.1 * numpy.sin(6 * z + time)], axis=-1)
    return {"salinity": salinity.astype(numpy.float32), "velocity": vector.astype(numpy.float32)}


def block(
    kind: str,
    at: tuple[int, int, int],
    blocks: tuple[int, int, int],
    points: int,
    time: float,
    variables: int = 1,
    vector: bool = True,
) -> Any:
    """Block ``at`` of ``blocks`` in each direction, with ``points`` points along each edge.

    It has ``variables`` scalars, the first of them "salinity", and with ``vector`` "velocity".
    """
    axes = [
        (index * (points - 1) + numpy.arange(points)) / ((points - 1) * count)
        for index, count in zip(at, blocks, strict=True)
    ]
    # VTK counts points with x running fastest.
    z, y, x = numpy.meshgrid(axes[2], axes[1], axes[0], indexing="ij")
    field = _field(x.ravel(), y.ravel(), z.ravel(), time)
    wanted = {"salinity": variables > 0, "velocity": vector}
    arrays = {name: values for name, values in field.items() if wanted[name]}
    for number in range(1, variables):
        arrays[f"variable{number}"] = arrays["salinity"] * numpy.float32(number + 1)
    places = numpy.stack([x.ravel(), y.ravel(), z.ravel()], axis=-1)
    data = _grid(kind, axes, places, points)
    for name, values in arrays.items():
        array = numpy_to_vtk(values, deep=True)
        array.SetName(name)
        data.GetPointData().AddArray(array)
    if variables > 0:
        data.GetPointData().SetActiveScalars("salinity")
    return data


def _grid(kind: str, axes: list[Any], places: Any, points: int) -> Any:
    if kind == "image":
        image = vtkImageData()
        image.SetDimensions(points, points, points)
        image.SetOrigin(*(float(axis[0]) for axis in axes))
        image.SetSpacing(*(float(axis[1] - axis[0]) for axis in axes))
        return image
    if kind == "rectilinear":
        grid = vtkRectilinearGrid()
        grid.SetDimensions(points, points, points)
        for setter, axis in zip("XYZ", axes, strict=True):
            getattr(grid, f"Set{setter}Coordinates")(numpy_to_vtk(axis, deep=True))
        return grid
    positions = vtkPoints()
    positions.SetData(numpy_to_vtk(places, deep=True))
    if kind == "structured":
        curved = vtkStructuredGrid()
        curved.SetDimensions(points, points, points)
        curved.SetPoints(positions)
        return curved
    cells = vtkCellArray()
    line, plane = points, points * points
    corner = numpy.arange(points - 1)
    k, j, i = numpy.meshgrid(corner, corner, corner, indexing="ij")
    first = (i + j * line + k * plane).ravel()
    steps = numpy.array([0, 1, 1 + line, line, plane, plane + 1, plane + 1 + line, plane + line])
    for corners in first[:, None] + steps:
        cells.InsertNextCell(8, corners.tolist())
    free = vtkUnstructuredGrid()
    free.SetPoints(positions)
    free.SetCells(VTK_HEXAHEDRON, cells)
    return free


def _writer(kind: str, mode: str) -> Any:
    writer = getattr(vtkIOXML, KINDS[kind][1])()
    writer.SetCompressor(None)
    if mode == "ascii":
        writer.SetDataModeToAscii()
        return writer
    writer.SetDataModeToAppended()
    writer.SetEncodeAppendedData(mode == "base64")
    if mode == "zlib":
        writer.SetCompressorTypeToZLib()
    if mode == "lz4":
        writer.SetCompressorTypeToLZ4()
    return writer


def write(
    folder: str | Path,
    *,
    steps: int = 4,
    blocks: tuple[int, int, int] = (2, 2, 2),
    points: int = 17,
    kind: str = "image",
    mode: str = "raw",
    variables: int = 1,
    vector: bool = True,
) -> Path:
    """Writes ``ts.vtm.series``, a .vtm and the blocks of each step, and ``ts.pvd``; returns the
    first one's path.

    ``mode``: "raw" (appended), "base64" (appended), "ascii", "zlib" or "lz4" (compressed). Step s
    has the time s / 10.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ending, series, collection = KINDS[kind][0], [], []
    for step in range(steps):
        time = step / 10
        (folder / f"ts_{step}").mkdir(exist_ok=True)
        lines = []
        for number, at in enumerate(numpy.ndindex(*blocks)):
            name = f"ts_{step}/ts_{step}_{number}.{ending}"
            writer = _writer(kind, mode)
            writer.SetFileName(str(folder / name))
            writer.SetInputData(block(kind, at, blocks, points, time, variables, vector))
            if not writer.Write():
                raise OSError(f"{folder / name}: VTK could not write it")
            lines.append(f'    <DataSet index="{number}" name="block{number}" file="{name}"/>')
            collection.append(f'    <DataSet timestep="{time}" part="{number}" file="{name}"/>')
        (folder / f"ts_{step}.vtm").write_text(_xml("vtkMultiBlockDataSet", "vtkMultiBlockDataSet", lines))
        series.append({"name": f"ts_{step}.vtm", "time": time})
    (folder / "ts.pvd").write_text(_xml("Collection", "Collection", collection))
    index = folder / "ts.vtm.series"
    index.write_text(json.dumps({"file-series-version": "1.0", "files": series}, indent=1))
    return index


def _xml(kind: str, body: str, lines: list[str]) -> str:
    head = f'<?xml version="1.0"?>\n<VTKFile type="{kind}" version="1.0" byte_order="LittleEndian">'
    return "\n".join([head, f"  <{body}>", *lines, f"  </{body}>", "</VTKFile>", ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes a visualization of several blocks and time steps.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), help="a data set of VisIO's paper")
    parser.add_argument("--steps", type=int, help="default: 4, or the shape's")
    parser.add_argument("--blocks", type=int, nargs=3, default=(2, 2, 2), metavar=("X", "Y", "Z"))
    parser.add_argument("--points", type=int, default=33, help="along each edge of a block")
    parser.add_argument("--kind", choices=list(KINDS), help="default: image, or the shape's")
    parser.add_argument("--mode", choices=MODES, default="raw")
    parser.add_argument("--variables", type=int, help="scalars of each point (1, or the shape's)")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    given = SHAPES.get(given.pop("shape", ""), {}) | given
    given["blocks"] = tuple(given["blocks"])
    print(write(given.pop("folder"), **given))


if __name__ == "__main__":
    main()
