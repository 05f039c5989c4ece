//! What goes between a program and its daemon, and between daemons: functions of the service
//! [`zazen_wire::service::NAMESPACE`].
//!
//! A program talks to the daemon of its node only. It asks operations without numbers: the daemon
//! numbers, routes and repeats them ([`Ask`], [`Answered`]). What it opens it gets as handles, as
//! the kernel gives descriptors: a handle is good for the caller that opened it, and for the rights
//! with which it was opened. So nothing that a caller sends about inodes, lengths and generations
//! has to be believed.

use crate::map::State;
use crate::operation::{Answer, At, Operation, Request, Response};
use crate::{Epoch, Errno, Incarnation, InodeId, NodeNo};
use zazen_core::Credentials;
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_wire::field::{FreeText, List, Nested, Opt, Text};

/// The most bytes that one read or write moves.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// The most operations that one call may ask.
pub const ASKS_MAX: usize = 1024;

/// Function numbers.
pub mod namespace_fn {
    /// Nothing → [`super::Hello`].
    pub const HELLO: u16 = 1;
    /// [`super::Asks`] → [`super::Answers`].
    pub const ASK: u16 = 2;
    /// [`super::HandleCall`] → [`super::Done`] and the bytes, fewer only where the file ends.
    pub const READ: u16 = 3;
    /// [`super::HandleCall`] and the bytes → [`super::Done`]: how many were written.
    /// Flags: 1 to write at the end of the file, wherever that is by then.
    pub const WRITE: u16 = 4;
    /// [`super::HandleCall`]: the file gets the length `offset` → [`super::Done`].
    pub const TRUNCATE: u16 = 5;
    /// [`super::HandleCall`] with the flags of `fallocate(2)` → [`super::Done`].
    pub const ALLOCATE: u16 = 6;
    /// [`super::HandleCall`]; flags: 0 for `SEEK_DATA`, 1 for `SEEK_HOLE` → [`super::Done`]: where.
    pub const SEEK: u16 = 7;
    /// [`super::HandleCall`] → [`super::Done`]: syncs the bytes to the holder's disk, and tells the
    /// metadata their length and times. Flags: 1 for the metadata alone, without a sync; 4 for all
    /// chunks of a file, and not only those that this handle has written.
    pub const SYNC: u16 = 8;
    /// [`super::HandleCall`] → [`super::Done`]. Tells the metadata what was written.
    pub const CLOSE: u16 = 9;
    /// [`super::HandleCall`] → [`super::Done`], and a descriptor of the bytes if this node holds
    /// them; otherwise `EXDEV`. A descriptor for writing goes to callers that may vouch only, and
    /// so does one of a handle that was not opened for reading.
    pub const DESCRIPTOR: u16 = 10;
    /// [`super::Watch`] → [`super::Changes`]. Blocks until something has changed, at most some
    /// seconds.
    pub const WATCH: u16 = 11;
    /// Nothing → [`super::MapView`].
    pub const MAP: u16 = 12;
    /// Nothing → JSON.
    pub const STATUS: u16 = 13;
    /// [`super::Scrub`] → [`super::Scrubbed`]: checks a part of a node's objects, a few seconds
    /// long. For callers that may vouch.
    pub const SCRUB: u16 = 14;
    /// Nothing → [`super::Spaces`]: the nodes that answered a moment ago. Between daemons: the
    /// asked node alone. An inode as payload: where a quota bounds what can be made there, one
    /// entry that says so.
    pub const SPACE: u16 = 15;

    /// [`super::Leave`] → [`super::Leaving`]. For callers that may vouch.
    pub const LEAVE: u16 = 19;
    /// [`super::Balance`] → [`super::Balanced`]. For callers that may vouch.
    pub const BALANCE: u16 = 16;

    /// [`super::Quota`] → nothing: sets or ends a quota. For root and the daemon's user.
    pub const QUOTA: u16 = 17;
    /// Nothing → [`super::Quotas`]: all, for root and the daemon's user and for other nodes;
    /// otherwise the caller's own.
    pub const QUOTAS: u16 = 18;

