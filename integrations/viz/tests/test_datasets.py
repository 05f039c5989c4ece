"""Any data set of several files that a user has: the same tree, cells, values and field data as
VTK's own readers."""

import subprocess
import sys
import warnings

import numpy
import pytest
import zazen
import zazen.viz
from vtkmodules import vtkIOHDF, vtkIOLegacy, vtkIOParallelXML, vtkIOXML
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.util.vtkAlgorithm import VTKPythonAlgorithmBase
from vtkmodules.vtkCommonCore import vtkDoubleArray, vtkStringArray
from vtkmodules.vtkCommonDataModel import (
    vtkCompositeDataSet,
    vtkMultiBlockDataSet,
    vtkMultiPieceDataSet,
    vtkPartitionedDataSet,
    vtkPartitionedDataSetCollection,
    vtkUnstructuredGrid,
)
from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
from vtkmodules.vtkImagingCore import vtkRTAnalyticSource
from zazen.viz.generate import block, write


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no Zazen daemon answers.*")
        warnings.filterwarnings("ignore", message=".*read from where they are.*")
        yield


def leaves(data):
    if not data.IsA("vtkCompositeDataSet"):
        return [data]
    iterator, found = data.NewIterator(), []
    iterator.InitTraversal()
    while not iterator.IsDoneWithTraversal():
        found.append(iterator.GetCurrentDataObject())
        iterator.GoToNextItem()
    return found


def arrays(attributes):
    found = {}
    for at in range(attributes.GetNumberOfArrays()):
        array = attributes.GetAbstractArray(at)
        text = array.IsA("vtkStringArray")
        values = (
            [array.GetValue(i) for i in range(array.GetNumberOfValues())] if text else vtk_to_numpy(array)
        )
        found[array.GetName()] = values if text else values.tolist()
    return found


def described(data):
    """What each leaf holds."""
    return [
        {
            "class": leaf.GetClassName(),
            "counts": (leaf.GetNumberOfPoints(), leaf.GetNumberOfCells()),
            "bounds": leaf.GetBounds(),
            "point": arrays(leaf.GetPointData()),
            "cell": arrays(leaf.GetCellData()),
            "field": arrays(leaf.GetFieldData()),
        }
        for leaf in leaves(data)
    ]


def shape(data):
    """The tree: kinds, names, and where there is nothing."""
    if data is None:
        return None
    kind = data.GetClassName()
    members = {
        "vtkMultiBlockDataSet": ("GetNumberOfBlocks", "GetBlock"),
        "vtkMultiPieceDataSet": ("GetNumberOfPieces", "GetPieceAsDataObject"),
        "vtkPartitionedDataSet": ("GetNumberOfPartitions", "GetPartitionAsDataObject"),
        "vtkPartitionedDataSetCollection": ("GetNumberOfPartitionedDataSets", "GetPartitionedDataSet"),
    }.get(kind)
    if members is None:
        return kind

    def name(at):
        return data.GetMetaData(at).Get(vtkCompositeDataSet.NAME()) if data.HasMetaData(at) else None

    return kind, [
        (name(at), shape(getattr(data, members[1])(at))) for at in range(getattr(data, members[0])())
    ]


def stock(kind, path):
    reader = getattr(vtkIOXML, f"vtkXML{kind}Reader")()
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutputDataObject(0)


def part(at=0, kind="image", count=2):
    return block(kind, (at, 0, 0), (count, 1, 1), 5, 0.1)


def with_fields(data):
    number, text = vtkDoubleArray(), vtkStringArray()
    number.SetName("TimeValue")
    number.InsertNextValue(3.5)
    text.SetName("title")
    text.InsertNextValue("salt & <water>")
    data.GetFieldData().AddArray(number)
    data.GetFieldData().AddArray(text)
    return data


@pytest.mark.parametrize("mode", ["Ascii", "Binary", "Appended"])
def test_nested_blocks_pieces_holes_and_field_data(backing, mode):
    whole = vtkMultiBlockDataSet()
    inner, pieces = vtkMultiBlockDataSet(), vtkMultiPieceDataSet()
    inner.SetBlock(0, with_fields(part()))
    inner.SetBlock(1, part(1, "unstructured"))
    inner.GetMetaData(0).Set(whole.NAME(), "a b & c")
    pieces.SetPiece(0, part(0, "rectilinear"))
    pieces.SetPiece(1, part(1, "structured"))
    whole.SetBlock(0, inner)
    whole.GetMetaData(0).Set(whole.NAME(), "inner")
    whole.SetBlock(2, pieces)
    whole.SetBlock(3, vtkUnstructuredGrid())
    writer = vtkIOXML.vtkXMLMultiBlockDataWriter()
    writer.SetFileName(str(backing / "all files.vtm"))
    getattr(writer, f"SetDataModeTo{mode}")()
    writer.SetInputData(with_fields(whole))
    assert writer.Write()
    (backing / "t.vtm.series").write_text('{"files": [{"name": "all files.vtm", "time": 2}]}')
    theirs = stock("MultiBlockData", backing / "all files.vtm")
    for name in ("all files.vtm", "t.vtm.series"):
        ours = zazen.viz.Reader(backing / name).update()
        assert shape(ours) == shape(theirs)
        assert described(ours) == described(theirs) and len(leaves(ours)) == 4
        assert arrays(ours.GetFieldData()) == arrays(theirs.GetFieldData()) != {}


