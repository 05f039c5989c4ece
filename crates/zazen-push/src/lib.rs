//! The writer's state machine: it decides which node gets each frame, which frames wait, and which
//! are given up (Zazen paper §3.1).
//!
//! Pure: events go in, actions come out. Time is an argument, and randomness comes from a seed. The
//! client library drives it with threads and sockets; the fault tests drive it with virtual time.

mod rest;
mod writer;

pub use writer::{LOOKS_MAX, Writer};

use zazen_core::FrameNo;

/// What to do when the window is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSlow {
    /// The frame is not cached, and the writer continues at once. The backing store has the frame.
    Skip,
    /// The writer waits for room.
    Block,
}

/// Settings of a writer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Nodes, in the order of the user's list.
    pub nodes: usize,
    /// The most frames in flight.
    pub window_frames: usize,
    /// The most bytes in flight. A single larger frame is still sent, alone.
    pub window_bytes: u64,
    /// What to do when the window is full.
    pub on_slow: OnSlow,
    /// How many other nodes are tried after a failure before a frame is given up.
    pub retries: u32,
    /// First pause before a dead node is tried again, in nanoseconds; doubles up to
    /// `backoff_max_ns`.
    pub backoff_min_ns: u64,
    /// Longest such pause, in nanoseconds.
    pub backoff_max_ns: u64,
    /// After so many sendings the round-robin passes over one node; 0: never. Writers of the copies
    /// of the same frames have different numbers here: else the nodes would form pairs, and all
    /// frames of a node would have their other copy on one other node.
    pub pass_over_after: u64,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The application hands over a frame.
    Submit {
        /// Its number.
        frame: FrameNo,
        /// Its length.
        bytes: u64,
    },
    /// A node has it.
    Acknowledged {
        /// The frame.
        frame: FrameNo,
        /// The node.
        node: usize,
        /// Whether the node had it before.
        already: bool,
    },
    /// A node refused this frame for good (conflict, too large, no permission): no other node would
    /// take it.
    Refused {
        /// The frame.
        frame: FrameNo,
        /// The node.
        node: usize,
    },
    /// A node has no room. The frame goes to another node, and this node rests for a while.
    Full {
        /// The frame.
        frame: FrameNo,
        /// The node.
        node: usize,
    },
    /// A node is gone or silent. It counts as dead, and the frame goes to another node. The node
    /// may still have stored the frame.
    Failed {
        /// The frame.
        frame: FrameNo,
        /// The node.
        node: usize,
    },
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this frame to this node.
    Send {
        /// The frame.
        frame: FrameNo,
        /// The node.
        node: usize,
    },
    /// Let the application continue: its `Submit` was accepted or given up.
    Accept {
        /// The frame.
        frame: FrameNo,
    },
    /// The frame has its fate. Its buffer may be freed.
    Done {
        /// The frame.
        frame: FrameNo,
        /// How it ended.
        fate: Fate,
    },
}

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Some node stored it.
    Pushed,
    /// Some node had it already.
    AlreadyThere,
    /// The window was full and `OnSlow::Skip` was set.
    SkippedSlow,
    /// Every node was dead or full.
    SkippedNoNode,
    /// A node refused it for good.
    Refused,
}

/// The number of frames with each fate. When the writer has finished, every submitted frame has
/// exactly one fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed over.
    pub submitted: u64,
    /// Fates.
    pub pushed: u64,
    /// See [`Fate::AlreadyThere`].
    pub already_there: u64,
    /// See [`Fate::SkippedSlow`].
    pub skipped_slow: u64,
    /// See [`Fate::SkippedNoNode`].
    pub skipped_no_node: u64,
    /// See [`Fate::Refused`].
    pub refused: u64,
    /// Sends repeated on another node.
    pub resent: u64,
    /// Times a node was marked dead.
    pub node_deaths: u64,
    /// Bytes of pushed frames.
    pub bytes_pushed: u64,
}

impl Counters {
    /// The counters of two writers together.
    pub fn plus(&self, other: &Counters) -> Counters {
        Counters {
            submitted: self.submitted + other.submitted,
            pushed: self.pushed + other.pushed,
            already_there: self.already_there + other.already_there,
            skipped_slow: self.skipped_slow + other.skipped_slow,
            skipped_no_node: self.skipped_no_node + other.skipped_no_node,
            refused: self.refused + other.refused,
            resent: self.resent + other.resent,
            node_deaths: self.node_deaths + other.node_deaths,
            bytes_pushed: self.bytes_pushed + other.bytes_pushed,
        }
    }
}
