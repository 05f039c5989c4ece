"""Prints a Darshan log as lines of JSON for the simulator (crates/zazen-sim/src/replay.rs reads
them).

    python -c "$(cat darshan.py)" LOG

Exit codes: 0, the log was read whole; 3, the package `darshan` is missing; 4, the log cannot be
read, with the reason as the last line of standard error. Darshan's C library reports damage on
standard error only, and may abort: the reader runs in a process of its own, whose standard error is
looked at.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings

# What is no file: terminals and pipes.
STREAMS = {"<STDIN>", "<STDOUT>", "<STDERR>"}
MODULES = {
    # module: prefix of its counters, and counters of (opens, stats, reads, writes, syncs).
    "POSIX": ("POSIX", ["OPENS"], ["STATS"], ["READS"], ["WRITES"], ["FSYNCS", "FDSYNCS"]),
    "MPI-IO": (
        "MPIIO",
        ["INDEP_OPENS", "COLL_OPENS"],
        [],
        ["INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"],
        ["INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"],
        ["SYNCS"],
    ),
    "STDIO": ("STDIO", ["OPENS", "FDOPENS"], [], ["READS"], ["WRITES"], ["FLUSHES"]),
}


def fail(why):
    print(why, file=sys.stderr, flush=True)
    # No destructors: the C library's own may abort on a damaged log.
    os._exit(4)


class Record:
    """Counters of one module of one file, and of one rank or (-1) all ranks together."""

    def __init__(self, prefix, names, record):
        self.prefix = prefix
        self.rank = int(record["rank"])
        self.file = int(record["id"])
        self.counters = dict(zip(names["counters"], record["counters"].tolist(), strict=True))
        self.times = dict(zip(names["fcounters"], record["fcounters"].tolist(), strict=True))

    def sum(self, names):
        """Counters that the log's version does not have are -1."""
        return sum(max(0, int(self.counters.get(f"{self.prefix}_{name}", 0))) for name in names)

    def time(self, name):
        return float(self.times.get(f"{self.prefix}_F_{name}", 0.0))

    def window(self, kind, run_s):
        """When the first such operation began and the last one ended, as far as it was logged."""
        first = self.time(f"{kind}_START_TIMESTAMP")
        last = self.time(f"{kind}_END_TIMESTAMP")
        first = first if 0.0 < first <= run_s * 2 + 60 else 0.0
        return (first, last) if first <= last <= run_s * 2 + 60 else (first, first)


def counted(record, module, run_s, ranks, done):
    """Groups of operations of a record, but for those that `done` has already: {kind: (count,
    bytes)}."""
    _, opens, stats, reads, writes, syncs = MODULES[module]
    groups = []

    def add(kind, count, data, window, busy):
        known, moved = done.get(kind, (0, 0))
        count, data = count - known, data - moved
        if data > 0:
            count = max(count, 1)
        if count > 0:
            busy = busy if busy > 0 else 0.0
            first, last = window
            groups.append(
                {
                    "kind": kind,
                    "count": count,
                    "bytes": max(data, 0),
                    "first_s": first,
                    "last_s": max(first, last),
                    "busy_s": busy,
                }
            )

    opened = record.window("OPEN", run_s)
    closed = record.window("CLOSE", run_s)
    count = record.sum(opens)
    add("stat", record.sum(stats), 0, (opened[0], opened[0]), 0.0)
    add("open", count, 0, opened, 0.0)
    for kind, names, total in (("read", reads, "BYTES_READ"), ("write", writes, "BYTES_WRITTEN")):
        data = record.sum([total])
        add(
            kind,
            record.sum(names),
            data,
            record.window(kind.upper(), run_s),
            record.time(f"{kind.upper()}_TIME"),
        )
    ends = [record.window(kind, run_s)[1] for kind in ("OPEN", "READ", "WRITE")]
    last = max(ends)
    add("sync", record.sum(syncs), 0, (last, last), 0.0)
    # A file that was never closed, or whose closing was not logged, is closed after its last
    # operation.
    add("close", count, 0, closed if closed[1] >= last else (last, last), 0.0)
    return groups