def test_partitions_keep_their_groups(backing):
    left, right = vtkPartitionedDataSet(), vtkPartitionedDataSet()
    left.SetPartition(0, part())
    left.SetPartition(1, part(1, "unstructured"))
    right.SetPartition(0, part(1))
    whole = vtkPartitionedDataSetCollection()
    whole.SetPartitionedDataSet(0, left)
    whole.SetPartitionedDataSet(1, right)
    whole.GetMetaData(0).Set(whole.NAME(), "left")
    for ending, data in (("vtpd", left), ("vtpc", whole)):
        writer = getattr(vtkIOParallelXML, f"vtkXML{data.GetClassName()[3:]}Writer")()
        writer.SetFileName(str(backing / f"x.{ending}"))
        writer.SetInputData(data)
        assert writer.Write()
        ours = zazen.viz.Reader(backing / f"x.{ending}", output="collection").update()
        assert [leaf["counts"] for leaf in described(ours)] == [leaf["counts"] for leaf in described(data)]
        assert [leaf["point"] for leaf in described(ours)] == [leaf["point"] for leaf in described(data)]
    assert shape(ours) == shape(whole)


def pieces_with_ghosts(backing, levels):
    source, writer = vtkRTAnalyticSource(), vtkIOParallelXML.vtkXMLPImageDataWriter()
    source.SetWholeExtent(0, 8, 0, 8, 0, 8)
    writer.SetInputConnection(source.GetOutputPort())
    writer.SetNumberOfPieces(4)
    writer.SetStartPiece(0)
    writer.SetEndPiece(3)
    writer.SetGhostLevel(levels)
    writer.SetFileName(str(backing / "x.pvti"))
    assert writer.Write()
    return backing / "x.pvti"


def own_cells(data):
    """Where the cells are that are not marked as another piece's."""
    centers = []
    for leaf in leaves(data):
        ghosts = leaf.GetCellData().GetArray("vtkGhostType")
        for cell in range(leaf.GetNumberOfCells()):
            if ghosts is None or not ghosts.GetValue(cell) & 1:
                bounds = leaf.GetCell(cell).GetBounds()
                centers.append(tuple((bounds[2 * axis] + bounds[2 * axis + 1]) / 2 for axis in range(3)))
    return sorted(centers)


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("marked", [True, False])
def test_each_cell_of_structured_pieces_is_shown_once(backing, levels, marked):
    index = pieces_with_ghosts(backing, levels)
    # VTK's own reader takes the marks of whichever piece comes last, so some cells are marked in
    # all.
    assert stock("PImageData", index).GetNumberOfCells() == 8**3
    middles = [at + 0.5 for at in range(8)]
    whole = sorted((x, y, z) for x in middles for y in middles for z in middles)
    if not marked:
        # Other programs write ghost layers without saying which cells they are.
        for file in backing.glob("*.vti"):
            data = stock("ImageData", file)
            data.GetCellData().RemoveArray("vtkGhostType")
            data.GetPointData().RemoveArray("vtkGhostType")
            writer = vtkIOXML.vtkXMLImageDataWriter()
            writer.SetFileName(str(file))
            writer.SetInputData(data)
            assert writer.Write()
    reader = zazen.viz.Reader(index)
    assert own_cells(reader.update()) == whole
    # Also if all arrays are switched off.
    reader.GetCellArraySelection().DisableAllArrays()
    reader.GetPointArraySelection().DisableAllArrays()
    assert own_cells(reader.update()) == whole


