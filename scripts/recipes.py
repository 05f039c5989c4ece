"""Recipes for Spack and conda, and the archive of the sources that they build from.

Usage: recipes.py [--out FOLDER] [--base URL] [--homepage URL]

Writes into FOLDER (default: dist): zazen-VERSION.tar.gz, the commit that is checked out;
spack/packages/zazen/package.py and conda/recipe.yaml, which name that archive by its checksum and
by URL/zazen-VERSION.tar.gz. Without --base, the recipes take the archive from FOLDER itself, so
that they can be tried before anything is published.

What the recipes need (Python, setuptools, Rust) comes from pyproject.toml and Cargo.toml.
"""

import argparse
import gzip
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPES = {
    "packaging/spack/package.py": "spack/packages/zazen/package.py",
    "packaging/conda/recipe.yaml": "conda/recipe.yaml",
}


def archive(folder: Path, version: str) -> Path:
    """The sources of the commit that is checked out; the same bytes at each call."""
    name = f"zazen-{version}"
    told = subprocess.run(
        ["git", "archive", "--format=tar", f"--prefix={name}/", "HEAD"], cwd=ROOT, capture_output=True
    )
    if told.returncode != 0:
        sys.exit(f"the archive is made by git from a clone: {told.stderr.decode().strip()}")
    file = folder / f"{name}.tar.gz"
    file.write_bytes(gzip.compress(told.stdout, 9, mtime=0))
    return file


def needs() -> dict[str, str]:
    """The least versions of what a build needs, and the version that is built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    (setuptools,) = (one for one in project["build-system"]["requires"] if one.startswith("setuptools"))
    least = re.compile(r">=\s*([0-9.]+)")
    return {
        "VERSION": project["project"]["version"],
        "PYTHON": least.search(project["project"]["requires-python"])[1],
        "SETUPTOOLS": least.search(setuptools)[1],
        "RUST": cargo["workspace"]["package"]["rust-version"],
    }


def rendered(template: str, values: dict[str, str]) -> str:
    """The template with each @NAME@ replaced; fails on a name that has no value."""
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    left = re.findall(r"@[A-Z][A-Z0-9]*@", template)
    if left:
        sys.exit(f"a recipe names {', '.join(sorted(set(left)))}, which scripts/recipes.py does not know")
    return template


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes recipes for Spack and conda.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("--base", help="where the archive will be published", metavar="URL")
    parser.add_argument("--homepage", help="default: the same", metavar="URL")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    values = needs()
    sources = archive(out, values["VERSION"])
    base = (options.base or out.as_uri()).rstrip("/")
    if re.search(r"[\s\"'\\@]", base + (options.homepage or "")):
        sys.exit("a URL has no blanks, quotes, backslashes or @ signs: percent-encode them")
    values["URL"] = f"{base}/{sources.name}"
    values["HOMEPAGE"] = options.homepage or base
    values["SHA256"] = hashlib.sha256(sources.read_bytes()).hexdigest()
    for template, name in RECIPES.items():
        file = out / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rendered((ROOT / template).read_text(), values))
        print(file)
    print(sources)


if __name__ == "__main__":
    main()
