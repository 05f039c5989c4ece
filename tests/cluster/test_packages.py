"""The Debian packages: what a node's administrator installs, from the programs under test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import zazen
import zazen.testing
from installing import INSIDE_BY_RPM, NO_COPY, install_and_purge

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    """The packages by name."""
    for tool in ("dpkg-deb", "dpkg-shlibdeps", "strip"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; it comes with Debian's package dpkg-dev")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if not (target / "debug/zazend").is_file() or not (target / "debug/libzazen.so").is_file():
        pytest.skip(f"{target}/debug has no zazend and no libzazen.so; run `make install`")
    out = tmp_path_factory.mktemp("packages")
    told = subprocess.run(
        [sys.executable, ROOT / "scripts/deb.py", "--profile", "dev", "--out", out, "--compression", "gzip"],
        # Nobody keeps these packages: the least compression of dpkg-deb.
        env={
            **os.environ,
            "DEBFULLNAME": "HPC operations",
            "DEBEMAIL": "operations@debian.org",
            "DPKG_DEB_COMPRESSOR_LEVEL": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert told.returncode == 0, told.stderr
    return {Path(line).name.split("_")[0]: Path(line) for line in told.stdout.splitlines()}


@pytest.fixture(scope="module")
def installed(packages, tmp_path_factory) -> Path:
    """A folder with the files of all packages."""
    root = tmp_path_factory.mktemp("root")
    for package in packages.values():
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True, timeout=120)
    return root


def run(*words: object, **options) -> str:
    told = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, **options
    )
    assert told.returncode == 0, (words, told.stdout, told.stderr)
    return told.stdout


def test_the_packages_say_what_they_need(packages):
    assert set(packages) == {"zazen", "zazen-slurm", "libzazen0", "libzazen-dev"}
    needs = {name: run("dpkg-deb", "--field", file, "Depends") for name, file in packages.items()}
    assert "libc6 (>= " in needs["zazen"] and "libc6 (>= " in needs["libzazen0"], needs
    assert needs["libzazen-dev"].strip() == f"libzazen0 (= {zazen.__version__})"
    assert "zazen" not in needs["zazen"], needs


def test_lintian_has_nothing_to_say(packages):
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed; it is a package of Debian")
    # All at once: its own start takes seconds.
    told = subprocess.run(["lintian", *packages.values()], capture_output=True, text=True, timeout=600)
    assert told.returncode == 0 and not told.stdout, told.stdout


def test_the_installed_daemon_serves_and_finds_its_plug_ins(installed, tmp_path):
    sim = tmp_path / "backing/sim"
    sim.mkdir(parents=True)
    for number in range(4):
        (sim / f"f-{number}.bin").write_bytes(bytes([number]) * 1000)
    daemon = zazen.testing.Daemon(
        tmp_path, tmp_path / "backing", ["--plugin", "posix"], zazend=installed / "usr/bin/zazend"
    )
    daemon.start()
    try:
        assert "posix" in run(installed / "usr/bin/zazen", "plugin", "list", "--socket", daemon.socket)
        with zazen.open(str(sim), socket=str(daemon.socket)) as opened:
            assert sorted(bytes(data)[0] for _, data, _ in opened.frames()) == [0, 1, 2, 3]
        assert run(installed / "usr/bin/zazen", "status", "--socket", daemon.socket)
    finally:
        daemon.stop()


def test_a_c_program_is_built_with_pkg_config_and_cmake_alone(installed, tmp_path):
    for tool in ("pkg-config", "cc", "cmake"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\n#include <zazen.h>\nint main(void) { puts(zazen_version()); return 0; }\n"
    )
    # pkg-config takes $PKG_CONFIG_PATH for this folder, and the system's own once installed.
    found = {**os.environ, "PKG_CONFIG_PATH": str(installed / "usr/share/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "zazen", env=found).split()
    run("cc", "main.c", "-o", "by-pkg-config", *flags, cwd=tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(x C)\nfind_package(zazen REQUIRED)\n"
        "add_executable(by-cmake main.c)\ntarget_link_libraries(by-cmake PRIVATE zazen::zazen)\n"
    )
    run("cmake", "-S", ".", "-B", "b", f"-DCMAKE_PREFIX_PATH={installed}/usr", cwd=tmp_path)
    run("cmake", "--build", "b", cwd=tmp_path)
    for program in (tmp_path / "by-pkg-config", tmp_path / "b/by-cmake"):
        assert run(program).strip() == zazen.__version__


def test_packages_are_installed_checked_and_purged_without_a_trace(packages, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: the packages are installed on a copy of the system")
    if shutil.which("unshare") is None or shutil.which("dpkg") is None:
        pytest.skip("unshare or dpkg is not installed; Debian's packages are util-linux and dpkg")
    told = install_and_purge(tmp_path, packages.values())
    if told.returncode == NO_COPY:
        pytest.skip(f"no copy of this system: {told.stdout.strip()} {told.stderr.strip()}")
    assert told.returncode == 0, (told.stdout[-4000:], told.stderr[-4000:])
    said, left = told.stdout.split("left:\n")
    # The daemon that was installed starts as docs/operating.md says, and systemd knows its unit.
    assert "zazend would start" in said and " up " in said, told.stdout
    assert ".service" not in told.stderr, told.stderr
    assert not left.strip(), left


def test_the_unit_the_settings_and_the_pages_are_there(installed):
    unit = (installed / "lib/systemd/system/zazend.service").read_text()
    for line in unit.splitlines():
        if line.startswith(("ExecStart=", "ExecStartPre=-")):
            program = line.split("=", 1)[1].lstrip("-").split()[0]
            assert (installed / program.lstrip("/")).is_file(), line
    for name in (
        "usr/share/doc/zazen/examples/zazend.toml",
        "usr/share/zazen/prometheus/zazen.rules.yml",
        "usr/share/zazen/grafana/zazen.json",
        "usr/share/zazen/modules/zazen.lua",
        "usr/share/zazen/slurm/zazen_placement.lua",
        "usr/share/doc/zazen-slurm/examples/zazen-slurm-features.service",
        "usr/share/man/man1/zazen.1.gz",
        "usr/share/man/man8/zazend.8.gz",
        "usr/share/bash-completion/completions/zazen",
    ):
        assert (installed / name).stat().st_size > 100, name


def test_the_bill_of_materials_names_every_crate(installed):
    """Against the list of licences, and against what cargo has locked."""
    folder = installed / "usr/share/doc/zazen"
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == zazen.__version__
    listed = [line.split("\t")[:2] for line in (folder / "dependencies.tsv").read_text().splitlines()]
    assert [[one["name"], one["version"]] for one in bill["components"]] == listed and len(listed) > 50
    locks = [ROOT / "Cargo.lock", ROOT / "crates/zazen-objects/Cargo.lock"]
    locked = [one for lock in locks for one in tomllib.loads(lock.read_text())["package"]]
    sums = {one["checksum"] for one in locked if "checksum" in one}
    for one in bill["components"]:
        assert one["purl"] == one["bom-ref"] == f"pkg:cargo/{one['name']}@{one['version']}"
        assert one["licenses"][0]["expression"] and one["hashes"][0]["content"] in sums


def test_licences_are_read_as_spdx_writes_them():
    from licences import is_allowed

    for expression, answer in [
        ("MIT", True),
        ("MIT/Apache-2.0", True),
        ("Apache-2.0 / MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", True),
    ]:
        assert is_allowed(expression) == answer, expression
    for broken in ("", "(MIT", "MIT Apache-2.0"):
        with pytest.raises(ValueError):
            is_allowed(broken)


def test_crates_of_other_sources_are_refused():
    from licences import CRATES_IO, strangers

    good = {"name": "a", "version": "1", "source": CRATES_IO, "checksum": "0" * 64}
    assert strangers([good, {"name": "ours", "version": "1"}]) == []
    for wrong in (
        {**good, "source": "git+https://example.org/a"},
        {**good, "source": "registry+https://example.org/index"},
        {**good, "checksum": "0"},
        {key: value for key, value in good.items() if key != "checksum"},
    ):
        (told,) = strangers([good, wrong])
        assert told.startswith("a 1: "), told


@pytest.fixture(scope="module")
def rpms(tmp_path_factory) -> dict[str, Path]:
    """The RPM packages by name."""
    for tool in ("rpmbuild", "rpm", "rpm2cpio", "cpio", "dpkg-deb", "strip"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; Debian's packages are rpm, cpio and dpkg-dev")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if not (target / "debug/zazend").is_file() or not (target / "debug/libzazen.so").is_file():
        pytest.skip(f"{target}/debug has no zazend and no libzazen.so; run `make install`")
    out = tmp_path_factory.mktemp("rpms")
    told = run(sys.executable, ROOT / "scripts/rpm.py", "--profile", "dev", "--out", out, "--quick")
    return {Path(line).name.rsplit("-", 2)[0]: Path(line) for line in told.splitlines()}


def test_rpm_packages_hold_what_the_debian_ones_hold(rpms, tmp_path):
    assert set(rpms) == {"zazen", "zazen-slurm", "zazen-libs", "zazen-devel"}
    needs = {name: run("rpm", "-qp", "--requires", file) for name, file in rpms.items()}
    assert "libc.so.6(GLIBC_" in needs["zazen"] and "libc.so.6(GLIBC_" in needs["zazen-libs"], needs
    assert f"zazen = {zazen.__version__}" in needs["zazen-slurm"], needs
    assert f"zazen-libs = {zazen.__version__}" in needs["zazen-devel"], needs
    for file in rpms.values():
        archive = subprocess.run(["rpm2cpio", file], check=True, capture_output=True, timeout=120).stdout
        unpack = ["cpio", "--extract", "--make-directories", "--quiet"]
        subprocess.run(unpack, cwd=tmp_path, input=archive, check=True, timeout=120)
    assert run(tmp_path / "usr/bin/zazen", "--version").strip().endswith(zazen.__version__)
    for name in (
        "usr/lib/systemd/system/zazend.service",
        "usr/lib/zazen/libzazen_preload.so",
        "usr/share/man/man8/zazend.8.gz",
        "usr/share/zsh/site-functions/_zazen",
        "usr/share/zazen/slurm/zazen_placement.lua",
    ):
        assert (tmp_path / name).stat().st_size > 100, name
    # What finds the library finds it where it lies.
    assert (tmp_path / "usr/lib64/libzazen.so").resolve().is_file()
    if shutil.which("pkg-config") is not None:
        found = {**os.environ, "PKG_CONFIG_PATH": str(tmp_path / "usr/share/pkgconfig")}
        flags = run("pkg-config", "--libs", "zazen", env=found)
        assert "/lib64 " in flags and "rpath" not in flags


def test_rpm_packages_are_installed_checked_and_erased_without_a_trace(rpms, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: the packages are installed on a copy of the system")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed; it is in Debian's package util-linux")
    told = install_and_purge(tmp_path, rpms.values(), INSIDE_BY_RPM)
    if told.returncode == NO_COPY:
        pytest.skip(f"no copy of this system: {told.stdout.strip()} {told.stderr.strip()}")
    assert told.returncode == 0, (told.stdout[-4000:], told.stderr[-4000:])
    said, left = told.stdout.split("left:\n")
    assert "zazend would start" in said and " up " in said and "libzazen.so.0" in said, told.stdout
    assert not left.strip(), left


def test_rpmlint_finds_no_error_that_is_one(rpms):
    if shutil.which("rpmlint") is None:
        pytest.skip("rpmlint is not installed; it is a package of Debian")
    told = subprocess.run(["rpmlint", *rpms.values()], capture_output=True, text=True, timeout=300).stdout
    # Who publishes them signs them. Scripts and headers have no binary. The library has GNU's hash
    # section instead. The preload library forwards mktemp and does not call it.
    expected = ("no-signature", "no-binary", "missing-hash-section", "call-to-mktemp")
    errors = [line for line in told.splitlines() if " E: " in line]
    assert not [line for line in errors if line.split(" E: ")[1].split()[0] not in expected], errors