def test_a_legacy_file_of_text_may_end_with_empty_strings(backing):
    data, names = block("image", (0, 0, 0), (1, 1, 1), 4, 0.1), vtkStringArray()
    names.SetName("names")
    for point in range(data.GetNumberOfPoints()):
        names.InsertNextValue("abc" if point == 0 else "")
    data.GetPointData().AddArray(names)
    writer, path = vtkIOLegacy.vtkGenericDataObjectWriter(), backing / "dump0.vtk"
    writer.SetFileName(str(path))
    writer.SetInputData(data)
    assert writer.Write()
    assert path.read_text().endswith("\n\n")
    (ours,) = leaves(zazen.viz.Reader(backing / "dump{n}.vtk").update())
    assert ours.GetPointData().GetAbstractArray("names").GetValue(0) == "abc"


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("kind", ["image", "rectilinear", "structured", "unstructured"])
def test_a_cut_legacy_file_is_an_error(backing, kind, mode):
    writer, path = vtkIOLegacy.vtkGenericDataObjectWriter(), backing / "dump0.vtk"
    writer.SetFileName(str(path))
    writer.SetFileType(mode)
    writer.SetInputData(block(kind, (0, 0, 0), (1, 1, 1), 4, 0.1))
    assert writer.Write()
    whole = path.read_bytes()
    expected = described(zazen.viz.Reader(backing / "dump{n}.vtk").update())
    assert set(expected[0]["point"]) == {"salinity", "velocity"}
    noticed, cuts = 0, [*range(0, len(whole) - 1, len(whole) // 40), *range(len(whole) - 12, len(whole) - 1)]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        try:
            found = described(zazen.viz.Reader(backing / "dump{n}.vtk").update())
        except zazen.CorruptError as error:
            assert "dump0.vtk" in str(error)
            noticed += 1
            continue
        # Cut exactly between two arrays, or only behind the last value. What is there is right.
        assert found[0]["counts"] == expected[0]["counts"]
        for name, values in found[0]["point"].items():
            assert values == expected[0]["point"][name], cut
    assert noticed >= len(cuts) - 4


def test_blocks_without_cells_lack_no_arrays(backing):
    index = write(backing / "v", steps=1, blocks=(3, 1, 1), points=5, kind="unstructured")
    writer = vtkIOXML.vtkXMLUnstructuredGridWriter()
    writer.SetFileName(str(index.parent / "ts_0/ts_0_1.vtu"))
    writer.SetInputData(vtkUnstructuredGrid())
    writer.Write()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is missing in.*")
        ours = zazen.viz.Reader(index).update()
    assert described(ours) == described(stock("MultiBlockData", index.parent / "ts_0.vtm"))


def changed_block(index, change):
    odd = block("image", (0, 0, 0), (2, 2, 2), 9, 0.1)
    change(odd.GetPointData())
    writer = vtkIOXML.vtkXMLImageDataWriter()
    writer.SetFileName(str(index.parent / "ts_1/ts_1_3.vti"))
    writer.SetInputData(odd)
    writer.Write()


def test_arrays_of_unlike_components_get_a_word(ocean):
    def flatten(points):
        velocity = vtkDoubleArray()
        velocity.SetName("velocity")
        velocity.SetNumberOfTuples(9**3)
        velocity.Fill(1)
        points.RemoveArray("velocity")
        points.AddArray(velocity)

    changed_block(ocean, flatten)
    with pytest.warns(
        zazen.ZazenWarning, match="'velocity'.* 1 components in ts_1/ts_1_3.vti and 3 components"
    ):
        zazen.viz.Reader(ocean).update(0.1)


def names(data, at=0):
    points = leaves(data)[at].GetPointData()
    return {points.GetArrayName(each) for each in range(points.GetNumberOfArrays())}


def test_a_selection_takes_effect_and_spares_arrays_that_were_not_known(ocean):
    def rename(points):
        points.GetArray("salinity").SetName("salt")

    changed_block(ocean, rename)
    reader = zazen.viz.Reader(ocean)
    assert names(reader.update(0.1)) == {"salinity", "velocity"}
    reader.GetPointArraySelection().DisableArray("velocity")
    data = reader.update(0.1)
    assert names(data) == {"salinity"} and names(data, 3) == {"salt"}
    reader.GetPointArraySelection().EnableArray("velocity")
    assert names(reader.update(0.1)) == {"salinity", "velocity"}
    assert reader.GetPointArraySelection().ArrayExists("salt"), "it was seen in the blocks"


def test_reload_reads_what_changed(ocean):
    reader = zazen.viz.Reader(ocean)
    reader.update(0.1)
    changed_block(ocean, lambda points: points.RemoveArray("velocity"))
    assert names(reader.update(0.1), 3) == {"salinity", "velocity"}, "as VTK's own readers"
    reader.Reload()
    with pytest.warns(zazen.ZazenWarning, match="missing"):
        assert names(reader.update(0.1), 3) == {"salinity"}


class Times(VTKPythonAlgorithmBase):
    """Four partitions at three times."""

    def __init__(self):
        super().__init__(nInputPorts=0, nOutputPorts=1, outputType="vtkPartitionedDataSet")

    def RequestInformation(self, request, inputs, outputs):
        information = outputs.GetInformationObject(0)
        pipeline = vtkStreamingDemandDrivenPipeline
        information.Set(pipeline.TIME_STEPS(), [0.0, 0.5, 1.0], 3)
        information.Set(pipeline.TIME_RANGE(), [0.0, 1.0], 2)
        return 1

    def RequestData(self, request, inputs, outputs):
        information = outputs.GetInformationObject(0)
        pipeline = vtkStreamingDemandDrivenPipeline
        has = information.Has(pipeline.UPDATE_TIME_STEP())
        time = information.Get(pipeline.UPDATE_TIME_STEP()) if has else 0.0
        output = vtkPartitionedDataSet.GetData(outputs, 0)
        for at in range(4):
            output.SetPartition(at, block("unstructured", (at, 0, 0), (4, 1, 1), 4, time))
        return 1


@pytest.mark.parametrize("over_time", [False, True])
def test_vtkhdf_with_partitions_and_times(backing, over_time):
    path, writer = backing / "x.vtkhdf", vtkIOHDF.vtkHDFWriter()
    source = Times()
    writer.SetInputConnection(source.GetOutputPort())
    writer.SetWriteAllTimeSteps(over_time)
    writer.SetFileName(str(path))
    writer.Write()
    reader = zazen.viz.Reader(path)
    assert reader.GetTimestepValues() == ([0.0, 0.5, 1.0] if over_time else [0.0])
    for time in reader.GetTimestepValues():
        theirs = vtkIOHDF.vtkHDFReader()
        theirs.SetFileName(str(path))
        theirs.UpdateTimeStep(time)
        theirs = theirs.GetOutputDataObject(0)
        assert theirs.GetNumberOfElements(theirs.CELL) == 4 * 27
        assert described(reader.update(time)) == described(theirs)
        # Three ranks, one after the other: each has its pieces, none twice.
        cells = 0
        for rank in range(3):
            piece = zazen.viz.Reader(path)
            piece.UpdateTimeStep(time, rank, 3, 0)
            cells += sum(leaf.GetNumberOfCells() for leaf in leaves(piece.GetOutputDataObject(0)))
        assert cells == 4 * 27
    whole = path.read_bytes()
    for kept in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:kept])
        with pytest.raises(zazen.Error, match=r"x\.vtkhdf"):
            zazen.viz.Reader(path).update()
    assert numpy.isfinite(reader.GetTimestepValues()).all()


