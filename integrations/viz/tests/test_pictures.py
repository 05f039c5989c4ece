"""Pictures by 1 to 8 ranks: ours equal the stock reader's, also with dead and empty nodes."""

import json
import os
from ctypes.util import find_library
from pathlib import Path

import numpy
import pytest
from vtkmodules import vtkIOImage
from vtkmodules.util.numpy_support import vtk_to_numpy
from zazen.viz.generate import write

pytestmark = pytest.mark.skipif(
    not (find_library("EGL") or os.environ.get("DISPLAY")),
    reason="VTK can't draw here: neither EGL (Debian: libegl1 libgl1-mesa-dri) nor an X server",
)
RANK = Path(__file__).parent / "viz_rank.py"
pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'zazen[mpi]'")
#: Of all pixels, at most this share may differ by more than this many grey levels.
PIXELS, LEVELS = 0.0005, 16


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
def draw(launch, folder):
    """Draws with some ranks; what rank 0 says, and the picture."""
    count = iter(range(1000))

    def drawn(ranks, **job):
        picture = folder / f"picture-{next(count)}.png"
        words = launch(ranks, RANK, json.dumps(job | {"picture": str(picture)}))
        found = next(line for line in words.splitlines() if line.startswith("{"))
        return json.loads(found), picture

    return drawn


def sockets(cluster):
    return [str(socket) for socket in cluster.sockets]


def test_pictures_equal_the_stock_readers(draw, ocean, cluster, load):
    load(ocean, cluster.nodes, cluster.key, copies=2)
    stock, reference = draw(1, stock=str(ocean.parent / "ts_1.vtm"))
    assert stock["cells"] == 8 * 8**3
    for ranks in (1, 2, 4, 8):
        by_stock, their_picture = draw(ranks, stock=str(ocean.parent / "ts_1.vtm"))
        ours, picture = draw(ranks, index=str(ocean), sockets=sockets(cluster))
        assert_same_picture(picture, reference)
        assert_same_picture(picture, their_picture)
        assert ours["cells"] == by_stock["cells"] == stock["cells"]
        assert ours["ranges"] == by_stock["ranges"] == stock["ranges"]
        assert sorted(block for own in ours["blocks"] for block in own) == list(range(8))
        assert ours["names"] == [[f"block{at}" for at in range(8)]] * ranks, "the tree is alike on all ranks"
        assert ours["remote"] == ours["bound"]
        if ranks == 4:
            assert ours["remote"] == 0, "two copies on four nodes: everything can be local"


def test_dead_and_empty_nodes_cost_only_locality(draw, ocean, cluster, load):
    stock, reference = draw(1, stock=str(ocean.parent / "ts_1.vtm"))
    # The third and fourth node hold nothing.
    load(ocean, cluster.nodes[:2], cluster.key)
    ours, picture = draw(4, index=str(ocean), sockets=sockets(cluster))
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


def test_more_ranks_than_blocks(draw, backing, cluster):
    index = write(backing / "small", steps=2, blocks=(3, 1, 1), points=9)
    stock, reference = draw(1, stock=str(index.parent / "ts_1.vtm"))
    ours, picture = draw(5, index=str(index), sockets=sockets(cluster))
    assert_same_picture(picture, reference)
    assert (ours["cells"], sorted(map(len, ours["blocks"]))) == (stock["cells"], [0, 0, 1, 1, 1])


def test_no_locator_and_every_strategy(draw, ocean, cluster, load):
    load(ocean, cluster.nodes, cluster.key, copies=2)
    _, reference = draw(1, stock=str(ocean.parent / "ts_1.vtm"))
    blind, picture = draw(3, index=str(ocean), sockets=["/none"], strategy="stock", locator="none")
    assert_same_picture(picture, reference)
    assert blind["blocks"] == [[0, 1, 2], [3, 4, 5], [6, 7]], "VTK's own split"
    sticky, _ = draw(3, index=str(ocean), sockets=sockets(cluster), strategy="sticky", times=[0.0])
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


def test_a_fault_of_one_rank_is_every_ranks(draw, ocean, cluster):
    block = ocean.parent / "ts_1/ts_1_5.vti"
    block.write_bytes(block.read_bytes()[:-200])
    told, picture = draw(4, index=str(ocean), sockets=sockets(cluster))
    assert len(told["errors"]) == 4 and not picture.exists()
    assert all("ts_1_5.vti" in error and "cut" in error for error in told["errors"])
    # Other steps stand.
    told, _ = draw(4, index=str(ocean), sockets=sockets(cluster), times=[0.2])
    assert told["cells"] == 8 * 8**3
