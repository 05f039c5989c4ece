"""What the kit does for a job on its nodes: variables, daemons of its own, staging."""

import os
import shutil

import pytest
import slurm
from zazen import namespace

FRAMES = 8


@pytest.fixture
def dataset(site):
    """A dataset that no node holds, readable for the user."""
    path = site.backing / "own"
    if not path.exists():
        path.mkdir()
        for number in range(FRAMES):
            (path / f"f-{number}.dcd").write_bytes(os.urandom(5000))
    return path


def outcome(site, script):
    """Runs a batch script to its end; the job, its state and what it said."""
    job = site.submit(script="#!/bin/bash\n" + script)
    state = site.slurm.finish(job)
    said = site.home / f"{job}.out"
    # The file is complete a little later than the job.
    slurm.wait_for("the job's output", said.exists)
    return job, state, said.read_text()


def wait_for_no_folder(site, job):
    folders = [site.jobs_folder(node, job) for node in site.slurm.names]
    slurm.wait_for(f"nothing is left of job {job}", lambda: not any(folder.exists() for folder in folders))


def test_tasks_are_told_their_nodes_daemon(site):
    script = "#SBATCH --nodes=2\nsrun sh -c 'echo \"$SLURMD_NODENAME $ZAZEN_SOCKET $ZAZEN_JOB_DIR\"'\n"
    job, state, said = outcome(site, script)
    assert state == "COMPLETED", said
    at = site.slurm.folder
    expected = [f"{node} {at}/{node}/s {at}/%n/jobs/{job}" for node in site.slurm.nodes_of(job)]
    assert sorted(said.splitlines()) == expected
    # What the user sets counts.
    _, _, said = outcome(site, "export ZAZEN_SOCKET=/mine\nsrun -N1 printenv ZAZEN_SOCKET\n")
    assert said.strip() == "/mine"


# Slurm lets the job's tasks see their own node's daemon; a batch script starts the job's.
START = 'eval "$(zazen job start --backing {backing} -- --free-floor 0)"\n'


def test_a_job_has_daemons_of_its_own_without_root(site, dataset):
    script = (
        "#SBATCH --nodes=2\nset -e\n"
        + START.format(backing=site.backing)
        + f"zazen load {dataset}\n"
        + "zazen status --json > $HOME/status.json\n"
        + f"srun sh -c 'echo \"at $SLURMD_NODENAME $ZAZEN_SOCKET\"; zazen ls {dataset} >/dev/null'\n"
        + "ls -l $ZAZEN_KEY\nzazen job stop\ntest ! -e $ZAZEN_JOB\n"
        + "if zazen job stop; then exit 7; fi\necho done\n"
    )
    job, state, said = outcome(site, script)
    assert state == "COMPLETED", said
    assert "-rw-------" in said and "no daemons of a job were started there" in said
    assert f"{FRAMES} frames" in said
    nodes = site.slurm.nodes_of(job)
    user = site.slurm.user.pw_uid
    for node in nodes:
        socket = f"{site.slurm.folder}/{node}/jobs/{job}/zazen-{user}-{job}/s"
        assert f"at {node} {socket}" in said
    wait_for_no_folder(site, job)


def test_daemons_of_a_job_that_does_not_stop_them_end_with_it(site, dataset):
    job, state, said = outcome(site, START.format(backing=site.backing) + f"zazen load {dataset}\n")
    assert state == "COMPLETED", said
    wait_for_no_folder(site, job)
    # Cancelled in the middle.
    job = site.submit(script="#!/bin/bash\n" + START.format(backing=site.backing) + "echo up\nsleep 600\n")
    said = site.home / f"{job}.out"
    slurm.wait_for("the daemon is up", lambda: said.exists() and "up" in said.read_text())
    site.slurm.as_user("scancel", job)
    site.slurm.finish(job)
    wait_for_no_folder(site, job)
    shutil.rmtree(site.home / ".zazen")


def test_daemons_that_do_not_start_are_an_error_that_says_why(site):
    _, _, said = outcome(
        site, "zazen job start --backing /tmp -- --no-such-flag || echo status $?\nls -A ~/.zazen/jobs\n"
    )
    assert "daemons of 1 nodes" in said and "--no-such-flag" in said
    # Nothing is left of it.
    assert said.splitlines()[-1] == "status 1"
    # A script that stops at errors stops there.
    _, state, _ = outcome(site, 'set -e\neval "$(zazen job start --backing /tmp -- --no-such-flag)"\ntrue\n')
    assert state == "FAILED"
    _, _, said = outcome(site, "zazen job start --backing /tmp --dir here || echo status $?\n")
    assert "--dir here: give an absolute path" in said


def test_trees_are_staged_in_and_out_as_the_user(site):
    space = namespace.Namespace(str(site.namespace))
    space.mkdir("/u")
    user = site.slurm.user
    if os.geteuid() == 0:
        space.chown("/u", user.pw_uid, user.pw_gid)
    source = site.home / "input"
    source.mkdir()
    (source / "it's here").write_bytes(b"x" * 100_000)
    os.chown(source, user.pw_uid, user.pw_gid)
    os.chown(source / "it's here", user.pw_uid, user.pw_gid)
    script = (
        f"#ZAZEN stage_in source={source} destination=/u/in\n"
        f"#ZAZEN stage_out source=/u/in destination={site.home}/output\n"
        f"zazen ls --help >/dev/null\n"
    )
    job, state, said = outcome(site, script)
    assert state == "COMPLETED", said
    staged = site.home / "output/it's here"
    slurm.wait_for("stage-out", staged.exists)
    assert staged.read_bytes() == b"x" * 100_000
    assert staged.stat().st_uid == user.pw_uid
    assert space.read_bytes("/u/in/it's here") == b"x" * 100_000
    slurm.wait_for("the record is removed", lambda: not (site.slurm.folder / "staging" / job).exists())


def test_wrong_directives_are_refused_and_failed_staging_is_said(site):
    for line, why in [
        ("stage_in source=in destination=/u/x", "'source=in': give source=/"),
        ("stage_out source=/u/x", "give source=/… and destination=/…"),
        ("stagein source=/a destination=/b", "there are dataset=, stage_in and stage_out"),
    ]:
        file = site.slurm.folder / "wrong"
        file.write_text(f"#!/bin/sh\n#ZAZEN {line}\ntrue\n")
        told = site.slurm.as_user("sbatch", f"--output={site.home}/wrong", file, check=False)
        assert why in told and "Submitted" not in told
    job = site.submit(script="#!/bin/sh\n#ZAZEN stage_in source=/no/such/tree destination=/u/y\ntrue\n")
    slurm.wait_for(
        "the job is held", lambda: "/no/such/tree" in site.slurm.run("scontrol", "show", "job", job)
    )
    assert site.slurm.field(job, "JobState") == "PENDING"
    site.slurm.as_user("scancel", job)
