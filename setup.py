"""Builds the wheel: cargo builds the native parts in one go, and this file puts them where they
belong.

The wheel holds the Python package, the programs `zazen`, `zazend` and `zazen-objects`, the C
library with its headers, the plug-ins with their headers, the runtime of plug-ins' clients, the
preload library, the systemd unit, the kit for Slurm, completions of `zazen` for shells, and its man
pages.

`ZAZEN_PROFILE` names the cargo profile; without it, it is `release`. `ZAZEN_TARGET` names another
target than this machine's, as cargo-zigbuild spells it (`make wheel` sets it). A profile or a
target has one folder below cargo's target folder, so what cargo has built there before is not built
again.

If `ZAZEN_BUILT` is set, cargo has built all parts, and the wheel takes what is there:
scripts/install.py sets it. Such a wheel stays on this machine, so it is not compressed, and it
leaves out `zazen-objects`, whose 170 crates only `make objects` compiles
(docs/decisions/0011-object-stores.md).
"""

import functools
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# After setuptools, which brings it where Python has none any more.
from distutils.command.build_scripts import build_scripts  # isort: skip
from distutils.command.install_data import install_data  # isort: skip

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS, VERSION = PROJECT["tool"]["zazen"], PROJECT["project"]["version"]
BUILT = bool(os.environ.get("ZAZEN_BUILT"))
OBJECTS = [] if BUILT else ["zazen-objects"]
sys.path.insert(0, str(ROOT / "scripts"))
import places  # noqa: E402, isort: skip
from c_library import lay_out  # noqa: E402, isort: skip
from initfirst import make_first  # noqa: E402, isort: skip


@functools.cache
def build() -> Path:
    """Builds all native parts and returns the folder that holds them."""
    profile, target = os.environ.get("ZAZEN_PROFILE", "release"), os.environ.get("ZAZEN_TARGET")
    if not BUILT:
        run_cargo(profile, target, [word for name in PARTS["packages"] for word in ("--package", name)])
    return places.built(profile, target)


@functools.cache
def build_objects() -> Path:
    """Builds zazen-objects, a workspace of its own, and returns the folder that holds it."""
    profile, target = os.environ.get("ZAZEN_PROFILE", "release"), os.environ.get("ZAZEN_TARGET")
    where = ["--manifest-path", "crates/zazen-objects/Cargo.toml", "--target-dir", "target/objects"]
    run_cargo(profile, target, where)
    return places.objects(profile, target)


def run_cargo(profile: str, target: str | None, what: list[str]) -> None:
    """Lets cargo build what the wheel holds."""
    command = ["cargo", "zigbuild" if target else "build", "--locked", "--profile", profile, *what]
    if target:
        command += ["--target", target]
    try:
        subprocess.run(command, cwd=ROOT, check=True)
    except FileNotFoundError:
        sys.exit("zazen is built by cargo, which is not here: install Rust (rustup), then try again")
    except subprocess.CalledProcessError as error:
        sys.exit(f"`{' '.join(command)}` failed with status {error.returncode}")


def copy_stripped(source: Path, target: Path) -> None:
    """Copies a program or library without its debug information."""
    if not source.is_file():
        sys.exit(f"{source} is not there: run `cargo build` with the same profile, or unset ZAZEN_BUILT")
    target.parent.mkdir(parents=True, exist_ok=True)
    strip = shutil.which("strip")
    if strip:
        subprocess.run([strip, "--strip-debug", "-o", str(target), str(source)], check=True)
    else:
        shutil.copy(source, target)
    target.chmod(0o755)


class BuildExt(build_ext):
    """The native module, and beside it what other programs load and include."""

    def build_extension(self, ext):
        built = build()
        copy_stripped(built / PARTS["module"], Path(self.get_ext_fullpath(ext.name)))
        package = Path(self.build_lib, "zazen")
        for library in PARTS["libraries"]:
            copy_stripped(built / library, package / "lib" / library)
        # Of all of them it alone must be, and a linker may not have done it.
        make_first(package / "lib" / PARTS["preload"])
        lay_out(built, package, VERSION, copy_stripped)
        headers = package / "include"
        headers.mkdir(parents=True, exist_ok=True)
        for pattern in PARTS["headers"]:
            for header in sorted(ROOT.glob(pattern)):
                shutil.copy(header, headers)


class BuildScripts(build_scripts):
    """The programs, which are no scripts: they are copied as they are."""

    def run(self):
        built = build()
        for program in PARTS["programs"]:
            copy_stripped(built / program, Path(self.build_dir, program))
        for program in OBJECTS:
            copy_stripped(build_objects() / program, Path(self.build_dir, program))


class InstallData(install_data):
    """The files that are listed, and what the program `zazen` says of itself: completions and man
    pages."""

    def run(self):
        zazen = build() / "zazen"
        made = Path(self.get_finalized_command("build").build_temp, "told")
        for shell, name in places.completions(of_distribution=False).items():
            file = made / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(
                subprocess.run([zazen, "completions", shell], check=True, capture_output=True).stdout
            )
            self.data_files.append((str(Path(name).parent), [str(file)]))
        pages = made / "share/man/man1"
        subprocess.run([zazen, "man", pages], check=True, capture_output=True)
        self.data_files.append(("share/man/man1", [str(page) for page in sorted(pages.iterdir())]))
        super().run()


setup(
    ext_modules=[Extension("zazen._zazen", sources=[], py_limited_api=True)],
    scripts=PARTS["programs"] + OBJECTS,
    data_files=[("share/zazen", PARTS["share"]), ("share/zazen/slurm", PARTS["slurm"])],
    cmdclass={"build_ext": BuildExt, "build_scripts": BuildScripts, "install_data": InstallData},
    options={"bdist_wheel": {"py_limited_api": "cp311", "compression": "stored" if BUILT else "deflated"}},
)
