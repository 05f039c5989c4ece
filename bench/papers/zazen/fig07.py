"""Figure 7: read bandwidth, and time per terabyte, of Zazen and of four file systems on the same
nodes."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import frames
import limits
import measure
from cluster import DISK_BYTES_PER_S, HERE, LINK_BYTES_PER_S, BenchError, Cluster, binary, call, say
from peers import Peer, Reading, unmount_below
from peers.glusterfs import Glusterfs
from peers.hdfs import Hdfs
from peers.moosefs import Moosefs
from peers.nfs import Nfs
from result import Figure, Goal, Kind, Plot, Series, Summary, Table, Value

if TYPE_CHECKING:
    from evaluation import Context

TITLE = "Figure 7: reading, compared with other file systems"
PAPER = (
    "On 100 nodes Zazen reads more than 20 GB/s of 1-GB files: 75 × NFS, 18 × PVFS2, 6 × HDFS; of 2-MB files "
    "about 8 GB/s: 25 ×, 13 ×, 85 ×. The disks' optimum is 22.5 GB/s, of which Zazen reaches up to 90 %."
)
NODES = 4
PEERS = (Nfs, Glusterfs, Moosefs, Hdfs)
ZAZEN, LOCAL, NFS = "Zazen", "local disk", Nfs.name
# A row that reaches this share of what links and disks allow is as good as can be told.
GOAL_SHARE = 0.95
DISKS = NODES * DISK_BYTES_PER_S
# All files of one server come through its link. Of data spread evenly over the nodes, each reads
# all but its own share through links.
CEILINGS = {NFS: LINK_BYTES_PER_S, ZAZEN: DISKS, LOCAL: DISKS, Hdfs.name: DISKS}
STRIPED_CEILING = NODES * LINK_BYTES_PER_S / (1 - 1 / NODES)
# NFS reads a part of each dataset, as in the paper: its rate does not depend on how long it reads.
NFS_PART = 4
THREADS = (1, 2, 4, 8)
PROBE_FILES = 48
# More threads are not tried once they read only this share of the best; fewer are kept for this
# share of it.
HOPELESS, AS_GOOD = 0.8, 0.97
IDLE_SECONDS = 3.0
# Of a failure's message.
SHOWN_LINES = 8
# Where and on what it is measured, for the page's first table.
SETTING = (
    f"{NODES} nodes and a file server, links of {LINK_BYTES_PER_S // 10**6} MB/s, disks of "
    f"{DISK_BYTES_PER_S // 10**6} MB/s, cold caches; all systems on the same nodes"
)


@dataclass
class Sizes:
    """A dataset: `count` files of `frame_bytes`."""

    frame_bytes: int
    count: int

    @property
    def name(self) -> str:
        return f"files-{self.frame_bytes}"

    def __str__(self) -> str:
        return frames.human(self.frame_bytes)


# Long enough for the throttles' first burst to matter little, short enough for the figure to take
# minutes.
DATASETS = (Sizes(128_000_000, 4), Sizes(64_000_000, 8), Sizes(2_000_000, 120), Sizes(430_000, 560))
QUICK_DATASETS = (Sizes(64_000_000, 4), Sizes(2_000_000, 48), Sizes(430_000, 160))


@dataclass
class Sample:
    """One read of one dataset."""

    bytes_per_s: float
    cpu_s_per_gb: float
    cpu_share: float


@dataclass
class System:
    """Something that is read from: how, with how many threads, and what came out per dataset."""

    name: str
    kind: Kind
    readings: dict[str, Reading] = field(default_factory=dict)
    threads: int | None = 1
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def ceiling(self) -> float:
        return CEILINGS.get(self.name, STRIPED_CEILING)

    def rate(self, size: Sizes) -> Value | None:
        """MB/s."""
        samples = self.samples.get(size.name)
        return Value.of([sample.bytes_per_s / 1e6 for sample in samples]) if samples else None

    def cpu_bound(self, size: Sizes) -> bool:
        return self._middle(size, "cpu_share") > measure.CPU_BOUND_SHARE

    def cpu_share(self, size: Sizes) -> float:
        return self._middle(size, "cpu_share")

    def cpu_s_per_gb(self, size: Sizes) -> float:
        return self._middle(size, "cpu_s_per_gb")

    def _middle(self, size: Sizes, what: str) -> float:
        return Value.of([getattr(sample, what) for sample in self.samples[size.name]]).median


class Run:
    """The cluster, the systems that are up on it, and what has been left out."""

    def __init__(self, context: Context, cluster: Cluster) -> None:
        self.context, self.cluster = context, cluster
        self.sizes = QUICK_DATASETS if context.quick else DATASETS
        self.systems: list[System] = []
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.idle_share = 0.0

    def skip(self, name: str, why: object) -> None:
        lines = str(why).removeprefix(f"{name}: ").split("\n")
        if len(lines) > SHOWN_LINES:
            lines = [lines[0], "…", *lines[2 - SHOWN_LINES :]]
        text = f"{name}: " + "\n".join(lines)
        say(f"skipped: {text}")
        self.skipped.append(text)

    def read(self, system: System, size: Sizes, threads: int | None, files: int | None = None) -> Sample:
        """Read the dataset, or its first `files`, once."""
        reading = system.readings[size.name]
        source = self.context.scratch / "files"
        if reading.through == "zazen":
            source = Path(reading.files[0])
        else:
            source.write_text("".join(f"{file}\n" for file in reading.files[:files]))
        words = [] if threads is None else ["--threads", threads]
        told = self.cluster.python(
            NODES, "read_frames.py", reading.through, source, "--frame-bytes", size.frame_bytes, *words
        )
        wanted = size.count if reading.through == "zazen" else len(reading.files[:files])
        if told["frames"] != wanted or told["bytes"] != wanted * size.frame_bytes:
            raise BenchError(f"{system.name} read {told['frames']} frames of {wanted}, {told['bytes']} bytes")
        if told.get("backing_reads"):
            raise BenchError(f"{system.name}: {told['backing_reads']} frames came from the file server")
        cpu_s, seconds = told["cpu_seconds"], told["seconds"]
        return Sample(
            told["bytes"] / seconds, cpu_s / told["bytes"] * 1e9, cpu_s / (seconds * measure.cores())
        )

    def drop(self, system: System, why: object) -> None:
        """A peer that fails costs its rows, not the figure's."""
        self.systems.remove(system)
        self.skip(system.name, why)


