"""Real MPI processes over real daemons: each frame is read once, whatever the rules, protocol and
carrier."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zazen.testing
from mpi_sample import FRAMES, frame_bytes

HERE = Path(__file__).parent


@pytest.mark.parametrize("carrier", ["auto", "mpi4py"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_carriers_keep_their_contract(launch, ranks, carrier):
    output = launch(ranks, sys.executable, HERE / "carrier_contract.py", carrier)
    assert f"contract holds {carrier} {ranks}" in output


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_standard_abi(launch, ranks):
    """The same extension module on a library of MPI 5's standard ABI, where the environment has
    one."""
    library = Path(sys.executable).parent.parent / "lib" / "libmpi_abi.so.1"
    if not library.exists():
        pytest.skip(f"no {library.name} in this environment")
    output = launch(ranks, sys.executable, HERE / "standard_abi.py", library)
    assert output.count("contract holds") == ranks, output


def read_once(launch, cluster, dataset, ranks, rules="full", protocol="owner", carrier="auto"):
    """The ranks' rows, checked against the files themselves."""
    output = launch(
        ranks,
        sys.executable,
        HERE / "read_once.py",
        dataset,
        rules,
        protocol,
        carrier,
        ZAZEN_TESTBED=cluster.testbed,
    )
    rows = json.loads(output.splitlines()[-1])
    assert len(rows) == ranks
    numbers = sorted(int(number) for row in rows for number in row["frames"])
    assert numbers == list(range(FRAMES))
    for row in rows:
        for number, digest in row["frames"].items():
            assert digest == hashlib.sha256(frame_bytes(int(number))).hexdigest(), number
        assert row["totals"] == [sum(r[kind] for r in rows) for kind in ("natives", "aliens", "residue")]
    return rows


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_frame_is_read_once(launch, cluster, dataset, ranks):
    rows = read_once(launch, cluster, dataset, ranks)
    held = (FRAMES - 10) // 4
    natives = rows[0]["totals"][0]
    # Frames went round-robin: a node has a quarter of them, but for the remainder.
    assert held * ranks <= natives <= (held + 1) * ranks
    assert sum(row["backing_reads"] for row in rows) == FRAMES - natives
    assert all(row["carrier"] == "mpi" and row["path"] == "exchange" for row in rows)
    # What was residue is an alien now: the second run reads nothing from the backing store.
    again = read_once(launch, cluster, dataset, ranks)
    assert sum(row["backing_reads"] for row in again) == 0
    assert all(row["local_share"] == 1.0 for row in again)
    assert again[0]["totals"] == [natives, FRAMES - natives, 0]


def test_ranks_share_nodes(launch, cluster, dataset):
    rows = read_once(launch, cluster, dataset, 6)
    assert rows[0]["totals"] == [FRAMES - 10, 0, 10]


@pytest.mark.parametrize("carrier", ["mpi", "mpi4py"])
@pytest.mark.parametrize("protocol", ["owner", "bitmaps"])
@pytest.mark.parametrize("rules", ["full", "paper"])
def test_rules_protocols_and_carriers(launch, cluster, dataset, rules, protocol, carrier):
    rows = read_once(launch, cluster, dataset, 4, rules, protocol, carrier)
    assert rows[0]["totals"] == [FRAMES - 10, 0, 10]
    assert rows[0]["carrier"] == {"mpi": "mpi", "mpi4py": "python"}[carrier]


def test_a_dead_node_costs_no_frame(launch, cluster, dataset):
    cluster.kill(2)
    rows = read_once(launch, cluster, dataset, 4)
    assert rows[2]["natives"] == 0 and rows[0]["totals"][0] < FRAMES - 10
    cluster.start(2)
    back = read_once(launch, cluster, dataset, 4)
    assert back[0]["totals"][0] == FRAMES - 10


def test_singletons_are_told(dataset):
    """A process whose launcher says 4 but whose MPI says 1 must not read everything."""
    pytest.importorskip("mpi4py")
    code = (
        "import sys, zazen\nfrom mpi4py import MPI\n"
        "assert MPI.COMM_WORLD.size == 1\n"
        "for carrier in ('auto', 'mpi', 'mpi4py'):\n"
        "    try:\n"
        "        zazen.open(sys.argv[1], direct=True).assign(comm=MPI.COMM_WORLD, carrier=carrier)\n"
        "    except zazen.MpiError as error:\n"
        "        assert 'singleton' in str(error) and 'mpiexec' in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('not told')\n"
    )
    environment = zazen.testing.environment()
    done = subprocess.run(
        [sys.executable, "-c", code, str(dataset)],
        env=environment | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_bad_communicators(launch, dataset):
    code = (
        "import sys, zazen\nfrom mpi4py import MPI\n"
        "dataset = zazen.open(sys.argv[1], direct=True)\n"
        "inter = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank).Create_intercomm(\n"
        "    0, MPI.COMM_WORLD, 1 - MPI.COMM_WORLD.rank)\n"
        "for comm in (MPI.COMM_NULL, inter):\n"
        "    try:\n"
        "        dataset.assign(comm=comm)\n"
        "    except zazen.InvalidArgumentError:\n"
        "        continue\n"
        "    raise SystemExit('taken')\n"
        "inter.Free()\n"
        "try:\n"
        "    dataset.frames(5, 4, comm=MPI.COMM_WORLD)\n"
        "except zazen.InvalidArgumentError as error:\n"
        "    print('refused', flush=True)\n"
    )
    output = launch(2, sys.executable, "-c", code, dataset)
    assert output.count("refused") == 2, output
