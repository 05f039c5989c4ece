"""The examples draw pictures, under MPI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from vtkmodules import vtkIOImage
from vtkmodules.util.numpy_support import vtk_to_numpy

pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def colored(path):
    """The share of a picture's pixels that are neither its background nor grey."""
    reader = vtkIOImage.vtkPNGReader()
    reader.SetFileName(str(path))
    reader.Update()
    pixels = vtk_to_numpy(reader.GetOutput().GetPointData().GetScalars())[:, :3].astype(int)
    return (pixels.max(axis=1) - pixels.min(axis=1) > 40).mean()


def test_a_simulated_ocean(launch, ocean, folder):
    said = launch(2, EXAMPLES / "visualization.py", ocean, "--pictures", folder / "p")
    assert said.count("8 blocks, 8 read remotely") == 3
    pictures = sorted((folder / "p").iterdir())
    assert [picture.name for picture in pictures] == [f"salinity-{step:03}.png" for step in range(3)]
    assert min(map(colored, pictures)) > 0.05


def test_a_protein_that_opens(launch, folder):
    for package in ("MDAnalysis", "MDAnalysisTests"):
        pytest.importorskip(package, reason=f"no {package}: pip install {package}")
    program, made = EXAMPLES / "protein_gallery.py", folder / "adk"
    words = [sys.executable, program, "make", made, "--every", "97"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    index = json.loads((made / "adk.vtm.series").read_text())
    assert [step["time"] for step in index["files"]] == [1.0, 98.0]
    said = launch(2, program, "draw", made / "adk.vtm.series", "--pictures", folder / "p")
    assert said.count("5 blocks, 5 read remotely") == 2
    # At first nothing has moved, so all is grey but the scale; at last the protein is open.
    first, last = (colored(folder / f"p/adk-00{step}.png") for step in (0, 1))
    assert first < 0.05 < last
