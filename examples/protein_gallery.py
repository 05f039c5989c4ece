"""Pictures of a protein that opens: adenylate kinase, over the 98 frames of a real trajectory.

    pip install 'zazen[viz,mpi]' MDAnalysis MDAnalysisTests
    python examples/protein_gallery.py make adk                     # or: make adk --topology T --trajectory D
    mpiexec -n 4 python examples/protein_gallery.py draw adk/adk.vtm.series --pictures pictures

The data are real, in a public format (PSF and DCD): the transition of adenylate kinase from its
closed to its open form, computed by O. Beckstein and others (J. Mol. Biol. 394, 2009). The package
MDAnalysisTests ships the trajectory. `make` writes each frame as VTK's files, a block for each
segment of the protein's domains. `draw` gives each rank the blocks that lie on its node; each rank
makes tubes of its own, and rank 0 renders them, without an X server.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import vtkmodules.vtkRenderingOpenGL2  # noqa: F401  It registers the renderer.
import zazen.viz
from vtkmodules.vtkCommonCore import vtkFloatArray, vtkPoints
from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkMultiBlockDataSet, vtkPolyData
from vtkmodules.vtkFiltersCore import vtkTubeFilter
from vtkmodules.vtkFiltersGeneral import vtkSplineFilter
from vtkmodules.vtkIOImage import vtkPNGWriter
from vtkmodules.vtkIOXML import vtkXMLMultiBlockDataWriter, vtkXMLPolyDataReader, vtkXMLPolyDataWriter
from vtkmodules.vtkRenderingAnnotation import vtkScalarBarActor
from vtkmodules.vtkRenderingCore import (
    vtkActor,
    vtkColorTransferFunction,
    vtkPolyDataMapper,
    vtkRenderer,
    vtkRenderWindow,
    vtkWindowToImageFilter,
)
from zazen.viz.visualization import world

#: Residues of the domains' segments; the last of one is the first of the next, so no gap is seen.
SEGMENTS = (("CORE 1", 1, 30), ("NMP", 30, 60), ("CORE 2", 60, 122), ("LID", 122, 160), ("CORE 3", 160, 214))
MOVED = "moved by (Å)"
MOVED_MAX = 20.0


def chain(positions, moved):
    """A line through the points ``positions``, with how far each is from where it was at first."""
    points, line, array = vtkPoints(), vtkCellArray(), vtkFloatArray()
    array.SetName(MOVED)
    line.InsertNextCell(len(positions))
    for at, (position, distance) in enumerate(zip(positions, moved, strict=True)):
        points.InsertNextPoint(*map(float, position))
        line.InsertCellPoint(at)
        array.InsertNextValue(float(distance))
    data = vtkPolyData()
    data.SetPoints(points)
    data.SetLines(line)
    data.GetPointData().AddArray(array)
    return data


def make(given):
    """Writes the trajectory's frames as VTK's files, and their index."""
    import MDAnalysis
    import numpy
    from MDAnalysis.analysis import align

    if given.topology is None:
        from MDAnalysisTests.datafiles import DCD, PSF

        given.topology, given.trajectory = PSF, DCD
    universe = MDAnalysis.Universe(given.topology, given.trajectory)
    carbons = universe.select_atoms("protein and name CA")
    core = carbons.select_atoms("resid 1:29 60:121 160:214")
    given.folder.mkdir(parents=True, exist_ok=True)
    first, first_core, series = None, None, []
    for step, frame in enumerate(universe.trajectory[:: given.every]):
        # The core is laid over that of the first frame: what moves is what opens.
        middle = core.positions.mean(axis=0)
        if first_core is None:
            first, first_core = carbons.positions - middle, core.positions - middle
        turn, _ = align.rotation_matrix(core.positions - middle, first_core)
        positions = (carbons.positions - middle) @ turn.T
        moved = numpy.linalg.norm(positions - first, axis=1)
        blocks = vtkMultiBlockDataSet()
        for at, (name, begin, end) in enumerate(SEGMENTS):
            own = (carbons.resids >= begin) & (carbons.resids <= end)
            blocks.SetBlock(at, chain(positions[own], moved[own]))
            blocks.GetMetaData(at).Set(blocks.NAME(), name)
        writer = vtkXMLMultiBlockDataWriter()
        writer.SetFileName(str(given.folder / f"adk_{step}.vtm"))
        writer.SetInputData(blocks)
        if not writer.Write():
            raise SystemExit(f"{given.folder}: VTK could not write step {step}")
        series.append({"name": f"adk_{step}.vtm", "time": round(frame.time, 3)})
    index = given.folder / "adk.vtm.series"
    index.write_text(json.dumps({"file-series-version": "1.0", "files": series}, indent=1))
    print(f"{index}: {len(series)} steps of {len(SEGMENTS)} blocks")


def tubes(data):
    """The tubes of this rank's blocks: (block, VTK's XML as text)."""
    for at in range(data.GetNumberOfBlocks()):
        if (block := data.GetBlock(at)) is None:
            continue
        spline, tube, writer = vtkSplineFilter(), vtkTubeFilter(), vtkXMLPolyDataWriter()
        spline.SetInputData(block)
        spline.SetSubdivideToLength()
        spline.SetLength(0.6)
        tube.SetInputConnection(spline.GetOutputPort())
        tube.SetRadius(0.9)
        tube.SetNumberOfSides(14)
        tube.CappingOn()
        writer.WriteToOutputStringOn()
        writer.SetInputConnection(tube.GetOutputPort())
        writer.Write()
        yield at, writer.GetOutputString()


class Scene:
    """A window that shows tubes."""

    def __init__(self):
        self.renderer, self.window = vtkRenderer(), vtkRenderWindow()
        self.renderer.SetBackground(1, 1, 1)
        self.window.SetOffScreenRendering(True)
        self.window.SetMultiSamples(8)
        self.window.SetSize(420, 420)
        self.window.AddRenderer(self.renderer)
        self.colors = vtkColorTransferFunction()
        for part, color in ((0, (0.55, 0.6, 0.68)), (0.4, (0.95, 0.75, 0.3)), (1, (0.8, 0.15, 0.2))):
            self.colors.AddRGBPoint(part * MOVED_MAX, *color)
        self.bar = vtkScalarBarActor()
        self.bar.SetLookupTable(self.colors)
        self.bar.SetTitle(MOVED)
        self.bar.UnconstrainedFontSizeOn()
        for text in (self.bar.GetTitleTextProperty(), self.bar.GetLabelTextProperty()):
            text.SetColor(0.2, 0.2, 0.2)
            text.SetFontSize(13)
            text.ItalicOff()
            text.BoldOff()
            text.ShadowOff()
        self.bar.SetLabelFormat("%.0f")
        self.bar.SetNumberOfLabels(5)
        self.bar.SetPosition(0.8, 0.03)
        self.bar.SetWidth(0.17)
        self.bar.SetHeight(0.36)

    def write(self, texts, path):
        """Renders tubes into a PNG file."""
        self.renderer.RemoveAllViewProps()
        for text in texts:
            reader, mapper, actor = vtkXMLPolyDataReader(), vtkPolyDataMapper(), vtkActor()
            reader.ReadFromInputStringOn()
            reader.SetInputString(text)
            mapper.SetInputConnection(reader.GetOutputPort())
            mapper.SetLookupTable(self.colors)
            mapper.SetScalarModeToUsePointFieldData()
            mapper.SelectColorArray(MOVED)
            mapper.UseLookupTableScalarRangeOn()
            actor.SetMapper(mapper)
            actor.GetProperty().SetSpecular(0.3)
            self.renderer.AddActor(actor)
        self.renderer.AddViewProp(self.bar)
        camera = self.renderer.GetActiveCamera()
        camera.SetPosition(-12, -135, 22)
        camera.SetFocalPoint(-7, 0, -4)
        camera.SetViewUp(0, 0, 1)
        self.renderer.ResetCameraClippingRange()
        self.window.Render()
        grab, writer = vtkWindowToImageFilter(), vtkPNGWriter()
        grab.SetInput(self.window)
        writer.SetInputConnection(grab.GetOutputPort())
        writer.SetFileName(str(path))
        writer.Write()


def draw(given):
    """A picture of each step, or of those that are asked for."""
    comm = world()
    reader = zazen.viz.Reader(given.index, strategy=given.strategy)
    times, scene = reader.GetTimestepValues(), None
    for step in given.steps or range(len(times)):
        every = comm.allgather(list(tubes(reader.update(times[step]))))
        if comm.rank == 0:
            scene = scene or Scene()
            given.pictures.mkdir(parents=True, exist_ok=True)
            drawn = sorted(tube for own in every for tube in own)
            scene.write([text for _, text in drawn], given.pictures / f"adk-{step:03}.png")
            plan = reader.visualization.plan(step)
            print(f"time {times[step]} ps: {len(plan.rank_of_file)} blocks, {plan.remote} read remotely")


def main():
    parser = argparse.ArgumentParser(description="Pictures of a protein that opens.")
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="write a trajectory's frames as VTK's files")
    making.add_argument("folder", type=Path)
    making.add_argument("--topology")
    making.add_argument("--trajectory")
    making.add_argument("--every", type=int, default=1, help="only every so many frames")
    making.set_defaults(run=make)
    drawing = commands.add_parser("draw", help="draw each step")
    drawing.add_argument("index")
    drawing.add_argument("--pictures", type=Path, default=Path("pictures"))
    drawing.add_argument("--steps", type=int, nargs="*", help="only these")
    drawing.add_argument("--strategy", default="optimal")
    drawing.set_defaults(run=draw)
    given = parser.parse_args()
    given.run(given)


main()
