"""Makes Debian packages of what cargo has built: `zazen`, `zazen-slurm`,
`libzazen0` and `libzazen-dev`.

Usage: deb.py [--profile NAME] [--out FOLDER] [--compression xz|gzip|none]
`$DEBFULLNAME` and `$DEBEMAIL` name the maintainer; `$SOURCE_DATE_EPOCH` makes two builds alike.

`make deb` builds with the release profile and calls it. It needs `dpkg-deb` and `dpkg-shlibdeps`
(Debian's package dpkg-dev). Python users install the wheel; these packages are for nodes.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from email.utils import formatdate
from pathlib import Path

import places
from c_library import SONAME, lay_out

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS, VERSION = PROJECT["tool"]["zazen"], PROJECT["project"]["version"]
#: As Debian's own tools take it.
MAINTAINER = f"{os.environ.get('DEBFULLNAME', 'Zazen')} <{os.environ.get('DEBEMAIL', 'root@localhost')}>"
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Zazen

Files: *
Copyright: 2026 The Zazen developers
License: Apache-2.0
 On Debian systems, the whole licence is in /usr/share/common-licenses/Apache-2.0.
 .
 The programs contain crates of other authors. They and their licences are listed in
 /usr/share/doc/zazen/dependencies.tsv.
"""


class Package:
    """A package in the making, in a folder of its own."""

    def __init__(self, name: str, folder: Path, section: str, summary: str, description: str) -> None:
        self.name, self.root, self.section = name, folder / name, section
        self.summary, self.description = summary, description
        self.root.mkdir(mode=0o755)
        # Each package says whose it is and what changed.
        self.write(f"usr/share/doc/{name}/copyright", COPYRIGHT.encode())
        log = f"zazen ({VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the release.\n"
        log += f"\n -- {MAINTAINER}  {changed()}\n"
        self.write(f"usr/share/doc/{name}/changelog.gz", packed(log.encode()))

    def write(self, path: str, data: bytes, mode: int = 0o644) -> Path:
        """Puts a file at `path` of the installed system."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(mode)
        return file

    def take(self, source: Path, path: str, mode: int = 0o644) -> Path:
        """As `write`, from a file."""
        return self.write(path, source.read_bytes(), mode)

    def take_binary(self, source: Path, path: str, mode: int) -> Path:
        """A program or library, without what only a debugger needs."""
        if not source.is_file():
            sys.exit(f"{source} is not there: run `cargo build` with that profile first (`make deb` does)")
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        strip = ["strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]
        subprocess.run([*strip, "-o", file, source], check=True)
        file.chmod(mode)
        return file

    def libraries(self, ours: Path) -> str:
        """The packages whose libraries its programs load, as dpkg-shlibdeps finds them; those that
        are made here are left out."""
        files = [path for path in self.root.rglob("*") if path.is_file() and is_elf(path)]
        if not files:
            return ""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "debian").mkdir()
            Path(folder, "debian/control").write_text(
                f"Source: zazen\nMaintainer: {MAINTAINER}\n\nPackage: {self.name}\nArchitecture: any\n"
            )
            command = ["dpkg-shlibdeps", "-O", f"-l{ours}", "--ignore-missing-info"]
            command += [f"-e{file}" for file in files]
            told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        return told.strip().removeprefix("shlibs:Depends=")

    def build(self, out: Path, depends: list[str], ours: Path, compression: str) -> Path:
        """The finished package's file."""
        architecture = subprocess.run(
            ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
        ).stdout.strip()
        needs = ", ".join(filter(None, [self.libraries(ours), *depends]))
        installed = sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file()) // 1024
        control = [
            f"Package: {self.name}",
            f"Version: {VERSION}",
            f"Architecture: {architecture}",
            f"Maintainer: {MAINTAINER}",
            f"Installed-Size: {installed}",
            *([f"Depends: {needs}"] if needs else []),
            f"Section: {self.section}",
            "Priority: optional",
            f"Description: {self.summary}",
            *(f" {line}" for line in self.description.splitlines()),
        ]
        self.write("DEBIAN/control", ("\n".join(control) + "\n").encode())
        sums = []
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
            elif path.is_file() and "DEBIAN" not in path.parts and not path.is_symlink():
                sums.append(f"{md5(path)}  {path.relative_to(self.root)}\n")
        self.write("DEBIAN/md5sums", "".join(sums).encode())
        file = out / f"{self.name}_{VERSION}_{architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", self.root, file]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return file


def changed() -> str:
    """When the sources changed: `$SOURCE_DATE_EPOCH` (seconds since 1970), or now."""
    return formatdate(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))


def packed(data: bytes) -> bytes:
    """Packed without a time, so that two builds are alike."""
    return gzip.compress(data, 9, mtime=0)


def is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def md5(path: Path) -> str:
    told = subprocess.run(["md5sum", path], check=True, capture_output=True, text=True).stdout
    return told.split()[0].lstrip("\\")


