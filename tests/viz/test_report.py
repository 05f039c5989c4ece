"""`zazen viz report`: sums of hand-written records, and records that are none."""

import json
import statistics
import subprocess

import zazen.testing


def report(*words, code=0):
    command = [zazen.testing.program("zazen"), "viz", "report", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def record(folder, rank, *lines):
    folder.mkdir(exist_ok=True)
    text = "".join(
        json.dumps({"rank": rank, "ranks": 2, "strategy": "optimal"} | line) + "\n" for line in lines
    )
    (folder / f"rank-{rank:06}.jsonl").write_text(text)


def test_steps_and_calls_are_summed(tmp_path):
    run = tmp_path / "run"
    calls = [[0.1, 0.2], [0.3], [0.4, 5.0]]
    record(
        run, 0,
        {"step": 0, "time": 0.0, "seconds": 12.0, "wait_s": 2.0, "reads_s": calls[0], "local_bytes": 10},
        {"step": 1, "time": 0.5, "seconds": 1.0, "wait_s": 0.5, "reads_s": calls[1], "store_bytes": 7},
    )  # fmt: skip
    record(
        run, 1,
        {"step": 0, "time": 0.0, "seconds": 3.0, "wait_s": 1.0, "reads_s": calls[2], "remote_bytes": 5},
        {"step": 1, "time": 0.5, "seconds": 2.0, "wait_s": 1.5, "reads_s": [], "kept": True},
    )  # fmt: skip
    (found,) = json.loads(report(run, "--json").stdout)
    assert (found["ranks"], found["strategy"], found["within_10_s"]) == (2, "optimal", 0.5)
    first, second = found["steps"]
    assert (first["local_bytes"], first["remote_bytes"], first["seconds"]) == (10, 5, 12.0)
    assert (first["wait_s_mean"], first["wait_s_max"], first["slowest_rank"]) == (1.5, 2.0, 0)
    assert (second["store_bytes"], second["slowest_rank"]) == (7, 1)
    names = ("rank", "local_bytes", "wait_s", "kept")
    shares = [[tuple(share[name] for name in names) for share in step["ranks"]] for step in (first, second)]
    assert shares == [[(0, 10, 2.0, False), (1, 0, 1.0, False)], [(0, 0, 0.5, False), (1, 0, 1.5, True)]]
    rows = [line.split() for line in report(run, "--ranks").stdout.splitlines()]
    assert sum(row[-1:] == ["kept"] for row in rows) == 2, "the step, and rank 1 of it"
    assert len(rows) == len(report(run).stdout.splitlines()) + 4
    every = [call for own in calls for call in own]
    assert abs(found["reads"]["mean_s"] - statistics.mean(every)) < 1e-12
    assert abs(found["reads"]["deviation_s"] - statistics.pstdev(every)) < 1e-12
    page = tmp_path / "page.html"
    assert "50.0 % of steps within 10 s" in report(run, run, "--html", page).stdout
    text = page.read_text()
    assert text.count("<circle") == 2 * len(every) and text.count('class="deviation"') == 2
    # No call is beyond three deviations; one of a hundred equal ones is.
    assert "#d22" not in text
    record(tmp_path / "odd", 0, {"step": 0, "time": 0.0, "reads_s": [0.1] * 99 + [9.0]})
    report(tmp_path / "odd", "--html", page)
    assert page.read_text().count("#d22") == 1


def test_what_is_no_record_is_named(tmp_path):
    assert "ZAZEN_VIZ_RECORD" in report(tmp_path, code=1).stderr
    (tmp_path / "rank-000000.jsonl").write_text('{"step": 0}\n{"step"\n')
    assert "line 2" in report(tmp_path, code=1).stderr
    (tmp_path / "rank-000000.jsonl").write_text("[1]\n")
    assert "line 1: no record" in report(tmp_path, code=1).stderr
    assert "gone" in report(tmp_path / "gone", code=1).stderr


def test_records_of_two_runs_are_not_added_up(tmp_path):
    step = {"step": 0, "time": 0.0, "seconds": 1.0}
    record(tmp_path / "two", 0, step, step | {"strategy": "blind"})
    said = report(tmp_path / "two", code=1).stderr
    assert "several runs" in said and "blind" in said and "folder of its own" in said
    record(tmp_path / "sizes", 0, step | {"ranks": 4})
    record(tmp_path / "sizes", 1, step)
    assert "4 ranks" in report(tmp_path / "sizes", code=1).stderr
    # Some ranks wrote elsewhere, such as into a folder of their own node.
    record(tmp_path / "half", 1, step)
    assert "1 of the run's 2 ranks" in report(tmp_path / "half").stderr


def test_a_run_that_was_done_again_is_another_run(tmp_path):
    """The second run would pass for steps that were shown again."""
    step = {"step": 0, "time": 0.0, "seconds": 1.0}
    record(tmp_path / "again", 0, step | {"run": "a"}, step | {"run": "a"})
    (found,) = json.loads(report(tmp_path / "again", "--json").stdout)
    assert len(found["steps"]) == 2
    record(tmp_path / "two", 0, step | {"run": "a"}, step | {"run": "b"})
    said = report(tmp_path / "two", code=1).stderr
    assert "several runs; record each run in a folder of its own" in said
