"""A bucket keeps the promises of every backing store: crates/zazen-backing/tests/contract.rs.

Its tests run against two real S3 servers: moto, and versitygw where it is built, which checks
signatures and keeps its objects as files.
"""

import os
import subprocess
import sys
from pathlib import Path

import zazen

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import pytest  # noqa: E402
import rust_tests  # noqa: E402

from conftest import daemon, location, read  # noqa: E402

TESTED = ["--workspace", "--test", "contract", "--locked"]


def keep_the_contract(store, helper, **more):
    programs = rust_tests.built(TESTED)
    assert programs is not None, "the Rust tests could not be built"
    (contract,) = [one for one in programs if "crates/zazen-backing/" in one["manifest_path"]]
    variables = store.keys | {"ZAZEN_TEST_S3": f"127.0.0.1:{store.port}", "ZAZEN_OBJECTS": helper} | more
    done = subprocess.run(
        [contract["executable"], "--nocapture"],
        env=os.environ | variables,
        cwd=ROOT / "crates/zazen-backing",
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "no bucket" not in done.stdout


def test_a_bucket_keeps_the_contract_of_every_backing_store(own_store, helper):
    keep_the_contract(own_store, helper)


def test_so_does_one_that_checks_signatures(gateway, helper):
    keep_the_contract(gateway, helper, ZAZEN_TEST_S3_SIGNER=f"127.0.0.1:{gateway.signer.server_port}")


def test_signatures_count(gateway, helper, tmp_path):
    gateway.put("p/run1/frame0.bin", b"zero")
    path = f"s3://{gateway.bucket}/p/run1"
    with daemon(tmp_path, helper, location(gateway), keys=gateway.keys) as running:
        assert read(path, running.socket) == {0: b"zero"}
        for turn in range(20):
            data = b"%04d" % turn
            gateway.put("p/run1/frame0.bin", data)
            assert read(path, running.socket) == {0: data}, f"turn {turn}"
    other = tmp_path / "other"
    other.mkdir()
    false = gateway.keys | {"AWS_SECRET_ACCESS_KEY": "another secret"}
    with (
        daemon(other, helper, location(gateway), keys=false) as running,
        pytest.raises(zazen.PermissionDeniedError, match="refuses the credentials"),
    ):
        read(path, running.socket)
