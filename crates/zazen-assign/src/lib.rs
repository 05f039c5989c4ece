//! Assignment: decides which rank reads which frame (Zazen paper §4, with rules for the cases that
//! the paper excludes).
//!
//! The protocols are pure state machines over a small table of collectives. This crate knows no
//! MPI, no socket and no clock, and draws no random number of its own. [`assign`] drives a
//! [`Machine`] over a [`Collectives`].
//!
//! Invariant: whatever the holders, every frame of the target is assigned to exactly one rank.
//!
//! # The algorithm
//!
//! *Index space*: frame `begin + i·stride` is index i of 0 .. N. *Slice j* is the indices
//! `⌊N·j/p⌋ .. ⌊N·(j+1)/p⌋`; rank j decides it. Ranks with equal node id form a node; its lowest
//! rank, the *leader*, brings the node's sets, and the node's share is dealt to its ranks at the
//! end.
//!
//! 1. A frame with one native holder is that node's; without natives, a frame with one alien holder
//!    is that node's. A node's *base load* is the number of these frames over the whole request.
//! 2. The other frames with holders are *contested* (under [`Rules::Paper`] only those with several
//!    natives: the lowest node, counted by leader's rank, reads them; several aliens make a
//!    residue). Contested frames are decided one after the other in ascending order: each goes to
//!    the holder with the least load per rank of its node, ties to the lowest leader, and adds one
//!    to that load. Up to [`DECIDED_TOGETHER_MAX`] contested frames are decided in one place.
//!    Beyond that each owner decides its slice alone, against the part of the base loads that its
//!    part of the contested frames is of all: this levels well where the slices are alike, but two
//!    slices do not see each other's decisions, so it is not the least maximum.
//! 3. A node's frames so far are dealt to its m ranks in rank order as contiguous ascending blocks
//!    of equal size (the first get one more where m does not divide).
//! 4. The residue, ascending, is cut into contiguous blocks in rank order: of the sizes that raise
//!    the least loaded ranks to a common level, or ([`Rules::Paper`]) of equal sizes, the first
//!    ranks getting one more.
//!
//! Both protocols give the same assignment, frame for frame.

mod bitmaps;
mod blocks;
mod chunks;
mod clmul;
mod collectives;
mod fingerprint;
mod header;
mod machine;
mod node;
mod owner;
mod plane;
mod rules;
pub mod scenario;
mod shared;
mod tally;
pub mod threads;

#[doc(hidden)]
pub use chunks::Tuning;
pub use collectives::{Blocks, Collectives, Counting, Solo, check_blocks, dense, sparse, two_bit};
pub use machine::{Answer, BITMAP_FRAMES_MAX, Machine, Observer, Step, assign, assign_observed, decline};
pub use rules::DECIDED_TOGETHER_MAX;
pub use shared::Shared;

use zazen_core::{Request, RunSet};

/// Which rules decide (see the module's algorithm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Frames with several native holders, or several alien holders, go to the least loaded holder.
    /// Residue blocks level the load.
    Full,
    /// The paper's rules 1–3: multiple aliens are residue; equal residue blocks by rank. Duplicated
    /// natives, which the paper excludes, go to their lowest holder.
    Paper,
}

/// How the ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Fingerprint first, then each rank resolves one slice of the index space.
    Owner,
    /// Two all-reduces over bitmaps, as published. This is the baseline and a second oracle.
    Bitmaps,
}

/// How an assignment was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The fingerprint showed a perfect hit.
    Fingerprint,
    /// Holdings were exchanged.
    Exchange,
}

/// What one rank brings. `request`, `target`, `rules`, `protocol` and `verify_exact` must be the
/// same on all ranks; this is checked in the first round and a difference is an `InvalidArgument`
/// on every rank.
#[derive(Clone, Debug)]
pub struct Input {
    /// Identity of the node whose daemon answered this rank; ranks with equal ids share one cache.
    /// A rank without a daemon brings an id of its own (random) and empty sets.
    pub node: u128,
    /// Frame numbers that the node holds as natives. Where the ranks of a node differ (a query
    /// raced with a push), the leader's count, unless what all ranks hold is the target, each frame
    /// once: then each rank reads what it holds.
    pub native: RunSet,
    /// Frame numbers that the node holds as aliens.
    pub alien: RunSet,
    /// The frames asked for.
    pub request: Request,
    /// The frame numbers that exist, where not all of the request does; equal on all ranks.
    pub target: Option<RunSet>,
    /// The rules.
    pub rules: Rules,
    /// The protocol.
    pub protocol: Protocol,
    /// Skip the fingerprint: no error probability, more bytes.
    pub verify_exact: bool,
    /// Fresh random bytes; rank 0's decide for all.
    pub seed: [u8; 16],
}

/// What one rank is to read, and how that was found. Totals are over all ranks and equal on all.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The frame numbers that this rank reads.
    pub set: RunSet,
    /// The same by the rule that assigned them: what is read from the node's cache, and what is
    /// fetched.
    pub parts: Parts,
    /// Frames of this rank read as natives, aliens and residue.
    pub mine: Counts,
    /// The same over all ranks.
    pub total: Counts,
    /// How it was found.
    pub path: Path,
    /// Payload bytes that this rank sent to others, in all rounds. A block of an all-to-all counts
    /// for its receiver; what goes to everyone (all-reduce, all-gather) counts once, since how
    /// often it is forwarded is a matter of the collectives. 0 with one rank.
    pub bytes_sent: u64,
    /// Collective rounds.
    pub rounds: u32,
}

/// One rank's frame numbers by the rule that assigned them; disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Rule 1: the node holds them as natives.
    pub native: RunSet,
    /// Rule 2: the node holds them as aliens.
    pub alien: RunSet,
    /// Rule 3: no node that took part reads them from its cache.
    pub residue: RunSet,
}

/// Frames by the rule that assigned them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rule 1.
    pub native: u64,
    /// Rule 2.
    pub alien: u64,
    /// Rule 3.
    pub residue: u64,
}
