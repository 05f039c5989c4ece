//! A node of the namespace: its partitions, their log, its lease, and its part in the stewards. The
//! daemon and the simulation drive the same machine.
//!
//! # For the driver
//!
//! - **Files.** A node has a folder of its own, on one disk, with the files that [`File`] names. At
//!   a start the driver reads all of them and gives them to [`Node::open`]. A new namespace needs
//!   [`Start::Format`] on each of its first nodes, once, with the same [`Genesis`]; from then on,
//!   and on nodes that join later, [`Start::Open`]. A node that finds no identity joins as a new
//!   one.
//! - **Steps.** [`Node::step`] takes what happens. Actions are collected until [`Node::flush`],
//!   which the driver calls when it has nothing more to bring at once: what came together shares
//!   messages, writes and syncs. `now_ns` is a clock that never goes back, from any beginning;
//!   `wall_ns` is the time of day, and only ends up in the times of inodes.
//! - **Timer.** The driver brings [`Event::Timer`] at [`Node::wakes_ns`] or soon after.
//! - **Disk.** All `Append`s and `Sync`s are done and answered in their order; `Put`s and `Remove`s
//!   too, beside them or among them. Each with a token is answered by one [`Event::Done`]; that of
//!   a `Sync` covers the appends before it. `Append` makes the segment if it is missing, and its
//!   `Sync` also syncs the folder. `Put` replaces the file atomically and durably (a temporary
//!   file, sync, rename, sync of the folder). After a failed append or sync the node says
//!   [`Action::Broken`] and answers nobody any more: the driver drops it, and opens a new one from
//!   the disk.
//! - **Requests.** Each [`Event::Request`] is answered by one [`Action::Reply`], or by none if the
//!   node breaks or is dropped. [`crate::operation::Answer::Moved`]: ask again, by the newest map
//!   ([`Node::map`]). `EIO`: this partition's records are damaged here, and nobody else has them.
//! - **Peers.** [`Action::Send`] has the bytes of an [`Envelope`] for the node at an address.
//!   Delivery is not promised. Before the driver brings an envelope in, it must know that the
//!   sender is the node with the envelope's key, and that it is at the envelope's address. What
//!   such a node may say, the node decides itself (`heard`).
//! - **Levels.** See [`Level`].

mod heard;
mod log;
mod machine;
mod open;
mod shared;

pub use crate::peer::{Envelope, SentBy};
pub use log::{Identity, Position, RECORD_BYTES_MAX, Snapshot, key_in};
pub use machine::Node;
pub use open::{Files, Start};

pub(crate) use log::{read_file, write_file};
pub(crate) use shared::{Shared, Task};

use crate::map::State;
use crate::operation::{Request, Response};
use crate::partition::{self, Partition, Restore, Settings};
use crate::planted::Planted;
use crate::{InodeId, NodeNo, PartitionNo};
use zazen_core::Result;

/// When a change counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It is in the memory of the primary and of the synchronous backups, and on their disks within
    /// [`Timing::sync_ns`]. Survives the loss of any one of these nodes.
    Memory,
    /// It is written to their files. Also survives that all daemons are killed.
    Written,
    /// It is synced. Also survives that the power fails everywhere.
    Synced,
}

/// Times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A lease. A node that is silent for so long loses its partitions.
    pub lease_ns: u64,
    /// How often a node renews its lease.
    pub renew_ns: u64,
    /// How often the stewards' leader gives a sign of life.
    pub heartbeat_ns: u64,
    /// The shortest time after which a steward wants to lead.
    pub election_ns: u64,
    /// How long a primary waits for a backup before it has the stewards drop it.
    pub patience_ns: u64,
    /// After how long what was not answered is sent again.
    pub retry_ns: u64,
    /// A steward that is away for so long is replaced, if there is a node that can.
    pub replace_ns: u64,
    /// Level `memory` and `written`: how long a record may wait for a sync.
    pub sync_ns: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        const MS: u64 = 1_000_000;
        Timing {
            lease_ns: 3000 * MS,
            renew_ns: 500 * MS,
            heartbeat_ns: 200 * MS,
            election_ns: 1000 * MS,
            patience_ns: 1000 * MS,
            retry_ns: 200 * MS,
            replace_ns: 60_000 * MS,
            sync_ns: 1000 * MS,
        }
    }
}

