//! What comes into a partition, and what it wants done.

use super::peer::PeerMessage;
use crate::operation::{Request, Response};
use crate::{Epoch, Incarnation, InodeId, NodeNo, PartitionNo};

/// What a partition is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client asks. Whoever brings the request vouches for its node, incarnation and credentials.
    Request {
        /// Names the request in its [`Action::Reply`]. Chosen by the driver, which never uses a
        /// number twice between two [`Event::Resumed`].
        token: u64,
        /// What is asked.
        request: Request,
    },
    /// The primary of another partition says something. Messages may be lost, doubled, delayed and
    /// reordered.
    Peer {
        /// The partition.
        from: PartitionNo,
        /// What it says.
        message: PeerMessage,
    },
    /// A life of a node has ended, by the map: whatever that life and earlier ones of the node have
    /// open or locked is free, and their requests are refused from now on.
    NodeGone {
        /// The node.
        node: NodeNo,
        /// Its last life that has ended.
        incarnation: Incarnation,
    },
    /// Time has passed. A few times in a second is right: what other partitions have not answered
    /// is sent again.
    Tick,
    /// This node is the partition's primary from now on: first of all events on a new primary,
    /// after the last record was applied. Transactions that the tables say are under way go on.
    Resumed {
        /// The partition's epoch. No epoch has two primaries, nor one primary twice: the names of
        /// new objects begin with it.
        epoch: Epoch,
    },
}

/// What a partition wants done. A list of actions is in order. [`Action::Reply`], [`Action::Send`]
/// and [`Action::DropObject`] may leave only when all records before them, those of earlier events
/// too, are as durable as the level says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append a record to the partition's log. At most one for an event. Backups and replay give it
    /// to `Partition::apply`.
    Log(Vec<u8>),
    /// Answer a request.
    Reply {
        /// The request's token.
        token: u64,
        /// The answer.
        response: Response,
    },
    /// Tell the primary of another partition. May be lost: it is sent again.
    Send {
        /// The partition.
        to: PartitionNo,
        /// What it is told.
        message: PeerMessage,
    },
    /// Tell a node that no name leads to an object any more, or that it was replaced. May be lost:
    /// a scrub finds leftovers.
    DropObject {
        /// The node that holds it.
        holder: NodeNo,
        /// The inode.
        id: InodeId,
        /// The generation.
        generation: u64,
    },
}
