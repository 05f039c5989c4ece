"""Bounds of users and datasets in the frame cache of a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import zazen
import zazen.testing

FRAME_BYTES = 300_000


def dataset(folder: Path, frames: int, uid: int | None = None) -> Path:
    """A dataset of files, which belong to user `uid`."""
    folder.mkdir(parents=True)
    for number in range(frames):
        file = folder / f"f-{number}.bin"
        file.write_bytes(bytes([number]) * FRAME_BYTES)
        if uid is not None:
            os.chown(file, uid, -1)
    return folder


def zazen_tool(*words: object, status: int = 0) -> str:
    told = subprocess.run(
        [zazen.testing.program("zazen"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env=zazen.testing.environment(),
    )
    assert told.returncode == status, (words, told.stdout, told.stderr)
    return told.stdout + told.stderr


def status(daemon: zazen.testing.Daemon) -> dict:
    (node,) = json.loads(zazen_tool("status", "--json", "--socket", daemon.socket))["nodes"]
    return node["status"]


def cached(daemon: zazen.testing.Daemon) -> dict[str, int]:
    """Frames here, by the name of their dataset."""
    here = status(daemon)["datasets"]
    return {Path(one["path"]).name: one["natives"] + one["aliens"] for one in here}


def quotas(daemon: zazen.testing.Daemon) -> list[dict]:
    return status(daemon)["quotas"]


def read(path: Path, daemon: zazen.testing.Daemon) -> dict[int, int]:
    """The first byte of each frame."""
    with zazen.open(path, socket=str(daemon.socket)) as opened:
        return {number: bytes(data)[0] for number, data, _ in opened.frames()}


def test_a_user_at_its_budget_costs_nobody_else(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("files of two users: needs root")
    sources = tmp_path / "backing"
    other = dataset(sources / "other", 5, 1002)
    old, new = dataset(sources / "old", 5, 1001), dataset(sources / "new", 5, 1001)
    bound = ["--budget", "16M", "--user-budget", "1001=2M"]
    with zazen.testing.Daemon(tmp_path, sources, bound) as daemon:
        for one in (other, old, new):
            zazen_tool("load", one, "--socket", daemon.socket)
        # A new frame took the place of the user's older ones, and of nobody's before them.
        here = cached(daemon)
        assert here["other"] == 5 and here["new"] == 5 and here.get("old", 0) == 0, here
        (row,) = [row for row in quotas(daemon) if row.get("user") == 1001]
        assert row["budget"] == 2 << 20 and 5 * FRAME_BYTES <= row["used"] <= 2 << 20, row
        # What has no room is read all the same.
        for one in (other, old, new):
            assert read(one, daemon) == {number: number for number in range(5)}


def test_a_dataset_at_its_budget_is_read_through_and_the_bound_can_change(tmp_path):
    sources, settings = tmp_path / "backing", tmp_path / "zazend.toml"
    large, small = dataset(sources / "large", 12), dataset(sources / "small", 3)
    settings.write_text('dataset_budget = ["1M"]\nuser_budget = "none"\n')
    with zazen.testing.Daemon(tmp_path, sources, ["--budget", "16M", "--config", settings]) as daemon:
        assert read(large, daemon) == {number: number for number in range(12)}
        assert read(small, daemon) == {number: number for number in range(3)}
        here = cached(daemon)
        assert 1 <= here["large"] <= 3 and here["small"] == 3, here
        settings.write_text(f'dataset_budget = ["1M", "{large}=8M"]\n')
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 30
        while not any(row.get("folder") == str(large) for row in quotas(daemon)):
            assert time.monotonic() < until, daemon.log.read_text()
            time.sleep(0.05)
        assert "user_budget and dataset_budget" in daemon.log.read_text()
        assert read(large, daemon) == {number: number for number in range(12)}
        zazen_tool("load", large, "--socket", daemon.socket)
        assert cached(daemon)["large"] == 12


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--dataset-budget", "/nowhere=1G", "beneath none of this node's backing stores"),
        ("--user-budget", "no-such-user-here=1G", "knows no user"),
        ("--user-budget", "1001=much", "user_budget"),
    ],
)
def test_a_wrong_budget_is_told_at_the_start(tmp_path, flag, value, said):
    (tmp_path / "backing").mkdir()
    with pytest.raises(RuntimeError, match=said):
        zazen.testing.Daemon(tmp_path, tmp_path / "backing", [flag, value]).start()
