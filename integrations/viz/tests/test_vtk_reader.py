"""The reader in one process: equal to VTK's own, time steps, selections, memory, and bad input."""

import json
import re
import threading
import warnings
from pathlib import Path
from time import sleep
from xml.etree import ElementTree

import numpy
import pytest
import zazen
import zazen.viz
from vtkmodules import vtkIOXML
from vtkmodules.util.numpy_support import vtk_to_numpy
from zazen.viz.generate import KINDS, MODES, write
from zazen.viz.steps import Kept


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no Zazen daemon answers.*")
        yield


def leaves(data):
    iterator = data.NewIterator()
    iterator.InitTraversal()
    while not iterator.IsDoneWithTraversal():
        yield iterator.GetCurrentDataObject()
        iterator.GoToNextItem()


def assert_equal(one, other):
    ours, theirs = list(leaves(one)), list(leaves(other))
    assert len(ours) == len(theirs) > 0
    for left, right in zip(ours, theirs, strict=True):
        assert left.GetClassName() == right.GetClassName()
        assert (left.GetNumberOfPoints(), left.GetNumberOfCells()) == (
            right.GetNumberOfPoints(),
            right.GetNumberOfCells(),
        )
        assert left.GetBounds() == right.GetBounds()
        count = right.GetPointData().GetNumberOfArrays()
        assert left.GetPointData().GetNumberOfArrays() == count
        for at in range(count):
            array = right.GetPointData().GetArray(at)
            mine = left.GetPointData().GetArray(array.GetName())
            assert numpy.array_equal(vtk_to_numpy(mine), vtk_to_numpy(array))


