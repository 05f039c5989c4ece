"""Generated code, compiled with the machine's C compiler and run: what `zazen plugin generate`
promises.

With plug-ins in daemons: test_host.py."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zazen.testing

sys.path.insert(0, str(Path(__file__).parent))
from random_header import Header

ROOT = Path(__file__).parents[2]
SDK = ROOT / "sdk" / "plugin"
HEADERS = ROOT / "crates" / "zazen-stubs" / "tests" / "headers"
HERE = Path(__file__).parent
LOOPBACK = SDK / "loopback" / "zazen_loopback.c"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]
LINK = ["-ldl", "-lpthread"]


def run(*command, status=0, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory):
    """Flags of the sanitizers, or none where this compiler has no runtime for them."""
    # Without optimisation they compile three times as fast; what users compile is optimised, see
    # `as_users_do`.
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O0"]
    folder = tmp_path_factory.mktemp("probe")
    (folder / "a.c").write_text("int main(void) { return 0; }\n")
    probe = subprocess.run(
        ["cc", *flags, folder / "a.c", "-o", folder / "a"], capture_output=True, check=False
    )
    return flags if probe.returncode == 0 else []


def generate(header, out, status=0):
    return run(zazen.testing.program("zazen"), "plugin", "generate", header, "--out", out, status=status)


def compiled(out, *sources, flags=(), includes=(), name="program", status=0):
    paths = [SDK / "include", SDK / "loopback", out, *includes]
    command = ["cc", *STRICT, *flags, *(f"-I{path}" for path in paths), *sources, LOOPBACK, *LINK]
    said = run(*command, "-o", out / name, status=status)
    return out / name if status == 0 else said


def checked(out, source, status=0):
    """What the compiler says of one generated file."""
    paths = [f"-I{path}" for path in (SDK / "include", out)]
    return run("cc", *STRICT, *paths, "-fsyntax-only", out / source, status=status)


@pytest.mark.parametrize("name", ["files", "telescope", "events", "vectors", "extras"])
def test_round_trip_and_fuzz(name, tmp_path, sanitized):
    generate(HEADERS / f"{name}.h", tmp_path)
    program = compiled(tmp_path, tmp_path / f"{name}_roundtrip.c", flags=sanitized, includes=[HEADERS])
    assert "1000 calls of each" in run(program, 1000)
    fuzz = compiled(tmp_path, tmp_path / f"{name}_fuzz.c", flags=sanitized, includes=[HEADERS], name="fuzz")
    assert "20000 messages" in run(fuzz, 20000)
    as_users_do(tmp_path, name, HEADERS)


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
@pytest.mark.parametrize("name", ["files", "telescope", "events", "vectors", "extras", "service"])
@pytest.mark.parametrize("standard", ["gnu++11", "gnu++17"])
def test_clients_compile_as_cpp(name, standard, tmp_path):
    """A C++ program may compile the generated client with its own compiler. C++ has no rule that
    fields which a designated initializer leaves out are zero without a word, so that one warning is
    off."""
    folder = HERE if name == "service" else HEADERS
    generate(folder / f"{name}.h", tmp_path)
    paths = [f"-I{path}" for path in (SDK / "include", tmp_path, folder)]
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    run("g++", *flags, *paths, "-x", "c++", "-c", tmp_path / f"{name}_client.c", "-o", tmp_path / "o")


def as_users_do(out, name, *includes):
    """Compiles client and plug-in by themselves, optimised."""
    for part in ("client", "dispatch"):
        paths = [f"-I{path}" for path in (SDK / "include", out, *includes)]
        run("cc", *STRICT, "-O2", "-fPIC", *paths, "-c", out / f"{name}_{part}.c", "-o", out / "o")


@pytest.mark.parametrize("seed", range(1, 4))
def test_random_headers_compile_and_run(seed, tmp_path, sanitized):
    """Fails with the seed in the test's name: tests/plugin/random_header.py makes the same header
    of it."""
    (tmp_path / "any.h").write_text("#pragma once\n" + Header(seed).text(functions=8))
    generate(tmp_path / "any.h", tmp_path)
    fuzz = compiled(tmp_path, tmp_path / "any_fuzz.c", flags=sanitized, name="fuzz")
    run(fuzz, 2000, seed)
    program = compiled(tmp_path, tmp_path / "any_roundtrip.c", flags=sanitized)
    run(program, 300, seed)
    as_users_do(tmp_path, "any")


BASE = """#pragma once
#include <stdint.h>
struct point { int32_t x, y; };
typedef struct { char text[8]; } name_t;
/* START-ZAZEN-SCANNER ID=5 INIT=NULL FINI=NULL */
int first(int a /* in:obj */, const name_t *b /* in:ptr */);
void second(struct point p /* in:obj */, uint16_t *v /* out:arr:size=+1 */, uint32_t n /* in:obj */);
"""


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("int first(int a", "int first(unsigned a", "changed or was misread"),
        ("int first(int a", "int first(int a /* in:obj */, int z", "changed or was misread"),
        ("int first(", "void first(", "changed or was misread"),
        ("uint16_t *v", "uint16_t **v", "changed or was misread"),
        ("const name_t *b", "name_t *b", "changed or was misread"),
        ("typedef struct { char text[8]; } name_t;", "typedef char *name_t;", "is a pointer"),
        ("int32_t x, y; }", "_Alignas(16) int32_t x, y; }", "aligned beyond"),
        ("struct point { int32_t x, y; }", "struct point { int32_t x[20000]; }", "too large"),
    ],
)
def test_a_header_that_changes_after_generation_does_not_compile(was, becomes, says, tmp_path):
    header = tmp_path / "late.h"
    header.write_text(BASE)
    generate(header, tmp_path)
    checked(tmp_path, "late_client.c")
    assert was in BASE
    header.write_text(BASE.replace(was, becomes))
    for part in ("client", "dispatch"):
        said = checked(tmp_path, f"late_{part}.c", status=1)
        assert says in said, said


def test_a_macro_that_changes_what_is_read_does_not_compile(tmp_path):
    """What the generator can't see, the compiler does."""
    text = BASE.replace("struct point {", "#define int unsigned\nstruct point {")
    (tmp_path / "macro.h").write_text(text)
    generate(tmp_path / "macro.h", tmp_path)
    # The macro renames the type in the generator's prototype as well: it is the type's own proof
    # that fails.
    said = checked(tmp_path, "macro_client.c", status=1)
    assert "is not what travels" in said


