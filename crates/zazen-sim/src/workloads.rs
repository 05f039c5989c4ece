//! The workloads that come with the simulator. To add one, write a function that returns a
//! [`Work`], and add it to [`ALL`] (docs/simulator.md walks through it).

use crate::program::{At, MetaOp, MetadataNode, Op, Program};
use crate::work::{Assign, Fetching, Names, Push, View, Work};
use zazen_core::{Error, ErrorKind, Result};
use zazen_match::Strategy;

/// A workload.
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// What it does on so many nodes.
    pub work: fn(nodes: u32) -> Work,
}

/// All workloads.
pub const ALL: &[Workload] = &[
    Workload {
        name: "fusionfs",
        about: "open, insert a name, write 16 GB locally, close (paper §4.5)",
        work: fusionfs,
    },
    Workload {
        name: "metadata",
        about: "1,000 creates per node, each in a directory of its own (§4.2)",
        work: metadata,
    },
    Workload {
        name: "metadata-shared",
        about: "1,000 creates per node in one directory (§4.2)",
        work: metadata_shared,
    },
    Workload {
        name: "metadata-one-server",
        about: "the same, in a directory that one node holds",
        work: metadata_one_server,
    },
    Workload {
        name: "ior-collective",
        about: "16 collective 4 MB writes and reads per node (§4.5)",
        work: ior_collective,
    },
    Workload {
        name: "ior-collective-shared",
        about: "the same, against the shared store",
        work: ior_collective_shared,
    },
    Workload { name: "write-shared", about: "write 16 GB per node to the shared store", work: write_shared },
    Workload {
        name: "read-local", about: "read 256 MB per node from its own disk (§4.3)", work: read_local
    },
    Workload {
        name: "read-remote",
        about: "read 256 MB per node from the next node (§4.3)",
        work: read_remote,
    },
    Workload {
        name: "read-random",
        about: "read 16 times 16 MB per node from nodes drawn at random",
        work: read_random,
    },
    Workload { name: "read-shared", about: "read 256 MB per node from the shared store", work: read_shared },
    Workload {
        name: "analysis",
        about: "read 64 frames of 64 MB per node, 5 % of them missing, and reduce",
        work: analysis,
    },
    Workload {
        name: "analysis-fetch",
        about: "the same 64 frames of 64 MB; the shipped fetcher brings the missing ones meanwhile",
        work: analysis_fetch,
    },
    Workload {
        name: "view",
        about: "4 files of 64 MB per node in 3 copies, given to ranks by the shipped matching (VisIO's)",
        work: view,
    },
    Workload {
        name: "view-optimal",
        about: "the same, with the fewest remote reads (at most 65,536 nodes in reasonable time)",
        work: view_optimal,
    },
    Workload { name: "view-blind", about: "the same, with file i read by rank i mod R", work: view_blind },
    Workload { name: "push", about: "each node pushes 8 frames of 4 MB with the shipped writer", work: push },
    Workload { name: "push-full", about: "the same, into caches that hold 6 frames each", work: push_full },
    Workload {
        name: "push-evict",
        about: "the same, into caches that an earlier job has filled: the shipped eviction makes room",
        work: push_evict,
    },
    Workload {
        name: "namespace",
        about: "each rank makes a directory and 16 files in it: the shipped partitions",
        work: namespace,
    },
    Workload {
        name: "namespace-shared",
        about: "each rank creates 4 files in one directory, which the shipped code splits",
        work: namespace_shared,
    },
    Workload {
        name: "assign",
        about: "who reads which of 1,000 frames per node: the shipped machines",
        work: assign,
    },
    Workload {
        name: "assign-dead",
        about: "the same with a 64th of the nodes dead, to 4,096 nodes",
        work: assign_dead,
    },
    Workload {
        name: "checkpoint",
        about: "compute 60 s and write 1 GB, 10 times; then restart",
        work: checkpoint,
    },
];

/// The workload of a name. `InvalidArgument` if there is none.
pub fn named(name: &str) -> Result<&'static Workload> {
    ALL.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        let why = format!(
            "workload {name:?}: there is none; there are {}, or a job file FILE.toml",
            names.join(", ")
        );
        Error::new(ErrorKind::InvalidArgument, why)
    })
}

/// Room for six frames, and what the last put reserves besides.
const FULL_BYTES: u64 = 6 * 4 * MB + (64 << 10);
/// Where the product splits directories.
const SPLIT_ENTRIES: u32 = 1 << 14;
const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;

fn fusionfs(_: u32) -> Work {
    Work::Program(
        Program::new()
            .then("open", Op::Meta(MetaOp::Open, MetadataNode::Own))
            .then("insert", Op::Meta(MetaOp::Insert, MetadataNode::Hashed))
            .then("write", Op::Write(16 * GB, At::Local))
            .then("sync", Op::Sync)
            .then("close", Op::Meta(MetaOp::Close, MetadataNode::Hashed)),
    )
}

fn creates(place: MetadataNode) -> Program {
    Program::new().repeat(1_000, 0, |program| program.then("create", Op::Meta(MetaOp::Insert, place)))
}

fn metadata(_: u32) -> Work {
    Work::Program(creates(MetadataNode::Hashed))
}

