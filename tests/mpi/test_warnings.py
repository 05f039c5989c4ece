"""A warning that every rank would give comes once for the job."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
SAYS = "no Zazen daemon answers"


def said(launch, dataset, **environment):
    output = launch(4, sys.executable, "-m", "mpi4py", HERE / "warn.py", dataset, **environment)
    assert sum(int(count) for count in re.findall(r"<(\d+)>", output)) > 0, output
    return output.count(SAYS)


def test_once_for_a_job_and_again_for_the_next(launch, dataset, tmp_path):
    environment = {"ZAZEN_SOCKET": tmp_path / "no.sock", "XDG_STATE_HOME": tmp_path / "state"}
    assert [said(launch, dataset, **environment) for _ in range(2)] == [1, 1]


def test_each_rank_where_there_is_no_folder_for_claims(launch, dataset, tmp_path):
    (tmp_path / "file").write_text("")
    environment = {"ZAZEN_SOCKET": tmp_path / "no.sock", "XDG_STATE_HOME": tmp_path / "file"}
    assert said(launch, dataset, **environment) == 4
