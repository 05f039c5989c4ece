#!/bin/sh
# Builds versitygw, an S3 gateway before a file system, into target/versitygw: tests/objects/test_contract.py
# runs against it.
# Some minutes of processor time on two cores; needs Go (Debian: golang, or a newer one of your own).
#
# moto, the other S3 server of the tests, believes every signature. This one checks them.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/${1:-target/versitygw}
command -v go > /dev/null || { echo "no go (Debian: golang)" >&2; exit 1; }
mkdir -p "$folder"
GOBIN=$folder CGO_ENABLED=0 go install -trimpath github.com/versity/versitygw/cmd/versitygw@v1.8.0
"$folder/versitygw" --version
echo "versitygw is in $folder"
