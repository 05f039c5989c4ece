//! A client, what it has, and what it waits for.

use super::check::Record;
use zazen_namespace::operation::{Answer, Request};
use zazen_namespace::split::{Errand, Layouts};
use zazen_namespace::{Incarnation, InodeId, NodeNo};

/// A client: a program, and the daemon of its node, which ends for it what it has.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) host: usize,
    pub(crate) number: u64,
    pub(crate) call: Option<Ongoing>,
    /// How large directories are split, as far as it met them.
    pub(crate) layouts: Layouts,
    /// Calls answered since the faults ended.
    pub(crate) calm_answers: u64,
    /// Files that it has open, and locks: they end with the node's life.
    pub(crate) has: Vec<Thing>,
    /// What it held last and has closed: a file, its generation, and in which life.
    pub(crate) held: Option<(InodeId, u64, (NodeNo, Incarnation))>,
    /// The same, of a chunk.
    pub(crate) held_chunk: Option<(InodeId, u64, (NodeNo, Incarnation))>,
    /// The program has died: its daemon closes and unlocks.
    pub(crate) dies: bool,
}

/// A file or a chunk that a client has open, or a lock of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thing {
    pub(crate) file: InodeId,
    pub(crate) kind: Has,
    /// The life in which it is had.
    pub(crate) life: (NodeNo, Incarnation),
    /// When the answer came that gave it; `None` if none came: it may not be had.
    pub(crate) since_ns: Option<u64>,
    /// Its end was asked for.
    pub(crate) ends: bool,
}

/// What a client has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Has {
    /// It is open, with this generation, and its bytes are here or not.
    Open { generation: u64, holds: bool },
    /// Its lock.
    Lock { exclusive: bool },
    /// It is a file of chunks, and open.
    Chunked,
    /// It is a chunk, and open: which one, its generation, whether its bytes are here, and whether
    /// it is open for writing.
    Chunk { index: u64, generation: u64, holds: bool, writes: bool },
}

/// How often a lock was asked for in vain, and how often it was given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockAsks {
    pub(crate) in_vain: u64,
    pub(crate) given: u64,
}

/// A call that was not answered yet.
pub(crate) struct Ongoing {
    /// Where it is recorded; `None` for locks, and for ends.
    pub(crate) record: Option<Record>,
    pub(crate) began_ns: u64,
    pub(crate) errand: Errand,
    /// What the errand asks now, and the answers that came.
    pub(crate) requests: Vec<(Request, Option<Answer>)>,
    pub(crate) repeats_ns: u64,
}

impl Client {
    pub(crate) fn new(id: u64, host: usize) -> Client {
        Client {
            id: id + 1,
            host,
            number: 0,
            call: None,
            layouts: Layouts::default(),
            calm_answers: 0,
            has: Vec::new(),
            held: None,
            held_chunk: None,
            dies: false,
        }
    }
}
