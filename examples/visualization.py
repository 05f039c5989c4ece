"""Pictures of a simulated ocean's salinity, each rank drawing from the blocks that lie on its node.

    python -m zazen.viz.generate /lustre/ocean --steps 20 --blocks 2 2 2 --points 33
    mpiexec -n 4 python examples/visualization.py /lustre/ocean/ts.vtm.series --pictures pictures

The data are simulated: `zazen.viz.generate` computes an analytic field and writes VTK's files. Each
rank contours its own blocks; rank 0 gathers the surfaces and renders them, without an X server.
Needs `pip install 'zazen[viz,mpi]'`.
"""

import argparse
from pathlib import Path

import vtkmodules.vtkRenderingOpenGL2  # noqa: F401  It registers the renderer.
import zazen.viz
from vtkmodules.vtkFiltersCore import vtkContourFilter
from vtkmodules.vtkIOImage import vtkPNGWriter
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader, vtkXMLPolyDataWriter
from vtkmodules.vtkRenderingCore import (
    vtkActor,
    vtkColorTransferFunction,
    vtkPolyDataMapper,
    vtkRenderer,
    vtkRenderWindow,
    vtkWindowToImageFilter,
)
from zazen.viz.visualization import world


def surfaces(data):
    """The surfaces of equal salinity in the blocks of this rank: (block, VTK's XML as text)."""
    for at in range(data.GetNumberOfBlocks()):
        block = data.GetBlock(at)
        if block is None:
            continue
        contour = vtkContourFilter()
        contour.SetInputData(block)
        contour.SetInputArrayToProcess(0, 0, 0, 0, "salinity")
        for number, value in enumerate((35.4, 36.0, 36.8, 37.4)):
            contour.SetValue(number, value)
        writer = vtkXMLPolyDataWriter()
        writer.WriteToOutputStringOn()
        writer.SetInputConnection(contour.GetOutputPort())
        writer.Write()
        yield at, writer.GetOutputString()


class Scene:
    """A window that shows surfaces."""

    def __init__(self):
        self.renderer, self.window = vtkRenderer(), vtkRenderWindow()
        self.renderer.SetBackground(0.96, 0.97, 0.99)
        self.window.SetOffScreenRendering(True)
        self.window.SetSize(640, 480)
        self.window.AddRenderer(self.renderer)
        self.colors = vtkColorTransferFunction()
        for value, color in ((35, (0.1, 0.25, 0.6)), (36.3, (0.2, 0.7, 0.7)), (37.6, (0.95, 0.75, 0.2))):
            self.colors.AddRGBPoint(value, *color)

    def write(self, texts, path):
        """Renders surfaces into a PNG file."""
        self.renderer.RemoveAllViewProps()
        for text in texts:
            reader = vtkXMLPolyDataReader()
            reader.ReadFromInputStringOn()
            reader.SetInputString(text)
            mapper = vtkPolyDataMapper()
            mapper.SetInputConnection(reader.GetOutputPort())
            mapper.SetLookupTable(self.colors)
            mapper.SetScalarModeToUsePointFieldData()
            mapper.SelectColorArray("salinity")
            mapper.UseLookupTableScalarRangeOn()
            actor = vtkActor()
            actor.SetMapper(mapper)
            actor.GetProperty().SetOpacity(0.55)
            self.renderer.AddActor(actor)
        camera = self.renderer.GetActiveCamera()
        camera.SetPosition(2.1, -1.6, 1.7)
        camera.SetFocalPoint(0.5, 0.5, 0.45)
        camera.SetViewUp(0, 0, 1)
        self.renderer.ResetCameraClippingRange()
        self.window.Render()
        grab, writer = vtkWindowToImageFilter(), vtkPNGWriter()
        grab.SetInput(self.window)
        writer.SetInputConnection(grab.GetOutputPort())
        writer.SetFileName(str(path))
        writer.Write()


def main():
    parser = argparse.ArgumentParser(description="Pictures of each time step.")
    parser.add_argument("index")
    parser.add_argument("--pictures", type=Path, default=Path("pictures"))
    parser.add_argument("--strategy", default="optimal")
    given = parser.parse_args()
    comm = world()
    reader = zazen.viz.Reader(given.index, strategy=given.strategy)
    scene = None
    for step, time in enumerate(reader.GetTimestepValues()):
        own = list(surfaces(reader.update(time)))
        every = comm.allgather(own)
        if comm.rank == 0:
            scene = scene or Scene()
            given.pictures.mkdir(parents=True, exist_ok=True)
            drawn = sorted(surface for own in every for surface in own)
            scene.write([text for _, text in drawn], given.pictures / f"salinity-{step:03}.png")
            plan = reader.visualization.plan(step)
            print(f"time {time}: {len(plan.rank_of_file)} blocks, {plan.remote} read remotely")


main()