def run(context: Context) -> Figure:
    unmount_below(context.scratch)
    try:
        with Cluster(context.scratch, NODES) as cluster:
            bench = Run(context, cluster)
            with peers_up(bench) as peers:
                store(bench, peers)
                watch_idle(bench, peers)
                cold = cold_data()
                choose_threads(bench, cold)
                measure_all(bench, cold)
    finally:
        unmount_below(context.scratch)
    return figure_of(bench)


@contextlib.contextmanager
def peers_up(bench: Run) -> Iterator[list[Peer]]:
    """Install and start the peers; those that cannot be had are skipped. All are stopped at the
    end."""
    up: list[Peer] = []
    with contextlib.ExitStack() as stack:
        for peer in [kind(quick=bench.context.quick) for kind in PEERS]:
            stack.callback(peer.stop)
            folder = bench.context.scratch / "peers" / peer.name.lower()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            began = time.monotonic()
            try:
                if bench.context.install:
                    peer.install()
                if lacking := peer.missing():
                    raise BenchError(f"install it with {lacking}")
                installed = time.monotonic()
                peer.start(bench.cluster, folder)
            except (BenchError, OSError) as error:
                bench.skip(peer.name, error)
                peer.stop()
                continue
            set_up = time.monotonic() - installed
            say(f"{peer.name} is up after {set_up:.1f} s (installation {installed - began:.1f} s)")
            bench.notes.append(f"{peer.name}, up in {set_up:.0f} s: {'; '.join(peer.settings)}.")
            up.append(peer)
        yield up