def test_other_ranks_than_0_never_read_the_index(launch, ocean, folder):
    """They are told of a path that does not exist, and show the same."""
    script = folder / "rank.py"
    script.write_text(
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from mpi4py import MPI\n"
        "import zazen.viz\n"
        "from zazen import _zazen\n"
        "calls, ask = [], _zazen.index_json\n"
        "_zazen.index_json = lambda *given: (calls.append(given), ask(*given))[1]\n"
        "comm = MPI.COMM_WORLD\n"
        "reader = zazen.viz.Reader(sys.argv[1] if comm.rank == 0 else '/nowhere/ts.vtm.series')\n"
        "cells = sum(reader.update(0.1).GetBlock(at).GetNumberOfCells() "
        "for at in reader.visualization.mine(1))\n"
        "reader.update(0.2)\n"
        "told = comm.gather((len(calls), cells), root=0)\n"
        "if comm.rank == 0: print('TOLD', sum(n for n, _ in told), sum(c for _, c in told))\n"
    )
    assert f"TOLD 1 {8 * 8**3}" in launch(4, script, ocean)


@pytest.mark.parametrize(
    ("shape", "kind", "steps", "arrays"),
    [("vector", "vti", 20, {"velocity": 3}), ("ocean", "vtr", 36, dict.fromkeys(range(10), 1))],
)
def test_the_papers_data_sets_are_made(backing, shape, kind, steps, arrays):
    words = [sys.executable, "-m", "zazen.viz.generate", backing / shape, "--shape", shape, "--points", "3"]
    done = subprocess.run(
        [*map(str, words), "--blocks", "2", "1", "1"], capture_output=True, text=True, timeout=300, check=True
    )
    reader = zazen.viz.Reader(done.stdout.strip())
    assert len(reader.GetTimestepValues()) == steps
    points = reader.update(reader.GetTimestepValues()[-1]).GetBlock(1).GetPointData()
    found = [points.GetArray(at) for at in range(points.GetNumberOfArrays())]
    assert sorted(array.GetNumberOfComponents() for array in found) == sorted(arrays.values())
    assert len(list((backing / shape).rglob(f"*.{kind}"))) == 2 * steps
