#!/bin/sh
# Runs the tests of integrations/torch, and the samples of the docs, in an environment of their own, because PyTorch
# takes gigabytes.
#
# Usage: scripts/test-torch.sh [FOLDER] [PYTEST ARGUMENTS]
# FOLDER (default: .venv-torch) keeps what was installed for the next run. $ZAZEN_TORCH is what pip installs as
# PyTorch (default: torch), for a build without CUDA from another index. Zazen itself comes from .venv (make install).
set -eu
cd "$(dirname "$0")/.."
case "${1:-}" in
    "" | -*) folder=.venv-torch ;;
    *) folder=$1 && shift ;;
esac
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -x "$folder/bin/python" ]; then
    .venv/bin/python -m venv "$folder"
fi
# What .venv has is seen here too, behind what is installed here.
site .venv/bin/python > "$(site "$folder/bin/python")/zazen.pth"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${ZAZEN_TORCH:-torch>=2.4}" torchdata
export ZAZEN="$PWD/.venv/bin/zazen" ZAZEND="$PWD/.venv/bin/zazend" PATH="$PWD/.venv/bin:$PATH"
export LD_LIBRARY_PATH="$PWD/.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$folder/bin/python" -m pytest -rs integrations/torch tests/docs/test_samples.py "$@"