def read(path):
    warnings.simplefilter("ignore")
    try:
        import darshan
    except ImportError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(3)
    try:
        report = darshan.DarshanReport(path, read_all=False)
    except Exception as error:
        fail(f"{path}: Darshan's library cannot open it: {error}")
    job = report.metadata["job"]
    ranks, run_s = int(job["nprocs"]), float(job.get("run_time", 0.0))
    if "start_time_nsec" in job and "end_time_nsec" in job:
        exact = (job["end_time_sec"] - job["start_time_sec"]) + (
            job["end_time_nsec"] - job["start_time_nsec"]
        ) / 1e9
        run_s = exact if exact > 0 else run_s
    words = []
    partial = [name for name, module in report.modules.items() if module.get("partial_flag")]
    if partial:
        words.append(f"Darshan ran out of memory: {', '.join(partial)} lack some of the job's operations")
    records = {}
    for module in MODULES:
        if module in report.modules:
            report.mod_read_all_records(module)
            names = report.counters[module]
            prefix = MODULES[module][0]
            found = [Record(prefix, names, record) for record in report.records[module]]
            kept = [record for record in found if report.name_records.get(record.file) not in STREAMS]
            if len(kept) < len(found):
                words.append(f"{len(found) - len(kept)} records of terminals and pipes are left out")
            records[module] = kept
    traces = {}
    for module in ("DXT_POSIX", "DXT_MPIIO"):
        if module in report.modules:
            report.mod_read_all_dxt_records(module)
            traces[module] = list(report.records[module])
    unread = sorted(set(report.modules) - set(MODULES) - set(traces))
    emit(ranks, run_s, words, unread, records, traces)


def emit(ranks, run_s, words, unread, records, traces):
    posix = {(record.file, record.rank) for record in records.get("POSIX", [])}
    posix_files = {file for file, _ in posix}
    # What MPI-IO does, it does through POSIX: where both were logged, POSIX counts.
    levels = [
        ("POSIX", "DXT_POSIX", lambda _: True),
        ("MPI-IO", "DXT_MPIIO", lambda file: file not in posix_files),
    ]
    levels.append(("STDIO", None, lambda _: True))
    traced_ops = counted_ops = 0
    lines = []
    for module, trace, wanted in levels:
        done = {}
        for record in traces.get(trace, []) if trace else []:
            file, rank = int(record["id"]), int(record["rank"])
            if not wanted(file):
                continue
            ops = []
            for kind in ("read", "write"):
                for segment in record[f"{kind}_segments"]:
                    begin, end = float(segment["start_time"]), float(segment["end_time"])
                    length = int(segment["length"])
                    ops.append((kind, length, begin, max(begin, end)))
                    for owner in (rank, -1):
                        count, data = done.setdefault((file, owner), {}).get(kind, (0, 0))
                        done[file, owner][kind] = (count + 1, data + length)
            traced_ops += len(ops)
            lines.append({"rank": rank, "file": file, "traced": ops})
        for record in records.get(module, []):
            if not wanted(record.file):
                continue
            groups = counted(record, module, run_s, ranks, done.get((record.file, record.rank), {}))
            data = [group for group in groups if group["kind"] in ("read", "write")]
            counted_ops += sum(group["count"] for group in data)
            if groups:
                rank = record.rank if record.rank >= 0 else None
                lines.append({"rank": rank, "file": record.file, "counted": groups})
    if traced_ops:
        words.append(f"{traced_ops} reads and writes are replayed as DXT traced them")
    if counted_ops:
        words.append(
            f"{counted_ops} reads and writes are synthesised from counters: of equal size, at equal distances"
        )
    words.append("opens, closes and syncs are placed by their counters' first and last times")
    if unread:
        words.append(f"modules that are not replayed: {', '.join(unread)}")
    if not any(line.get("traced") or line.get("counted") for line in lines):
        fail(
            f"the log has no operation of POSIX, MPI-IO or STDIO; it has {', '.join(unread) or 'no modules'}"
        )
    out = sys.stdout
    out.write(json.dumps({"v": 1, "ranks": ranks, "run_s": run_s, "words": words}) + "\n")
    for line in lines:
        out.write(json.dumps(line) + "\n")
    out.flush()
    os._exit(0)


def main():
    if len(sys.argv) > 2 and sys.argv[2] == "--here":
        read(sys.argv[1])
        return
    path = sys.argv[1]
    with tempfile.TemporaryFile() as said:
        # This program, again: it came as the argument of -c.
        command = [*sys.orig_argv[: sys.orig_argv.index("-c") + 2], path, "--here"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=said, check=False)
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    if done.returncode == 3:
        print(lines[-1] if lines else "", file=sys.stderr)
        sys.exit(3)
    complaints = [line.strip() for line in lines if line.startswith("Error:")]
    if done.returncode == 0 and not complaints:
        return
    reason = complaints[0] if complaints else (lines[-1].strip() if lines else f"exit code {done.returncode}")
    print(reason, file=sys.stderr)
    sys.exit(4)


if __name__ == "__main__":
    main()
