#!/bin/sh
# Runs the tests of integrations/viz in an environment of their own, those of ParaView and HDFS too, which take minutes.
# Those need scripts/install-paraview.sh and scripts/install-hadoop.sh; otherwise they are skipped and say so.
#
# Usage: scripts/test-viz.sh [FOLDER] [PYTEST ARGUMENTS]
# FOLDER (default: .venv-viz) keeps what was installed for the next run. Zazen itself comes from .venv (make install).
# VTK's wheel renders without an X server; it needs EGL (Debian: libegl1 libgl1).
set -eu
cd "$(dirname "$0")/.."
case "${1:-}" in
    "" | -*) folder=.venv-viz ;;
    *) folder=$1 && shift ;;
esac
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -x "$folder/bin/python" ]; then
    .venv/bin/python -m venv "$folder"
fi
# What .venv has is seen here too, behind what is installed here.
site .venv/bin/python > "$(site "$folder/bin/python")/zazen.pth"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "vtk>=9.3"
export ZAZEN_TEST_PARAVIEW=1 ZAZEN_TEST_HDFS=1
export ZAZEN="$PWD/.venv/bin/zazen" ZAZEND="$PWD/.venv/bin/zazend" PATH="$PWD/.venv/bin:$PATH"
export LD_LIBRARY_PATH="$PWD/.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$folder/bin/python" -m pytest -rs integrations/viz tests/viz "$@"
