#!/bin/sh
# Installs what the tests of ParaView need (integrations/viz/tests/test_paraview.py), on Debian or Ubuntu; needs root.
# ParaView takes 1.2 GB. Its VTK and the vtk wheel never meet in one process.
set -eu
exec apt-get install -y --no-install-recommends paraview python3-paraview openmpi-bin xvfb xauth
