"""Jobs go where their dataset is warm: four real nodes of Slurm, a real daemon on each, and an
ordinary user."""

import os
import time

import pytest
import slurm

#: How often each promise is tried. For figures: ZAZEN_SLURM_TIMES=20 ZAZEN_SLURM_AS_SHIPPED=1.
TIMES = int(os.environ.get("ZAZEN_SLURM_TIMES", "3"))


@pytest.fixture
def idle(site):
    """The site, once all nodes are free."""
    slurm.wait_for("all nodes are idle", lambda: set(site.slurm.states().values()) == {"idle"})
    return site


@pytest.fixture
def busy(site):
    """Keeps nodes busy until the test ends."""
    jobs = []

    def hold(*nodes):
        words = ["sbatch", "--parsable", "--output=/dev/null", f"--nodelist={','.join(nodes)}"]
        job = site.slurm.as_user(*words, f"--nodes={len(nodes)}", "--wrap", "sleep 600")
        jobs.append(job)
        slurm.wait_for(f"{nodes} are busy", lambda: site.slurm.field(job, "JobState") == "RUNNING")

    yield hold
    for job in jobs:
        site.slurm.run("scancel", job)
        site.slurm.finish(job)


def free(site):
    slurm.wait_for("all nodes are idle", lambda: set(site.slurm.states().values()) == {"idle"})


def test_a_job_gets_the_nodes_where_its_dataset_is_warm(idle):
    path = idle.load("warm", ["n2", "n3"])
    idle.wait_for_warm(path, ["n2", "n3"])
    directive = f"#!/bin/sh\n#SBATCH --nodes=2\n#ZAZEN dataset={path}/\ntrue\n"
    for _ in range(TIMES):
        free(idle)
        one = idle.submit("--nodes=1", f"--comment=zazen:{path}")
        assert idle.slurm.finish(one) == "COMPLETED"
        assert set(idle.slurm.nodes_of(one)) <= {"n2", "n3"}
        free(idle)
        two = idle.submit(script=directive)
        assert idle.slurm.finish(two) == "COMPLETED"
        assert idle.slurm.nodes_of(two) == ["n2", "n3"]
        free(idle)
        # Two processors a node: three tasks need two nodes, though nobody says so.
        tasks = idle.submit("--ntasks=3", f"--comment=zazen:{path}")
        assert idle.slurm.finish(tasks) == "COMPLETED"
        assert idle.slurm.nodes_of(tasks) == ["n2", "n3"]


def test_a_job_of_more_nodes_than_are_warm_is_accepted_and_gets_warm_ones_too(idle):
    path = idle.load("few", ["n3", "n4"])
    idle.wait_for_warm(path, ["n3", "n4"])
    with_warm = 0
    for tried in range(20):
        free(idle)
        job = idle.submit("--nodes=3", f"--comment=zazen:{path}")
        assert idle.slurm.finish(job) == "COMPLETED"
        with_warm += {"n3", "n4"} < set(idle.slurm.nodes_of(job))
        # Backfill of Slurm 22.05 forgets a count below the job's nodes. The main scheduler, which
        # starts most jobs, does not.
        if with_warm and tried + 1 >= TIMES:
            break
    print(f"{with_warm} of {tried + 1} jobs got the warm nodes, too")
    assert with_warm


def test_while_warm_nodes_are_busy_a_job_starts_elsewhere(idle, busy):
    path = idle.load("busy", ["n2"])
    idle.wait_for_warm(path, ["n2"])
    busy("n2")
    waited = []
    for _ in range(TIMES):
        job = idle.submit("--nodes=1", f"--comment=zazen:{path}")
        assert idle.slurm.finish(job) == "COMPLETED"
        assert idle.slurm.nodes_of(job) != ["n2"]
        waited.append(idle.slurm.seconds_to_start(job))
    print(f"{len(waited)} jobs started elsewhere, after {sorted(waited)} s")


def test_an_evicted_datasets_features_go(idle):
    path = idle.load("evicted", ["n1", "n4"])
    idle.wait_for_warm(path, ["n1", "n4"])
    begun = time.monotonic()
    idle.zazen("evict", path, "--nodes", idle.nodes, "--key", idle.key)
    idle.wait_for_warm(path, [])
    print(f"features were gone {time.monotonic() - begun:.1f} s after the eviction")