    /// Between daemons: [`super::Requests`] → [`super::Responses`].
    pub const REQUEST: u16 = 32;
    /// Between daemons: a batch of envelopes → nothing.
    pub const PEER: u16 = 33;
    /// Between daemons: [`super::ObjectCall`], the function of the same name on a handle in `what`,
    /// with the same bytes → [`super::ObjectDone`] and the same bytes.
    pub const OBJECT: u16 = 34;
    /// Between daemons: [`super::Introduction`] → [`super::Introduced`]. A connection of a node
    /// begins with it.
    pub const INTRODUCE: u16 = 35;
    /// Between daemons: [`super::Proof`] → nothing. From now on the caller is the node with the key
    /// that it showed.
    pub const PROVE: u16 = 36;
    /// Between daemons: [`super::Noticed`] → [`super::Watched`].
    pub const NOTICE: u16 = 40;

    /// In [`super::ObjectCall::what`]: makes the object of a file without bytes, whose holder the
    /// asked node is.
    pub const MAKE: u16 = 63;
    /// In [`super::ObjectCall::what`]: bytes of a copy that is coming in. Flags: 1 for its
    /// beginning.
    pub const COPY_PUT: u16 = 64;
    /// In [`super::ObjectCall::what`]: the copy is whole. `offset` is its length, `bytes` the time
    /// of the last change; the bytes that come with it are the checksum of its checksums.
    pub const COPY_END: u16 = 65;
    /// In [`super::ObjectCall::what`]: the asked node, which has a copy, becomes the holder if
    /// nobody has the file open.
    pub const TAKE: u16 = 66;
    /// In [`super::ObjectCall::what`]: the asked node tells the metadata the lengths of objects
    /// that it holds. The bytes that come with it name them: inode and generation of each, as
    /// `u64`.
    pub const TELL: u16 = 67;
}

