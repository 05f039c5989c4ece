//! Jobs and their ranks.

use crate::calls::{Incoming, Reply};
use std::collections::BTreeMap;
use zazen_assign::{Answer, Machine, Protocol, Rules};
use zazen_core::RunSet;
use zazen_env::SeededRandom;
use zazen_frames::messages::Holdings;

/// What a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Opening,
    Asking,
    Assigning,
    ScanOpening,
    Scanning,
    Reporting,
    Direct,
    Done,
}

/// One rank.
pub(crate) struct Rank {
    pub(crate) node: usize,
    pub(crate) conn: u64,
    pub(crate) incoming: Incoming,
    pub(crate) reply: Reply,
    pub(crate) call: u64,
    /// When the awaited call was made, in the world's time.
    pub(crate) asked_ns: u64,
    pub(crate) stage: Stage,
    pub(crate) handle: u32,
    pub(crate) scan: u32,
    pub(crate) identity: u128,
    pub(crate) holdings: Holdings,
    pub(crate) machine: Option<Machine>,
    pub(crate) answer: Answer,
    /// Frames that it has yet to read.
    pub(crate) todo: RunSet,
    /// Of these, those that its daemon does not give.
    pub(crate) direct: RunSet,
}

/// A job.
pub(crate) struct Job {
    pub(crate) dataset: usize,
    pub(crate) protocol: Protocol,
    pub(crate) verify_exact: bool,
    pub(crate) rules: Rules,
    pub(crate) target: RunSet,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) begun: bool,
    /// By number: which rank read it.
    pub(crate) read: BTreeMap<u64, usize>,
}

impl Job {
    pub(crate) fn new(nodes: usize, datasets: usize, random: &mut SeededRandom) -> Job {
        let rank = |at: usize, node: usize| Rank {
            node,
            conn: 0,
            incoming: Incoming::default(),
            reply: Reply::default(),
            call: 0,
            asked_ns: 0,
            stage: Stage::Opening,
            handle: 0,
            scan: 0,
            identity: (1 << 100) + at as u128,
            holdings: Holdings { native: RunSet::new(), alien: RunSet::new() },
            machine: None,
            answer: Answer::Start,
            todo: RunSet::new(),
            direct: RunSet::new(),
        };
        let size = 1 + random.below(6) as usize;
        Job {
            dataset: random.below(datasets as u64) as usize,
            protocol: if random.percent(75) { Protocol::Owner } else { Protocol::Bitmaps },
            verify_exact: random.percent(25),
            rules: if random.percent(75) { Rules::Full } else { Rules::Paper },
            target: RunSet::new(),
            ranks: (0..size).map(|at| rank(at, random.below(nodes as u64) as usize)).collect(),
            begun: false,
            read: BTreeMap::new(),
        }
    }

    /// Datasets and nodes with a scan under way: (node, dataset).
    pub(crate) fn scans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let scanning = self.ranks.iter().filter(|rank| rank.stage == Stage::Scanning);
        scanning.map(|rank| (rank.node, self.dataset))
    }
}
