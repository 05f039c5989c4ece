"""One rank of a job that draws a contour: each rank contours its own blocks, and rank 0 renders all
of them.

    mpiexec -n 4 python viz_rank.py '{"index": …, "sockets": […], "picture": "out.png", "stock": false, …}' …

It draws each of the jobs that it is given. Rank 0 prints a line of JSON for each: cells and ranges
of the input and of the contour, the blocks of each rank, and what was read where.
"""

import json
import sys
import warnings

import zazen.viz
from mpi4py import MPI
from vtkmodules import vtkFiltersCore, vtkIOXML
from vtkmodules.util.numpy_support import vtk_to_numpy

COMM = MPI.COMM_WORLD


def blocks_of(data):
    """(index, block) of the leaves that this rank has."""
    return [(at, block) for at in range(data.GetNumberOfBlocks()) if (block := data.GetBlock(at)) is not None]


def contour(block):
    filter_ = vtkFiltersCore.vtkContourFilter()
    filter_.SetInputData(block)
    filter_.SetInputArrayToProcess(0, 0, 0, 0, "salinity")
    filter_.SetValue(0, 36.5)
    filter_.Update()
    writer = vtkIOXML.vtkXMLPolyDataWriter()
    writer.WriteToOutputStringOn()
    writer.SetDataModeToBinary()
    writer.SetInputData(filter_.GetOutput())
    writer.Write()
    return writer.GetOutputString()


def render(surfaces, picture):
    # Rank 0 alone draws; the others need not load what takes half of a rank's start.
    import vtkmodules.vtkRenderingOpenGL2  # noqa: F401  It registers the renderer.
    from vtkmodules import vtkIOImage, vtkRenderingCore

    renderer = vtkRenderingCore.vtkRenderer()
    renderer.SetBackground(0.1, 0.1, 0.2)
    for text in surfaces:
        reader = vtkIOXML.vtkXMLPolyDataReader()
        reader.ReadFromInputStringOn()
        reader.SetInputString(text)
        mapper = vtkRenderingCore.vtkPolyDataMapper()
        mapper.SetInputConnection(reader.GetOutputPort())
        mapper.SetScalarModeToUsePointFieldData()
        mapper.SelectColorArray("salinity")
        mapper.SetScalarRange(34, 38)
        actor = vtkRenderingCore.vtkActor()
        actor.SetMapper(mapper)
        renderer.AddActor(actor)
    window = vtkRenderingCore.vtkRenderWindow()
    window.SetOffScreenRendering(True)
    window.SetSize(320, 240)
    window.AddRenderer(renderer)
    camera = renderer.GetActiveCamera()
    camera.SetPosition(2.2, 1.9, 1.7)
    camera.SetFocalPoint(0.5, 0.5, 0.5)
    camera.SetViewUp(0, 0, 1)
    renderer.ResetCameraClippingRange()
    window.Render()
    grab = vtkRenderingCore.vtkWindowToImageFilter()
    grab.SetInput(window)
    writer = vtkIOImage.vtkPNGWriter()
    writer.SetFileName(picture)
    writer.SetInputConnection(grab.GetOutputPort())
    writer.Write()


def ranges(block):
    points = block.GetPointData()
    arrays = [points.GetArray(at) for at in range(points.GetNumberOfArrays())]
    return {
        array.GetName(): (vtk_to_numpy(array).min().item(), vtk_to_numpy(array).max().item())
        for array in arrays
    }


def joined(every):
    whole = {}
    for each in every:
        for name, (low, high) in each.items():
            old = whole.get(name, (low, high))
            whole[name] = (min(low, old[0]), max(high, old[1]))
    return whole


def draw(job):
    reader = None
    if job.get("stock"):
        reader = vtkIOXML.vtkXMLMultiBlockDataReader()
        reader.SetFileName(job["stock"])
        reader.UpdatePiece(COMM.rank, COMM.size, 0)
        data = reader.GetOutputDataObject(0)
    else:
        sockets = job["sockets"]
        reader = zazen.viz.Reader(
            job["index"],
            socket=sockets[COMM.rank % len(sockets)],
            strategy=job.get("strategy", "optimal"),
            locator=job.get("locator", "cache"),
            ahead=job.get("ahead", 1),
            record=job.get("record"),
        )
        try:
            for time in job.get("times", [0.1]):
                data = reader.update(time)
        except zazen.Error as error:
            every = COMM.gather(str(error), root=0)
            if COMM.rank == 0:
                print(json.dumps({"errors": every}))
            return
    own = blocks_of(data)
    told = {
        "cells": sum(block.GetNumberOfCells() for _, block in own),
        "blocks": [at for at, _ in own],
        "ranges": joined(ranges(block) for _, block in own),
        "names": [
            data.GetMetaData(at).Get(data.NAME()) if data.HasMetaData(at) else None
            for at in range(data.GetNumberOfBlocks())
        ],
        "surfaces": [(at, contour(block)) for at, block in own],
    }
    every = COMM.gather(told, root=0)
    if COMM.rank != 0:
        return
    surfaces = sorted(surface for each in every for surface in each["surfaces"])
    if job.get("picture"):
        render([text for _, text in surfaces], job["picture"])
    result = {
        "cells": sum(each["cells"] for each in every),
        "ranges": joined(each["ranges"] for each in every),
        "blocks": [each["blocks"] for each in every],
        "names": [each["names"] for each in every],
    }
    if not job.get("stock"):
        step = reader.visualization.nearest(job.get("times", [0.1])[-1])
        plan = reader.visualization.plan(step)
        result |= {"remote": plan.remote, "bound": plan.bound}
    print(json.dumps(result))


warnings.simplefilter("ignore", zazen.ZazenWarning)
for words in sys.argv[1:]:
    draw(json.loads(words))
