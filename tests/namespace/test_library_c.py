"""The namespace's C interface: the example, compiled with strict warnings and under the address
sanitizer."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import zazen
import zazen.testing
from zazen import namespace

ROOT = Path(__file__).parents[2]
STRICT = ["-std=c99", "-D_XOPEN_SOURCE=700", "-Wall", "-Wextra", "-Wconversion", "-Werror"]

LIES = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <zazen.h>
#define WANT(call, number) \
    do { \
        if ((call) == ZAZEN_OK || zazen_last_errno() != (number)) { \
            fprintf(stderr, "line %d: errno %d: %s\n", __LINE__, zazen_last_errno(), zazen_last_error()); \
            return 1; \
        } \
    } while (0)

int main(void)
{
    zazen_namespace_t *space;
    zazen_file_t *file;
    zazen_stat_t stat = {.struct_size = 0};
    char host[1];
    int64_t node;
    int errnos[2];
    const char *names[2] = {"a", "a"};
    const char *odd[1] = {"a/b"};
    if (zazen_namespace_open(NULL, NULL) == ZAZEN_OK || zazen_namespace_open(NULL, &space) != ZAZEN_OK) {
        return 1;
    }
    WANT(zazen_namespace_stat(NULL, "/", 1, &stat), EINVAL);
    WANT(zazen_namespace_stat(space, NULL, 1, &stat), EINVAL);
    WANT(zazen_namespace_stat(space, "/", 1, &stat), EINVAL);
    WANT(zazen_file_open(space, "/none", O_RDONLY, 0, &file), ENOENT);
    WANT(zazen_file_open(space, "/", O_WRONLY, 0, &file), EISDIR);
    WANT(zazen_file_open(space, "/x", O_RDONLY | O_TRUNC, 0, &file), EINVAL);
    WANT(zazen_file_open(space, "/x", O_RDWR | O_DIRECTORY, 0, &file), EINVAL);
    WANT(zazen_namespace_create_many(space, "/", odd, 1, 0644, NULL), EINVAL);
    WANT(zazen_namespace_create_many(space, "/", names, 2, 0644, NULL), EEXIST);
    if (zazen_namespace_create_many(space, "/", names, 2, 0644, errnos) != ZAZEN_OK || errnos[0] != EEXIST) {
        return 1;
    }
    if (zazen_file_open(space, "/a", O_WRONLY | O_APPEND, 0, &file) != ZAZEN_OK) {
        return 1;
    }
    if (zazen_file_write(file, "one,", 4, 77) != ZAZEN_OK || zazen_file_write(file, "two", 3, 0) != ZAZEN_OK) {
        return 1;
    }
    if (zazen_file_close(file) != ZAZEN_OK) {
        return 1;
    }
    WANT(zazen_namespace_locate(space, "/a", &node, host, sizeof host), ERANGE);
    WANT(zazen_namespace_list(space, "/a", NULL, NULL), EINVAL);
    WANT(zazen_namespace_rename(space, "/none", "/x"), ENOENT);
    stat.struct_size = sizeof stat;
    if (zazen_namespace_stat(space, "/a", 1, &stat) != ZAZEN_OK || stat.bytes != 7) {
        return 1;
    }
    if (zazen_namespace_mkdir(space, "/d", 0755) != ZAZEN_OK || zazen_namespace_remove(space, "/d") != ZAZEN_OK) {
        return 1;
    }
    zazen_namespace_close(space);
    zazen_namespace_close(NULL);
    return zazen_file_close(NULL);
}
"""


@pytest.fixture
def folder():
    folder = Path(tempfile.mkdtemp(prefix="znc-", dir="/tmp"))
    (folder / "backing").mkdir()
    (folder / "node").mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def library():
    try:
        return os.environ.get("ZAZEN_LIBRARY") or zazen.get_library()
    except zazen.NotFoundError as error:
        pytest.skip(str(error))


def compiled(folder, source, flags):
    program = folder / f"{source.stem}-{len(flags)}"
    found = library()
    command = ["cc", *STRICT, *flags, "-I", ROOT / "bindings/c/include", source, found]
    command += [f"-Wl,-rpath,{Path(found).resolve().parent}", "-o", program]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run(daemon, *words):
    done = subprocess.run(
        list(map(str, words)),
        env=zazen.testing.environment() | {"ZAZEN_SOCKET": str(daemon.socket)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_and_wrong_calls(folder):
    lies = folder / "lies.c"
    lies.write_text(LIES)
    arguments = ["--namespace", folder / "data", "--namespace-format", "--namespace-root", "trust"]
    daemon = zazen.testing.Daemon(folder / "node", folder / "backing", arguments=arguments)
    with daemon:
        sanitized = ["-g", "-fsanitize=address", "-fno-omit-frame-pointer"]
        for number, flags in enumerate((["-O1"], sanitized)):
            program = compiled(folder, ROOT / "examples/c/namespace_files.c", flags)
            said = run(daemon, program, f"/run{number}", 1500)
            assert said == "entries 1501 bytes 13 node 1\n"
        ns = namespace.Namespace(daemon.socket)
        assert ns.read_bytes("/run0/written") == b"hello from C\0"
        run(daemon, compiled(folder, lies, sanitized))
        assert ns.read_bytes("/a") == b"one,two"
