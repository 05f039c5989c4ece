"""A daemon and a program that are bound to a CPU each, as by a batch system or a service's unit."""

import os
import subprocess

import pytest
from harness import PREFIX, Daemon, python

CALLS = 2000
# Calls of 64 KiB: between two of them, the program copies.
PROGRAM = f"""
import os, sys
os.sched_setaffinity(0, {{int(sys.argv[2])}})
data = bytes(65536)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in range(64):
    os.pwrite(fd, data, 0)
while sys.stdin.readline():
    for number in range({CALLS}):
        os.pwrite(fd, data, 0)
    print("done", flush=True)
"""


def sleeps_of(daemon: Daemon) -> int:
    """How often threads of the plug-in's processes went to sleep."""
    tasks = []
    for thread in os.listdir(f"/proc/{daemon.pid}/task"):
        with open(f"/proc/{daemon.pid}/task/{thread}/children") as children:
            tasks += [f"/proc/{child}/task" for child in children.read().split()]
    found = 0
    for task in tasks:
        for thread in os.listdir(task):
            with open(f"{task}/{thread}/status") as status:
                lines = dict(line.split(":", 1) for line in status)
            found += int(lines["voluntary_ctxt_switches"])
    return found


def test_a_worker_that_is_bound_to_a_cpu_still_waits_awake(programs):
    """A confined process cannot look at the machine's CPUs. A worker that takes the one that it is
    bound to for all there is would sleep before each call, and each call would wait for its
    wake."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    daemon = Daemon(programs, isolated=True)
    daemon.popen = lambda *words, **more: subprocess.Popen(
        *words, preexec_fn=lambda: os.sched_setaffinity(0, {cpus[1]}), **more
    )
    with daemon:
        command = [*daemon.command(), python(), "-c", PROGRAM, f"{PREFIX}/file", str(cpus[0])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as program:
            seen = []
            # On a busy machine a program can be kept from its CPU again and again.
            while len(seen) < 50 and (not seen or min(seen) > CALLS // 2):
                before = sleeps_of(daemon)
                program.stdin.write("more\n")
                program.stdin.flush()
                assert program.stdout.readline() == "done\n"
                seen.append(sleeps_of(daemon) - before)
            program.stdin.close()
        assert min(seen) <= CALLS // 2, f"of {CALLS} calls so many found the worker asleep: {seen}"