impl Timing {
    /// How long a node trusts a grant, by its own clock: a twentieth less than the lease, because
    /// clocks may run at different speeds.
    pub(crate) fn lease_of_nodes_ns(&self) -> u64 {
        self.lease_ns - self.lease_ns / 20
    }
    /// How long the stewards wait after a grant: a twentieth more.
    pub(crate) fn lease_of_stewards_ns(&self) -> u64 {
        self.lease_ns + self.lease_ns / 20
    }
}

/// What a node is told by its operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its peers reach it.
    pub address: String,
    /// Addresses of stewards, for a node that knows no map yet.
    pub seeds: Vec<String>,
    /// The node's share of partitions, relative to others'.
    pub weight: u8,
    /// When a change counts as done.
    pub level: Level,
    /// Times; the same on all nodes.
    pub timing: Timing,
    /// A segment of the log is closed beyond this.
    pub segment_bytes_max: u64,
    /// When closed segments have this many bytes, partitions are written as snapshots, and the
    /// oldest segments are removed.
    pub log_bytes_max: u64,
    /// A bug to find.
    #[cfg(feature = "planted")]
    pub planted: Option<Planted>,
}

impl Config {
    /// The defaults of a node at `address`.
    pub fn new(address: &str) -> Config {
        Config {
            address: address.to_owned(),
            seeds: Vec::new(),
            weight: 1,
            level: Level::Written,
            timing: Timing::default(),
            segment_bytes_max: 16 << 20,
            log_bytes_max: 64 << 20,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    pub(crate) fn planted(&self) -> Option<Planted> {
        #[cfg(feature = "planted")]
        return self.planted;
        #[cfg(not(feature = "planted"))]
        return None;
    }
}

/// Whether this bug is planted.
#[inline]
pub(crate) fn has(planted: Option<Planted>, bug: Planted) -> bool {
    cfg!(feature = "planted") && planted == Some(bug)
}

/// A file in the node's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum File {
    /// Who the node is.
    Identity,
    /// What it stored as a steward.
    Steward,
    /// A partition as of some record.
    Snapshot(PartitionNo),
    /// Says that records of a partition are lost here: it answers nobody, in later lives too,
    /// until it has a snapshot of another node.
    Damaged(PartitionNo),
    /// A segment of the log.
    Segment(u64),
}

impl File {
    /// Its name: ASCII, without a dot at its beginning.
    pub fn name(self) -> String {
        match self {
            File::Identity => "identity".to_owned(),
            File::Steward => "steward".to_owned(),
            File::Snapshot(partition) => format!("partition-{partition}"),
            File::Damaged(partition) => format!("damaged-{partition}"),
            File::Segment(number) => format!("log-{number}"),
        }
    }