@pytest.fixture(scope="session")
def service(tmp_path_factory, sanitized):
    """The service as a shared object and the program that drives it."""
    out = tmp_path_factory.mktemp("service")
    generate(HERE / "service.h", out)
    plugin(out, sanitized, HERE / "service.h")
    program = compiled(
        out, HERE / "service_test.c", out / "service_client.c", flags=sanitized, includes=[HERE], name="drive"
    )
    return out, program


def plugin(out, flags, header):
    paths = [f"-I{path}" for path in (SDK / "include", header.parent, out)]
    sources = [HERE / "service.c", out / "service_dispatch.c"]
    run("cc", *STRICT, *flags, "-shared", "-fPIC", *paths, *sources, "-o", out / "service.so")


def test_a_service_with_clients_handles_and_lies(service):
    out, program = service
    assert "all as expected" in run(program, out / "service.so")


def test_ends_of_different_headers_refuse_each_other(service, tmp_path, sanitized):
    _, program = service
    text = (HERE / "service.h").read_text()
    changed = text.replace("text /* out:str:max=8 */", "text /* out:str:max=9 */")
    assert changed != text
    (tmp_path / "service.h").write_text(changed)
    generate(tmp_path / "service.h", tmp_path)
    shutil.copy(HERE / "service.c", tmp_path)
    paths = [f"-I{path}" for path in (SDK / "include", tmp_path)]
    sources = [tmp_path / "service.c", tmp_path / "service_dispatch.c"]
    run("cc", *STRICT, *sanitized, "-shared", "-fPIC", *paths, *sources, "-o", tmp_path / "service.so")
    assert "schema refused" in run(
        program, tmp_path / "service.so", status=3, env={"ASAN_OPTIONS": "detect_leaks=0"}
    )


def test_the_schema_is_in_the_object(service):
    out, _ = service
    text = (out / "service_schema.json").read_text()
    assert text.encode() in (out / "service.so").read_bytes()
    schema = json.loads(text)
    assert (schema["name"], schema["id"]) == ("service", 77)
    assert [function["index"] for function in schema["functions"]] == list(range(9))
    assert schema["functions"][0]["words"] == ["handle=item"]
    assert re.fullmatch("[0-9a-f]{16}", schema["schema_hash"])


