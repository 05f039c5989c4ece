"""Each rank reads its share; one rank's daemon is disturbed on the way. Rank 0 prints what
happened, as JSON.

Arguments: DATASET VICTIM SIGNAL MOMENT PID. VICTIM is the rank that sends SIGNAL to the daemon PID
at MOMENT: "never", "start" (before the dataset is opened), "opened", "collective:N" (in the N-th
collective of the assignment) or "frame:N" (the N-th frame has been read, and is still held).
"""

import hashlib
import json
import os
import signal
import sys
import time
import warnings

import zazen
from mpi4py import MPI
from zazen._mpi4py import Mpi4pyCarrier


class Disturber:
    """Sends the signal when its moment has come."""

    def __init__(self, mine, name, moment, pid):
        self.moment = moment if mine else "never"
        self.signal = signal.Signals[name]
        self.pid = int(pid)
        self.done = False

    def at(self, moment):
        if self.moment == moment and not self.done:
            self.done = True
            os.kill(self.pid, self.signal)
            # A kill is over when the process is gone or is a zombie; a stop, when it is stopped.
            wanted = "ZX" if self.signal == signal.SIGKILL else "tT"
            while (state := state_of(self.pid)) and state not in wanted:
                assert state not in "ZX", f"daemon {self.pid} had ended before the test stopped it"
                time.sleep(0.001)


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


class Counting:
    """A carrier that tells the disturber of each collective."""

    def __init__(self, carrier, disturber):
        self.inner, self.disturber, self.calls = carrier, disturber, 0
        self.rank, self.size = carrier.rank, carrier.size

    def _call(self, name, *arguments):
        self.disturber.at(f"collective:{self.calls}")
        self.calls += 1
        return getattr(self.inner, name)(*arguments)

    def allreduce_sum(self, words):
        return self._call("allreduce_sum", words)

    def allreduce_or(self, words):
        return self._call("allreduce_or", words)

    def allreduce_xor(self, words):
        return self._call("allreduce_xor", words)

    def alltoallv(self, send):
        return self._call("alltoallv", send)

    def allgatherv(self, mine):
        return self._call("allgatherv", mine)

    def broadcast(self, mine):
        return self._call("broadcast", mine)


def main():
    path, victim, name, moment, pid = sys.argv[1:]
    comm = MPI.COMM_WORLD
    disturber = Disturber(comm.rank == int(victim), name, moment, pid)
    begin = time.monotonic()
    mine, held = {}, []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", zazen.ZazenWarning)
        disturber.at("start")
        with zazen.open(path) as dataset:
            disturber.at("opened")
            # A small read-ahead: most of the frames are not even asked for when the daemon goes.
            frames = dataset.frames(comm=Counting(Mpi4pyCarrier(comm), disturber), memory=65536)
            for frame in frames:
                assert frame.number not in mine, f"frame {frame.number} came twice"
                mine[frame.number] = hashlib.sha256(frame.data).hexdigest()
                held.append(frame)
                disturber.at(f"frame:{len(mine)}")
    # Frames taken before and after stay as they were.
    for frame in held:
        assert hashlib.sha256(frame.data).hexdigest() == mine[frame.number]
    stats = frames.stats
    row = {
        "frames": mine,
        "disturbed": disturber.done,
        "native": stats.native,
        "backing_reads": stats.backing_reads,
        "warnings": [str(warning.message) for warning in told],
        "seconds": time.monotonic() - begin,
    }
    assert sorted(mine) == list(frames.assignment.set)
    rows = comm.gather(row)
    if comm.rank == 0:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
