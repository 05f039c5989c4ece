"""How the C library lies in an installation: libzazen under its SONAME, and what finds it.

A wheel cannot hold symbolic links. There `libzazen.so`, which `-lzazen` looks for, is a linker
script of one line that names the SONAME's file. `link` puts a symbolic link in its place, where the
files can be changed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: bindings/c/build.rs sets it.
SONAME = "libzazen.so.0"
#: Where each template goes, below the package's folder.
FOLDERS = {".pc": "lib/pkgconfig", ".cmake": "lib/cmake/zazen"}


def lay_out(
    built: Path, package: Path, version: str, copy: Callable[[Path, Path], object] = shutil.copy
) -> None:
    """Puts the library, its linker script, and the files of pkg-config and CMake below
    `package`."""
    library = package / "lib"
    library.mkdir(parents=True, exist_ok=True)
    copy(built / "libzazen.so", library / SONAME)
    (library / "libzazen.so").unlink(missing_ok=True)
    (library / "libzazen.so").write_text(f"/* GNU ld script: -lzazen is this file. */\nINPUT(-l:{SONAME})\n")
    for template in sorted((ROOT / "bindings/c/install").glob("*.in")):
        name = template.stem
        folder = package / FOLDERS[Path(name).suffix]
        folder.mkdir(parents=True, exist_ok=True)
        text = template.read_text().replace("@VERSION@", version).replace("@SONAME@", SONAME)
        (folder / name).write_text(text)


def link(package: Path) -> None:
    """Makes `libzazen.so` a symbolic link."""
    short = package / "lib" / "libzazen.so"
    if (package / "lib" / SONAME).is_file() and not short.is_symlink():
        short.unlink(missing_ok=True)
        short.symlink_to(SONAME)
