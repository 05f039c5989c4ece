"""The package's surface: documented, typed, complete."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import zazen
import zazen.testing
from zazen import _zazen

STUBS = Path(zazen.__file__).with_name("_zazen.pyi")


def members(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


def test_every_public_name_is_documented():
    for name in zazen.__all__:
        thing = getattr(zazen, name)
        if isinstance(thing, str):
            continue
        assert thing.__doc__, name
        if inspect.isclass(thing):
            for member in members(thing) - {"kind", "code", "errno"}:
                assert getattr(thing, member).__doc__, f"{name}.{member}"
    assert zazen.__doc__ and zazen.testing.__doc__ and zazen.testing.Cluster.__doc__


def test_all_is_all():
    public = {name for name in vars(zazen) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(zazen, name))}
    imported = {"annotations", "Any", "Mapping", "Path"}
    assert public - modules - imported == set(zazen.__all__) - {"__version__"}


def test_stubs_say_what_is_there():
    stubs = ast.parse(STUBS.read_text())
    stubbed = {node.name: node for node in stubs.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(stubbed) == {name for name in vars(_zazen) if not name.startswith("__")}
    for name, node in stubbed.items():
        thing = getattr(_zazen, name)
        if isinstance(node, ast.FunctionDef):
            check_signature(node, thing)
            continue
        functions = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
        if issubclass(thing, BaseException):
            continue
        assert {f for f in functions if not f.startswith("__")} == members(thing), name
        for method, stub in functions.items():
            runtime = vars(thing).get(method)
            if not method.startswith("__") and not stub.decorator_list:
                check_signature(stub, runtime)


def check_signature(stub, runtime):
    """Same parameters, same defaults."""
    if any(ast.unparse(argument.annotation or ast.Constant(0)) == "" for argument in stub.args.args):
        return
    parameters = [p for p in inspect.signature(runtime).parameters.values() if p.name != "self"]
    arguments = [a for a in stub.args.args + stub.args.kwonlyargs if a.arg != "self"]
    assert [p.name for p in parameters] == [a.arg for a in arguments], stub.name
    given = [ast.literal_eval(d) for d in stub.args.defaults + stub.args.kw_defaults if d is not None]
    actual = [p.default for p in parameters if p.default is not inspect.Parameter.empty]
    assert given == actual, stub.name


def test_version_and_c_files():
    assert zazen.__version__.count(".") == 2
    if not Path(zazen.__file__).with_name("include").is_dir():
        with pytest.raises(zazen.NotFoundError):
            zazen.get_include()
        pytest.skip("this installation carries no C library")
    include = Path(zazen.get_include())
    assert {"zazen.h", "zazen_mpi.h"} <= {path.name for path in include.iterdir()}
    assert Path(zazen.get_library()).is_file()


def test_programs_are_found(monkeypatch):
    assert Path(zazen.testing.program("zazend")).is_file()
    monkeypatch.setenv("ZAZEND", "/somewhere/zazend")
    assert zazen.testing.program("zazend") == "/somewhere/zazend"
    with pytest.raises(FileNotFoundError, match="NO-SUCH-PROGRAM"):
        zazen.testing.program("no-such-program")


def test_shells_and_man_find_zazen():
    share = Path(zazen.testing.program("zazen")).resolve().parent.parent / "share"
    if not share.is_dir() or not (share / "zazen").is_dir():
        pytest.skip("zazen is not in an installation: cargo built it")
    bash = (share / "bash-completion/completions/zazen").read_text()
    assert "explain" in bash and "complete -F" in bash
    assert (share / "zsh/site-functions/_zazen").read_text().startswith("#compdef zazen")
    assert "complete -c zazen" in (share / "fish/vendor_completions.d/zazen.fish").read_text()
    pages = {page.name for page in (share / "man/man1").iterdir()}
    assert {"zazen.1", "zazen-push.1", "zazen-explain.1"} <= pages


def test_import_is_light():
    """A reader on a laptop needs neither numpy nor MPI."""
    heavy = "{'numpy', 'mpi4py', 'MDAnalysis'} & set(sys.modules)"
    code = f"import sys, zazen, zazen.testing; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)
