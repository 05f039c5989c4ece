"""Each integration is installed by an extra of its own, and costs nobody else anything."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_integration_is_a_package_and_an_extra():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = settings["tool"]["setuptools"]["package-dir"]
    for source in (ROOT / "integrations").glob("*/src"):
        name = source.parent.name
        assert folders[f"zazen.{name}"] == f"integrations/{name}/src"
        assert f"zazen.{name}" in settings["tool"]["setuptools"]["packages"]
        assert name in settings["project"]["optional-dependencies"]


def test_the_core_imports_none_of_them():
    code = "import sys, zazen; sys.exit(bool({'fsspec', 'torch', 'MDAnalysis', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
