"""Makes RPM packages of what cargo has built: `zazen`, `zazen-slurm`, `zazen-libs`, `zazen-devel`.

Usage: rpm.py [--profile NAME] [--out FOLDER] [--quick]
`$SOURCE_DATE_EPOCH` makes two builds alike.

`make rpm` builds with the release profile and calls it. It needs `rpmbuild` (package rpm-build, or
Debian's rpm) and what `make deb` needs: the files are those of the Debian packages, at the places
that Fedora, RHEL and SUSE have for them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import deb

#: Places of Debian, and those of the systems with RPM.
PLACES = {
    "lib/systemd/system": "usr/lib/systemd/system",
    "usr/share/zsh/vendor-completions": "usr/share/zsh/site-functions",
    "usr/share/doc/libzazen0": "usr/share/doc/zazen-libs",
    "usr/share/doc/libzazen-dev": "usr/share/doc/zazen-devel",
}
#: What only Debian's tools read.
LEFT_OUT = ("DEBIAN", "changelog.gz", "copyright")
#: The names that Fedora has for the kinds of packages.
NAMES = {"libzazen0": "zazen-libs", "libzazen-dev": "zazen-devel"}

SCRIPTS = {
    "zazen": """\
%post
mkdir -p -m 0755 /etc/zazen
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || :
    # 2: an upgrade.
    [ "$1" -lt 2 ] || systemctl try-restart zazend.service >/dev/null || :
fi

%preun
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now zazend.service >/dev/null 2>&1 || :
fi

%postun
[ ! -d /run/systemd/system ] || systemctl --system daemon-reload >/dev/null || :
""",
    "zazen-libs": "%post -p /sbin/ldconfig\n\n%postun -p /sbin/ldconfig\n",
}


def lay_out(package: deb.Package, root: Path) -> list[str]:
    """Puts a package's files at their places beneath `root`; the lines of %files."""
    lines = []
    for source in sorted(package.root.rglob("*")):
        path = str(source.relative_to(package.root))
        if source.is_dir() or any(part in LEFT_OUT for part in Path(path).parts):
            continue
        for old, new in PLACES.items():
            if path.startswith(old + "/"):
                path = new + path.removeprefix(old)
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        lines.append(("%doc /" if path.startswith("usr/share/doc/") else "/") + path)
    # Here the library lies where 64-bit programs look, and where the linker looks by itself.
    for path in ("usr/lib/libzazen.so", f"usr/lib/{deb.SONAME}"):
        if f"/{path}" in lines:
            there = path.replace("usr/lib/", "usr/lib64/")
            (root / "usr/lib64").mkdir(exist_ok=True)
            (root / path).rename(root / there)
            lines[lines.index(f"/{path}")] = f"/{there}"
            if not (root / there).is_symlink():
                (root / there).chmod(0o755)
    for pattern, old, new in (
        ("usr/share/pkgconfig/*.pc", "}/lib\n", "}/lib64\n"),
        ("usr/share/pkgconfig/*.pc", " -Wl,-rpath,${libdir}", ""),
        ("usr/lib/cmake/zazen/zazen-config.cmake", "/lib/libzazen", "/lib64/libzazen"),
    ):
        for file in root.glob(pattern):
            text = file.read_text()
            if old not in text and new not in text:
                sys.exit(f"{file.name} has no {old.strip()!r}: scripts/rpm.py does not know it any more")
            file.write_text(text.replace(old, new))
    # Its own folders go with the package. Those of the system are the system's.
    paths = [Path(line.removeprefix("%doc ")) for line in lines]
    folders = {str(folder) for path in paths for folder in path.parents if "zazen" in str(folder)}
    return lines + [f"%dir {folder}" for folder in sorted(folders)]


def spec(packages: list[tuple[deb.Package, list[str]]], root: Path) -> str:
    """The spec file of all packages, whose files it puts beneath `root`."""
    (first, _), *others = packages
    lines = [
        "Name: zazen",
        f"Version: {deb.VERSION}",
        "Release: 1",
        f"Summary: {first.summary}",
        "License: Apache-2.0",
        "Group: Applications/System",
        f"Packager: {deb.MAINTAINER}",
        "# What the programs load is found by rpmbuild.",
        "AutoReqProv: yes",
        "%description",
        first.description,
    ]
    for package, needs in others:
        name = NAMES.get(package.name, package.name)
        lines += [f"%package -n {name}", f"Summary: {package.summary}", "Group: Applications/System"]
        lines += [f"Requires: {one}" for one in needs]
        lines += [f"%description -n {name}", package.description]
    lines += ["%install", f"cp -a {root}/. %{{buildroot}}/"]
    for package, _ in packages:
        name = NAMES.get(package.name, package.name)
        which = "" if name == "zazen" else f" -n {name}"
        scripts = SCRIPTS.get(name, "")
        for word in ("%post", "%preun", "%postun"):
            for end in (" -p", "\n"):
                scripts = scripts.replace(word + end, word + which + end)
        lines += [scripts, f"%files{which}", *lay_out(package, root)]
    when = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())), UTC)
    lines += ["%changelog", f"* {when:%a %b %d %Y} {deb.MAINTAINER} - {deb.VERSION}-1"]
    lines += ["- See CHANGELOG.md of the release."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release", help="the cargo profile that built")
    parser.add_argument("--out", type=Path, default=deb.ROOT / "dist", help="where the packages go")
    parser.add_argument("--objects", type=Path, help="zazen-objects; without it no object store can be read")
    parser.add_argument("--quick", action="store_true", help="compress little, for tests")
    options = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR", deb.ROOT / "target"))
    built = target / {"dev": "debug"}.get(options.profile, options.profile)
    for tool in ("rpmbuild", "strip"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not here: install the packages rpm-build (Debian: rpm) and binutils")
    options.out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "files").mkdir()
        node, kit = deb.programs(built, place / "files", options.objects), deb.slurm_kit(place / "files")
        shared, dev = deb.library(built, place / "files")
        same = f"= {deb.VERSION}-1"
        text = spec(
            [
                (node, []),
                (kit, [f"zazen {same}", "python3 >= 3.8"]),
                (shared, []),
                (dev, [f"zazen-libs {same}"]),
            ],
            place / "root",
        )
        (place / "zazen.spec").write_text(text)
        settings = {
            "_topdir": str(place / "rpmbuild"),
            "_rpmdir": str(options.out.resolve()),
            "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
            # The programs are stripped already.
            "__strip": "/bin/true",
            "debug_package": "%{nil}",
            "_build_id_links": "none",
            "__os_install_post": "%{nil}",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
            "_buildhost": "localhost",
        }
        if options.quick:
            settings["_binary_payload"] = "w1.gzdio"
        command = ["rpmbuild", "-bb", "--quiet", place / "zazen.spec"]
        for name, value in settings.items():
            command += ["--define", f"{name} {value}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"rpmbuild failed:\n{done.stderr}")
    machine = os.uname().machine
    for name in ("zazen", "zazen-slurm", "zazen-libs", "zazen-devel"):
        print(options.out.resolve() / f"{name}-{deb.VERSION}-1.{machine}.rpm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
