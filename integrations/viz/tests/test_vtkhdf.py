"""VTKHDF files: the parts of one are matched to ranks, in one file or in files of their own."""

import json
import os
import subprocess
import time
import warnings

import pytest
import zazen
import zazen.viz
from test_datasets import described, leaves, shape
from vtkmodules import vtkIOHDF
from vtkmodules.util.vtkAlgorithm import VTKPythonAlgorithmBase
from vtkmodules.vtkCommonDataModel import (
    vtkCompositeDataSet,
    vtkDataAssembly,
    vtkPartitionedDataSet,
    vtkPartitionedDataSetCollection,
)
from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
from zazen.viz.generate import block

pytest.importorskip("h5py", reason="no h5py: pip install h5py")
TIMES = [0.0, 0.5, 1.0]
PARTS = 5
#: Cells of a part.
CELLS = 3**3


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no Zazen daemon answers.*")
        warnings.filterwarnings("ignore", message=".*read from where they are.*")
        yield


def parts_at(moment):
    return [block("unstructured", (at, 0, 0), (PARTS, 1, 1), 4, moment) for at in range(PARTS)]


class Source(VTKPythonAlgorithmBase):
    """Unstructured parts: of one whole, or as blocks with names. With or without times."""

    def __init__(self, as_blocks, times):
        kind = "vtkPartitionedDataSetCollection" if as_blocks else "vtkPartitionedDataSet"
        super().__init__(nInputPorts=0, nOutputPorts=1, outputType=kind)
        self.as_blocks, self.times = as_blocks, times

    def RequestInformation(self, request, inputs, outputs):
        information, pipeline = outputs.GetInformationObject(0), vtkStreamingDemandDrivenPipeline
        if self.times:
            information.Set(pipeline.TIME_STEPS(), self.times, len(self.times))
            information.Set(pipeline.TIME_RANGE(), [self.times[0], self.times[-1]], 2)
        return 1

    def RequestData(self, request, inputs, outputs):
        information, pipeline = outputs.GetInformationObject(0), vtkStreamingDemandDrivenPipeline
        has = information.Has(pipeline.UPDATE_TIME_STEP())
        parts = parts_at(information.Get(pipeline.UPDATE_TIME_STEP()) if has else 0.0)
        if not self.as_blocks:
            output = vtkPartitionedDataSet.GetData(outputs, 0)
            for at, data in enumerate(parts):
                output.SetPartition(at, data)
            return 1
        output, assembly = vtkPartitionedDataSetCollection.GetData(outputs, 0), vtkDataAssembly()
        output.SetNumberOfPartitionedDataSets(PARTS)
        # Their order in the alphabet is not their order.
        for at, (data, name) in enumerate(zip(parts, ["sea", "ice", "air", "land", "bed"], strict=True)):
            output.SetPartition(at, 0, data)
            output.GetMetaData(at).Set(vtkCompositeDataSet.NAME(), name)
            assembly.AddDataSetIndex(assembly.AddNode(name), at)
        output.SetDataAssembly(assembly)
        return 1


def written(path, *external, as_blocks=False, times=()):
    """Writes a VTKHDF file, where ``external`` parts are files of their own."""
    path.parent.mkdir(exist_ok=True)
    source, writer = Source(as_blocks, list(times)), vtkIOHDF.vtkHDFWriter()
    writer.SetInputConnection(source.GetOutputPort())
    writer.SetWriteAllTimeSteps(bool(times))
    for what in external:
        if not hasattr(writer, f"SetUseExternal{what}"):
            pytest.skip(f"this VTK writes no external {what}")
        getattr(writer, f"SetUseExternal{what}")(True)
    writer.SetFileName(str(path))
    assert writer.Write() == 1
    return path


@pytest.mark.parametrize(
    ("external", "as_blocks", "times"),
    [
        ("Partitions", False, ()),
        ("Composite", True, ()),
        ("TimeSteps", False, TIMES),
        ("TimeSteps", True, TIMES),
    ],
)
def test_data_in_files_of_their_own_look_as_in_one_file(backing, external, as_blocks, times):
    one = zazen.viz.Reader(written(backing / "one" / "x.vtkhdf", as_blocks=as_blocks, times=times))
    path = written(backing / "several" / "x.vtkhdf", external, as_blocks=as_blocks, times=times)
    several = zazen.viz.Reader(path)
    assert several.GetTimestepValues() == one.GetTimestepValues() == (times or [0.0])
    for moment in several.GetTimestepValues():
        theirs, ours = one.update(moment), several.update(moment)
        assert sum(leaf.GetNumberOfCells() for leaf in leaves(ours)) == PARTS * CELLS
        truth = [each["point"] for part in parts_at(moment) for each in described(part)]
        assert shape(ours) == shape(theirs) and [each["point"] for each in described(ours)] == truth
        # Of a collection over time in one file, VTK 9.7 gives the first step's values at all times.
        assert described(ours) == described(theirs) or (as_blocks and times)
    steps = several.visualization.steps
    assert [len(step.files) for step in steps] == ([1] * 3 if times else [PARTS])
    assert all(size > 0 for step in steps for size in step.bytes)
    # The folder is moved: HDF5 and we look beside the main file.
    moved = backing / "moved"
    os.rename(path.parent, moved)
    again = zazen.viz.Reader(moved / "x.vtkhdf").update(0.0)
    assert described(again) == described(one.update(0.0))


@pytest.mark.parametrize("external", ["Partitions", "Composite", "TimeSteps"])
def test_a_missing_part_is_an_error_that_names_it(backing, external):
    """HDF5 gives zeros for it."""
    times = TIMES if external == "TimeSteps" else ()
    path = written(backing / "d" / "x.vtkhdf", external, as_blocks=external == "Composite", times=times)
    missing = sorted(each for each in path.parent.iterdir() if each != path)[1]
    missing.rename(backing / "gone")
    reader = zazen.viz.Reader(path)
    with pytest.raises(zazen.NotFoundError, match=missing.name):
        reader.update(0.5)
    if times:
        assert leaves(reader.update(1.0)), "other steps stand"