def stock(path):
    reader = vtkIOXML.vtkXMLMultiBlockDataReader()
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutputDataObject(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_format_reads_as_the_stock_reader_does(backing, node, kind, mode):
    index = write(backing / "v", steps=2, blocks=(2, 1, 1), points=5, kind=kind, mode=mode)
    reader = zazen.viz.Reader(index, socket=node.socket)
    for step in (0, 1):
        assert_equal(reader.update(step / 10), stock(index.parent / f"ts_{step}.vtm"))
    # The second time, everything comes from this node's cache.
    again = zazen.viz.Reader(index, socket=node.socket)
    assert again.visualization.plan(1).is_local == [True, True]
    assert_equal(again.update(0.1), stock(index.parent / "ts_1.vtm"))


def test_indexes_of_all_kinds_give_the_same_blocks(ocean):
    expected = stock(ocean.parent / "ts_2.vtm")
    names = ["ts.vtm.series", "ts.pvd", "ts_{t}/ts_{t}_{b}.vti"]
    for name, time in zip(names, (0.2, 0.2, 2), strict=True):
        assert_equal(zazen.viz.Reader(ocean.parent / name).update(time), expected)
    collection = zazen.viz.Reader(ocean, output="collection").update(0.2)
    assert collection.GetClassName() == "vtkPartitionedDataSetCollection"
    assert collection.GetNumberOfPartitionedDataSets() == 8
    assert_equal(collection, expected)


def test_pieces_become_pieces(backing):
    index = write(backing / "v", steps=1, blocks=(2, 1, 1), points=5, kind="unstructured")
    piece = '<Piece Source="ts_0/ts_0_{}.vtu"/>'
    (index.parent / "all.pvtu").write_text(
        '<VTKFile type="PUnstructuredGrid"><PUnstructuredGrid GhostLevel="0">'
        + piece.format(0)
        + piece.format(1)
        + "</PUnstructuredGrid></VTKFile>"
    )
    data = zazen.viz.Reader(index.parent / "all.pvtu").update()
    assert data.GetBlock(0).GetClassName() == "vtkMultiPieceDataSet"
    assert_equal(data, stock(index.parent / "ts_0.vtm"))


def test_times_are_matched_to_the_nearest(ocean):
    reader = zazen.viz.Reader(ocean)
    assert reader.GetTimestepValues() == [0.0, 0.1, 0.2]
    data = reader.update(0.1 + 1e-12)
    assert data.GetInformation().Get(data.DATA_TIME_STEP()) == 0.1
    reader.UpdateInformation()
    information = reader.GetOutputInformation(0)
    assert information.Get(reader.GetExecutive().TIME_STEPS()) == (0.0, 0.1, 0.2)


def test_arrays_can_be_left_out(ocean):
    reader = zazen.viz.Reader(ocean)
    reader.update(0.1)
    reader.GetPointArraySelection().DisableArray("velocity")
    reader._kept.clear()
    block = next(leaves(reader.update(0.1)))
    names = [block.GetPointData().GetArrayName(at) for at in range(block.GetPointData().GetNumberOfArrays())]
    assert names == ["salinity"]


def test_steps_are_kept_within_a_bound(ocean):
    kept = Kept(100)
    for step in range(5):
        kept.put(step, step, 40)
    assert [step for step in range(5) if kept.get(step) is not None] == [3, 4]
    kept.put("large", 1, 101)
    assert kept.get("large") is None and kept.bytes <= 100
    reader = zazen.viz.Reader(ocean, keep_bytes=0)
    assert_equal(reader.update(0.1), stock(ocean.parent / "ts_1.vtm"))
    assert reader._kept.bytes == 0


def test_the_next_step_comes_while_this_one_is_shown(ocean, node, folder):
    reader = zazen.viz.Reader(ocean, socket=node.socket, record=folder / "record")
    reader.update(0.0)
    for thread in threading.enumerate():
        if thread.name == "zazen-viz-ahead":
            thread.join()
    assert_equal(reader.update(0.1), stock(ocean.parent / "ts_1.vtm"))
    notes = [json.loads(line) for line in (folder / "record/rank-000000.jsonl").read_text().splitlines()]
    assert [note["ahead"] for note in notes] == [False, True]
    assert sum(note["store_bytes"] + note["local_bytes"] + note["remote_bytes"] for note in notes) > 0
    # It was fetched through the daemon, so it lies here now.
    assert zazen.viz.Visualization(ocean, socket=node.socket).plan(1).remote == 0


def ahead_is_done():
    for thread in threading.enumerate():
        if thread.name == "zazen-viz-ahead":
            thread.join()


@pytest.mark.parametrize("with_daemon", [True, False])
def test_the_next_step_is_parsed_while_this_one_is_shown(ocean, node, folder, with_daemon):
    def reader(**more):
        socket = node.socket if with_daemon else folder / "nobody.sock"
        made = zazen.viz.Reader(ocean, socket=socket, **more)
        if not made._parses_ahead():
            pytest.skip("this VTK keeps Python's lock")
        made.update(0.0)
        ahead_is_done()
        return made

    one = reader()
    assert [came.part is not None for came in one._ahead._came[1]] == [True] * 8
    assert_equal(one.update(0.1), stock(ocean.parent / "ts_1.vtm"))
    # What was parsed with other arrays does not count.
    ahead_is_done()
    one.GetPointArraySelection().DisableArray("velocity")
    block = one.update(0.2).GetBlock(0)
    assert [
        block.GetPointData().GetArrayName(at) for at in range(block.GetPointData().GetNumberOfArrays())
    ] == ["salinity"]
    # Memory is bounded: there is room for a file and its part, or for two parts.
    size = (ocean.parent / "ts_1/ts_1_0.vti").stat().st_size
    bound = 2 * size + 2048
    small = reader(ahead_bytes=bound)
    assert 0 < sum(came.part is not None for came in small._ahead._came[1]) < 8
    assert sum(came.bytes for came in small._ahead._came[1]) <= bound + size
    assert_equal(small.update(0.1), stock(ocean.parent / "ts_1.vtm"))
    # A damaged file is the step's fault, and named there.
    path = ocean.parent / "ts_1/ts_1_3.vti"
    path.write_bytes(path.read_bytes()[:-500])
    sleep(0.05)
    cut = reader()
    with pytest.raises(zazen.Error, match=r"ts_1_3\.vti"):
        cut.update(0.1)


def test_paraviews_list_of_plugins_names_a_file_that_is_there():
    listed = Path(zazen.viz.plugin_config_path())
    names = [plugin.get("filename") for plugin in ElementTree.parse(listed).getroot()]
    assert [listed.parent / name for name in names] == [Path(zazen.viz.plugin_path())]


def test_each_file_is_read_once_without_a_daemon(backing, folder):
    index = write(backing / "larger", steps=2, blocks=(2, 1, 1), points=33)
    reader = zazen.viz.Reader(index, socket=folder / "nobody.sock", ahead=0)
    length = sum(path.stat().st_size for path in (index.parent / "ts_1").iterdir())

    def bytes_read():
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])

    reader.update(0.0)
    before = bytes_read()
    reader.update(0.1)
    assert length <= bytes_read() - before < 1.2 * length


def test_arrays_that_differ_get_a_word(ocean):
    from zazen.viz.generate import _writer, block

    odd = block("image", (0, 0, 0), (2, 2, 2), 9, 0.1)
    odd.GetPointData().RemoveArray("velocity")
    writer = _writer("image", "raw")
    writer.SetFileName(str(ocean.parent / "ts_1/ts_1_3.vti"))
    writer.SetInputData(odd)
    writer.Write()
    reader = zazen.viz.Reader(ocean)
    with pytest.warns(zazen.ZazenWarning, match=r"'velocity' \(point data\) is missing in ts_1/ts_1_3.vti"):
        data = reader.update(0.1)
    assert_equal_counts(data, stock(ocean.parent / "ts_1.vtm"))


def assert_equal_counts(one, other):
    counts = [[leaf.GetPointData().GetNumberOfArrays() for leaf in leaves(data)] for data in (one, other)]
    assert counts[0] == counts[1]


