"""A rank of the tests: iterates over epochs and writes down what it got. Also launches ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import launching
import zazen.testing
from torch_sample import content, numbers


def launch(carrier, ranks, dataset, sockets, folder, *, epochs, batch_size, stop=None, resume=False):
    """Runs `ranks` processes to their end; what each wrote."""
    job = {
        "carrier": carrier,
        "dataset": str(dataset),
        "sockets": list(sockets),
        "folder": str(folder),
        "epochs": epochs,
        "batch_size": batch_size,
        "stop": stop,
        "resume": resume,
    }
    environment = zazen.testing.environment() | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch_rank", json.dumps(job)]
    if carrier == "mpi":
        subprocess.run(
            [launching.mpiexec(), "-n", str(ranks), *command], env=environment, check=True, timeout=300
        )
    else:
        rendezvous = folder / "rendezvous"
        rendezvous.unlink(missing_ok=True)
        places = [{"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
        running = [subprocess.Popen(command, env=environment | place) for place in places]
        try:
            assert [process.wait(300) for process in running] == [0] * ranks
        finally:
            for process in running:
                process.kill()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def main(job):
    import torch.distributed
    import zazen.torch

    comm = None
    if job["carrier"] == "mpi":
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        rank = comm.Get_rank()
    else:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = torch.distributed.FileStore(job["folder"] + "/rendezvous", ranks)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    socket = job["sockets"][rank % len(job["sockets"])]
    frames = zazen.open(job["dataset"], socket=socket)
    samples = zazen.torch.Dataset(frames)
    sampler = zazen.torch.LocalSampler(frames, job["batch_size"], seed=5, comm=comm)
    kept = Path(job["folder"], f"state{rank}")
    first = 0
    if job["resume"]:
        # Any rank's state will do for all.
        state = torch.load(Path(job["folder"], "state0"), weights_only=False)
        sampler.load_state_dict(state)
        first = state["epoch"]
    told = []
    for epoch in range(job["epochs"]):
        batches, good, rest = [], True, []
        if epoch >= first:
            sampler.set_epoch(epoch)
            stopped = False
            for batch in sampler:
                if stopped:
                    rest.append(batch)
                    continue
                batches.append(batch)
                good &= samples.__getitems__(batch) == [content(numbers()[at]) for at in batch]
                if job["stop"] and [epoch, len(batches)] == list(job["stop"]):
                    torch.save(sampler.state_dict(), kept)
                    stopped = True
        told.append({"batches": batches, "good": good, "rest": rest, "local": sampler.local_share})
    Path(job["folder"], f"rank{rank}.json").write_text(json.dumps(told))
    frames.close()
    if comm is None:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