def test_a_missing_part_of_a_part_is_an_error_that_names_it(backing):
    """Each block is in a file of its own, its partition in a further one. HDF5 leaves it out."""
    path = written(backing / "d" / "x.vtkhdf", "Partitions", "Composite", as_blocks=True)
    parts = sorted(each for each in path.parent.iterdir() if "_part" in each.name)
    if not parts:
        pytest.skip("this VTK writes no parts of parts")
    parts[1].rename(backing / "gone")
    reader = zazen.viz.Reader(path)
    with pytest.raises(zazen.NotFoundError, match=parts[1].name):
        reader.update(0.0)
    (backing / "gone").rename(parts[1])
    data = zazen.viz.Reader(path).update(0.0)
    assert sum(leaf.GetNumberOfCells() for leaf in leaves(data)) == PARTS * CELLS


def told(words):
    return json.loads(next(line for line in words.splitlines() if line.startswith("{")))


RANK = """
import json, sys, warnings
warnings.simplefilter("ignore")
from mpi4py import MPI
import zazen.viz
comm, job = MPI.COMM_WORLD, json.loads(sys.argv[1])
sockets = job["sockets"]
reader = zazen.viz.Reader(job["index"], socket=sockets[comm.rank % len(sockets)], record=job["record"],
                          strategy=job.get("strategy", "optimal"), ahead=0)
own = []
for moment in reader.GetTimestepValues():
    data = reader.update(moment)
    iterator, bounds = data.NewIterator(), []
    iterator.InitTraversal()
    while not iterator.IsDoneWithTraversal():
        leaf = iterator.GetCurrentDataObject()
        if leaf.GetNumberOfCells():
            bounds.append([leaf.GetBounds()[0], leaf.GetNumberOfCells()])
        iterator.GoToNextItem()
    own.append(bounds)
every = comm.gather(own, root=0)
if comm.rank == 0:
    print(json.dumps({"own": every}))
"""


def job(launch, folder, ranks, cluster, index, **more):
    """What each rank had of each step, and the lines of its record."""
    script, record = folder / "rank.py", folder / f"run{len(list(folder.glob('run*')))}"
    script.write_text(RANK)
    sockets = [str(socket) for socket in cluster.sockets]
    words = {"index": str(index), "sockets": sockets, "record": str(record)} | more
    own = told(launch(ranks, script, json.dumps(words)))["own"]
    lines = {
        rank: [json.loads(line) for line in (record / f"rank-{rank:06}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    }
    return own, lines


def load(cluster, folder, pattern, nodes, copies=1):
    # Files that changed a moment ago are not cached.
    time.sleep(0.05)
    words = ["load", folder, "--pattern", pattern, "--copies", copies, "--nodes", ",".join(nodes)]
    command = [zazen.testing.program("zazen"), *map(str, words), "--key", str(cluster.key)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=zazen.testing.environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_each_part_once(own, step=0):
    found = sorted(bound for rank in own for bound, _ in rank[step])
    assert len(found) == len(set(found)) == PARTS, found
    assert sum(cells for rank in own for _, cells in rank[step]) == PARTS * CELLS


def test_parts_in_files_of_their_own_come_from_the_ranks_nodes(launch, folder, backing, cluster):
    path = written(backing / "d" / "x.vtkhdf", "Partitions")
    load(cluster, path.parent, "x_part{n}.vtkhdf", cluster.nodes, copies=2)
    own, lines = job(launch, folder, 4, cluster, path)
    assert_each_part_once(own)
    assert sum(line["files"] for each in lines.values() for line in each) == PARTS
    assert all(line["remote_files"] == 0 == line["store_bytes"] for each in lines.values() for line in each)
    # Without the caches each part still comes once.
    cluster.kill(0)
    own, _ = job(launch, folder, 4, cluster, path, strategy="blind")
    assert_each_part_once(own)


def test_parts_of_one_file_are_read_where_the_file_is(launch, folder, backing, cluster):
    steps = [written(backing / "d" / f"x_{at}.vtkhdf", times=()) for at in range(2)]
    index = backing / "d" / "x.vtkhdf.series"
    files = [{"name": path.name, "time": at} for at, path in enumerate(steps)]
    index.write_text(json.dumps({"file-series-version": "1.0", "files": files}))
    load(cluster, index.parent, "x_{n}.vtkhdf", [cluster.nodes[2]])
    own, lines = job(launch, folder, 4, cluster, index)
    for step in range(2):
        assert_each_part_once(own, step)
        # Five parts, four ranks: the rank of the node that has the file reads two of them, there.
        assert len(own[2][step]) == 2 and lines[2][step]["local_bytes"] > 0, (own, lines)
        assert lines[2][step]["store_bytes"] == 0
        assert all(lines[rank][step]["local_bytes"] == 0 for rank in (0, 1, 3))
    # VTK's own rule is still there.
    own, _ = job(launch, folder, 4, cluster, index, strategy="stock")
    assert [len(own[rank][0]) for rank in range(4)] == [2, 1, 1, 1]


def test_without_h5py_a_warning_says_what_is_not_seen(backing, monkeypatch):
    path = written(backing / "d" / "x.vtkhdf", "Partitions")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.warns(zazen.ZazenWarning, match="h5py"):
        reader = zazen.viz.Reader(path)
        reader.GetTimestepValues()
    assert sum(leaf.GetNumberOfCells() for leaf in leaves(reader.update())) == PARTS * CELLS