def test_what_the_job_needs_counts_more_than_what_is_warm(idle):
    path = idle.load("needs", ["n1"])
    idle.wait_for_warm(path, ["n1"])
    comment = f"--comment=zazen:{path}"
    # Only n4 has the memory; preferring n1 would be refused.
    assert idle.slurm.nodes_of(ended(idle, "--nodes=1", "--mem=300", comment)) == ["n4"]
    # Slurm tries a preference instead of the constraint.
    idle.slurm.run("scontrol", "update", "NodeName=n2", "AvailableFeatures=ssd", "ActiveFeatures=ssd")
    try:
        slurm.wait_for("n2 has ssd", lambda: "ssd" in idle.slurm.features()["n2"])
        table = idle.slurm.folder / "warm"
        slurm.wait_for("the table has ssd", lambda: "ssd" in table.read_text())
        assert idle.slurm.nodes_of(ended(idle, "--nodes=1", "--constraint=ssd", comment)) == ["n2"]
        idle.load("both", ["n1", "n2"])
        both = idle.backing / "both"
        idle.wait_for_warm(both, ["n1", "n2"])
        assert "ssd" in idle.slurm.features()["n2"]
        options = ["--constraint=ssd", f"--comment=zazen:{both}"]
        assert idle.slurm.nodes_of(ended(idle, "--nodes=1", *options)) == ["n2"]
        assert idle.slurm.nodes_of(ended(idle, *options)) == ["n2"]
    finally:
        others = ",".join(name for name in idle.slurm.features()["n2"] if name != "ssd")
        idle.slurm.run(
            "scontrol", "update", "NodeName=n2", f"AvailableFeatures={others}", f"ActiveFeatures={others}"
        )
    # The user's own words about nodes count.
    assert idle.slurm.nodes_of(ended(idle, "--nodelist=n3", comment)) == ["n3"]
    assert idle.slurm.nodes_of(ended(idle, "--nodes=1", "--exclude=n1", comment)) != ["n1"]


def ended(site, *words):
    """A job that ran on free nodes."""
    free(site)
    job = site.submit(*words)
    assert site.slurm.finish(job) == "COMPLETED"
    return job


def test_a_dataset_that_is_nowhere_or_no_path(idle):
    job = idle.submit("--nodes=2", "--comment=zazen:/nowhere/cold")
    assert "zazen: no node that the job can use holds /nowhere/cold now" in idle.said
    assert idle.slurm.finish(job) == "COMPLETED"
    told = idle.slurm.as_user(
        "sbatch", "--nodes=1", "--comment=zazen:sim1", "--output=/dev/null", "--wrap", "true", check=False
    )
    assert "zazen: dataset 'sim1': give its absolute path" in told
    # Other comments are nobody's business.
    assert idle.slurm.finish(idle.submit("--comment=my zazen run")) == "COMPLETED"


def test_a_job_that_waits_for_warm_nodes_that_turn_cold_runs_in_the_end(idle, busy):
    path = idle.load("gone", ["n1", "n2"])
    idle.wait_for_warm(path, ["n1", "n2"])
    busy("n1", "n2", "n3", "n4")
    job = idle.submit("--nodes=2", f"--comment=zazen:{path}")
    idle.zazen("evict", path, "--nodes", idle.nodes, "--key", idle.key)
    idle.wait_for_warm(path, [])
    idle.slurm.run("scancel", "--state=RUNNING", f"--user={idle.slurm.user.pw_name}")
    assert idle.slurm.finish(job) == "COMPLETED"


def test_a_killed_daemon_costs_its_node_the_features_and_the_jobs_until_it_is_back(idle):
    path = idle.load("killed", ["n1", "n2"])
    idle.wait_for_warm(path, ["n1", "n2"])
    # A node that somebody else drained is left alone.
    idle.slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=disk swap")
    begun = time.monotonic()
    idle.daemons["n2"].kill()
    try:
        idle.wait_for_warm(path, ["n1"])
        gone = time.monotonic()
        slurm.wait_for("n2 is drained", lambda: idle.slurm.states()["n2"] == "drained")
        drained = time.monotonic()
        print(f"features gone {gone - begun:.1f} s, node drained {drained - begun:.1f} s after the death")
        shown = idle.slurm.run("scontrol", "show", "node", "n2")
        assert "Reason=zazen: no daemon runs here" in shown
        # Four nodes are not to be had; the job waits and is not lost.
        job = idle.submit("--nodes=3", f"--comment=zazen:{path}")
    finally:
        idle.daemons["n2"].start()
    back = time.monotonic()
    slurm.wait_for("n2 is back", lambda: idle.slurm.states()["n2"] in ("idle", "allocated", "completing"))
    print(f"the node was back {time.monotonic() - back:.1f} s after its daemon")
    idle.wait_for_warm(path, ["n1", "n2"])
    assert idle.slurm.finish(job) == "COMPLETED"
    assert set(idle.slurm.nodes_of(job)) == {"n1", "n2", "n4"}
    assert "Reason=disk swap" in idle.slurm.run("scontrol", "show", "node", "n3")
    idle.slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    free(idle)
