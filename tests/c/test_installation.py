"""How other programs' builds find the C library and the Fortran module: pkg-config, CMake,
mpif90."""

import os
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
sys.path.insert(0, str(ROOT / "scripts"))
import c_library  # noqa: E402

FRAMES, FRAME_BYTES = 30, 5000


def run(*command, expect=0, cwd=None, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=mpi_environment() | {name: str(value) for name, value in environment.items()},
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The installation; or, for one that was put together by hand, what setup.py would have made of
    it."""
    try:
        library = Path(zazen.get_library())
    except zazen.NotFoundError as error:
        pytest.skip(str(error))
    installed = Path(zazen.get_prefix())
    if (installed / "lib/pkgconfig/zazen.pc").exists():
        return installed
    made = tmp_path_factory.mktemp("prefix")
    c_library.lay_out(library.parent, made, zazen.__version__)
    shutil.copytree(zazen.get_include(), made / "include")
    shutil.copy(ROOT / "bindings/fortran/zazen.f90", made / "include")
    return made


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "backing" / "sim1"
    folder.mkdir(parents=True)
    for number in range(FRAMES):
        (folder / f"frame-{number:07}.bin").write_bytes(frame_bytes(number))
    return folder


def frame_bytes(number):
    return bytes((number * 37 + at) % 256 for at in range(FRAME_BYTES))


def asked_for(program):
    """The shared libraries that a program asks the loader for."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf")
    return run(readelf, "-d", program)


def check_reads(program, dataset):
    assert f"[{c_library.SONAME}]" in asked_for(program)
    said = run(program, dataset, ZAZEN_SOCKET=dataset / "no.sock")
    assert f"frames {FRAMES} bytes {FRAMES * FRAME_BYTES}" in said, said


def test_the_library_has_its_soname(prefix):
    assert f"soname: [{c_library.SONAME}]" in asked_for(prefix / "lib" / c_library.SONAME)


@pytest.mark.parametrize("linked", [False, True])
def test_pkg_config(prefix, dataset, tmp_path, linked):
    """With the linker script that a wheel carries, and with the symbolic link that `make install`
    makes of it."""
    pkg_config = shutil.which("pkg-config")
    if pkg_config is None:
        pytest.skip("no pkg-config")
    here = tmp_path / "prefix"
    shutil.copytree(prefix, here, symlinks=True)
    if linked:
        c_library.link(here)
        assert (here / "lib/libzazen.so").is_symlink()
    path = {"PKG_CONFIG_PATH": here / "lib/pkgconfig"}
    flags = run(pkg_config, "--cflags", "--libs", "zazen", **path).split()
    assert run(pkg_config, "--modversion", "zazen", **path).strip() == zazen.__version__
    program = tmp_path / "program"
    run("cc", "-O1", ROOT / "examples/c/assign_and_read.c", *flags, "-o", program)
    check_reads(program, dataset)


def test_cmake(prefix, dataset, tmp_path):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    run(cmake, "-S", ROOT / "examples/c", "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", tmp_path / "b")
    check_reads(tmp_path / "b" / "assign_and_read", dataset)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(x C)\nfind_package(zazen 9.0 REQUIRED)\n"
    )
    run(cmake, "-S", tmp_path, "-B", tmp_path / "c", f"-DCMAKE_PREFIX_PATH={prefix}", expect=1)


def fortran():
    """An MPI's Fortran compiler with mpi_f08, and the same MPI's launcher."""
    for name in ("mpif90.mpich", "mpif90.openmpi", "mpif90"):
        compiler = shutil.which(name)
        launcher = shutil.which(name.replace("mpif90", "mpiexec"))
        if compiler and launcher:
            return compiler, launcher
    return pytest.skip("no mpif90: install gfortran and an MPI for it (Debian: gfortran libmpich-dev mpich)")


def compiled(compiler, prefix, source, folder):
    """The Fortran module and a program, compiled strictly."""
    sources = [prefix / "include/zazen.f90", source]
    library = prefix / "lib" / c_library.SONAME
    strict = ["-std=f2018", "-Wall", "-Wextra", "-Werror", "-Wno-error=compare-reals", "-J", folder]
    run(compiler, "-O1", *strict, *sources, library, f"-Wl,-rpath,{library.parent}", "-o", folder / "program")
    return folder / "program"