    /// The file with this name; `None` for names of other files.
    pub fn named(name: &str) -> Option<File> {
        let file = match name.split_once('-') {
            None if name == "identity" => File::Identity,
            None if name == "steward" => File::Steward,
            Some(("partition", number)) => File::Snapshot(PartitionNo(number.parse().ok()?)),
            Some(("damaged", number)) => File::Damaged(PartitionNo(number.parse().ok()?)),
            Some(("log", number)) => File::Segment(number.parse().ok()?),
            _ => return None,
        };
        (file.name() == name).then_some(file)
    }
}

/// What a node is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client asks. Whoever brings it vouches for its node, life and credentials.
    Request {
        /// Names the request in its [`Action::Reply`]; never used twice in the node's life.
        token: u64,
        /// What is asked.
        request: Request,
    },
    /// An envelope came.
    Peer {
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A disk action is done, or failed.
    Done {
        /// The action's token.
        token: u64,
        /// Whether it succeeded.
        ok: bool,
    },
    /// Time has passed.
    Timer,
    /// The operator wants this node to go (`Leaving`), to stay (`Up`), or to be forgotten (`Gone`).
    /// The stewards are asked once: bring it again until [`Node::state`] says that it is so.
    Wish {
        /// What the node shall be.
        state: State,
    },
}

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// The request's token.
        token: u64,
        /// The answer.
        response: Response,
    },
    /// Send an envelope.
    Send {
        /// Where to.
        address: String,
        /// The envelope.
        bytes: Vec<u8>,
    },
    /// Append to a segment of the log.
    Append {
        /// The segment.
        segment: u64,
        /// For [`Event::Done`].
        token: u64,
        /// What to append.
        bytes: Vec<u8>,
    },
    /// Sync a segment, and its name.
    Sync {
        /// The segment.
        segment: u64,
        /// For [`Event::Done`].
        token: u64,
    },
    /// Write a whole file, atomically and durably.
    Put {
        /// The file.
        file: File,
        /// For [`Event::Done`].
        token: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Remove a file. If that fails, or is lost in a crash, no harm is done.
    Remove {
        /// The file.
        file: File,
    },
    /// Remove an object of this node's disk: no name leads to it any more.
    DropObject {
        /// The inode.
        id: InodeId,
        /// The generation.
        generation: u64,
    },
    /// The node answers nobody any more. Drop it, and open a new one from the disk.
    Broken {
        /// Why, for people.
        why: String,
    },
}

/// The tables of a partition: [`Partition`], or what a test puts in its place.
pub trait Tables: Sized {
    /// Empty tables.
    fn new(partition: PartitionNo, settings: &Settings) -> Self;
    /// See [`Partition::step`].
    fn step(&mut self, wall_ns: i64, event: partition::Event, actions: &mut Vec<partition::Action>);
    /// See [`Partition::apply`].
    fn apply(&mut self, record: &[u8]) -> Result<()>;
    /// See [`Partition::snapshot`].
    fn snapshot(&self) -> Vec<Vec<u8>>;
    /// Plants a bug that the simulation shall find.
    fn plant(&mut self, planted: Option<Planted>) {
        let _ = planted;
    }
    /// See [`Restore`].
    fn restore(partition: PartitionNo, settings: &Settings, pieces: &[Vec<u8>]) -> Result<Self>;
}

impl Tables for Partition {
    fn new(partition: PartitionNo, settings: &Settings) -> Partition {
        Partition::new(partition, settings.clone())
    }
    fn step(&mut self, wall_ns: i64, event: partition::Event, actions: &mut Vec<partition::Action>) {
        Partition::step(self, wall_ns, event, actions);
    }
    fn apply(&mut self, record: &[u8]) -> Result<()> {
        Partition::apply(self, record)
    }
    fn snapshot(&self) -> Vec<Vec<u8>> {
        Partition::snapshot(self).collect()
    }
    #[cfg(feature = "planted")]
    fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }
    fn restore(partition: PartitionNo, settings: &Settings, pieces: &[Vec<u8>]) -> Result<Partition> {
        let mut restore = Restore::new(partition, settings.clone());
        pieces.iter().try_for_each(|piece| restore.piece(piece))?;
        restore.finish()
    }
}

/// What a node tells of itself, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its number; 0 while it has none.
    pub node: NodeNo,
    /// Whether it holds a lease.
    pub has_lease: bool,
    /// Whether it leads the stewards.
    pub leads: bool,
    /// Partitions that it answers for.
    pub primary_of: usize,
    /// Partitions that it has a copy of, and does not answer for.
    pub backup_of: usize,
    /// Partitions whose records are damaged here.
    pub damaged: Vec<PartitionNo>,
}
