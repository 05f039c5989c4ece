//! Namespaces in one thread: the shipped nodes of `zazen-namespace`, with their tables, over
//! simulated disks and a simulated network, with clients that check what they see.
//!
//! Faults: packets lost, doubled, late and out of order; hosts that do not reach each other, in one
//! direction or both; daemons killed at once or at a step of their disk, all at once too; power
//! failures with torn tails; failed syncs; full disks; bits that go bad; disks that are put back to
//! an earlier state or emptied; pauses of up to ten leases; clocks that run at different speeds,
//! and times of day that jump.
//!
//! Checks, at every step: at most one node answers for a partition, and at most one ever in an
//! epoch. At the end: what clients saw of each name is linearizable (so nothing that was
//! acknowledged is lost, and nothing comes back); replicas with the same last record are equal;
//! when the faults end, every client gets answers, and every partition is kept as the map wants it.

mod caller;
mod check;
mod client;
mod host;
mod trouble;
mod world;

use world::World;
use zazen_namespace::Planted;

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceOutcome {
    /// A digest of all that happened.
    pub trace: u64,
    /// The promise that was broken, if one was.
    pub violation: Option<String>,
    /// Events, answers to clients, faults.
    pub events: u64,
    /// Answers that clients took.
    pub answers: u64,
    /// Faults that were brought about.
    pub faults: u64,
}

/// Runs a seed.
pub fn run_namespace(seed: u64, planted: Option<Planted>) -> NamespaceOutcome {
    tell_namespace(seed, planted, false).0
}

/// Runs a seed, and tells what happens if wanted.
pub fn tell_namespace(
    seed: u64,
    planted: Option<Planted>,
    in_words: bool,
) -> (NamespaceOutcome, Vec<String>) {
    let mut world = World::new(seed, planted);
    if in_words {
        world.story = Some(vec![format!("{:?}", world.profile)]);
    }
    world.run();
    for host in &world.hosts {
        world.trace.word(host.disk.trace());
    }
    let outcome = NamespaceOutcome {
        trace: world.trace.digest(),
        violation: world.violation,
        events: world.events,
        answers: world.history.answered,
        faults: world.faults,
    };
    (outcome, world.story.unwrap_or_default())
}
