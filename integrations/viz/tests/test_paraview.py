"""ParaView's pvbatch with the plug-in: the stock reader's picture and counts. Skipped without ParaView."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy
import pytest
import zazen.viz
from vtkmodules import vtkIOImage
from vtkmodules.util.numpy_support import vtk_to_numpy

HERE = Path(__file__).parent
PVBATCH, XVFB, MPIRUN = shutil.which("pvbatch"), shutil.which("Xvfb"), shutil.which("mpirun")
pytestmark = pytest.mark.skipif(
    not (PVBATCH and XVFB and MPIRUN),
    reason="no ParaView here (Debian: paraview python3-paraview openmpi-bin xvfb)",
)


@pytest.fixture(scope="module")
def display():
    """An X server of its own. It must not reset when its last client leaves: ranks of the next run would meet it."""
    number = next(at for at in range(70, 200) if not Path(f"/tmp/.X11-unix/X{at}").exists())
    words = [
        XVFB,
        f":{number}",
        "-screen",
        "0",
        "1024x768x24",
        "-nolisten",
        "tcp",
        "-noreset",
        "+extension",
        "GLX",
    ]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not Path(f"/tmp/.X11-unix/X{number}").exists():
        assert time.monotonic() < deadline and server.poll() is None
        time.sleep(0.05)
    yield f":{number}"
    server.terminate()
    server.wait()


@pytest.fixture
def batch(display, folder, node):
    """Runs the script with some ranks: what it found, and the picture."""

    def run(ranks, kind, index):
        picture = folder / f"{kind}-{ranks}.png"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ZAZEN", "LD_LIBRARY", "PYTHON"))
        }
        environment |= {"DISPLAY": display, "ZAZEN_SOCKET": str(node.socket), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": str(HERE.parent / "paraview-5.11")}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment |= {"ZAZEN_VIZ_RECORD": str(folder / f"record-{kind}-{ranks}")}
        words = [MPIRUN, "--oversubscribe", "-n", str(ranks), PVBATCH, str(HERE / "paraview_script.py")]
        words += [kind, str(index), str(picture), zazen.viz.plugin_path()]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, env=environment, check=False
        )
        line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
        assert line is not None, done.stdout + done.stderr
        return json.loads(line.removeprefix("FOUND ")), picture

    return run


def pixels(path):
    reader = vtkIOImage.vtkPNGReader()
    reader.SetFileName(str(path))
    reader.Update()
    return vtk_to_numpy(reader.GetOutput().GetPointData().GetScalars()).astype(int)


def test_pvbatch_draws_the_stock_readers_picture(batch, ocean, node):
    stock, reference = batch(1, "stock", ocean.parent / "ts_1.vtm")
    assert stock["cells"] == 8 * 8**3 and stock["contour"] > 0 and pixels(reference).std() > 10
    for ranks in (1, 4):
        ours, picture = batch(ranks, "plugin", ocean)
        assert ours["times"] == [0.0, 0.1, 0.2]
        assert [ours[name] for name in ("cells", "contour", "range")] == [
            stock[name] for name in ("cells", "contour", "range")
        ]
        assert (numpy.abs(pixels(picture) - pixels(reference)) > 16).mean() <= 0.0005
        records = sorted((picture.parent / f"record-plugin-{ranks}").glob("rank-*.jsonl"))
        lines = [json.loads(record.read_text().splitlines()[0]) for record in records]
        assert [line["ranks"] for line in lines] == [ranks] * ranks, "the ranks know each other"
        assert sum(line["files"] for line in lines) == 8
    # All blocks of this step and of the next came through the daemon.
    assert zazen.viz.Visualization(ocean, socket=node.socket).plan(1).remote == 0
