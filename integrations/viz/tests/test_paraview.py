"""ParaView's pvbatch with the plug-in: the stock reader's picture and counts. Skipped without
ParaView."""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import numpy
import pytest
import zazen.viz
from vtkmodules import vtkIOImage
from vtkmodules.util.numpy_support import vtk_to_numpy

HERE = Path(__file__).parent
PVBATCH, PVSERVER, PVPYTHON, XVFB = map(shutil.which, ("pvbatch", "pvserver", "pvpython", "Xvfb"))
# Debian's ParaView is of Open MPI; the first mpirun on the path may be MPICH's.
MPIRUN = shutil.which("mpirun.openmpi")
pytestmark = [
    pytest.mark.skipif(
        not (PVBATCH and PVSERVER and PVPYTHON and XVFB and MPIRUN),
        reason="no ParaView here: scripts/install-paraview.sh "
        "(Debian: paraview python3-paraview openmpi-bin xvfb)",
    ),
    pytest.mark.skipif(
        not os.environ.get("ZAZEN_TEST_PARAVIEW"),
        reason="ParaView takes minutes: scripts/test-viz.sh runs this ($ZAZEN_TEST_PARAVIEW)",
    ),
]


@pytest.fixture(scope="module")
def display():
    """An X server of its own. It must not reset when its last client leaves: ranks of the next run
    would meet it."""
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
def environment(display, node):
    """Variables for ParaView's programs: nothing of this Python's, and the daemon of the test."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ZAZEN", "LD_LIBRARY", "PYTHON", "OMPI", "PMI", "MPI"))
    }
    return kept | {
        "DISPLAY": display,
        "ZAZEN_SOCKET": str(node.socket),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parent / "paraview-5.11"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.fixture
def batch(environment, folder):
    """Runs the script, with some ranks of pvbatch or another program: what it found, and the
    picture."""
    count = iter(range(1000))

    def run(program, kind, index, *more, **settings):
        name = f"{kind}-{next(count)}"
        picture = folder / f"{name}.png"
        words = [*program, str(HERE / "paraview_script.py"), kind, str(index), str(picture)]
        words += [zazen.viz.plugin_path(), *map(str, more)]
        variables = environment | {"ZAZEN_VIZ_RECORD": str(folder / name)} | settings
        variables = {key: value for key, value in variables.items() if value is not None}
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=variables, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        assert lines, done.stdout + done.stderr
        return joined([json.loads(line.removeprefix("FOUND ")) for line in lines]), picture

    return run


def joined(every):
    """With --symmetric, each rank runs the script and ParaView tells it of its own blocks only."""
    whole = every[0] | {name: sum(each[name] for each in every) for name in ("cells", "contour")}
    ranges = [each["range"] for each in every]
    return whole | {"range": [min(low for low, _ in ranges), max(high for _, high in ranges)]}


def ranks_of(count, *program):
    return [MPIRUN, "--oversubscribe", "-n", str(count), *program]


def pixels(path):
    reader = vtkIOImage.vtkPNGReader()
    reader.SetFileName(str(path))
    reader.Update()
    return vtk_to_numpy(reader.GetOutput().GetPointData().GetScalars()).astype(int)


def assert_stocks(ours, picture, stock, reference):
    assert ours["times"] == [0.0, 0.1, 0.2]
    assert [ours[name] for name in ("cells", "contour", "range")] == [
        stock[name] for name in ("cells", "contour", "range")
    ]
    assert (numpy.abs(pixels(picture) - pixels(reference)) > 16).mean() <= 0.0005


def records_of(folder, ranks):
    records = sorted(folder.glob("rank-*.jsonl"))
    lines = [json.loads(record.read_text().splitlines()[0]) for record in records]
    assert [line["ranks"] for line in lines] == [ranks] * ranks, "the ranks know each other"
    assert sum(line["files"] for line in lines) == 8


def test_pvbatch_draws_the_stock_readers_picture(batch, ocean, node):
    stock, reference = batch(ranks_of(1, PVBATCH), "stock", ocean.parent / "ts_1.vtm")
    assert stock["cells"] == 8 * 8**3 and stock["contour"] > 0 and pixels(reference).std() > 10
    symmetric, its_picture = batch(ranks_of(2, PVBATCH, "--symmetric"), "stock", ocean.parent / "ts_1.vtm")
    assert [symmetric[name] for name in ("cells", "contour", "range")] == [
        stock[name] for name in ("cells", "contour", "range")
    ]
    for ranks, mode in ((1, []), (2, []), (4, []), (8, []), (2, ["--symmetric"])):
        ours, picture = batch(ranks_of(ranks, PVBATCH, *mode), "plugin", ocean)
        # With --symmetric, ParaView 5.11 gives the picture another size.
        assert_stocks(ours, picture, stock, its_picture if mode else reference)
        records_of(picture.with_suffix(""), ranks)
    # All blocks of this step and of the next came through the daemon.
    assert zazen.viz.Visualization(ocean, socket=node.socket).plan(1).remote == 0
    # pvpython alone, without MPI.
    ours, picture = batch([PVPYTHON, "--force-offscreen-rendering"], "plugin", ocean)
    assert_stocks(ours, picture, stock, reference)


def test_dead_and_empty_nodes_do_not_change_the_picture(batch, ocean, cluster, load, folder):
    """Rank r uses node r. Node 3 holds nothing, and node 1 dies; the first two have two copies."""
    load(ocean, cluster.nodes[:3], cluster.key, copies=2)
    stock, reference = batch(ranks_of(1, PVBATCH), "stock", ocean.parent / "ts_1.vtm")
    settings = {"ZAZEN_SOCKET": None, "ZAZEN_TESTBED": cluster.testbed}
    for is_dead in (False, True):
        if is_dead:
            cluster.kill(1)
        ours, picture = batch(ranks_of(4, PVBATCH), "plugin", ocean, **settings)
        assert_stocks(ours, picture, stock, reference)
        records_of(picture.with_suffix(""), 4)


def test_scripts_stay_as_they_are_where_paraview_loads_the_plugin_itself(batch, remote, ocean):
    settings = {"PV_PLUGIN_CONFIG_FILE": zazen.viz.plugin_config_path()}
    stock, reference = batch(ranks_of(1, PVBATCH), "stock", ocean.parent / "ts_1.vtm")
    ours, picture = batch(ranks_of(2, PVBATCH), "listed", ocean, **settings)
    assert_stocks(ours, picture, stock, reference)
    records_of(picture.with_suffix(""), 2)
    assert_stocks(*remote(2, ocean, "listed", **settings), stock, reference)


def test_other_files_stay_with_paraviews_own_readers(environment, ocean, folder):
    """The plug-in takes indexes; a table and a single file it leaves alone."""
    (folder / "table.csv").write_text("a,b\n1,2\n")
    single = next(ocean.parent.rglob("*.vti"))
    script = folder / "script.py"
    script.write_text(
        "import sys\nfrom paraview.simple import *\n"
        f"LoadPlugin({zazen.viz.plugin_path()!r}, remote=False, ns=globals())\n"
        "for path in sys.argv[1:]: print('TAKEN', OpenDataFile(path).GetXMLName())\n"
    )
    given = [folder / "table.csv", single, ocean, ocean.parent / "ts.pvd", ocean.parent / "ts_0.vtm"]
    words = [PVPYTHON, str(script), *map(str, given)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment, check=False)
    taken = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("TAKEN")]
    assert taken == ["CSVReader", "XMLImageDataReader"] + ["AZazenReader"] * 3, done.stdout + done.stderr


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def remote(batch, environment, folder):
    """Runs the script as a client of a pvserver with some ranks: what it found, and the picture."""

    def run(ranks, index, kind="plugin", **settings):
        port, records = free_port(), folder / f"records-{len(list(folder.glob('records-*')))}"
        records.mkdir()
        log = records.with_suffix(".log")
        variables = environment | {"ZAZEN_VIZ_RECORD": str(records)} | settings
        with open(log, "w") as output:
            server = subprocess.Popen(
                ranks_of(ranks, PVSERVER, f"--server-port={port}"),
                env={key: value for key, value in variables.items() if value is not None},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            deadline = time.monotonic() + 240
            while "Accepting connection" not in log.read_text():
                assert time.monotonic() < deadline and server.poll() is None, log.read_text()
                time.sleep(0.1)
            found = batch([PVPYTHON, "--force-offscreen-rendering"], kind, index, port, **settings)
            records_of(records, ranks)
            server.wait(240)
            return found
        finally:
            if server.poll() is None:
                server.terminate()
                server.wait(60)

    return run


def test_a_remote_client_of_pvserver(batch, remote, ocean):
    stock, reference = batch(ranks_of(1, PVBATCH), "stock", ocean.parent / "ts_1.vtm")
    for ranks in (1, 2, 4, 8):
        assert_stocks(*remote(ranks, ocean), stock, reference)


def test_dead_and_empty_nodes_do_not_change_pvservers_picture(batch, remote, ocean, cluster, load):
    """Rank r uses node r. Node 3 holds nothing, and node 1 dies."""
    load(ocean, cluster.nodes[:3], cluster.key, copies=2)
    stock, reference = batch(ranks_of(1, PVBATCH), "stock", ocean.parent / "ts_1.vtm")
    settings = {"ZAZEN_SOCKET": None, "ZAZEN_TESTBED": cluster.testbed}
    for is_dead in (False, True):
        if is_dead:
            cluster.kill(1)
        assert_stocks(*remote(4, ocean, **settings), stock, reference)