def corrupt(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_cut_file_is_an_error_and_no_picture(backing, kind, mode):
    index = write(backing / "v", steps=1, blocks=(2, 1, 1), points=5, kind=kind, mode=mode)
    block = index.parent / f"ts_0/ts_0_1.{KINDS[kind][0]}"
    whole = block.read_bytes()
    for kept in (0, 30, len(whole) // 2, len(whole) - 30):
        block.write_bytes(whole[:kept])
        reader = zazen.viz.Reader(index)
        with pytest.raises(zazen.CorruptError, match="ts_0_1"):
            reader.update(0.0)
        assert list(leaves(reader.GetOutputDataObject(0))) == []


def test_missing_files_and_steps_are_named(ocean):
    (ocean.parent / "ts_1/ts_1_4.vti").unlink()
    (ocean.parent / "ts_2.vtm").unlink()
    reader = zazen.viz.Reader(ocean)
    reader.update(0.0)
    for time, words in ((0.1, "ts_1_4.vti: there is no such file"), (0.2, "ts_2.vtm")):
        with pytest.raises(zazen.NotFoundError, match=words):
            reader.update(time)
        assert list(leaves(reader.GetOutputDataObject(0))) == []
    reader.update(0.0)
    with pytest.raises(zazen.NotFoundError, match=r"gone\.vtm"):
        zazen.viz.Reader(ocean.parent / "gone.vtm").update()
    with pytest.raises(zazen.InvalidArgumentError, match="strategy"):
        zazen.viz.Visualization(ocean, strategy="best")
    with pytest.raises(zazen.InvalidArgumentError, match="sticky"):
        zazen.viz.Visualization(_uneven(ocean), strategy="sticky").plan(0)
    with pytest.raises(zazen.InvalidArgumentError, match="locator"):
        zazen.viz.Visualization(ocean, locator="magic")


def test_a_step_that_fails_is_in_the_record(ocean, folder):
    """What was not shown was not shown within ten seconds either."""
    (ocean.parent / "ts_1/ts_1_4.vti").unlink()
    corrupt(ocean.parent / "ts_2/ts_2_3.vti", lambda whole: whole[:-100])
    reader = zazen.viz.Reader(ocean, record=folder / "record", ahead=0)
    reader.update(0.0)
    for time in (0.1, 0.2):
        with pytest.raises(zazen.Error):
            reader.update(time)
    notes = [json.loads(line) for line in (folder / "record/rank-000000.jsonl").read_text().splitlines()]
    assert {note["step"]: note.get("failed", False) for note in notes} == {0: False, 1: True, 2: True}


def test_all_readers_of_a_job_record_one_run(ocean, folder):
    for time in (0.0, 0.1):
        zazen.viz.Reader(ocean, record=folder / "record", ahead=0).update(time)
    notes = [json.loads(line) for line in (folder / "record/rank-000000.jsonl").read_text().splitlines()]
    assert len(notes) == 2 and len({note["run"] for note in notes} - {""}) == 1


def test_a_record_that_cannot_be_written_spoils_no_picture(ocean, folder):
    (folder / "file").write_text("")
    reader = zazen.viz.Reader(ocean, record=folder / "file")
    with pytest.warns(zazen.ZazenWarning, match="rank 0: nothing is recorded any more"):
        assert_equal(reader.update(0.1), stock(ocean.parent / "ts_1.vtm"))
    reader.update(0.2)


def test_a_kept_step_is_judged_as_one_that_was_read(ocean):
    """Some ranks may keep a step that others read anew: all must see the same blocks."""
    reader, seen = zazen.viz.Reader(ocean), []
    reader._compare = lambda blocks: seen.append(sorted(file for file, _ in blocks))
    for time in (0.1, 0.2, 0.1):
        reader.update(time)
    assert len(seen[0]) == 8 and seen[2] == seen[0]


def _uneven(ocean):
    path = ocean.parent / "uneven.csv"
    path.write_text("time,file\n0,ts_0/ts_0_0.vti\n0,ts_0/ts_0_1.vti\n1,ts_1/ts_1_0.vti\n")
    return path


def test_a_changed_file_is_read_anew(ocean, node):
    zazen.viz.Reader(ocean, socket=node.socket).update(0.1)
    write(ocean.parent, steps=3, points=9, variables=2)
    fresh = zazen.viz.Reader(ocean, socket=node.socket).update(0.1)
    assert_equal(fresh, stock(ocean.parent / "ts_1.vtm"))


@pytest.mark.parametrize(
    ("locator", "named"),
    [
        ("hdfs://127.0.0.1:1/ocean", "name node 127.0.0.1:1"),
        ("table:/nowhere/hosts", "/nowhere/hosts"),
        ("namespace", "namespace"),
    ],
)
def test_a_locator_that_is_not_reachable_is_named(ocean, locator, named):
    with pytest.raises(zazen.Error, match=re.escape(named)):
        zazen.viz.Reader(ocean, locator=locator).GetTimestepValues()
    # Without a daemon, the default shows what the stock reader shows.
    assert_equal(zazen.viz.Reader(ocean).update(0.1), stock(ocean.parent / "ts_1.vtm"))


def test_an_index_on_a_name_node_that_is_not_reachable_is_named():
    with pytest.raises(zazen.Error, match=r"127\.0\.0\.1:1.*/ocean/ts\.vtm"):
        zazen.viz.Reader("hdfs://127.0.0.1:1/ocean/ts.vtm").GetTimestepValues()
