//! What a primary and a backup know beside the records.

use crate::node::{Action, Position, Shared};
use crate::operation::{Answer, Moved, Response};
use crate::partition::PeerMessage;
use crate::peer::Unneeded;
use crate::{Epoch, Incarnation, NodeNo, PartitionNo};
use std::collections::{BTreeMap, VecDeque};

/// What a primary knows beside its records.
pub(crate) struct Primary {
    pub(crate) epoch: Epoch,
    /// The epoch since which this node has been the primary without a break.
    pub(super) since: Epoch,
    /// Up to here all synchronous backups have the records.
    pub(super) commit: u64,
    pub(super) followers: BTreeMap<NodeNo, Follower>,
    /// What may not leave before a record is committed.
    pub(super) held: VecDeque<(u64, Held)>,
    /// The change that the stewards were asked for, and when.
    pub(super) asked: Option<(crate::map::Change, u64)>,
    /// It answers no new requests, because it hands the partition over.
    pub(crate) handing: bool,
    /// How often the tables are still told that time passes.
    pub(super) ticks: u32,
    /// Whether the partition is kept as the map wants it.
    pub(super) settled: bool,
}

/// A node that gets the partition's records.
pub(crate) struct Follower {
    pub(super) incarnation: Incarnation,
    /// It has the records up to here, as durable as the level says.
    pub(super) acked: u64,
    /// Answers wait for it although the map does not name it yet.
    pub(super) required: bool,
    /// Since when it has lacked something.
    pub(super) lacks_ns: Option<u64>,
    pub(super) mode: Mode,
    pub(super) tried_ns: u64,
    /// When records were sent from an earlier one on again.
    pub(super) rewound_ns: u64,
}

pub(super) enum Mode {
    /// What it has is not known.
    Probe,
    /// Records from here on are to be sent.
    Stream(u64),
    /// It gets a snapshot.
    Snapshot { position: Position, bytes: Vec<u8>, counted: bool },
}

pub(super) enum Held {
    Reply { token: u64, response: Response },
    Send { to: PartitionNo, message: PeerMessage },
    Drop { holder: NodeNo, unneeded: Unneeded },
}

impl Primary {
    /// The requests that wait are to be asked again.
    pub(super) fn refuse_held(self, shared: &mut Shared) {
        let epoch = shared.map.epoch;
        for (_, held) in self.held {
            if let Held::Reply { token, response } = held {
                let answer = Answer::Moved(Moved { epoch, perhaps: true });
                shared.out.push(Action::Reply { token, response: Response { answer, ..response } });
            }
        }
        for follower in self.followers.values() {
            if matches!(follower.mode, Mode::Snapshot { counted: true, .. }) {
                shared.transfers = shared.transfers.saturating_sub(1);
            }
        }
    }

    /// Whether everything that was executed is committed.
    pub(super) fn is_quiet(&self, last: u64) -> bool {
        self.held.is_empty() && self.commit >= last
    }
}

impl Follower {
    pub(super) fn new(incarnation: Incarnation) -> Follower {
        Follower {
            incarnation,
            acked: 0,
            required: false,
            lacks_ns: None,
            mode: Mode::Probe,
            tried_ns: 0,
            rewound_ns: 0,
        }
    }

    /// Whether it gets records as they come.
    pub(super) fn streams(&self) -> bool {
        matches!(self.mode, Mode::Stream(_))
    }

    pub(super) fn end_transfer(&mut self, shared: &mut Shared) {
        if matches!(self.mode, Mode::Snapshot { counted: true, .. }) {
            shared.transfers = shared.transfers.saturating_sub(1);
        }
        self.mode = Mode::Probe;
    }
}

/// What a backup knows beside its records.
#[derive(Default)]
pub(crate) struct Backup {
    /// Up to here it has what the primary of the fence's epoch has.
    pub(super) matched: u64,
    /// What was acknowledged last.
    pub(super) acknowledged: u64,
    pub(super) primary: crate::NodeNo,
    /// A snapshot that came is not yet on disk, so nothing may be acknowledged.
    pub(super) installing: bool,
    pub(super) incoming: Option<Incoming>,
}

/// A snapshot that is coming.
pub(super) struct Incoming {
    pub(super) position: Position,
    pub(super) total: u64,
    pub(super) bytes: Vec<u8>,
}