def store(bench: Run, peers: list[Peer]) -> None:
    """Make the datasets and give every system its copy, with limits lifted."""
    cluster, sizes = bench.cluster, bench.sizes
    for size in sizes:
        frames.make(cluster.server_root / size.name, size.count, size.frame_bytes)
    zazen, local = System(ZAZEN, "ours", threads=None), System(LOCAL, "ceiling")
    bench.systems = [zazen, local]
    with limits.lifted(cluster):
        for size in sizes:
            dataset = cluster.server_root / size.name
            cluster.testbed_run(["--on", "sim"], ["zazen", "load", dataset], 300)
            zazen.readings[size.name] = Reading("zazen", [str(dataset)])
            local.readings[size.name] = store_plain(cluster, dataset)
        for peer in peers:
            began = time.monotonic()
            systems = {peer.name: System(peer.name, "peer")}
            try:
                for size in sizes:
                    dataset = cluster.server_root / size.name
                    peer.store(dataset)
                    ways = {peer.name: peer.reading(dataset)} | peer.readings(dataset)
                    for name, reading in ways.items():
                        systems.setdefault(name, System(name, "peer")).readings[size.name] = reading
            except (BenchError, OSError) as error:
                bench.skip(peer.name, error)
                peer.stop()
                continue
            bench.systems += systems.values()
            say(f"{peer.name} holds its copy after {time.monotonic() - began:.1f} s")
        frames.write_back(cluster.server_root)
    nfs = next((system for system in bench.systems if system.name == NFS), None)
    for reading in nfs.readings.values() if nfs else ():
        reading.files = reading.files[: max(1, len(reading.files) // NFS_PART)]


def store_plain(cluster: Cluster, dataset: Path) -> Reading:
    """File i as a plain file on the disk of node i modulo the nodes: what a perfect cache would
    hold."""
    files = sorted(dataset.iterdir())
    for at, node in enumerate(cluster.nodes):
        folder = cluster.node_dir(node) / "plain" / dataset.name
        folder.mkdir(parents=True)
        for file in files[at::NODES]:
            shutil.copyfile(file, folder / file.name)
    where = cluster.dir / "{node}" / "plain" / dataset.name
    return Reading("files", [str(where / file.name) for file in files])


def watch_idle(bench: Run, peers: list[Peer]) -> None:
    """What the servers cost while nobody reads: they are all up during every measurement."""
    before = [peer.cpu_seconds() for peer in peers]
    time.sleep(IDLE_SECONDS)
    shares = {
        peer.name: (peer.cpu_seconds() - past) / IDLE_SECONDS / measure.cores()
        for peer, past in zip(peers, before, strict=True)
    }
    bench.idle_share = sum(shares.values())
    each = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    bench.notes.append(f"Idle servers and mounts take {bench.idle_share:.1%} of the processor ({each}).")


def cold_data() -> Callable[[], None]:
    """Drops all caches, then has the reading program's own code in memory again: only data are to
    be cold."""
    code = call([binary("python"), HERE / "read_frames.py", "code"]).split("\n")[:-1]

    def cold() -> None:
        measure.drop_caches()
        for file in code:
            Path(file).read_bytes()

    return cold


def choose_threads(bench: Run, cold: Callable[[], None]) -> None:
    """How many files at a time each reads best, by the 2-MB files; Zazen chooses itself."""
    size = next(size for size in bench.sizes if size.frame_bytes == 2_000_000)
    for system in list(bench.systems):
        if system.threads is None:
            continue
        rates = {}
        try:
            for threads in THREADS:
                cold()
                rates[threads] = bench.read(system, size, threads, PROBE_FILES).bytes_per_s / 1e6
                if rates[threads] < HOPELESS * max(rates.values()):
                    break
        except BenchError as error:
            bench.drop(system, error)
            continue
        best = max(rates.values())
        system.threads = min(threads for threads, rate in rates.items() if rate >= AS_GOOD * best)
        shown = ", ".join(f"{threads}: {rate:.0f}" for threads, rate in rates.items())
        say(f"{system.name} reads best with {system.threads} threads per node (MB/s by threads: {shown})")
        bench.notes.append(f"{system.name}: {system.threads} threads per node (MB/s by threads: {shown}).")


def measure_all(bench: Run, cold: Callable[[], None]) -> None:
    """All datasets of all systems in turns, caches dropped before each, as the paper did."""
    turns = [(system.name, size.name) for size in bench.sizes for system in bench.systems]
    sizes = {size.name: size for size in bench.sizes}

    def read(turn: tuple[str, str]) -> None:
        system = next((system for system in bench.systems if system.name == turn[0]), None)
        if system is None:
            return
        try:
            sample = bench.read(system, sizes[turn[1]], system.threads)
        except BenchError as error:
            if system.kind != "peer":
                raise
            bench.drop(system, error)
            return
        system.samples.setdefault(turn[1], []).append(sample)
        say(f"{system.name}, {sizes[turn[1]]}: {sample.bytes_per_s / 1e6:.1f} MB/s")

    measure.in_turns(turns, bench.context.repeats, read, cold)


def figure_of(bench: Run) -> Figure:
    """Tables, plots, goals and summaries of what was measured."""
    figure = Figure("fig7", TITLE, PAPER, "make bench-zazen FIGURES=fig7", skipped=bench.skipped)
    figure.tables = [table_of(bench, size) for size in bench.sizes]
    figure.tables[-1].notes += bench.notes
    figure.tables.append(paper_table())
    figure.plots = plots_of(bench)
    for size in bench.sizes:
        figure.goals += goals_of(bench, size)
    figure.summaries = summaries_of(bench)
    figure.limits = [
        f"{NODES} nodes on one machine, links of {LINK_BYTES_PER_S / 1e6:.0f} MB/s and disks of "
        f"{DISK_BYTES_PER_S / 1e6:.0f} MB/s, so that two cores can fill them; the paper had 100 nodes.",
        "128-MB files stand for the paper's 1-GB files. NFS reads a quarter of each dataset (the paper gave "
        "it smaller ones, too).",
        "GlusterFS and MooseFS take PVFS2's place, mounted through FUSE; NFS and HDFS are read by clients in "
        "user space.",
    ]
    if bench.context.quick:
        figure.limits.append("Quick: without the 128-MB files.")
    return figure


def table_of(bench: Run, size: Sizes) -> Table:
    nfs = next((system.rate(size) for system in bench.systems if system.name == NFS), None)
    rows = []
    for system in bench.systems:
        if (rate := system.rate(size)) is None:
            continue
        rows.append([
            system.name,
            rate,
            rate.median / nfs.median if nfs else None,
            100 * rate.median * 1e6 / system.ceiling,
            1e12 / (rate.median * 1e6) / 3600,
            system.cpu_s_per_gb(size),
            100 * system.cpu_share(size),
            "processor: no claim" if system.cpu_bound(size) else "links or disks",
        ])  # fmt: skip
    volume = frames.human(size.count * size.frame_bytes)
    columns = ["", "read", "× NFS", "of its ceiling", "a terabyte takes", "CPU", "CPU share", "bound by"]
    units = ["", "MB/s", "", "%", "h", "s/GB", "%", ""]
    notes = []
    if size is bench.sizes[0]:
        notes.append(
            f"Ceilings by links and disks alone: NFS {LINK_BYTES_PER_S / 1e6:.0f} MB/s (its server's "
            f"link), GlusterFS, MooseFS and {Hdfs.unaware} {STRIPED_CEILING / 1e6:.0f} (¾ of what a node "
            f"reads comes through links), HDFS, local disk and Zazen {DISKS / 1e6:.0f} (the disks). "
            "“local disk” reads plain files on the same disks, a perfect cache. The throttles let a first "
            "burst through: a short read may exceed its ceiling."
        )
    return Table(f"Files of {size}: {size.count} of them, {volume}", columns, units, rows, notes)


def paper_table() -> Table:
    """As the paper's text gives them; 100 nodes."""
    return Table(
        "In the paper (100 nodes)",
        ["", "1-GB files", "Zazen ahead", "2-MB files", "Zazen ahead"],
        ["", "GB/s", "×", "GB/s", "×"],
        [
            ["Zazen", 20.0, None, 8.0, None],
            ["NFS", 20 / 75, 75, 8 / 25, 25],
            ["PVFS2", 20 / 18, 18, 8 / 13, 13],
            ["HDFS", 20 / 6, 6, 8 / 85, 85],
            ["disks' optimum", 22.5, None, None, None],
        ],
        ["GB/s of the other systems follow from the paper's factors."],
    )


def plots_of(bench: Run) -> list[Plot]:
    names = [str(size) for size in bench.sizes]

    def bars(of: str) -> list[Series]:
        series = []
        for system in bench.systems:
            rates = [system.rate(size) for size in bench.sizes]
            convert = (lambda rate: rate) if of == "rate" else (lambda rate: 1e6 / rate / 3600)
            known = [rate for rate in rates if rate]
            ends = [sorted((convert(rate.low), convert(rate.high))) for rate in known]
            series.append(
                Series(
                    system.name, system.kind, list(names),
                    [convert(rate.median) if rate else None for rate in rates],
                    [low for low, _ in ends], [high for _, high in ends],
                )
            )  # fmt: skip
        return series

    return [
        Plot("fig7a", "7a: read bandwidth, 4 nodes", "file size", "MB/s", bars("rate"), "bars"),
        Plot("fig7b", "7b: time to read a terabyte", "file size", "hours", bars("time"), "bars", y_log=True),
    ]


def goals_of(bench: Run, size: Sizes) -> list[Goal]:
    rates = {system.name: system.rate(size) for system in bench.systems}
    zazen, local = rates[ZAZEN], rates[LOCAL]
    if not zazen or not local:
        return []
    peers = [system for system in bench.systems if system.kind == "peer" and rates[system.name]]
    bound = [system.name for system in peers if system.cpu_bound(size)]
    ratios = {peer.name: zazen.median / rates[peer.name].median for peer in peers}
    # Who is bound by the processor could be faster: to be ahead of it shows nothing, to be behind
    # it does.
    ahead = None if len(bound) == len(peers) else True
    if any(ratio <= 1 for ratio in ratios.values()):
        ahead = False
    share = zazen.median * 1e6 / DISKS
    reached = share >= GOAL_SHARE
    ours_bound = bench.systems[0].cpu_bound(size)
    return [
        Goal(
            f"{size}: Zazen ahead of every peer",
            "> 1",
            ", ".join(f"{ratio:.2f} × {name}" for name, ratio in ratios.items()),
            ahead,
            f"bound by the processor, so no claim against: {', '.join(bound)}" if bound else "",
        ),
        Goal(
            f"{size}: Zazen, of what the disks allow",
            f"≥ {GOAL_SHARE:.0%}",
            f"{share:.1%}; {zazen.median / local.median:.1%} of plain files on the same disks",
            None if ours_bound and not reached else reached,
            "bound by the processor" if ours_bound else "",
        ),
    ]


def summaries_of(bench: Run) -> list[Summary]:
    """The paper's two groups: large files, and 2-MB files."""
    factors = {
        bench.sizes[0].name: ("large files", {"NFS": "75", "PVFS2": "18", "HDFS": "6", Hdfs.unaware: "6"}),
        "files-2000000": ("2-MB files", {"NFS": "25", "PVFS2": "13", "HDFS": "85", Hdfs.unaware: "85"}),
    }
    rows = []
    for size in bench.sizes:
        title, paper = factors.get(size.name, ("", {}))
        zazen = bench.systems[0].rate(size)
        for system in bench.systems[2:]:
            rate = system.rate(size)
            if not paper or not rate or not zazen:
                continue
            mark = " (processor-bound: no claim)" if system.cpu_bound(size) else ""
            known = f"{paper[system.name]} ×" if system.name in paper else f"{paper['PVFS2']} × (PVFS2)"
            rows.append(
                Summary(
                    f"Fig. 7, {title}: Zazen over {system.name}",
                    known,
                    f"{zazen.median / rate.median:.1f} ×{mark}",
                    f"{DISKS / system.ceiling:.1f} ×",
                )
            )
    return rows
