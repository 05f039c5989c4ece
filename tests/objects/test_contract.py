"""A bucket keeps the promises of every backing store: crates/zazen-backing/tests/contract.rs.

Its tests run against a real S3 server.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import rust_tests  # noqa: E402

from conftest import KEYS  # noqa: E402

TESTED = ["--workspace", "--test", "contract", "--locked"]


def test_a_bucket_keeps_the_contract_of_every_backing_store(own_store, helper):
    programs = rust_tests.built(TESTED)
    assert programs is not None, "the Rust tests could not be built"
    (contract,) = [one for one in programs if "crates/zazen-backing/" in one["manifest_path"]]
    variables = KEYS | {"ZAZEN_TEST_S3": f"127.0.0.1:{own_store.port}", "ZAZEN_OBJECTS": helper}
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