def programs(built: Path, folder: Path, objects: Path | None = None) -> Package:
    """What a node needs. `objects`: the program that reads object stores (`make objects`)."""
    package = Package(
        "zazen",
        folder,
        "science",
        "frames of scientific data on the disks of the nodes that compute",
        "zazend keeps frames of simulations on a node's disks, so that analyses read\n"
        "them there. zazen is the tool of users and administrators. The plug-ins, the\n"
        "preload library for call forwarding, a systemd unit, alerts and a dashboard\n"
        "come along.",
    )
    for program in PARTS["programs"]:
        package.take_binary(built / program, f"usr/bin/{program}", 0o755)
    if objects:
        # The daemon starts it; it is no command for people.
        package.take_binary(objects, f"usr/lib/zazen/{objects.name}", 0o755)
    for library in PARTS["libraries"]:
        package.take_binary(built / library, f"usr/lib/zazen/{library}", 0o644)
    for header in sorted(ROOT.glob("plugins/*/*.h")):
        package.take(header, f"usr/share/zazen/plugins/{header.name}")
    for name in PARTS["share"]:
        source = ROOT / name
        if source.suffix == ".service":
            package.take(source, f"lib/systemd/system/{source.name}")
        elif source.suffix == ".toml":
            package.take(source, f"usr/share/doc/zazen/examples/{source.name}")
        else:
            package.take(source, f"usr/share/zazen/{source.parent.name}/{source.name}")
    zazen = built / "zazen"
    for shell, path in places.completions(of_distribution=True).items():
        package.write(f"usr/{path}", output(zazen, "completions", shell))
    with tempfile.TemporaryDirectory() as pages:
        output(zazen, "man", pages)
        for page in sorted(Path(pages).iterdir()):
            package.write(f"usr/share/man/man1/{page.name}.gz", packed(page.read_bytes()))
    page = man_page(
        "zazend", 8, "keeps frames on this node's disks", output(built / "zazend", "--help").decode()
    )
    package.write("usr/share/man/man8/zazend.8.gz", packed(page.encode()))
    told = output(sys.executable, ROOT / "scripts/licences.py")
    package.write("usr/share/doc/zazen/dependencies.tsv", told)
    told = output(sys.executable, ROOT / "scripts/licences.py", "--sbom")
    package.write("usr/share/doc/zazen/sbom.cdx.json", told)
    for script in ("postinst", "prerm", "postrm"):
        package.take(ROOT / f"packaging/debian/zazen.{script}", f"DEBIAN/{script}", 0o755)
    return package


def slurm_kit(folder: Path) -> Package:
    """What a cluster with Slurm takes from: its administrator copies and names the files."""
    package = Package(
        "zazen-slurm",
        folder,
        "science",
        "frames of scientific data near the computation: kit for Slurm",
        "Jobs go to the nodes where their dataset is warm; a node without a daemon\n"
        "gets no jobs. Hooks, scripts and an agent for Slurm's controller and nodes.",
    )
    for name in PARTS["slurm"]:
        source = ROOT / name
        if source.suffix == ".service":
            package.take(source, f"usr/share/doc/zazen-slurm/examples/{source.name}")
        else:
            mode = 0o755 if os.access(source, os.X_OK) else 0o644
            package.take(source, f"usr/share/zazen/slurm/{source.name}", mode)
    return package


def man_page(name: str, section: int, summary: str, told: str) -> str:
    """A man page that shows what `name --help` says."""
    lines = [line.replace("\\", "\\e").replace("-", "\\-") for line in told.splitlines()]
    # A line that begins with a dot or a quote would be a request.
    body = "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)
    return (
        f'.TH {name.upper()} {section} "" "Zazen {VERSION}"\n.SH NAME\n{name} \\- {summary}\n'
        f".SH DESCRIPTION\n.nf\n{body}\n.fi\n"
    )


def output(*words: object) -> bytes:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True).stdout


def library(built: Path, folder: Path) -> tuple[Package, Package]:
    """The C library: for programs that were built with it, and for building them."""
    shared = Package(
        "libzazen0",
        folder,
        "libs",
        "frames of scientific data near the computation: C library",
        "The library with which C, C++ and Fortran programs read and push frames.",
    )
    shared.take_binary(built / "libzazen.so", f"usr/lib/{SONAME}", 0o644)
    shared.write("DEBIAN/shlibs", f"libzazen 0 libzazen0 (>= {VERSION})\n".encode())
    shared.write("DEBIAN/triggers", b"activate-noawait ldconfig\n")
    dev = Package(
        "libzazen-dev",
        folder,
        "libdevel",
        "frames of scientific data near the computation: headers",
        "Headers, the Fortran module's source, and what pkg-config and CMake need.",
    )
    with tempfile.TemporaryDirectory() as laid_out:
        lay_out(built, Path(laid_out), VERSION)
        for path in Path(laid_out, "lib").rglob("*"):
            # Both find the prefix from where they lie.
            if path.suffix == ".pc":
                dev.take(path, f"usr/share/pkgconfig/{path.name}")
            elif path.suffix == ".cmake":
                dev.take(path, f"usr/lib/cmake/zazen/{path.name}")
    (dev.root / "usr/lib").mkdir(parents=True, exist_ok=True)
    (dev.root / "usr/lib/libzazen.so").symlink_to(SONAME)
    for pattern in ("bindings/c/include/*.h", "bindings/fortran/*.f90"):
        for header in sorted(ROOT.glob(pattern)):
            dev.take(header, f"usr/include/{header.name}")
    return shared, dev


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release", help="the cargo profile that built")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the packages go")
    parser.add_argument("--objects", type=Path, help="zazen-objects; without it no object store can be read")
    parser.add_argument("--compression", default="xz", choices=["xz", "gzip", "none"])
    options = parser.parse_args()
    built = places.built(options.profile)
    for tool in ("dpkg-deb", "dpkg-shlibdeps", "strip"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not here: install Debian's packages dpkg-dev and binutils")
    options.out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        node = programs(built, Path(folder), options.objects)
        shared, dev = library(built, Path(folder))
        ours = shared.root / "usr/lib"
        packages = [(node, []), (slurm_kit(Path(folder)), [f"zazen (= {VERSION})", "python3"])]
        packages += [(shared, []), (dev, [f"libzazen0 (= {VERSION})"])]
        for package, depends in packages:
            print(package.build(options.out.resolve(), depends, ours, options.compression))
    return 0


if __name__ == "__main__":
    sys.exit(main())
