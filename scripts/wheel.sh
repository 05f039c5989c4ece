#!/usr/bin/env bash
# Builds the wheel for glibc 2.28 and later and checks that it asks for nothing newer. Usage: wheel.sh BIN, where BIN is
# the folder of a Python with requirements/wheel.txt.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
export PATH="$bin:$PATH"
glibc=2.28
machine=$(uname -m)
rm -rf build dist/*.whl
ZAZEN_TARGET="$machine-unknown-linux-gnu.$glibc" \
  "$bin/python" -m build --wheel --no-isolation --outdir build/wheel .
# Renames the wheel to the oldest platform that its symbols allow, and fails where that is newer than ours.
"$bin/python" -m auditwheel repair --plat "manylinux_${glibc/./_}_$machine" --only-plat --wheel-dir dist build/wheel/*.whl
"$bin/python" - dist/*.whl <<'END'
"""The preload library's constructors run first, also after auditwheel."""
import pathlib, sys, tempfile, zipfile
sys.path.insert(0, "scripts")
from initfirst import is_first
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(sys.argv[1]) as wheel:
    name, = [name for name in wheel.namelist() if name.endswith("/lib/libzazen_preload.so")]
    if not is_first(pathlib.Path(wheel.extract(name, folder))):
        sys.exit(f"{sys.argv[1]}: {name} is not marked as the first to be initialised")
END
ls -l dist/*.whl
