"""The C examples: compiled with strict warnings, run over daemons, under the address sanitizer,
under MPI."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zazen
import zazen.testing
from launching import mpi_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "c"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
FRAMES = 30


def include():
    return ROOT / "bindings" / "c" / "include"


def library():
    """libzazen: $ZAZEN_LIBRARY, or that of the installed package."""
    named = os.environ.get("ZAZEN_LIBRARY")
    if named is not None:
        return named
    try:
        return zazen.get_library()
    except zazen.NotFoundError as error:
        pytest.skip(str(error))


def linked():
    """The compiler's flags that link libzazen, and by which the program finds it when it runs."""
    return [library(), f"-Wl,-rpath,{Path(library()).resolve().parent}"]


def run(*command, expect=0, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env=mpi_environment() | {name: str(value) for name, value in environment.items()},
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def compiled(folder, source, *flags, compiler="cc"):
    program = folder / f"{Path(source).stem}-{len(flags)}-{Path(compiler).name}"
    run(compiler, *STRICT, *flags, "-I", include(), EXAMPLES / source, *linked(), "-o", program)
    return program


@pytest.fixture
def folder(tmp_path_factory):
    """A folder with a short path: sockets live in it."""
    return tmp_path_factory.mktemp("z")


@pytest.fixture
def cluster(folder):
    (folder / "backing" / "sim1").mkdir(parents=True)
    with zazen.testing.Cluster(folder / "c", folder / "backing", nodes=2) as cluster:
        yield cluster


def counts(output):
    """`name number` pairs of a program's last line."""
    return dict(re.findall(r"(\w+) ([0-9a-f]+)", output.strip().splitlines()[-1]))


@pytest.mark.parametrize("flags", [["-O1"], ["-g", "-fsanitize=address", "-fno-omit-frame-pointer"]])
def test_push_then_read(folder, cluster, flags):
    dataset = folder / "backing" / "sim1"
    push = compiled(folder, "push_frames.c", *flags)
    read = compiled(folder, "assign_and_read.c", *flags)
    pushed = counts(run(push, dataset, ",".join(cluster.nodes), FRAMES, 5000, ZAZEN_KEY=cluster.key))
    assert (pushed["submitted"], pushed["pushed"], pushed["skipped"]) == (str(FRAMES), str(FRAMES), "0")
    cached = counts(run(read, dataset, ZAZEN_SOCKET=cluster.sockets[0]))
    assert (cached["frames"], cached["bytes"]) == (str(FRAMES), str(FRAMES * 5000))
    assert (cached["native"], cached["residue"]) == (str(FRAMES // 2), str(FRAMES // 2))
    direct = counts(run(read, dataset, ZAZEN_SOCKET=folder / "nobody.sock"))
    assert direct["hash"] == cached["hash"] and direct["backing"] == str(FRAMES)
    part = counts(run(read, dataset, 3, 20, 4, ZAZEN_SOCKET=cluster.sockets[0]))
    assert part["frames"] == "5" and part["hash"] != cached["hash"]
    assert "begin" in run(read, dataset, 5, 4, 1, expect=1, ZAZEN_SOCKET=cluster.sockets[0])
    assert "not found" in run(read, folder / "nowhere", expect=1, ZAZEN_SOCKET=folder / "nobody.sock")
    assert "configuration" in run(push, dataset, cluster.nodes[0], 1, 1, expect=1)


def test_every_call_refuses_nonsense(folder, cluster):
    """Under the sanitizer: NULLs, wrong sizes, double closes of nothing; nothing leaks, nothing
    changes."""
    program = folder / "nonsense"
    flags = ["-g", "-fsanitize=address"]
    run(
        "cc",
        *STRICT,
        *flags,
        "-I",
        include(),
        Path(__file__).with_name("nonsense.c"),
        *linked(),
        "-o",
        program,
    )
    dataset = folder / "backing" / "sim1"
    (dataset / "frame-0000000.bin").write_bytes(b"x" * 100)
    output = run(program, dataset, ZAZEN_SOCKET=cluster.sockets[0], NONSENSE_KEY=cluster.key)
    assert "all refused" in output, output


def mpi():
    """The compiler, what its programs need to find their library, and the launcher."""
    beside = Path(sys.executable).parent
    mpicc = next((p for p in (beside / "mpicc", shutil.which("mpicc")) if p and Path(p).exists()), None)
    if mpicc is None:
        pytest.skip("no mpicc: pip install mpich")
    # The wheel's wrapper knows its own library's folder at build time only.
    paths = [
        f"-Wl,-rpath,{Path(mpicc).resolve().parent.parent / 'lib'}",
        f"-Wl,-rpath,{beside.parent / 'lib'}",
    ]
    return str(mpicc), paths, Path(mpicc).with_name("mpiexec")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("sparse", [[], ["-DZAZEN_MPI_PAIRWISE_RANKS_MAX=0"]], ids=["pairwise", "sparse"])
def test_under_mpi(folder, cluster, ranks, sparse):
    mpicc, paths, mpiexec = mpi()
    dataset = folder / "backing" / "sim1"
    push = compiled(folder, "push_frames.c", "-O1")
    run(push, dataset, ",".join(cluster.nodes), FRAMES, 5000, ZAZEN_KEY=cluster.key)
    alone = counts(
        run(compiled(folder, "assign_and_read.c", "-O1"), dataset, ZAZEN_SOCKET=cluster.sockets[0])
    )
    program = compiled(folder, "assign_and_read.c", "-DWITH_MPI", *sparse, *paths, compiler=mpicc)
    together = counts(run(mpiexec, "-n", ranks, program, dataset, ZAZEN_TESTBED=cluster.testbed))
    assert together["hash"] == alone["hash"] and together["frames"] == str(FRAMES)
    # The run before made aliens of node 1's frames on node 0: natives come first all the same.
    assert together["native"] == str(FRAMES if ranks > 1 else FRAMES // 2)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sparse_exchanges_bring_every_block(folder, ranks):
    mpicc, paths, mpiexec = mpi()
    program = folder / "sparse_exchange"
    source = Path(__file__).with_name("sparse_exchange.c")
    run(mpicc, *STRICT, "-O1", "-I", include(), source, *linked(), *paths, "-o", program)
    assert "every block arrived" in run(mpiexec, "-n", ranks, program)


def test_headers_suit_cpp(folder):
    """Both headers compile as C++ where there is a compiler for it."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = folder / "header.cc"
    source.write_text('#include "zazen.h"\nint main() { return zazen_version() == nullptr; }\n')
    run(
        compiler,
        "-std=c++11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        include(),
        source,
        *linked(),
        "-o",
        folder / "cc",
    )
    run(folder / "cc")


def test_files_are_matched_to_ranks(folder):
    source = folder / "match.c"
    source.write_text("""
#include "zazen.h"
#include <stdio.h>
int main(void)
{
    const uint32_t node_of_rank[] = {7, 9, 7};
    const uint64_t bytes[] = {10, 20, 30};
    const uint64_t begin[] = {0, 1, 3, 3};
    const uint32_t holders[] = {9, 9, 7};
    uint32_t rank[3];
    zazen_matched_t told = {.struct_size = sizeof told};
    if (zazen_match(node_of_rank, 3, bytes, begin, holders, 3, ZAZEN_MATCH_OPTIMAL, 0, rank, &told) != ZAZEN_OK)
        return 1;
    printf("%u %d %llu %llu\\n", rank[0], rank[1] != 1, (unsigned long long)told.remote,
           (unsigned long long)told.bytes_max);
    if (zazen_match(node_of_rank, 3, bytes, begin, holders, 3, 99, 0, rank, &told) != ZAZEN_INVALID_ARGUMENT)
        return 2;
    return 0;
}
""")
    program = folder / "match"
    run("cc", *STRICT, "-I", include(), source, *linked(), "-o", program)
    assert run(program) == "1 1 1 30\n"
