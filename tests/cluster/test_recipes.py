"""Recipes for Spack and conda, and the module file: rendered, read and compared with what a build
needs and with what is installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import types
from pathlib import Path

import pytest
import zazen.viz

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
BASE = "https://packages.example/zazen"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The folder with the rendered recipes."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if told.returncode != 0:
        pytest.skip(f"the archive of the sources is made from a clone: {told.stderr.strip()}")
    return make(tmp_path_factory.mktemp("recipes"), "--base", BASE)


def make(out: Path, *words: str) -> Path:
    program = ROOT / "scripts/recipes.py"
    subprocess.run([sys.executable, program, "--out", out, *words], check=True, timeout=300)
    return out


def checksum(folder: Path) -> str:
    return hashlib.sha256((folder / f"zazen-{VERSION}.tar.gz").read_bytes()).hexdigest()


def test_the_archive_holds_what_a_build_needs_and_is_always_the_same(made, tmp_path):
    with tarfile.open(made / f"zazen-{VERSION}.tar.gz") as archive:
        names = {name.removeprefix(f"zazen-{VERSION}/") for name in archive.getnames()}
    files = {"pyproject.toml", "setup.py", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "LICENSE"}
    assert files <= names, files - names
    assert set(PROJECT["tool"]["zazen"]["share"]) <= names
    assert checksum(make(tmp_path)) == checksum(made)


def test_spacks_recipe(made, monkeypatch):
    """Spack itself comes in no registry: its directives are recorded by names of the same."""
    told: dict[str, list] = {name: [] for name in ("version", "depends_on", "license")}
    spack = types.ModuleType("spack.package")
    for name, calls in told.items():
        setattr(spack, name, lambda *words, calls=calls, **named: calls.append((words, named)))
    spack.PythonPackage = type("PythonPackage", (), {})
    spack.join_path = lambda *parts: "/".join(parts)
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", spack)
    file = made / "spack/packages/zazen/package.py"
    recipe: dict = {}
    exec(compile(file.read_text(), file, "exec"), recipe)
    package = recipe["Zazen"]
    assert package.url == f"{BASE}/zazen-{VERSION}.tar.gz" and package.__doc__
    assert told["version"] == [((VERSION,), {"sha256": checksum(made)})]
    assert told["license"][0][0] == (PROJECT["project"]["license"],)
    rust = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    needs = {words[0].partition("@")[0]: words[0].partition("@")[2] for words, _ in told["depends_on"]}
    assert needs["rust"] == f"{rust}:"
    assert needs["python"].rstrip(":") in PROJECT["project"]["requires-python"]
    assert needs["py-setuptools"].rstrip(":") in PROJECT["build-system"]["requires"][0]
    environment = types.SimpleNamespace(set=lambda *_: None)
    package.stage = types.SimpleNamespace(path="/stage")
    package.setup_build_environment(package(), environment)


def test_condas_recipe(made):
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with dask (requirements/test.txt)")
    text = (made / "conda/recipe.yaml").read_text()
    recipe = yaml.safe_load(text)
    assert recipe["source"] == {"url": f"{BASE}/zazen-{VERSION}.tar.gz", "sha256": checksum(made)}
    assert recipe["context"]["version"] == VERSION
    for program in PROJECT["tool"]["zazen"]["programs"]:
        assert any(program in line.split() for line in recipe["tests"][1]["script"])
    least = PROJECT["project"]["requires-python"]
    assert f"python {least}" in recipe["requirements"]["run"]


def test_condas_recipe_is_rendered_by_its_own_tool(made):
    reason = "no rattler-build; `pip install py-rattler-build` (30 MB) brings it"
    rattler_build = pytest.importorskip("rattler_build", reason=reason)
    file = made / "conda/recipe.yaml"
    (variant,) = rattler_build.Stage0Recipe.from_file(str(file)).render()
    recipe = variant.recipe.to_dict()
    assert (recipe["package"]["name"], recipe["package"]["version"]) == ("zazen", VERSION)
    assert any(need.startswith("rust") for need in recipe["requirements"]["build"])


def test_the_module_file_leads_to_what_is_installed(monkeypatch):
    lupa = pytest.importorskip("lupa", reason="lupa (requirements/test.txt) runs Lua")
    monkeypatch.setenv("ZAZEN_MODULE_ROOT", sys.prefix)
    lua = lupa.LuaRuntime()
    paths: dict[str, str] = {}
    variables: dict[str, str] = {}
    said: list[str] = []
    directives = {
        "isFile": os.path.isfile,
        "setenv": variables.__setitem__,
        "myModuleVersion": lambda: VERSION,
        "pathJoin": lambda *parts: "/".join(parts),
        "prepend_path": paths.__setitem__,
        "conflict": said.append,
        "help": said.append,
        "whatis": said.append,
    }
    for name, directive in directives.items():
        lua.globals()[name] = directive
    lua.execute((ROOT / "packaging/modules/zazen.lua").read_text())
    assert f"Version: {VERSION}" in said and "zazen" in said
    for program in PROJECT["tool"]["zazen"]["programs"]:
        assert Path(paths["PATH"], program).is_file(), paths
    assert Path(paths["MANPATH"], "man1/zazen.1").is_file(), paths
    assert Path(paths["XDG_DATA_DIRS"]).is_dir()
    assert variables == {"PV_PLUGIN_CONFIG_FILE": zazen.viz.plugin_config_path()}