zazen_wire::messages! {
    /// Who the daemon is, and who the caller is to it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Hello {
        /// The daemon's node.
        node: NodeNo,
        /// The daemon's life. What its callers have open ends with it.
        incarnation: Incarnation,
        /// The map that it knows.
        epoch: Epoch,
        /// The namespace has 2 to the power of this many partitions.
        partition_bits: u8,
        /// Whether the caller may vouch for the credentials of others: a mount, as root or as the
        /// daemon's user.
        vouches: bool,
        /// Whether root is nobody in particular in the namespace, as far as this daemon asks for
        /// it.
        squashes_root: bool,
    }

    /// An operation, and for whom.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Ask {
        /// For whom; `None` for the caller itself. Others than the caller itself are `EPERM`
        /// unless it may vouch.
        credentials: Option<Credentials> = Opt<Credentials>,
        /// What. `Commit` and `Release` are the daemon's own business, and `EPERM`.
        operation: Operation,
    }

    /// Operations of one call. Those on one partition are done in this order.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Asks {
        /// At most [`ASKS_MAX`].
        asks: Vec<Ask> = List<Nested<Ask>>,
    }

    /// An answer, and the handle of what was opened.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Answered {
        /// The answer. [`Answer::Moved`] does not come: the daemon has asked again.
        answer: Answer,
        /// With [`Answer::Grant`]: the handle; otherwise 0.
        handle: u64,
    }

    /// The answers, in the order of [`Asks`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Answers {
        /// One for each.
        answers: Vec<Answered> = List<Nested<Answered>>,
    }

    /// A function on an open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    HandleCall {
        /// The caller's handle.
        handle: u64,
        /// First byte, or new length.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// As the function says.
        flags: u32,
        /// The call's number, unique among the caller's calls.
        call: u64,
        /// How often the call was sent before. An earlier try of a change is not executed any more
        /// once a later one has come.
        again: u32,
    }

    /// What a function on an open file gave.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Done {
        /// Why not, if it was not done.
        errno: Option<Errno> = Opt<Errno>,
        /// As the function says.
        value: u64,
    }

    /// Asks what has changed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Watch {
        /// Where the caller's knowledge ends: [`Changes::next`] of the last answer, or 0.
        after: u64,
    }

    /// What has changed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Changes {
        /// Continues behind these changes.
        next: u64,
        /// Whether changes are missing: forget all that is cached.
        all: bool,
        /// Inodes whose attributes, bytes or entries have changed.
        inodes: Vec<InodeId> = List<InodeId>,
        /// Names that lead elsewhere or nowhere now. Only callers that may vouch hear of them.
        entries: Vec<At> = List<Nested<At>>,
    }

    /// A daemon tells another what has changed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Noticed {
        /// The node that changed it.
        by: NodeNo,
        /// Whether the receiver is the primary of these inodes, and tells the nodes that looked at
        /// them. Otherwise it tells its own callers that watch.
        passes_on: bool,
        /// As in [`Changes`].
        inodes: Vec<InodeId> = List<InodeId>,
        /// As in [`Changes`].
        entries: Vec<At> = List<Nested<At>>,
    }

    /// What a daemon answers to [`Noticed`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Watched {
        /// Whether one of its callers watches.
        watched: bool,
    }

    /// A node begins to prove to another who it is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Introduction {
        /// Random.
        nonce: [u8; 32],
        /// The caller's public key.
        key: [u8; 32],
    }

    /// The other node proves who it is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Introduced {
        /// Random.
        nonce: [u8; 32],
        /// The callee's public key.
        key: [u8; 32],
        /// Its signature of both random numbers and both keys.
        signature: [u8; 64],
    }

    /// The caller's proof.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Proof {
        /// Its signature of both random numbers and both keys.
        signature: [u8; 64],
    }

    /// A node, as the map has it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NodeView {
        /// Its number.
        node: NodeNo,
        /// A digest of the public key by which it proves who it is; 0 before it has come, and after
        /// it has left for good.
        key: u128,
        /// Its name, for people and schedulers; empty while it has not said it to the asked node.
        name: String = FreeText,
        /// `host:port` of its daemon.
        addr: String = FreeText,
        /// Whether the map counts on it.
        up: bool,
        /// Whether it takes part, leaves, or has left.
        state: State,
    }

    /// Which nodes keep a partition.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SeatView {
        /// The node that answers.
        primary: NodeNo,
        /// The nodes that stand by.
        backups: Vec<NodeNo> = List<NodeNo>,
    }

    /// The map.
    #[derive(Clone, Debug, PartialEq, Eq)]
    MapView {
        /// Its version.
        epoch: Epoch,
        /// The nodes, by number.
        nodes: Vec<NodeView> = List<Nested<NodeView>>,
        /// The partitions, by number: a power of two.
        partitions: Vec<SeatView> = List<Nested<SeatView>>,
    }

    /// Requests of another daemon.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Requests {
        /// Those on one partition are done in this order.
        requests: Vec<Request> = List<Nested<Request>>,
    }

    /// The answers, in the order of [`Requests`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Responses {
        /// One for each.
        responses: Vec<Response> = List<Nested<Response>>,
    }

    /// A function on the bytes of a file that another daemon holds.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ObjectCall {
        /// The file.
        id: InodeId,
        /// Its generation. Another one is answered with `ESTALE`.
        generation: u64,
        /// A function on handles: READ, WRITE, TRUNCATE, ALLOCATE, SEEK or SYNC.
        what: u16,
        /// As on a handle.
        offset: u64,
        /// As on a handle.
        bytes: u64,
        /// As on a handle.
        flags: u32,
        /// CRC-64/NVME of the bytes that come with the call.
        sum: u64,
        /// The call's number, unique among all calls of all daemons.
        call: u64,
        /// How often the call was sent before. An earlier try is not executed any more once a later
        /// one has come.
        again: u32,
    }

    /// What a function on an object gave.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ObjectDone {
        /// As on a handle.
        done: Done = Nested<Done>,
        /// CRC-64/NVME of the bytes that come with the answer.
        sum: u64,
    }

    /// Where a scrub is: before this object and block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    ScrubAt {
        /// The folder of objects, from 0.
        folder: u64,
        /// The object's inode.
        id: InodeId,
        /// The object's generation.
        generation: u64,
        /// The block.
        block: u64,
    }

    /// Asks a node to check its objects.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Scrub {
        /// Which node; `None` for the asked one.
        node: Option<NodeNo> = Opt<NodeNo>,
        /// From here on.
        from: ScrubAt = Nested<ScrubAt>,
    }

    /// An object whose bytes are not what was written.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Damage {
        /// Its inode.
        id: InodeId,
        /// Its generation.
        generation: u64,
    }

    /// What a scrub found.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Scrubbed {
        /// Where to go on; `None` if all was checked.
        next: Option<ScrubAt> = Opt<Nested<ScrubAt>>,
        /// Folders of objects that there are.
        folders: u64,
        /// Objects that were looked at.
        objects: u64,
        /// Bytes that were checked.
        bytes: u64,
        /// Objects that have no checksums yet: they are being made, unless the file is being
        /// written.
        unsealed: u64,
        /// Objects whose partition did not answer.
        unknown: u64,
        /// Objects that no inode names, which were removed.
        removed: u64,
        /// Their bytes.
        removed_bytes: u64,
        /// Objects that are damaged.
        damaged: Vec<Damage> = List<Nested<Damage>>,
        /// Objects that the metadata counts on and that are missing or too short.
        short: Vec<Damage> = List<Nested<Damage>>,
    }

    /// Starts, stops or asks after the work of a node that gives files to nodes with more space.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Balance {
        /// Which node; `None` for the asked one.
        node: Option<NodeNo> = Opt<NodeNo>,
        /// `Some(true)` starts it, `Some(false)` stops it, `None` only asks.
        run: Option<bool> = Opt<bool>,
        /// The most bytes that it sends in a second; 0 for as many as go.
        bytes_per_s: u64,
        /// Files that were changed in the last so many seconds stay.
        age_s: u64,
    }

    /// What the work has done since it was started.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Balanced {
        /// Whether it goes on.
        running: bool,
        /// Files that were moved.
        files: u64,
        /// Their bytes.
        bytes: u64,
        /// Files that were left, because they were in use, or had no checksums yet, or a node did
        /// not answer.
        left: u64,
    }

    /// A node shall leave the namespace, or stay.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Leave {
        /// Which node; `None` for the asked one.
        node: Option<NodeNo> = Opt<NodeNo>,
        /// `Some(true)`: it shall leave; `Some(false)`: stay; `None` only asks.
        run: Option<bool> = Opt<bool>,
    }

    /// How far a node is that leaves.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Leaving {
        /// Whether it shall leave.
        wanted: bool,
        /// What it is by the map. `Gone`: it has left, and may be switched off.
        state: State,
        /// Partitions of which it has a replica.
        partitions: u64,
        /// Whether it is a steward.
        is_steward: bool,
        /// Files that it held at the last look, and could not give away.
        files: u64,
        /// Their bytes.
        bytes: u64,
        /// Those of them that somebody has open.
        in_use: u64,
        /// Files that other nodes took.
        moved: u64,
        /// Their bytes.
        moved_bytes: u64,
        /// Files that its own programs have open.
        open_files: u64,
    }

    /// How much a user, or all below a directory, may take.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Quota {
        /// The user; `None`: the directory at `path`.
        user: Option<u32> = Opt<u32>,
        /// The directory's path from the root.
        path: String = Text<PATH_BYTES_MAX>,
        /// Bytes on disk; 0 for no limit. `None`: as it is.
        bytes: Option<u64> = Opt<u64>,
        /// Inodes; 0 for no limit. `None`: as it is. Without any limit the quota ends.
        files: Option<u64> = Opt<u64>,
    }

    /// A quota, and what is used of it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    QuotaView {
        /// The user; `None` for a directory.
        user: Option<u32> = Opt<u32>,
        /// The directory; 0 for a user.
        directory: InodeId,
        /// The directory's path when the quota was set.
        path: String = FreeText,
        /// The limit of bytes; 0 for none.
        bytes_max: u64,
        /// The limit of inodes; 0 for none.
        files_max: u64,
        /// Bytes that are used.
        bytes: u64,
        /// Inodes that are used.
        files: u64,
        /// Whether all files were added up since the quota was set. Until then `bytes` and `files`
        /// are only what the asked node's own callers made.
        counted: bool,
    }

    /// All quotas.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Quotas {
        /// Users first, then directories.
        quotas: Vec<QuotaView> = List<Nested<QuotaView>>,
        /// How long ago the last look at all files began; `None` before the first.
        age_ms: Option<u64> = Opt<u64>,
        /// How long it took.
        took_ms: u64,
    }

    /// The disk of a node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NodeSpace {
        /// Which.
        node: NodeNo,
        /// Bytes.
        bytes: u64,
        /// Bytes that the daemon may still use.
        bytes_free: u64,
        /// Inodes.
        inodes: u64,
        /// Inodes that are free.
        inodes_free: u64,
    }

    /// The disks of the nodes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Spaces {
        /// By node.
        nodes: Vec<NodeSpace> = List<Nested<NodeSpace>>,
    }
}

