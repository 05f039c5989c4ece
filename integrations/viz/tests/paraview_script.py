"""For pvbatch and pvpython: contours a series with Zazen's reader or the stock one, and writes a
picture.

pvbatch paraview_script.py plugin|listed|stock INDEX PICTURE PLUGIN [PORT OF A pvserver]

"listed": $PV_PLUGIN_CONFIG_FILE lists the plug-in, so ParaView has loaded it.
"""

import json
import sys

from paraview.simple import (
    Connect,
    Contour,
    GetActiveViewOrCreate,
    GetAnimationScene,
    LoadPlugin,
    OpenDataFile,
    Render,
    SaveScreenshot,
    Show,
    XMLMultiBlockDataReader,
)

kind, index, picture, plugin = sys.argv[1:5]
port = int(sys.argv[5]) if len(sys.argv) > 5 else None
if port is not None:
    Connect("localhost", port)
if kind != "stock":
    if kind == "plugin":
        LoadPlugin(plugin, remote=port is not None, ns=globals())
        assert callable(ZazenReader)  # noqa: F821
    source = OpenDataFile(index)
    assert source.GetXMLName() == "AZazenReader", source
    source.UpdatePipelineInformation()
    times = list(source.TimestepValues)
    time = times[1]
else:
    source = XMLMultiBlockDataReader(FileName=[index])
    times, time = [], 0
contour = Contour(Input=source, ContourBy=["POINTS", "salinity"], Isosurfaces=[36.5])
view = GetActiveViewOrCreate("RenderView")
view.ViewSize = [320, 240]
GetAnimationScene().AnimationTime = time
contour.UpdatePipeline(time)
Show(contour, view).SetScalarBarVisibility(view, False)
view.CameraPosition, view.CameraFocalPoint, view.CameraViewUp = (
    [2.2, 1.9, 1.7],
    [0.5, 0.5, 0.5],
    [0, 0, 1],
)
view.OrientationAxesVisibility = 0
Render(view)
SaveScreenshot(picture, view)
source.UpdatePipeline(time)
cells, points = source.GetDataInformation().GetNumberOfCells(), source.PointData
found = {"times": times, "cells": cells, "contour": contour.GetDataInformation().GetNumberOfCells()}
found["range"] = list(points["salinity"].GetRange())
print("FOUND", json.dumps(found))