def test_only_the_entry_table_is_exported(service):
    """A plug-in's functions must not be taken for another's of the same name."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    out, _ = service
    exported = {line.split()[-1] for line in run(nm, "-D", "--defined-only", out / "service.so").splitlines()}
    assert "zazen_plugin_v1" in exported
    assert (
        not {name for name in exported if name.startswith("service_")}
        - {"service_log"}
        - {f"service_{hook}" for hook in ("init", "fini", "attach", "detach")}
    )


@pytest.mark.parametrize(
    ("declared", "defined"),
    [
        ("void start(int nproc);", "void start(int nproc) { seen = nproc; }"),
        ("void start(void);", "void start(void) { seen = 6; }"),
        ("int start(int nproc);", "int start(int nproc) { seen = nproc; return 0; }"),
        ("int start(void);", "int start(void) { seen = 6; return 0; }"),
        (
            "struct zazen_host; int start(const struct zazen_host *host);",
            "int start(const struct zazen_host *host) { seen = host->process_count; return 0; }",
        ),
    ],
)
def test_init_in_all_its_forms(declared, defined, tmp_path):
    marker = "/* START-ZOID-SCANNER ID=6 INIT=start FINI=NULL PROC=NULL */"
    (tmp_path / "forms.h").write_text(f"#pragma once\n{declared}\n{marker}\nvoid nothing(void);\n")
    generate(tmp_path / "forms.h", tmp_path)
    (tmp_path / "main.c").write_text(
        '#include "forms_dispatch.c"\n#include "zazen_loopback.h"\nstatic int seen;\n'
        f"void nothing(void) {{}}\n{defined}\n"
        "int main(void) {\n"
        "    struct zazen_loopback_options options = {.struct_size = sizeof options, .process_count = 6};\n"
        "    struct zazen_loopback *loopback = zazen_loopback_start(&zazen_plugin_v1, &options, 0);\n"
        "    zazen_loopback_stop(loopback);\n    return loopback == 0 || seen != 6;\n}\n"
    )
    run(compiled(tmp_path, tmp_path / "main.c"))


def test_an_init_of_another_form_does_not_compile(tmp_path):
    marker = "/* START-ZAZEN-SCANNER ID=6 INIT=start FINI=NULL */"
    (tmp_path / "forms.h").write_text(f"#pragma once\nvoid start(double x);\n{marker}\nvoid nothing(void);\n")
    generate(tmp_path / "forms.h", tmp_path)
    said = checked(tmp_path, "forms_dispatch.c", status=1)
    assert "INIT=start must be" in said


def test_mistakes_are_reported_where_they_are(tmp_path):
    (tmp_path / "bad.h").write_text(
        "/* START-ZAZEN-SCANNER ID=1 INIT=NULL FINI=NULL */\nint f(int a, long b /* in:obj */);\n"
    )
    said = generate(tmp_path / "bad.h", tmp_path / "out", status=1)
    assert "bad.h:2:7: error: parameter `a` has no annotation" in said
    assert "bad.h:2:14: error: `long`" in said
    assert "2 mistakes, nothing generated" in said and not (tmp_path / "out").exists()
    assert "no.h" in generate(tmp_path / "no.h", tmp_path / "out", status=1)


def test_a_warning_does_not_stop_the_generation(tmp_path):
    (tmp_path / "old.h").write_text(
        "/* START-ZOID-SCANNER ID=1 INIT=NULL FINI=NULL PROC=f */\nvoid g(void);\n"
    )
    assert "warning: PROC is recorded" in generate(tmp_path / "old.h", tmp_path)
    assert (tmp_path / "old_wire.h").exists()


def test_the_sdk_is_in_the_tool(tmp_path):
    run(zazen.testing.program("zazen"), "plugin", "sdk", tmp_path)
    files = [*(SDK / "include").iterdir(), *(SDK / "loopback").iterdir()]
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {file.name for file in files} | {"libzazen_stub.so"}
    for file in files:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["files", "telescope", "events", "vectors", "extras"])
def test_rust_accepts_what_is_generated(name, tmp_path):
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("no rustc")
    generate(HEADERS / f"{name}.h", tmp_path)
    flags = ["--edition", "2024", "--crate-type", "lib", "--emit=metadata", "-D", "warnings"]
    run(rustc, *flags, "-o", tmp_path / "out.rmeta", tmp_path / f"{name}.rs")


@pytest.mark.parametrize("name", ["files", "telescope", "events", "vectors", "extras"])
def test_python_accepts_what_is_generated(name, tmp_path):
    """The module is imported; its functions are called in the tutorial and in test_host.py."""
    generate(HEADERS / f"{name}.h", tmp_path)
    run(sys.executable, "-W", "error", "-c", f"import {name}; {name}.Client", cwd=tmp_path)


@pytest.mark.parametrize("header", ["zazen_stub.h", "zazen_plugin.h", "zazen_connect.h", "zazen_loopback.h"])
def test_headers_suit_cpp(header, tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "a.cc").write_text(f'#include "{header}"\nint main() {{ return 0; }}\n')
    paths = [f"-I{SDK / 'include'}", f"-I{SDK / 'loopback'}"]
    run(compiler, "-std=c++11", "-Wall", "-Wextra", "-Werror", *paths, "-fsyntax-only", tmp_path / "a.cc")


def test_the_tutorial_as_typed(tmp_path):
    """docs/plugins.md: each named file, then each command, in a folder of their own."""
    text = (ROOT / "docs" / "plugins.md").read_text().split("## Reference")[0]
    steps = re.findall(r"(?:\*\*`([^`]+)`\*\*\n)?\n?```(\w+)\n(.*?)```", text, flags=re.DOTALL)
    assert len(steps) >= 12
    try:
        for name, language, body in steps:
            if name:
                (tmp_path / name).write_text(body)
            elif language == "sh":
                type_in(body, tmp_path)
    finally:
        pid = tmp_path / "zazend.pid"
        if pid.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


def type_in(body, folder):
    commands, expected = [], []
    for line in body.replace("\\\n", "").splitlines():
        (commands if line.startswith("$ ") else expected).append(line.removeprefix("$ "))
    beside = f"{Path(zazen.testing.program('zazen')).parent}:{Path(sys.executable).parent}"
    clean = zazen.testing.environment()
    environment = {**clean, "PATH": f"{beside}:{os.environ['PATH']}"}
    said = run("sh", "-c", "set -e\n" + "\n".join(commands), cwd=folder, env=environment)
    for line in expected:
        assert line in said, f"{line!r} not in {said!r}"
