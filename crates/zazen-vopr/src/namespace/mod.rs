//! Namespaces in one thread: the shipped nodes of `zazen-namespace`, with their tables, over
//! simulated disks and a simulated network, with clients that check what they see.
//!
//! Faults: packets lost, doubled, late and out of order; hosts that do not reach each other, in one
//! direction or both; daemons killed at once or at a step of their disk, all at once too; power
//! failures with torn tails; failed syncs; full disks; bits that go bad; disks that are put back to
//! an earlier state or emptied; pauses of up to ten leases; clocks that run at different speeds,
//! and times of day that jump. Nodes come while the namespace is used, and leave for good.
//!
//! Clients make, remove, look up, rename and link names, and open, cut, commit, close and lock
//! files. They open, commit and close chunks of a file, cut it and append to it. They die between
//! two calls, and their nodes in the middle of one.
//!
//! Checks, at every step: at most one node answers for a partition, and at most one ever in an
//! epoch; no two locks that exclude each other are held; a file that is open for writing keeps its
//! generation, and a chunk that is open stays. At the end: what clients saw of names, of each
//! file's versions and of chunks is linearizable (so nothing that was acknowledged is lost, nothing
//! comes back, no two appends get the same range, and a rename is seen as a whole); replicas with
//! the same last record are equal; when the faults end, every client gets answers, every lock is
//! given to somebody, every partition is kept as the map wants it, and who shall leave gets away.

mod caller;
mod check;
mod chunk_work;
mod chunks;
mod client;
mod host;
mod names;
mod net;
mod order;
mod profile;
mod trouble;
mod versions;
mod work;
mod world;

use world::World;
use zazen_core::Result;
use zazen_env::Disk;
use zazen_namespace::Planted;
use zazen_namespace::map::{Genesis, Map, State};
use zazen_namespace::node::{Action, Config, Event, Node, Start};
use zazen_sim::Fidelity;

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
    /// By partition: the node, counted from 0, that answers for it at the end. `None` if nodes were
    /// lost for good, or partitions have no second replica.
    pub placement: Option<Vec<u32>>,
    /// Nodes that left for good.
    pub left: u64,
}

/// Who answers for each partition, counted from 0.
fn primaries(map: &Map) -> Vec<u32> {
    map.partitions.iter().map(|keepers| keepers.primary.0.saturating_sub(1)).collect()
}

/// Begins the first node of a namespace on `disk`, as a host of the simulation does, or goes on
/// with the one that is there; who answers for each partition, counted from 0, by the map that it
/// has.
pub fn begin_node(disk: &impl Disk, genesis: &Genesis) -> Result<Vec<u32>> {
    let config = Config::new(&genesis.addresses[0]);
    let files = host::read_all(disk)?;
    let start = match files.files.is_empty() {
        true => Start::Format { key: 1, genesis: genesis.clone() },
        false => Start::Open { key: 1 },
    };
    let mut node: Node = Node::open(config, &files, start, 0)?;
    loop {
        let mut actions = Vec::new();
        node.flush(&mut actions);
        if actions.is_empty() {
            return Ok(primaries(node.map()));
        }
        for action in actions {
            host::act(disk, &action)?;
            if let Action::Append { token, .. } | Action::Sync { token, .. } | Action::Put { token, .. } =
                action
            {
                node.step(0, 0, Event::Done { token, ok: true });
            }
        }
    }
}

/// Runs a seed.
pub fn run_namespace(seed: u64, planted: Option<Planted>) -> NamespaceOutcome {
    tell_namespace(seed, planted, None, false).0
}

/// Runs a seed over one of the simulator's networks, with the same faults above it.
pub fn run_namespace_over(seed: u64, planted: Option<Planted>, over: Fidelity) -> NamespaceOutcome {
    tell_namespace(seed, planted, Some(over), false).0
}

/// Runs a seed, over a network of the simulator if wanted, and tells what happens if wanted.
pub fn tell_namespace(
    seed: u64,
    planted: Option<Planted>,
    over: Option<Fidelity>,
    in_words: bool,
) -> (NamespaceOutcome, Vec<String>) {
    let mut world = World::new(seed, planted, over);
    if in_words {
        world.story = Some(vec![format!("{:?}", world.profile)]);
    }
    world.run();
    for host in &world.hosts {
        world.trace.word(host.disk.trace());
    }
    let is_kept =
        |map: &&Map| world.profile.replicas > 1 && map.nodes.iter().all(|member| member.state == State::Up);
    let placement = world.map().filter(is_kept).map(primaries);
    let outcome = NamespaceOutcome {
        placement,
        trace: world.trace.digest(),
        violation: world.violation,
        events: world.events,
        answers: world.history.answered,
        faults: world.faults,
        left: u64::from(world.leaver.is_some_and(|leaver| leaver.has_left)),
    };
    (outcome, world.story.unwrap_or_default())
}
