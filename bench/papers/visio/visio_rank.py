"""A rank of the bench: shows all steps of data sets in several ways, in turns.

python visio_rank.py JOB    JOB is JSON: "cases", "repeats", "render" (how often as long as the
slowest read each picture takes; 0: none), "ahead" (steps; each case that does not say its own is
then measured with each),
"cold" (folders whose files leave the page cache before each pass).

A case has a "name", "index" (in HDFS), "local" (the same data in this machine's files), "strategy"
and "kind": "hdfs" (local replicas opened as files), "http" (all bytes from data nodes), "server"
(bytes from "servers", in stripes), "disk" (the rank's files from this machine, no network), "bare"
(the same with nothing but VTK's reader, and ranks that go from step to step together).

Rank 0 prints JSON: by case, the samples: seconds, processor seconds of all ranks, bytes, remote
bytes of all ranks and of the rank with most, how many times as long as with even shares the nodes'
disks need at least for all bytes, and by rank the seconds of each step.
"""

import itertools
import json
import os
import socket
import sys
import time
import warnings

import zazen.viz
from mpi4py import MPI
from vtkmodules.vtkFiltersCore import vtkContourFilter
from vtkmodules.vtkIOXML import vtkXMLImageDataReader
from zazen.viz.parts import read_part
from zazen.viz.visualization import Alone, Memory, Visualization, stock

COMM = MPI.COMM_WORLD
PORT = 7000
STRIPE_BYTES = 1 << 20
CONFIGURED = os.environ.get("HADOOP_CONF_DIR", "/nowhere")


def render(blocks, seconds):
    """Contours, again and again for so long, as a picture is made."""
    until = time.perf_counter() + seconds
    contour = vtkContourFilter()
    contour.SetInputData(blocks[0])
    contour.SetInputArrayToProcess(0, 0, 0, 0, "salinity")
    value = 35.5
    while time.perf_counter() < until:
        contour.SetValue(0, value)
        contour.Update()
        value += 0.001


def disk_share(sizes, holders):
    """The time in which equal disks can give all files at best, beside that of even shares: what
    only some of the disks hold, these must give."""
    files = [
        (size, frozenset(names))
        for step, held in zip(sizes, holders, strict=True)
        for size, names in zip(step, held, strict=True)
    ]
    disks = sorted(frozenset().union(*(names for _, names in files)))
    total = sum(size for size, _ in files)
    most = max(
        sum(size for size, names in files if names <= set(some)) / count
        for count in range(1, len(disks) + 1)
        for some in itertools.combinations(disks, count)
    )
    return most * len(disks) / total


class InHdfs:
    """Zazen's reader on HDFS."""

    def __init__(self, case, ahead):
        os.environ["HADOOP_CONF_DIR"] = CONFIGURED if case["kind"] == "hdfs" else "/nowhere"
        self.reader = zazen.viz.Reader(case["index"], strategy=case["strategy"], ahead=ahead)
        self.times = self.reader.GetTimestepValues()
        opened = self.reader.visualization
        plans = [opened.plan(step) for step in range(len(self.times))]
        sizes = [step.bytes for step in opened.steps]
        self.bytes = sum(map(sum, sizes))
        self.disk_share = disk_share(sizes, opened._holders)
        self.remote = sum(
            size
            for plan, step in zip(plans, sizes, strict=True)
            for size, rank, local in zip(step, plan.rank_of_file, plan.is_local, strict=True)
            if rank == COMM.rank and not local
        )

    def show(self, step):
        data = self.reader.update(self.times[step])
        return [data.GetBlock(at) for at in range(data.GetNumberOfBlocks()) if data.GetBlock(at)]


class InFiles:
    """This machine's files by VTK's readers, of which each rank has a part of each step."""

    disk_share = 1.0

    def __init__(self, case, ahead):
        self.opened = Visualization(case["local"], Alone(), locator="none")
        self.times = self.opened.times
        self.bytes = sum(sum(step.bytes) for step in self.opened.steps)
        self.remote = 0

    def mine(self, step):
        owner = stock(len(self.opened.steps[step].files), COMM.size)
        return [file for file, rank in enumerate(owner) if rank == COMM.rank]

    def show(self, step):
        return [self.part(step, file).data for file in self.mine(step)]

    def part(self, step, file):
        return read_part(self.opened.path_of(step, file), self.opened.steps[step].files[file])


