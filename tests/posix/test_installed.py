"""Installed software below the prefix: programs, the libraries that they need, and modules."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from harness import PREFIX, python

DEEP = "int deep(void) { return 40; }\n"
MIDDLE = "int deep(void); int middle(void) { return deep() + 2; }\n"
MAIN = '#include <stdio.h>\nint middle(void); int main(void) { printf("%d\\n", middle()); return 0; }\n'
OPENER = """#include <dlfcn.h>
#include <stdio.h>
int main(int c, char **v) {
    for (int i = 1; i < c; i++) {
        void *library = dlopen(v[i], RTLD_NOW);
        int (*middle)(void) = library ? (int (*)(void))dlsym(library, "middle") : NULL;
        printf("%s %d\\n", library ? "opened" : "no", middle ? middle() : -1);
        if (library && dlopen(v[i], RTLD_NOW) != library) puts("twice");
    }
    return 0;
}
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A tree as an installation has it: bin, lib, lib/deep, with rpaths by $ORIGIN."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    tree = tmp_path_factory.mktemp("installed")
    for name in ("bin", "lib/deep"):
        (tree / name).mkdir(parents=True)
    for name, text in (("deep", DEEP), ("middle", MIDDLE), ("main", MAIN), ("opener", OPENER)):
        (tree / f"{name}.c").write_text(text)

    def compile(*words):
        subprocess.run(["cc", *words], cwd=tree, check=True)

    compile("-shared", "-fPIC", "-o", "lib/deep/libdeep.so", "deep.c")
    middle = ["-shared", "-fPIC", "-o", "lib/libmiddle.so", "middle.c", "-Llib/deep", "-ldeep"]
    compile(*middle, "-Wl,-rpath,$ORIGIN/deep")
    compile(
        "-o",
        "bin/main",
        "main.c",
        "-Llib",
        "-lmiddle",
        "-Llib/deep",
        "-Wl,-rpath,$ORIGIN/../lib",
        "-Wl,-rpath-link,lib/deep",
    )
    compile("-o", "bin/bare", "main.c", "-Llib", "-lmiddle", "-Wl,-rpath-link,lib/deep")
    compile("-o", "bin/opener", "opener.c", "-ldl")
    compile("-shared", "-fPIC", "-o", "lib/liballin.so", "middle.c", "deep.c")
    return tree


def copy(installed: Path, far: Path) -> None:
    shutil.copytree(installed, far / "i")


@pytest.mark.parametrize(
    "options", [[], ["--direct"], ["--abort-on-escape"]], ids=["forwarded", "direct", "strict"]
)
def test_an_installed_program_finds_its_libraries(daemon, installed, options):
    daemon.empty()
    copy(installed, daemon.far)
    script = f"""
        {PREFIX}/i/bin/main; cd {PREFIX}/i/bin && ./main; PATH={PREFIX}/i/bin:$PATH main
        LD_LIBRARY_PATH={PREFIX}/i/lib ./bare
        LD_LIBRARY_PATH=../lib:/nothing bare 2>&1 || LD_LIBRARY_PATH=../lib ./bare
        ./opener {PREFIX}/i/lib/libmiddle.so ../lib/libmiddle.so ../lib/liballin.so libnone.so {PREFIX}/none.so
        cp opener /tmp/zazen-opener.$$ && /tmp/zazen-opener.$$ {PREFIX}/i/lib/libmiddle.so; rm /tmp/zazen-opener.$$
    """
    done = daemon.run("bash", "-c", script, options=options)
    lines = [
        line for line in done.stdout.splitlines() if "cannot open" not in line and "not found" not in line
    ]
    opened = ["opened 42"] * 3 + ["no -1"] * 2 + ["opened 42"]
    assert lines == ["42"] * 5 + opened, done.stdout + done.stderr


MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "answers", "", -1, methods};
PyMODINIT_FUNC PyInit_answers(void) { return PyModule_Create(&module); }
"""


@pytest.mark.parametrize("where", ["daemon", "node"])
def test_extension_modules_below_the_prefix(request, where, tmp_path):
    """A compiled module, and numpy with the libraries that it brings, on this machine."""
    daemon = request.getfixturevalue(where)
    daemon.empty()
    include = Path(sysconfig.get_paths()["include"])
    if shutil.which("cc") is None or not (include / "Python.h").exists():
        pytest.skip("cc or Python.h is not installed")
    (tmp_path / "answers.c").write_text(MODULE)
    module = daemon.far / f"answers{sysconfig.get_config_var('EXT_SUFFIX')}"
    words = ["cc", "-shared", "-fPIC", f"-I{include}", "-o", module, tmp_path / "answers.c"]
    subprocess.run(words, check=True)
    code = f"import sys; sys.path.insert(0, {PREFIX!r}); import answers; "
    code += "print(answers.answer(), answers.__file__)"
    done = daemon.run(python(), "-c", code)
    assert done.stdout == f"42 {PREFIX}/{module.name}\n", done.stderr


def test_numpy_below_the_prefix(daemon):
    import numpy

    daemon.empty()
    folder = Path(numpy.__file__).parent
    shutil.copytree(folder, daemon.far / "numpy")
    libraries = folder.parent / "numpy.libs"
    if libraries.exists():
        shutil.copytree(libraries, daemon.far / "numpy.libs")
    code = f"""
import sys
sys.path[:] = [{PREFIX!r}] + [p for p in sys.path if "site-packages" not in p]
import numpy
print(numpy.__file__, (numpy.arange(6.0).reshape(2, 3) @ numpy.ones((3, 2))).sum())
"""
    done = daemon.run(python(), "-c", code)
    assert done.stdout == f"{PREFIX}/numpy/__init__.py 30.0\n", done.stderr