/// Appending lets the directory's rows spread over all nodes.
fn metadata_shared(nodes: u32) -> Work {
    Work::Program(creates(MetadataNode::Directory { parts: nodes.saturating_mul(64) }))
}

fn metadata_one_server(_: u32) -> Work {
    Work::Program(creates(MetadataNode::Directory { parts: 1 }))
}

fn ior(at: At, place: MetadataNode) -> Program {
    let write = at;
    let opened =
        |program: Program| program.then("open", Op::Meta(MetaOp::Open, place)).then("barrier", Op::Barrier);
    let program = opened(Program::new())
        .repeat(16, 0, |program| program.then("barrier", Op::Barrier).then("write", Op::Write(4 * MB, write)))
        .then("sync", Op::Sync)
        .then("close", Op::Meta(MetaOp::Close, place))
        .then("barrier", Op::Barrier);
    opened(program)
        .repeat(16, 0, |program| program.then("barrier", Op::Barrier).then("read", Op::Read(4 * MB, at)))
        .then("close", Op::Meta(MetaOp::Close, place))
}

fn ior_collective(nodes: u32) -> Work {
    Work::Program(ior(At::Local, MetadataNode::Directory { parts: nodes.saturating_mul(64) }))
}

/// All ranks open and close one file: each opening is an operation in a directory of its own at the
/// I/O node, so the lock does not go around.
fn ior_collective_shared(_: u32) -> Work {
    let mut program = ior(At::Shared, MetadataNode::Own);
    program.steps.retain(|step| step.op != Op::Sync);
    Work::Program(program)
}

fn write_shared(_: u32) -> Work {
    Work::Program(Program::new().repeat(16, 0, |program| program.then("write", Op::Write(GB, At::Shared))))
}

fn reads(times: u32, bytes: u64, at: At) -> Program {
    Program::new().then("lookup", Op::Meta(MetaOp::Lookup, MetadataNode::Hashed)).repeat(
        times,
        0,
        |program| program.then("read", Op::Read(bytes, at)),
    )
}

fn read_local(_: u32) -> Work {
    Work::Program(reads(1, 256 * MB, At::Local))
}

fn read_remote(_: u32) -> Work {
    Work::Program(reads(1, 256 * MB, At::Next))
}

fn read_random(_: u32) -> Work {
    Work::Program(reads(16, 16 * MB, At::Random))
}

fn read_shared(_: u32) -> Work {
    Work::Program(reads(16, 16 * MB, At::Shared))
}

fn analysis(_: u32) -> Work {
    Work::Program(
        Program::new()
            .repeat(64, 0, |program| {
                program.then("read", Op::Read(64 * MB, At::Missing((0.05 * 65_536.0) as u32)))
            })
            .then("reduce", Op::Allreduce(8 * MB)),
    )
}

fn analysis_fetch(_: u32) -> Work {
    Work::Fetching(Fetching { frames: 64, frame_bytes: 64 * MB, missing: 0.05, fetchers: 8, compute_us: 0.0 })
}

fn viewing(strategy: Strategy) -> Work {
    Work::View(View { files_each: 4, file_bytes: 64 * MB, replicas: 3, strategy })
}

fn view(_: u32) -> Work {
    viewing(Strategy::Scarcest)
}

fn view_optimal(_: u32) -> Work {
    viewing(Strategy::Optimal)
}

fn view_blind(_: u32) -> Work {
    viewing(Strategy::Blind)
}

fn checkpoint(_: u32) -> Work {
    use crate::spread::Spread;
    Work::Program(
        Program::new()
            .repeat(10, 0, |program| {
                program
                    .then("compute", Op::Compute(Spread::LogNormal { median_us: 60e6, sigma: 0.02 }))
                    .then("barrier", Op::Barrier)
                    .then("open", Op::Meta(MetaOp::Insert, MetadataNode::Hashed))
                    .then("write", Op::Write(GB, At::Local))
                    .then("sync", Op::Sync)
                    .then("close", Op::Meta(MetaOp::Close, MetadataNode::Hashed))
            })
            .then("barrier", Op::Barrier)
            .then("restart", Op::Read(GB, At::Local)),
    )
}

fn pushing(budget_bytes: u64, old_bytes: u64) -> Push {
    Push {
        frames: 8,
        frame_bytes: 4 * MB,
        interval_us: 500_000.0,
        window_frames: 4,
        retries: 3,
        budget_bytes,
        old_bytes,
    }
}

fn push(_: u32) -> Work {
    Work::Push(pushing(u64::MAX / 2, 0))
}

fn push_full(_: u32) -> Work {
    Work::Push(pushing(FULL_BYTES, 0))
}

fn push_evict(_: u32) -> Work {
    Work::Push(pushing(16 * 4 * MB, 16 * 4 * MB))
}

fn namespace(_: u32) -> Work {
    Work::Names(Names { files: 16, is_shared: false, split_entries: SPLIT_ENTRIES })
}

fn namespace_shared(_: u32) -> Work {
    Work::Names(Names { files: 4, is_shared: true, split_entries: SPLIT_ENTRIES })
}

fn assign(_: u32) -> Work {
    Work::Assign(Assign { frames_each: 1_000, in_turns: true, dead_nodes: 0 })
}

fn assign_dead(nodes: u32) -> Work {
    Work::Assign(Assign { frames_each: 1_000, in_turns: false, dead_nodes: nodes.div_ceil(64) })
}
