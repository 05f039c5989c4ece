//! What a reader measured of one scan, and what a daemon tells of it: the messages behind `zazen
//! explain`.
//!
//! A reader keeps sums, not one entry for each read: its record does not grow with the frames that
//! it read locally, and holds the numbers of the others as run sets.

use crate::absence::Absence;
use zazen_core::RunSet;
use zazen_wire::field::{AbsolutePath, List, Nested, ShortText};

/// The most bytes of an encoded [`ScanRecord`]; a reader with more leaves out numbers of frames.
pub const RECORD_BYTES_MAX: usize = 256 << 10;

/// Where a rank's wall time went. The parts are disjoint, and together the wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// In the assignment: its own work, and waiting for other ranks.
    Assign,
    /// Waiting for the node's daemon to hand out cached frames, or to be found dead.
    Daemon,
    /// Waiting for the node's own disk or memory.
    Disk,
    /// Waiting for another node's cache.
    Peer,
    /// Waiting for the backing store, directly or through the daemon.
    Backing,
    /// Checking frames against their checksums.
    Checksum,
    /// The program between two frames.
    Consumer,
}

impl Part {
    /// All parts, in the order in which [`ScanRecord::spent_ns`] has them.
    pub const ALL: [Part; 7] =
        [Part::Assign, Part::Daemon, Part::Disk, Part::Peer, Part::Backing, Part::Checksum, Part::Consumer];

    /// A word for it.
    pub fn word(self) -> &'static str {
        match self {
            Part::Assign => "assign",
            Part::Daemon => "daemon",
            Part::Disk => "disk",
            Part::Peer => "peer",
            Part::Backing => "backing",
            Part::Checksum => "checksum",
            Part::Consumer => "consumer",
        }
    }
}

zazen_wire::messages! {
    /// Frames that a node did not have, with the reason.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Absent {
        /// Why.
        why: Absence,
        /// When they left the cache, in milliseconds since 1970; 0: not known, or never here.
        at_ms: u64,
        /// The dataset for which they went; empty: none, or the asker may not know of it.
        wanted: String = ShortText,
        /// How many.
        count: u64,
        /// Which. Fewer than `count` if the numbers would have been too long to keep.
        set: RunSet,
    }

    /// Asks why a scan's frames were not in the cache. The scan goes on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AskNotes {
        /// From [`crate::messages::ScanOpened`].
        scan: u32,
    }

    /// Why frames of a scan were not in the cache.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ScanNotes {
        /// Each frame at most once.
        absent: Vec<Absent> = List<Nested<Absent>>,
        /// What the backing store gave lately for frames of this length, in bytes per second; 0:
        /// not known.
        store_rate: u64,
        /// The most that this daemon has measured.
        store_rate_best: u64,
        /// What bringing frames took that other nodes gave, one after another, in nanoseconds.
        peer_ns: u64,
        /// The same of the other frames that were not in the cache.
        store_ns: u64,
    }

    /// Asks why frames were not in the cache that this connection read by
    /// [`crate::messages::ReadMany`]. The daemon then forgets it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AskReadNotes {
        /// From [`crate::messages::DatasetInfo`].
        handle: u32,
    }

    /// What one rank measured of one scan.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ScanRecord {
        /// Absolute path of the dataset as the daemon knows it.
        dataset: String = AbsolutePath,
        /// The cache's name for the series; empty without a daemon.
        series: String = ShortText,
        /// The node's name; a daemon puts its own in.
        node: String = ShortText,
        /// The node's identity; a daemon puts its own in.
        node_id: u128,
        /// The machine.
        host: String = ShortText,
        /// The batch system's name of the job; empty: none.
        job: String = ShortText,
        /// The process.
        pid: u32,
        /// This rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// Whether the ranks agreed on who reads what.
        assigned: bool,
        /// Whether the program took all frames.
        whole: bool,
        /// Begin, in milliseconds since 1970.
        began_ms: u64,
        /// From the begin of the assignment to the last frame.
        wall_ns: u64,
        /// By [`Part::ALL`].
        spent_ns: Vec<u64> = List<u64>,
        /// Frames from this node's cache.
        near_frames: u64,
        /// Their bytes.
        near_bytes: u64,
        /// Frames that were not there.
        far_frames: u64,
        /// Their bytes.
        far_bytes: u64,
        /// Frames that could not be read at all.
        failed_frames: u64,
        /// As [`ScanNotes::store_rate`].
        store_rate: u64,
        /// As [`ScanNotes::store_rate_best`].
        store_rate_best: u64,
        /// Why frames were not there.
        absent: Vec<Absent> = List<Nested<Absent>>,
    }

    /// Asks for all that a daemon knows of a dataset's last scans. Of records the caller gets its
    /// own; operators get all.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AskRecords {
        /// From [`crate::messages::DatasetInfo`].
        handle: u32,
    }

    /// A record, and whose it is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    KeptRecord {
        /// The user who ran the scan, as the kernel told the daemon.
        uid: u32,
        /// The record.
        record: ScanRecord = Nested<ScanRecord>,
    }

    /// What a daemon knows of a dataset's last scans.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Records {
        /// The node's name.
        node: String = ShortText,
        /// Its identity.
        node_id: u128,
        /// The daemon's clock, in milliseconds since 1970.
        now_ms: u64,
        /// For how long it has run. It forgot earlier records and removals.
        up_ms: u64,
        /// The natives that it holds of the series.
        native: RunSet,
        /// What it removed of the series, the latest first.
        removed: Vec<Absent> = List<Nested<Absent>>,
        /// Scans, the latest first.
        records: Vec<KeptRecord> = List<Nested<KeptRecord>>,
    }
}

impl ScanRecord {
    /// The time of a part.
    pub fn spent(&self, part: Part) -> u64 {
        self.spent_ns.get(part as usize).copied().unwrap_or(0)
    }
}
