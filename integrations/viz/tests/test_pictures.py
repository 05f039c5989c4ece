"""Pictures by 1 to 8 ranks: ours equal the stock reader's, also with dead and empty nodes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from vtkmodules import vtkIOImage
from vtkmodules.util.numpy_support import vtk_to_numpy
from zazen.viz.generate import write

pytestmark = pytest.mark.usefixtures("can_draw")
RANK = Path(__file__).parent / "viz_rank.py"
pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
#: Of all pixels, at most this share may differ by more than this many grey levels.
PIXELS, LEVELS = 0.0005, 16
#: Where VTK can't draw, it may also crash, or give a black picture.
ONE_PIXEL = """
import vtkmodules.vtkRenderingOpenGL2
from vtkmodules import vtkRenderingCore
renderer, window = vtkRenderingCore.vtkRenderer(), vtkRenderingCore.vtkRenderWindow()
renderer.SetBackground(1, 1, 1)
window.SetOffScreenRendering(True)
window.SetSize(1, 1)
window.AddRenderer(renderer)
window.Render()
grab = vtkRenderingCore.vtkWindowToImageFilter()
grab.SetInput(window)
grab.Update()
value = grab.GetOutput().GetScalarComponentAsDouble(0, 0, 0, 0)
assert value == 255, f"a white pixel has the value {value}"
"""


@pytest.fixture(scope="module")
def can_draw():
    try:
        drawn = subprocess.run([sys.executable, "-c", ONE_PIXEL], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("VTK can't draw here: one pixel takes longer than 300 s")
    if drawn.returncode != 0:
        said = drawn.stderr.strip().splitlines() or [f"exit status {drawn.returncode}"]
        pytest.skip(f"VTK can't draw here (Debian: libegl1 libgl1-mesa-dri, or an X server): {said[-1]}")


def pixels(path):
    reader = vtkIOImage.vtkPNGReader()
    reader.SetFileName(str(path))
    reader.Update()
    image = reader.GetOutput()
    return vtk_to_numpy(image.GetPointData().GetScalars()).reshape(image.GetDimensions()[1], -1).astype(int)


def assert_same_picture(one, other):
    one, other = pixels(one), pixels(other)
    assert one.shape == other.shape
    assert one.std() > 10, "the picture is blank"
    assert (numpy.abs(one - other) > LEVELS).mean() <= PIXELS


@pytest.fixture
def draw_each(launch, folder):
    """Draws several jobs with the same ranks; for each, what rank 0 says, and the picture. Most of
    a rank's time is its start."""
    count = iter(range(1000))

    def drawn(ranks, *jobs):
        pictures = [folder / f"picture-{next(count)}.png" for _ in jobs]
        told = [job | {"picture": str(picture)} for job, picture in zip(jobs, pictures, strict=True)]
        words = launch(ranks, RANK, *map(json.dumps, told))
        found = [json.loads(line) for line in words.splitlines() if line.startswith("{")]
        return list(zip(found, pictures, strict=True))

    return drawn


@pytest.fixture
def draw(draw_each):
    """Draws one job with some ranks."""
    return lambda ranks, **job: draw_each(ranks, job)[0]


def sockets(cluster):
    return [str(socket) for socket in cluster.sockets]


def test_pictures_equal_the_stock_readers(draw_each, ocean, cluster, load):
    load(ocean, cluster.nodes, cluster.key, copies=2)
    theirs = {"stock": str(ocean.parent / "ts_1.vtm")}
    reference, ranges = None, None
    for ranks in (1, 2, 4, 8):
        (by_stock, their_picture), (ours, picture) = draw_each(
            ranks, theirs, {"index": str(ocean), "sockets": sockets(cluster)}
        )
        reference, ranges = reference or their_picture, ranges or by_stock["ranges"]
        assert_same_picture(picture, reference)
        assert_same_picture(picture, their_picture)
        assert ours["cells"] == by_stock["cells"] == 8 * 8**3
        assert ours["ranges"] == by_stock["ranges"] == ranges
        assert sorted(block for own in ours["blocks"] for block in own) == list(range(8))
        assert ours["names"] == [[f"block{at}" for at in range(8)]] * ranks, "the tree is alike on all ranks"
        assert ours["remote"] == ours["bound"]
        if ranks == 4:
            assert ours["remote"] == 0, "two copies on four nodes: everything can be local"


def test_dead_and_empty_nodes_cost_only_locality(draw, draw_each, ocean, cluster, load):
    # The third and fourth node hold nothing.
    load(ocean, cluster.nodes[:2], cluster.key)
    (stock, reference), (ours, picture) = draw_each(
        4,
        {"stock": str(ocean.parent / "ts_1.vtm")},
        {"index": str(ocean), "sockets": sockets(cluster)},
    )
    assert_same_picture(picture, reference)
    assert ours["cells"] == stock["cells"]
    assert ours["remote"] == ours["bound"] == 4
    # What was remote has become a replica.
    again, _ = draw(4, index=str(ocean), sockets=sockets(cluster))
    assert again["remote"] == 0
    cluster.kill(0)
    ours, picture = draw(4, index=str(ocean), sockets=sockets(cluster))
    assert_same_picture(picture, reference)
    assert ours["ranges"] == stock["ranges"]


def test_more_ranks_than_blocks(draw_each, backing, cluster):
    index = write(backing / "small", steps=2, blocks=(3, 1, 1), points=9)
    (stock, reference), (ours, picture) = draw_each(
        5,
        {"stock": str(index.parent / "ts_1.vtm")},
        {"index": str(index), "sockets": sockets(cluster)},
    )
    assert_same_picture(picture, reference)
    assert (ours["cells"], sorted(map(len, ours["blocks"]))) == (stock["cells"], [0, 0, 1, 1, 1])


def test_no_locator_and_every_strategy(draw, draw_each, ocean, cluster, load):
    load(ocean, cluster.nodes, cluster.key, copies=2)
    of_ocean = {"index": str(ocean)}
    (_, reference), (blind, picture), (sticky, _) = draw_each(
        3,
        {"stock": str(ocean.parent / "ts_1.vtm")},
        of_ocean | {"sockets": ["/none"], "strategy": "stock", "locator": "none"},
        of_ocean | {"sockets": sockets(cluster), "strategy": "sticky", "times": [0.0]},
    )
    assert_same_picture(picture, reference)
    assert blind["blocks"] == [[0, 1, 2], [3, 4, 5], [6, 7]], "VTK's own split"
    later, picture = draw(
        3, index=str(ocean), sockets=sockets(cluster), strategy="sticky", times=[0.0, 0.2, 0.1]
    )
    assert sticky["blocks"] == later["blocks"]
    assert_same_picture(picture, reference)
    table = ocean.parent.parent / "hosts"
    table.write_text("* elsewhere\n")
    far, picture = draw(2, index=str(ocean), sockets=sockets(cluster), locator=f"table:{table}")
    assert far["remote"] == 8
    assert_same_picture(picture, reference)


def test_a_fault_of_one_rank_is_every_ranks(draw_each, ocean, cluster):
    block = ocean.parent / "ts_1/ts_1_5.vti"
    block.write_bytes(block.read_bytes()[:-200])
    job = {"index": str(ocean), "sockets": sockets(cluster)}
    (told, picture), (other, _) = draw_each(4, job, job | {"times": [0.2]})
    assert len(told["errors"]) == 4 and not picture.exists()
    assert all("ts_1_5.vti" in error and "cut" in error for error in told["errors"])
    assert other["cells"] == 8 * 8**3, "other steps stand"
