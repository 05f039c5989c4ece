//! What a job does: a program of all ranks, or one of the product's own machines at work.

use crate::program::Program;
use zazen_match::Strategy;

/// What a job does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// All ranks go through a program.
    Program(Program),
    /// Each node pushes frames with the shipped writer.
    Push(Push),
    /// Each rank creates files in the shipped namespace.
    Names(Names),
    /// Ranks read frames, and the shipped fetcher brings what their caches lack.
    Fetching(Fetching),
    /// Ranks read the files of a visualization that the shipped matching gives them.
    View(View),
    /// The ranks agree on who reads what with the shipped machines.
    Assign(Assign),
}

impl Work {
    /// Steps that a job on so many ranks makes: what progress counts.
    pub fn steps(&self, ranks: u64) -> u64 {
        match self {
            Work::Program(program) => program.totals_of_all(ranks).0,
            Work::Push(push) => u64::from(push.frames).saturating_mul(ranks),
            Work::Names(names) => {
                (u64::from(names.files) + u64::from(!names.is_shared)).saturating_mul(ranks)
            }
            Work::Fetching(fetching) => u64::from(fetching.frames).saturating_mul(ranks),
            Work::View(view) => u64::from(view.files_each).saturating_mul(ranks),
            Work::Assign(_) => 1,
        }
    }
}

/// A pushing job.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// Frames that each node's simulation makes.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_bytes: u64,
    /// Time between two frames of a node, in microseconds.
    pub interval_us: f64,
    /// The most frames of a writer in flight.
    pub window_frames: usize,
    /// How many other nodes are tried after a failure.
    pub retries: u32,
    /// Bytes that a node's cache takes before it says that it is full.
    pub budget_bytes: u64,
    /// Bytes of it that a dataset of an earlier job takes, which nobody uses any more.
    pub old_bytes: u64,
}

/// A job that creates files.
#[derive(Clone, Debug, PartialEq)]
pub struct Names {
    /// Files that each rank creates.
    pub files: u32,
    /// Whether all ranks use one directory; otherwise each makes one of its own first.
    pub is_shared: bool,
    /// A directory with so many entries is split.
    pub split_entries: u32,
}

/// An analysis over caches that lack frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetching {
    /// Frames of each rank.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_bytes: u64,
    /// Part of the frames that the caches lack.
    pub missing: f64,
    /// Frames that a daemon copies at a time, and workers of a scan.
    pub fetchers: usize,
    /// Computing on a frame, in microseconds.
    pub compute_us: f64,
}

/// A visualization's reads of one time step.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Files for each node.
    pub files_each: u32,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Nodes that hold each file, drawn at random.
    pub replicas: u32,
    /// How files are given to ranks.
    pub strategy: Strategy,
}

/// An assignment job.
#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    /// Frames of each rank's node.
    pub frames_each: u64,
    /// Whether frames are dealt out in turns, as the writer does; otherwise in contiguous pieces.
    pub in_turns: bool,
    /// Nodes whose frames are lost, evenly spread; with any, the perfect hit is gone, and there is
    /// no closed form.
    pub dead_nodes: u32,
}
