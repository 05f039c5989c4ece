"""The demo's judgement of its own report."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "demo" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report() -> dict:
    def run(name: str, native: int, residue: int) -> dict:
        return {
            "name": name, "seconds": 1.5, "local_share": native / 300, "native": native, "alien": 0,
            "residue": residue, "backing_reads": residue, "result_sha256": "ab" * 32,
            "bytes": 30_000_000, "server_bytes": residue * 100_000,
        }  # fmt: skip

    runs = [
        run("server", 0, 300),
        run("zazen", 300, 0),
        run("one-node-dead", 225, 75),
        run("node-back", 300, 0),
    ]
    push = {
        "pushed": 300, "skipped": 0, "sim_slowdown_percent": 0.5,
        "sim_slowdown_percent_range": [-2.0, 3.0], "compared_blocks": 37,
    }  # fmt: skip
    limit = {"how": "token bucket", "bytes_per_s": 5_000_000}
    return {
        "nodes": 4,
        "frames": 300,
        "frame_bytes": 100_000,
        "runs": runs,
        "push": push,
        "rate_limit": limit,
    }


def test_a_good_report_has_no_fault_and_a_table(demo):
    assert demo.faults(report()) == []
    table = demo.table(report())
    assert "one-node-dead" in table and "token bucket" in table and "75.0 %" in table


@pytest.mark.parametrize(
    ("run", "key", "value"),
    [
        (0, "result_sha256", "cd" * 32),
        (3, "result_sha256", "cd" * 32),
        (1, "local_share", 0.98),
        (1, "backing_reads", 1),
        (1, "server_bytes", 2_000_000),
    ],
)
def test_every_fault_is_seen(demo, run, key, value):
    bad = report()
    bad["runs"][run][key] = value
    assert len(demo.faults(bad)) == 1