def test_fortran_under_mpi(prefix, dataset, tmp_path):
    compiler, launcher = fortran()
    program = compiled(compiler, prefix, ROOT / "examples/fortran/assign_and_read.f90", tmp_path)
    expected = sum(sum(frame_bytes(number)) * (number + 1) for number in range(FRAMES))
    everything = f"frames {FRAMES} bytes {FRAMES * FRAME_BYTES} sum {expected} "
    with zazen.testing.Cluster(tmp_path / "c", dataset.parent, nodes=2) as cluster:
        with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for number in range(FRAMES - 5):
                writer.push(number, frame_bytes(number), f"frame-{number:07}.bin")
        for ranks in (1, 2, 3):
            said = run(launcher, "-n", ranks, program, dataset, ZAZEN_TESTBED=cluster.testbed)
            assert everything in said, said
        assert f"native {FRAMES - 5} " in said, said
        part = run(launcher, "-n", 2, program, dataset, 3, 20, 4, ZAZEN_TESTBED=cluster.testbed)
        assert "frames 5 bytes 25000 " in part, part
    wrong = subprocess.run(
        [launcher, "-n", "1", program, tmp_path / "nowhere"],
        capture_output=True,
        text=True,
        timeout=60,
        env=mpi_environment() | {"ZAZEN_SOCKET": str(tmp_path / "no.sock")},
        check=False,
    )
    assert wrong.returncode != 0 and "nowhere" in wrong.stdout + wrong.stderr, os.fspath(program)


def test_random_access_from_fortran(prefix, dataset, tmp_path):
    """What Python and C have, Fortran has: by number, by name, by owner, in order."""
    compiler, launcher = fortran()
    program = compiled(compiler, prefix, ROOT / "tests/c/random_access.f90", tmp_path)
    trajectory = dataset.parent / "md.dcd"
    header, cut_at = small_dcd.write(trajectory)
    with zazen.testing.Cluster(tmp_path / "c", dataset.parent, nodes=2) as cluster:
        with zazen.Writer(dataset, cluster.nodes, key=cluster.key, on_slow="block") as writer:
            for number in range(FRAMES - 5):
                writer.push(number, frame_bytes(number), f"frame-{number:07}.bin")
        command = launcher, "-n", 2, program, dataset, trajectory
        said = run(*command, ZAZEN_TESTBED=cluster.testbed).splitlines()
        with zazen.open(dataset, socket=cluster.sockets[0]) as opened:
            here = len(opened.query(0, FRAMES)[0])
    words = dict(line.split(" ", 1) for line in said if not line.startswith("frame "))
    assert words["version"] == zazen.__version__ and words["layout"] == "frame-{n:07}.bin"
    assert words["path"] == "T" and words["warned"] == "F" and "no" not in words
    assert words["native"] == f"{here} alien 0"
    assert [int(word) for word in words["owners"].split()] == [here, FRAMES - 5 - here, 5]
    assert words["from"] == "the second 3 2 3 4" and words["contains"] == "TF" and words["number"] == "12"
    frames = [line for line in said if line.startswith("frame ")]
    assert [line.split()[1] for line in frames] == ["9", "3", "9", "0"]
    assert all(f" bytes {FRAME_BYTES} " in line for line in frames)
    assert words["statuses"] == "0 T F T T"
    assert words["paths"] == str(FRAMES) and words["whole"] == f"files {FRAMES}"
    # Fortran's bytes are signed.
    total = sum(byte - 256 * (byte > 127) for byte in header)
    assert words["trajectory"] == "F" and words["of"] == (
        f"dcd has {small_dcd.ATOMS} {small_dcd.STEPS} 1 1 {len(header)} {total}"
    )
    assert words["lies"] == str(trajectory) and words["more"] == "F"
    assert f"frame {small_dcd.STEPS} of md.dcd, at byte {cut_at}" in words["trouble"]
    assert words["remaining"] == str(FRAMES) and words["ascends"] == f"T taken {FRAMES}"