impl Default for Leaving {
    fn default() -> Leaving {
        Leaving {
            wanted: false,
            state: State::Up,
            partitions: 0,
            is_steward: false,
            files: 0,
            bytes: 0,
            in_use: 0,
            moved: 0,
            moved_bytes: 0,
            open_files: 0,
        }
    }
}

impl Done {
    /// It was done, with this value.
    pub fn with(value: u64) -> Done {
        Done { errno: None, value }
    }

    /// It was not done.
    pub fn refused(errno: Errno) -> Done {
        Done { errno: Some(errno), value: 0 }
    }

    /// The value, or why there is none.
    pub fn result(&self) -> Result<u64, Errno> {
        self.errno.map_or(Ok(self.value), Err)
    }
}

impl From<Result<u64, Errno>> for Done {
    fn from(result: Result<u64, Errno>) -> Done {
        result.map_or_else(Done::refused, Done::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Inode;
    use crate::{Name, PartitionNo};
    use zazen_wire::Message;
    use zazen_wire::contract::check_bytes;

    #[test]
    fn asks_come_back_from_their_bytes_and_cut_ones_are_refused() {
        let name = Name::new(b"a").expect("a name");
        let credentials = Some(Credentials { uid: 1, gid: 2, groups: vec![3] });
        let asks = Asks {
            asks: vec![
                Ask { credentials, operation: Operation::Lookup(At { directory: InodeId::ROOT, name }) },
                Ask {
                    credentials: None,
                    operation: Operation::GetAttributes(Inode { id: InodeId::new(PartitionNo(3), 4) }),
                },
            ],
        };
        let bytes = asks.encode();
        assert_eq!(Asks::decode(&bytes).expect("decodes"), asks);
        for cut in 0..bytes.len() {
            Asks::decode(&bytes[..cut]).expect_err("a part of a message");
        }
    }

    #[test]
    fn any_byte_changed_gives_a_message_or_an_error() {
        let view = MapView {
            epoch: Epoch(3),
            nodes: vec![NodeView {
                node: NodeNo(0),
                key: 5,
                name: "a".into(),
                addr: "b:1".into(),
                up: true,
                state: State::Up,
            }],
            partitions: vec![SeatView { primary: NodeNo(0), backups: vec![NodeNo(1)] }],
        };
        let bytes = view.encode();
        assert_eq!(MapView::decode(&bytes).expect("decodes"), view);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                check_bytes::<MapView>(&changed);
            }
        }
    }

    #[test]
    fn done_is_a_result() {
        for result in [Ok(7), Err(Errno::ENOSPC)] {
            assert_eq!(Done::decode(&Done::from(result).encode()).expect("decodes").result(), result);
        }
    }
}
