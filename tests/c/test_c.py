"""The C examples: compiled with strict warnings, run over daemons, under the address sanitizer,
under MPI."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_dcd
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


TRAJECTORY_C = r"""
#include "zazen.h"
#include <inttypes.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    zazen_dataset_t *dataset;
    zazen_trajectory_t told = {.struct_size = sizeof told};
    if (argc != 2 || zazen_open(argv[1], NULL, &dataset) != ZAZEN_OK)
        return 1;
    if (zazen_trajectory(dataset, &told) != ZAZEN_OK) {
        printf("%s\n", zazen_last_error());
        zazen_close(dataset);
        return 2;
    }
    printf("%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", told.format, told.atoms, told.frames,
           told.files, told.troubles);
    for (uint64_t at = 0; at < told.header_bytes; at++)
        printf("%02x", ((const unsigned char *)told.header)[at]);
    printf("\n");
    for (uint64_t at = 0; at < told.files; at++)
        printf("%s\n", zazen_trajectory_file(dataset, at));
    for (uint64_t at = 0; at < told.troubles; at++)
        printf("%s\n", zazen_trajectory_trouble(dataset, at));
    zazen_close(dataset);
    return 0;
}
"""


def compiled_text(folder, name, text):
    source = folder / f"{name}.c"
    source.write_text(text)
    flags = ["-g", "-fsanitize=address"]
    run("cc", *STRICT, *flags, "-I", include(), source, *linked(), "-o", folder / name)
    return folder / name


def test_a_trajectory_tells_what_a_decoder_needs(folder):
    """The same as Python's `Dataset.trajectory`."""
    path = folder / "md.dcd"
    header, cut_at = small_dcd.write(path)
    program = compiled_text(folder, "trajectory", TRAJECTORY_C)
    nobody = {"ZAZEN_SOCKET": folder / "nobody.sock", "XDG_CACHE_HOME": folder / "cache"}
    first, told, file, trouble = run(program, path, **nobody).splitlines()
    assert first == f"dcd {small_dcd.ATOMS} {small_dcd.STEPS} 1 1"
    assert (bytes.fromhex(told), file) == (header, str(path))
    assert f"frame {small_dcd.STEPS} of md.dcd, at byte {cut_at}" in trouble
    for number in range(2):
        (folder / f"f-{number}.bin").write_bytes(b"x")
    path.unlink()
    assert "not those of trajectory files" in run(program, folder, expect=2, **nobody)


COPIES_C = r"""
#include "zazen.h"
#include <inttypes.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    zazen_writer_t *writer;
    zazen_counters_t counters = {.struct_size = sizeof counters};
    if (argc != 4)
        return 1;
    zazen_writer_options_t options = {
        .struct_size = sizeof options, .nodes = argv[2], .key = argv[3], .block = 1, .copies = 2};
    if (zazen_writer_open(argv[1], &options, &writer) != ZAZEN_OK) {
        printf("%s\n", zazen_last_error());
        return 2;
    }
    for (uint64_t number = 0; number < 9; number++)
        if (zazen_write(writer, number, "frame", 5, NULL) != ZAZEN_OK)
            return 3;
    if (zazen_writer_drain(writer) != ZAZEN_OK)
        return 4;
    for (uint64_t at = 0; zazen_writer_problem(writer, at) != NULL; at++)
        printf("%s\n", zazen_writer_problem(writer, at));
    if (zazen_writer_close(writer, &counters) != ZAZEN_OK)
        return 5;
    printf("pushed %" PRIu64 " of %" PRIu64 "\n", counters.pushed, counters.submitted);
    return 0;
}
"""


def test_copies_and_problems_of_a_writer(folder, cluster):
    dataset = folder / "backing" / "sim1"
    for number in range(9):
        (dataset / f"f-{number}.bin").write_bytes(b"frame")
    program = compiled_text(folder, "copies", COPIES_C)
    nodes = ",".join(cluster.nodes)
    assert run(program, dataset, nodes, cluster.key) == "pushed 18 of 18\n"
    for socket in cluster.sockets:
        with zazen.open(dataset, socket=socket) as opened:
            assert len(opened.query(0, 8)[0]) == 9
    assert "copies" in run(program, dataset, cluster.nodes[0], cluster.key, expect=2)
    # Nobody listens on port 1: the writer says so.
    told = run(program, dataset, f"{cluster.nodes[0]},127.0.0.1:1", cluster.key)
    assert "127.0.0.1:1" in told, told


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
