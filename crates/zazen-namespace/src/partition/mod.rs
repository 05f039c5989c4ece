//! One partition: deterministic tables, and the execution of operations on them. No clock, no
//! randomness, no I/O.
//!
//! # For the driver
//!
//! A driver has one [`Partition`] for each partition whose primary or backup it is.
//!
//! - **Primary.** [`Partition::step`] executes an event at once and appends [`Action`]s. A record
//!   ([`Action::Log`]) holds all that the event changed in the tables; there is at most one for an
//!   event, and none for an event that changed nothing. `Reply`, `Send` and `DropObject` may leave
//!   only when *all* records logged before them are as durable as the level says. That also holds
//!   for a reply to an operation that only reads: it may have seen what is not durable yet.
//! - **Backup, and replay.** [`Partition::apply`] takes the records in their order. The tables are
//!   then the same, bit for bit: [`Partition::digest`] is equal. A record that does not fit is an
//!   error, and the partition must then be built anew (from a snapshot, or from another replica).
//! - **A new primary** applies all records, then calls `step` with [`Event::Resumed`] first. What
//!   is not in the tables is lost without harm: tokens of requests that wait, and messages. Clients
//!   repeat requests, and partitions repeat messages at [`Event::Tick`]. New objects are named by
//!   the epoch of that event, so no name is given twice even if the log has lost its end.
//! - **Snapshot.** [`Partition::snapshot`] gives the tables in pieces, each with a checksum;
//!   [`Restore`] takes them in order. Log records from after the snapshot are applied on top.
//! - **A request that meets a transaction in its way waits.** Its reply comes with a later event
//!   (another request, a peer's message, or a tick). So a driver must not expect a reply from the
//!   `step` that brought the request. A repeated request takes the place of the one that waits:
//!   only the newest token is answered.
//! - **Moved.** The driver answers [`crate::operation::Answer::Moved`] itself, before `step`. A
//!   request for another partition is answered with `EINVAL` here.
//!
//! # For clients
//!
//! - **Numbers.** Requests that change something (`Create`, `CreateMany`, `MakeDirectory`,
//!   `Unlink`, `RemoveDirectory`, `Rename`, `Link`, `Open`, `SetAttributes`, `Commit`, `Release`,
//!   `SetXattr`, `Lock`, `OpenChunk`, `Append`) are executed once for a (client, number), and a
//!   repeated one gets its first answer. Attributes within that answer may be newer. A number below
//!   the client's `oldest` is refused with `EIO`. A `Lock` or a chunk that is not given changes
//!   nothing: its answer is kept in the primary's memory only. A request of a life of a node that
//!   has ended is answered with `Answer::Ended`: what that life was answered before is forgotten.
//! - **Inodes elsewhere.** `Create` with `open` of an existing name whose inode another partition
//!   keeps is answered with `Answer::Entry` without attributes: the client opens that inode by
//!   `Open`.
//! - **Open with `truncate`.** If some node has the file open, its holder and generation stay, and
//!   the client must have the holder truncate the object before it goes on. Otherwise the grant
//!   names the asking node and a new generation.
//! - **By number.** An operation on an inode checks the inode's own mode bits. Whoever brings it
//!   has walked there: the core cannot check the directories above.
//! - **A truncating `SetAttributes`** needs write permission, or that the asking node has the file
//!   open for writing (`ftruncate`).
//! - **`Commit`** needs no permission bits: the asking node must be the holder in that generation.
//!   It sets the modification time to what the holder says, unless somebody set it explicitly since
//!   then. If its caller is not root and the file has changed, set-user-id and set-group-id go.
//! - **Chunks.** A file of chunks has no place, and is opened as any file; its bytes are in chunks,
//!   which are opened by `OpenChunk` and committed and closed as files are. Programs never get a
//!   chunk's number: it belongs to root, without permission bits. A length that `SetAttributes`
//!   sets, or an open with `truncate`, ends the chunks behind it that no node has open. The client
//!   then lists `Chunks` from the length on, and has the holder of each cut it, and commit that,
//!   before it goes on. So bytes that were cut are zeros for whoever asks after that.
//! - **Rights of a transaction** are judged when its name is held. A change of the directory's
//!   rights meanwhile is for later operations.
//! - **A directory may be opened** for reading: it then stays, without entries, when it is removed.

mod change;
mod chunk_table;
mod chunks;
mod directories;
mod drive;
mod entry;
mod event;
mod files;
mod inode;
mod inodes;
mod locks;
mod machine;
mod mutant;
mod parts;
mod peer;
mod permission;
mod row;
mod settings;
mod snapshot;
mod split;
mod tables;
mod transaction;

pub(crate) use entry::place_of;
pub use event::{Action, Event};
pub use machine::Partition;
pub use peer::PeerMessage;
pub use settings::Settings;
pub use snapshot::Restore;

#[cfg(test)]
mod tests;
