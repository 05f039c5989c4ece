"""The page of `make bench-sim`: what it says of goals, from what the bench's parts left."""

import importlib.util
import json
import pathlib
import sys

import pytest

FILE = pathlib.Path(__file__).parents[2] / "bench" / "sim" / "page.py"
FULL = 2_000_376


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("bench_sim_page", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def leave(out, name, rows):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(json.dumps(rows))


def costs(nodes, path_s, hop_s):
    def row(fidelity, cpu_s):
        return {
            "fidelity": fidelity, "nodes": nodes, "events": 1, "cpu_s": cpu_s, "rss_bytes": 330e6,
            "events_per_cpu_s": 6e6,
        }  # fmt: skip

    return [row("path", path_s), row("hop", hop_s)]


def held(goals):
    return {goal.what: goal.held for goal in goals}


def test_what_was_not_run_is_not_held(page, tmp_path):
    goals = page.goals_of(tmp_path, FULL)
    assert [goal.held for goal in goals] == [None] * 4
    assert all("was not run" in goal.found for goal in goals)
    text = page.draw(tmp_path, FULL).read_text()
    assert text.count("not judged") == 4 and "metadata-16/metadata.svg is missing" in text


def test_costs_are_judged_at_two_million_nodes_only(page):
    found = list(held(page.cost_goals(costs(FULL, [59, 61, 58], [601, 602, 1]), FULL)).values())
    assert found == [True, False, True, True]
    assert set(held(page.cost_goals(costs(32_768, [1], [1]), FULL)).values()) == {None}


def test_rows_are_beaten_or_named(page, tmp_path):
    def row(run, error, naive_error, calls=100, repetitions=5):
        return {
            "run": run, "op": "frames.push", "nodes": 3, "calls": calls, "repetitions": repetitions,
            "recorded_s": 1.0, "noise": 0.1, "error": error, "naive_error": naive_error,
            "beside_naive": "alike",
        }  # fmt: skip

    good = row("three", -0.01, 0.5)
    mean, every = page.validation_goals([good, row("four", 0.03, -0.02)])
    assert (mean.held, every.held) == (True, False)
    assert "four frames.push (3.0 % beside 2.0 %" in every.reason and "three" not in every.reason
    # A row of few calls is shown and not judged; fewer repetitions than 5 tell nothing.
    mean, every = page.validation_goals([good, row("few", 0.9, 1.0, calls=3)])
    assert (mean.held, every.held) == (True, True)
    assert page.validation_goals([row("three", 0.01, 0.5, repetitions=1)])[0].held is None
    leave(tmp_path, "validation.json", [good])
    leave(tmp_path, "cost.json", costs(FULL, [70], [1]))
    interval = {"cost_interval": [0.01, 0.03], "control_interval": [-0.01, 0.01], "control": 0.0}
    leave(tmp_path, "span_cost.json", [{"way": "push", "cost": 0.021, **interval}])
    leave(tmp_path, "published/summary.json", [{"nodes": 16_384, "bytes_per_s": 2.58e12}])
    (tmp_path / "published" / "error.svg").write_text("<svg>curve</svg>")
    text = page.draw(tmp_path, FULL).read_text()
    # The path fidelity's time, and the spans; all else holds.
    assert text.count("NOT HELD") == 2 and text.count("not judged") == 0
    assert "<svg>curve</svg>" in text and "<script" not in text
