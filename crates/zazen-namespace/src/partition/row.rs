//! The smaller rows of the tables.

use crate::attributes::Kind;
use crate::tagged::tagged;
use crate::{Errno, Incarnation, InodeId, NodeNo};
use std::collections::VecDeque;
use zazen_wire::field::{Blob, List, Opt};

/// The longest answer that is kept whole.
const ANSWER_BYTES_MAX: usize = 1 << 20;

zazen_wire::messages! {
    /// A lock of a range of a file, or of an open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    LockRow {
        whole: bool,
        node: NodeNo,
        incarnation: Incarnation,
        owner: u64,
        pid: u32,
        start: u64,
        end: u64,
        exclusive: bool,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    SavedErrno {
        errno: Errno,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    SavedEntry {
        id: InodeId,
        kind: Kind,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    SavedInode {
        id: InodeId,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    SavedMany {
        results: Vec<(InodeId, Option<Errno>)> = List<(InodeId, Opt<Errno>)>,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    SavedWhole {
        /// The answer, encoded: it is rare, and would make all rows large.
        answer: Vec<u8> = Blob<ANSWER_BYTES_MAX>,
    }
}

tagged! {
    /// An answer as it is kept for a repeated request. Attributes are not kept: they are those of
    /// the moment when the answer is given again.
    Saved {
        /// `Answer::Done`.
        Done = 1,
        /// `Answer::Refused`.
        Refused = 2 (SavedErrno),
        /// `Answer::Entry`.
        Entry = 3 (SavedEntry),
        /// `Answer::Grant` of a file that existed.
        Grant = 4 (SavedInode),
        /// `Answer::Grant` of a new file.
        GrantCreated = 5 (SavedInode),
        /// `Answer::Found`.
        Found = 6 (SavedInode),
        /// `Answer::Created`.
        Created = 7 (SavedMany),
        /// Any other.
        Whole = 8 (SavedWhole),
    }
}

/// What a node has open of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opens {
    pub(super) readers: u32,
    pub(super) writers: u32,
}

/// What a client was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) node: NodeNo,
    pub(super) incarnation: Incarnation,
    /// Lower numbers are refused.
    pub(super) oldest: u64,
    /// When it asked last.
    pub(super) asked_ns: i64,
    /// Answers by number, in order.
    pub(super) answers: VecDeque<(u64, Saved)>,
}
