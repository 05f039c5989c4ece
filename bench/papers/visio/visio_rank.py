"""A rank of the bench: shows all steps of data sets in HDFS by several strategies, in turns.

python visio_rank.py JOB    JOB is JSON: "indexes", "strategies", "repeats", "render_s" (0: none),
"ahead". Rank 0 prints JSON: by index and strategy, the samples: seconds, bytes, remote bytes of all
ranks and of the rank with most, and the seconds of each rank's steps.
"""

import json
import sys
import time
import warnings

import zazen.viz
from mpi4py import MPI
from vtkmodules.vtkFiltersCore import vtkContourFilter

COMM = MPI.COMM_WORLD


def render(block, seconds):
    """Contours, again and again for so long, as a picture is made."""
    until = time.perf_counter() + seconds
    contour = vtkContourFilter()
    contour.SetInputData(block)
    contour.SetInputArrayToProcess(0, 0, 0, 0, "salinity")
    value = 35.5
    while time.perf_counter() < until:
        contour.SetValue(0, value)
        contour.Update()
        value += 0.001


def shown(index, strategy, job):
    """One pass over all steps with a fresh reader."""
    reader = zazen.viz.Reader(index, strategy=strategy, ahead=job["ahead"])
    times = reader.GetTimestepValues()
    plans = [reader.visualization.plan(step) for step in range(len(times))]
    sizes = [step.bytes for step in reader.visualization.steps]
    remote = sum(
        size
        for plan, step in zip(plans, sizes, strict=True)
        for size, rank, local in zip(step, plan.rank_of_file, plan.is_local, strict=True)
        if rank == COMM.rank and not local
    )
    COMM.barrier()
    begun, waits = time.perf_counter(), []
    for moment in times:
        began = time.perf_counter()
        data = reader.update(moment)
        waits.append(time.perf_counter() - began)
        if job["render_s"]:
            own = [data.GetBlock(at) for at in range(data.GetNumberOfBlocks()) if data.GetBlock(at)]
            if own:
                render(own[0], job["render_s"])
    COMM.barrier()
    seconds = time.perf_counter() - begun
    every = COMM.gather((remote, waits), root=0)
    if COMM.rank != 0:
        return None
    return {
        "seconds": seconds,
        "bytes": sum(map(sum, sizes)),
        "remote": sum(each for each, _ in every),
        "remote_most": max(each for each, _ in every),
        "waits": [wait for _, own in every for wait in own],
    }


def main():
    warnings.simplefilter("ignore")
    job = json.loads(sys.argv[1])
    cases = [(index, strategy) for index in job["indexes"] for strategy in job["strategies"]]
    samples = {f"{index} {strategy}": [] for index, strategy in cases}
    for turn in range(job["repeats"]):
        for index, strategy in cases if turn % 2 == 0 else reversed(cases):
            samples[f"{index} {strategy}"].append(shown(index, strategy, job))
    if COMM.rank == 0:
        print("SAMPLES " + json.dumps(samples))


main()