class Bare(InFiles):
    """What a program without Zazen does at least: VTK's reader opens and parses the rank's files,
    and a collective ends each step, since a picture needs all ranks."""

    def show(self, step):
        blocks = [self.parse(self.opened.path_of(step, file)) for file in self.mine(step)]
        COMM.allgather(None)
        return blocks

    @staticmethod
    def parse(path):
        reader = vtkXMLImageDataReader()
        reader.SetFileName(str(path))
        reader.Update()
        return reader.GetOutput()


class FromServers(InFiles):
    """The same, but the bytes come from servers: each file's stripes by turns."""

    def __init__(self, case, ahead):
        super().__init__(case, ahead)
        self.servers = [socket.create_connection((address, PORT)) for address in case["servers"]]
        steps = range(len(self.times))
        self.remote = sum(self.opened.steps[step].bytes[file] for step in steps for file in self.mine(step))

    def part(self, step, file):
        name, length = self.opened.steps[step].files[file], self.opened.steps[step].bytes[file]
        with Memory(name) as memory:
            begins = range(0, length, STRIPE_BYTES)
            asked = [
                (begin, min(STRIPE_BYTES, length - begin), self.servers[(file + at) % len(self.servers)])
                for at, begin in enumerate(begins)
            ]
            # All servers are asked before the first answer is read, so they send at once.
            for begin, count, server in asked:
                server.sendall(f"{begin} {count} {self.opened.path_of(step, file)}\n".encode())
            with open(memory.path, "r+b", buffering=0) as into:
                for begin, count, server in asked:
                    into.seek(begin)
                    while count:
                        got = server.recv(min(count, 1 << 18))
                        if not got:
                            raise OSError("a server closed its connection")
                        into.write(got)
                        count -= len(got)
            return read_part(memory.path, name)


KINDS = {"hdfs": InHdfs, "http": InHdfs, "server": FromServers, "disk": InFiles, "bare": Bare}


def drop_pages(folders):
    """Lets the kernel forget what it has cached of files, so that the disk is read."""
    for folder in folders:
        for path, _, names in os.walk(folder):
            for name in names:
                descriptor = os.open(os.path.join(path, name), os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def one_pass(case, ahead, render_s, cold):
    """All steps once, by a fresh reader."""
    way = KINDS[case["kind"]](case, ahead)
    if COMM.rank == 0:
        drop_pages(cold)
    COMM.barrier()
    begun, cpu_begun, waits = time.perf_counter(), time.process_time(), []
    for step in range(len(way.times)):
        # Ranks begin a step together, as the ranks that make one picture do.
        began = time.perf_counter()
        blocks = way.show(step)
        waits.append(time.perf_counter() - began)
        if render_s:
            if blocks:
                render(blocks, render_s)
            COMM.barrier()
    cpu_s = time.process_time() - cpu_begun
    COMM.barrier()
    seconds = time.perf_counter() - begun
    every = COMM.gather((way.remote, waits, cpu_s), root=0)
    if COMM.rank != 0:
        return None
    return {
        "seconds": seconds,
        "bytes": way.bytes,
        "cpu_s": sum(cpu_s for *_, cpu_s in every),
        "remote": sum(remote for remote, *_ in every),
        "remote_most": max(remote for remote, *_ in every),
        "disk_share": way.disk_share,
        "waits": [waits for _, waits, _ in every],
        "render_s": render_s,
    }


def main():
    warnings.simplefilter("ignore")
    job = json.loads(sys.argv[1])
    cases = [(case, ahead) for case in job["cases"] for ahead in case.get("ahead", job.get("ahead", [1]))]
    by_name = {f"{case['name']} | {ahead}": [] for case, ahead in cases}
    slowest = 0.0
    if job["render"]:
        slowest = max(
            max(max(waits) for waits in COMM.bcast(one_pass(case, 0, 0.0, job["cold"]))["waits"])
            for case in job["cases"]
        )
    for turn in range(job["repeats"]):
        for case, ahead in cases if turn % 2 == 0 else reversed(cases):
            by_name[f"{case['name']} | {ahead}"].append(
                one_pass(case, ahead, job["render"] * slowest, job["cold"])
            )
    if COMM.rank == 0:
        print("SAMPLES " + json.dumps(by_name))


main()
