//! What a client asks of a partition's primary, and what it is answered.
//!
//! A client (a mount, the library, a forwarded program's plug-in) sends an operation to the primary
//! of the partition that [`Operation::partition`] names. Operations that change two partitions
//! (`rename`, `link`, a directory's `mkdir` and `rmdir`) go to one of them, which drives the
//! transaction. The core checks permissions by the [`Request::credentials`]: whoever brings a
//! request vouches for them.

use crate::attributes::{Attributes, Kind};
use crate::last::Last;
use crate::tagged::tagged;
use crate::{Epoch, Errno, Incarnation, InodeId, Name, NodeNo, PartitionNo};
use zazen_core::{Credentials, Result};
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{Blob, Field, List, Nested, Opt};

mod chunk;
mod mode;

pub use chunk::{Append, CHUNK_MIB_MAX, CHUNKS_WANTED, ChunkList, Chunks, Offset, OpenChunk, chunk_mib_of};
pub use mode::Mode;

/// The longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// The extended attribute that says how many nodes shall have a file: a number from 1 on.
pub const COPIES_WANTED: &[u8] = b"user.zazen.copies";
/// The extended attribute that says whether the archive shall have a file: `yes` or `no`.
pub const ARCHIVE_WANTED: &[u8] = b"user.zazen.archive";
/// Entries that one [`CreateMany`], [`GetMany`] or [`Chunks`] may name.
pub const MANY_MAX: usize = 1024;

zazen_wire::messages! {
    /// One operation and who asks for it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Request {
        /// The client: the number that its node gave it, unique for good.
        client: u64,
        /// The client's number of this operation, from 1 on. A repeated request gets its first
        /// answer.
        number: u64,
        /// The lowest number of this client that may still be repeated: answers below it may be
        /// forgotten.
        oldest: u64,
        /// The node that asks: it gets new files' bytes and holds what it opens.
        node: NodeNo,
        /// That node's life; what it holds ends with it.
        incarnation: Incarnation,
        /// The map that the client knows. An operation for a partition that has moved is answered
        /// with [`Answer::Moved`].
        epoch: Epoch,
        /// Who asks, for permissions, and as owner of new inodes.
        credentials: Credentials,
        /// What is asked.
        operation: Operation,
        /// The node that gets the bytes of a file that has none yet; `None`: the node that asks,
        /// unless its disk is full.
        place: Option<NodeNo> = Last<NodeNo>,
        /// The asking node knows files of chunks. Without it, such a file is neither opened nor
        /// cut (`EOPNOTSUPP`): an older node would take it for a file without bytes.
        knows_chunks: Option<bool> = Last<bool>,
    }

    /// What comes back.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Response {
        /// The client's number of the operation.
        number: u64,
        /// The answer.
        answer: Answer,
    }

    /// An entry of a directory, by the directory and its name there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    At {
        /// The directory.
        directory: InodeId,
        /// The name in it.
        name: Name,
    }

    /// Makes an inode that is not a directory, with a name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Create {
        /// Where.
        directory: InodeId,
        /// Its name.
        name: Name,
        /// What it is; not [`Kind::Directory`].
        kind: Kind,
        /// Permission bits, after the umask.
        mode: u32,
        /// Number of a device; 0 for others.
        device: u32,
        /// Target of a symbolic link; empty for others.
        target: Vec<u8> = Blob<TARGET_BYTES_MAX>,
        /// With a file: also open it. An existing file is opened, unless `exclusive`.
        open: Option<Mode> = Opt<Nested<Mode>>,
        /// Refuse an existing name with `EEXIST`. Without `open` always so.
        exclusive: bool,
        /// How many nodes shall have a new file: its attribute [`COPIES_WANTED`]. 0: it gets none.
        copies: u8,
        /// Whether the archive shall have a new file: its attribute [`ARCHIVE_WANTED`].
        archived: Option<bool> = Last<bool>,
        /// A new file's bytes are in chunks of so many MiB: its attribute [`CHUNKS_WANTED`]. 0 and
        /// `None`: one node holds them.
        chunk_mib: Option<u32> = Last<u32>,
    }

    /// Makes many empty, closed files in one directory. Each name has its own result.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CreateMany {
        /// Where.
        directory: InodeId,
        /// Their names, at most [`MANY_MAX`].
        names: Vec<Name> = List<Name>,
        /// Permission bits of each, after the umask.
        mode: u32,
        /// As for [`Create`].
        copies: u8,
        /// As for [`Create`].
        archived: Option<bool> = Last<bool>,
        /// As for [`Create`].
        chunk_mib: Option<u32> = Last<u32>,
    }

    /// Makes a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    MakeDirectory {
        /// Where.
        directory: InodeId,
        /// Its name.
        name: Name,
        /// Permission bits, after the umask.
        mode: u32,
    }

    /// Gives an entry another name, atomically.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Rename {
        /// The directory that it is in.
        directory: InodeId,
        /// Its name there.
        name: Name,
        /// The directory that it goes to.
        new_directory: InodeId,
        /// Its name there.
        new_name: Name,
        /// `RENAME_NOREPLACE`: refuse an existing target with `EEXIST`.
        no_replace: bool,
        /// `RENAME_EXCHANGE`: the two entries change places.
        exchange: bool,
    }

    /// Gives an inode another name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Link {
        /// The inode; not a directory.
        id: InodeId,
        /// The directory of the new name.
        directory: InodeId,
        /// The new name.
        name: Name,
    }

    /// Opens an inode.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Open {
        /// The file.
        id: InodeId,
        /// How.
        mode: Mode = Nested<Mode>,
    }

    /// Tells the length and times of a file that this node holds and that is being written: at
    /// `fsync`, and at the last close for writing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Commit {
        /// The file.
        id: InodeId,
        /// The generation that was written. Another one is answered with `ESTALE`.
        generation: u64,
        /// Its bytes.
        bytes: u64,
        /// Its units of 512 bytes on disk.
        blocks: u64,
        /// When it was changed last.
        modified_ns: i64,
    }

    /// Ends opens of the asking node: one for each of the grants.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Release {
        /// The file.
        id: InodeId,
        /// How many opens for writing end.
        writers: u32,
        /// How many other opens end.
        readers: u32,
        /// The file's last state, if this node holds it and wrote it.
        commit: Option<Commit> = Opt<Nested<Commit>>,
    }

    /// Tells which nodes have a full copy of a file's bytes, beside the holder. Asked by the
    /// holder.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Copied {
        /// The file.
        id: InodeId,
        /// The generation that was copied. Another one is answered with `ESTALE`.
        generation: u64,
        /// [`Attributes::version`] before the first byte was read for the copy. If the inode has
        /// another one by now, or somebody writes it, the answer is `ESTALE`.
        version: u64,
        /// The nodes. [`crate::ARCHIVE`] stays until the bytes change, whether it is named or not.
        copies: Vec<NodeNo> = List<NodeNo>,
        /// They come to those that are known.
        more: Option<bool> = Last<bool>,
    }

    /// A node with a full copy becomes the holder, because the holder is lost. Asked by that node.
    /// If the archive has the file, any node may: it brings the bytes back from there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    TakeOver {
        /// The file.
        id: InodeId,
        /// The generation of the copy.
        generation: u64,
        /// The holder is not lost, but gives the file away: only while nobody has it open.
        idle: bool,
    }

    /// Changes attributes. What is `None` stays.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetAttributes {
        /// The inode.
        id: InodeId,
        /// Permission bits.
        mode: Option<u32> = Opt<u32>,
        /// Owner.
        uid: Option<u32> = Opt<u32>,
        /// Group.
        gid: Option<u32> = Opt<u32>,
        /// Length of a file. The holder must have changed the bytes before; a file without a place
        /// gets no bytes by it: it reads as zeros. Of a file of chunks, those behind the length go
        /// that no node has open. The others, and the one that the length is in, are listed by
        /// [`Chunks`] then, and their holders must cut them *after* that.
        bytes: Option<u64> = Opt<u64>,
        /// Time of the last read; [`NOW_NS`] for the primary's time.
        accessed_ns: Option<i64> = Opt<i64>,
        /// Time of the last change of bytes; [`NOW_NS`] for the primary's time.
        modified_ns: Option<i64> = Opt<i64>,
    }

    /// Asks for the attributes of many inodes of one partition.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetMany {
        /// The inodes, at most [`MANY_MAX`].
        ids: Vec<InodeId> = List<InodeId>,
    }

    /// One inode.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Inode {
        /// Which.
        id: InodeId,
    }

    /// Lists a part of a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ReadDirectory {
        /// The directory.
        directory: InodeId,
        /// 0, or the cookie of the last entry that the client has. It stays valid while entries
        /// come and go, and after a split or fail-over.
        cookie: u64,
        /// About how many bytes the answer may take.
        bytes_max: u32,
        /// Also give the attributes of inodes that this partition keeps.
        attributes: bool,
    }

    /// An extended attribute.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetXattr {
        /// The inode.
        id: InodeId,
        /// Its name, with its class (`user.`, `trusted.`, `security.`, `system.`).
        name: Name,
        /// Its value; `None` removes it.
        value: Option<Vec<u8>> = Opt<Blob<XATTR_BYTES_MAX>>,
        /// `XATTR_CREATE`: refuse an existing one with `EEXIST`.
        create: bool,
        /// `XATTR_REPLACE`: refuse a missing one with `ENODATA`.
        replace: bool,
    }

    /// Names an extended attribute.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GetXattr {
        /// The inode.
        id: InodeId,
        /// Its name, with its class.
        name: Name,
    }

    /// A record lock (`fcntl`) or, over all bytes, a lock of an open file (`flock`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    Lock {
        /// The file.
        id: InodeId,
        /// Whose it is, unique within the asking node.
        owner: u64,
        /// The process, as the asking node numbers it.
        pid: u32,
        /// Whether it is `flock`'s: the two kinds do not see each other.
        whole: bool,
        /// First byte.
        start: u64,
        /// Last byte, inclusive; `u64::MAX` for the end of the file.
        end: u64,
        /// What is wanted.
        wanted: LockWanted,
    }

    /// What was found under a name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Entry {
        /// The inode.
        id: InodeId,
        /// What it is.
        kind: Kind,
        /// Its attributes, if the answering partition keeps it; otherwise the client asks that of
        /// the inode.
        attributes: Option<Attributes> = Opt<Nested<Attributes>>,
    }

    /// Lists inodes of a partition that have no name any more, and that nodes have open.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Nameless {
        /// From this number on.
        from: InodeId,
        /// At most so many, and at most [`MANY_MAX`].
        max: u32,
    }

    /// An opened file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Grant {
        /// The file, with its place. A file without bytes that is opened for writing gets the
        /// asking node as its holder.
        attributes: Attributes = Nested<Attributes>,
        /// Whether [`Create`] made it.
        created: bool,
    }

    /// An entry of a listing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Listed {
        /// Continues the listing behind this entry.
        cookie: u64,
        /// Its name.
        name: Name,
        /// What it is.
        entry: Entry = Nested<Entry>,
    }

    /// A part of a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Listing {
        /// Entries, in the order of their cookies. Without `.` and `..`.
        entries: Vec<Listed> = List<Nested<Listed>>,
        /// Whether the directory ends here.
        end: bool,
    }

    /// Attributes of many inodes; `None` for one that is gone.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ManyAttributes {
        /// In the order asked.
        attributes: Vec<Option<Attributes>> = List<Opt<Nested<Attributes>>>,
    }

    /// One result for each of many names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ManyCreated {
        /// In the order asked: the inode, or 0 and why not.
        results: Vec<(InodeId, Option<Errno>)> = List<(InodeId, Opt<Errno>)>,
    }

    /// Bytes: a link's target, or the value of an extended attribute.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Bytes {
        /// The bytes.
        bytes: Vec<u8> = Blob<XATTR_BYTES_MAX>,
    }

    /// Names of extended attributes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Names {
        /// The names.
        names: Vec<Name> = List<Name>,
    }

    /// The lock that stands in the way.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Blocking {
        /// The node of its owner.
        node: NodeNo,
        /// The process there.
        pid: u32,
        /// First byte.
        start: u64,
        /// Last byte, inclusive.
        end: u64,
        /// Whether it excludes readers too.
        exclusive: bool,
    }

    /// What is wrong, with words for people.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Refused {
        /// The error number.
        errno: Errno,
    }

    /// The partition is not here.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Moved {
        /// The newest map that the node knows. The client gets it, and asks again.
        epoch: Epoch,
        /// Whether it may have been executed nevertheless.
        perhaps: bool,
    }

    /// How a directory is split: see [`crate::split`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Layout {
        /// The directory.
        directory: InodeId,
        /// Its buckets, in the order of cookies: a power of two; none if it is not split. A
        /// bucket's number is never used twice.
        buckets: Vec<InodeId> = List<InodeId>,
    }

    /// An inode's attributes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Found {
        /// The attributes.
        attributes: Attributes = Nested<Attributes>,
    }

}

/// A time that stands for the primary's clock.
pub const NOW_NS: i64 = i64::MIN;

/// What a [`Lock`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LockWanted {
    /// Ends the owner's locks in the range.
    Unlock = 0,
    /// A lock that other readers may have too.
    Shared = 1,
    /// A lock that nobody else may have.
    Exclusive = 2,
    /// Only whether a shared lock could be had.
    TestShared = 3,
    /// Only whether an exclusive lock could be had.
    TestExclusive = 4,
}

impl Field for LockWanted {
    type Value = LockWanted;
    const BYTES_MIN: usize = 1;
    fn write(value: &LockWanted, writer: &mut Writer) {
        writer.u8(*value as u8);
    }
    fn read(reader: &mut Reader<'_>) -> Result<LockWanted> {
        use LockWanted::{Exclusive, Shared, TestExclusive, TestShared, Unlock};
        let number = reader.u8()?;
        let all = [Unlock, Shared, Exclusive, TestShared, TestExclusive];
        all.into_iter()
            .find(|wanted| *wanted as u8 == number)
            .ok_or_else(|| reader.malformed(format_args!("lock {number}")))
    }
}

tagged! {
    /// What is asked. The answer to each is named behind it; any may be [`Answer::Refused`],
    /// [`Answer::Moved`] or [`Answer::Ended`].
    Operation {
        /// → [`Answer::Entry`].
        Lookup = 1 (At),
        /// → [`Answer::Found`].
        GetAttributes = 2 (Inode),
        /// → [`Answer::Many`].
        GetMany = 3 (GetMany),
        /// → [`Answer::Found`].
        SetAttributes = 4 (SetAttributes),
        /// → [`Answer::Grant`] with `open`, otherwise [`Answer::Entry`].
        Create = 5 (Create),
        /// → [`Answer::Created`].
        CreateMany = 6 (CreateMany),
        /// → [`Answer::Entry`], with attributes.
        MakeDirectory = 7 (MakeDirectory),
        /// → [`Answer::Done`]. Removes a name that is not a directory's.
        Unlink = 8 (At),
        /// → [`Answer::Done`].
        RemoveDirectory = 9 (At),
        /// → [`Answer::Done`].
        Rename = 10 (Rename),
        /// → [`Answer::Entry`], with attributes.
        Link = 11 (Link),
        /// → [`Answer::Listing`].
        ReadDirectory = 12 (ReadDirectory),
        /// → [`Answer::Bytes`].
        ReadLink = 13 (Inode),
        /// → [`Answer::Grant`].
        Open = 14 (Open),
        /// → [`Answer::Done`].
        Commit = 15 (Commit),
        /// → [`Answer::Done`].
        Release = 16 (Release),
        /// → [`Answer::Done`].
        SetXattr = 17 (SetXattr),
        /// → [`Answer::Bytes`].
        GetXattr = 18 (GetXattr),
        /// → [`Answer::Names`].
        ListXattr = 19 (Inode),
        /// → [`Answer::Done`], or [`Answer::Blocking`]. Never waits: the client asks again.
        Lock = 20 (Lock),
        /// → [`Answer::Entry`]: the directory, or the bucket, that the directory is in.
        Parent = 21 (Inode),
        /// → [`Answer::Split`].
        Buckets = 22 (Inode),
        /// → [`Answer::Done`].
        Copied = 40 (Copied),
        /// → [`Answer::Done`]; `EBUSY` while somebody has it open for writing.
        TakeOver = 41 (TakeOver),
        /// → [`Answer::Grant`]. A repeated request is answered as if the chunk had existed.
        OpenChunk = 42 (OpenChunk),
        /// → [`Answer::Chunks`].
        Chunks = 43 (Chunks),
        /// → [`Answer::Offset`].
        Append = 44 (Append),
        /// → [`Answer::Many`]: fewer than `max` only if there are no more.
        Nameless = 45 (Nameless),
        /// → [`Answer::Done`]. As [`Operation::Commit`], of a file whose bytes may be others than
        /// those that were committed, though nothing else of it is: copies of them count no more.
        Recommit = 46 (Commit),
    }

    /// What is answered.
    Answer {
        /// It is done.
        Done = 1,
        /// It was not done.
        Refused = 2 (Refused),
        /// The partition is elsewhere, or its primary is being replaced. Ask again with the newest
        /// map.
        Moved = 3 (Moved),
        /// An entry.
        Entry = 4 (Entry),
        /// Attributes.
        Found = 5 (Found),
        /// Attributes of many.
        Many = 6 (ManyAttributes),
        /// An opened file.
        Grant = 7 (Grant),
        /// Results of many.
        Created = 8 (ManyCreated),
        /// A part of a directory.
        Listing = 9 (Listing),
        /// Bytes.
        Bytes = 10 (Bytes),
        /// Names of extended attributes.
        Names = 11 (Names),
        /// A lock of another owner stands in the way.
        Blocking = 12 (Blocking),
        /// The names of the directory are in its buckets. Nothing was done.
        Split = 13 (Layout),
        /// The life of the asking node has ended. Nothing was done now; whether an earlier try of
        /// the same request was executed is not known any more.
        Ended = 14,
        /// Chunks of a file.
        Chunks = 15 (ChunkList),
        /// Where a range begins.
        Offset = 16 (Offset),
    }
}

impl Create {
    /// An empty file with mode 0644, closed. Refused where the name is there.
    pub fn file(directory: InodeId, name: Name) -> Create {
        Create {
            directory,
            name,
            kind: Kind::File,
            mode: 0o644,
            device: 0,
            target: Vec::new(),
            open: None,
            exclusive: true,
            copies: 0,
            archived: None,
            chunk_mib: None,
        }
    }
}

impl SetAttributes {
    /// Changes nothing of the inode.
    pub fn of(id: InodeId) -> SetAttributes {
        SetAttributes {
            id,
            mode: None,
            uid: None,
            gid: None,
            bytes: None,
            accessed_ns: None,
            modified_ns: None,
        }
    }
}

impl Operation {
    /// The partition whose primary takes the operation.
    pub fn partition(&self) -> PartitionNo {
        let id = match self {
            Operation::Lookup(at) | Operation::Unlink(at) | Operation::RemoveDirectory(at) => at.directory,
            Operation::GetAttributes(inode)
            | Operation::ReadLink(inode)
            | Operation::ListXattr(inode)
            | Operation::Parent(inode)
            | Operation::Buckets(inode) => inode.id,
            Operation::GetMany(many) => many.ids.first().copied().unwrap_or(InodeId::ROOT),
            Operation::SetAttributes(set) => set.id,
            Operation::Create(create) => create.directory,
            Operation::CreateMany(create) => create.directory,
            Operation::MakeDirectory(make) => make.directory,
            Operation::Rename(rename) => rename.new_directory,
            Operation::Link(link) => link.directory,
            Operation::ReadDirectory(read) => read.directory,
            Operation::Open(open) => open.id,
            Operation::Commit(commit) | Operation::Recommit(commit) => commit.id,
            Operation::Release(release) => release.id,
            Operation::SetXattr(set) => set.id,
            Operation::GetXattr(get) => get.id,
            Operation::Lock(lock) => lock.id,
            Operation::Copied(copied) => copied.id,
            Operation::TakeOver(take) => take.id,
            Operation::OpenChunk(open) => open.file,
            Operation::Chunks(chunks) => chunks.file,
            Operation::Append(append) => append.file,
            Operation::Nameless(list) => list.from,
        };
        id.partition()
    }

    /// Whether the operation changes nothing, so that it may be executed any number of times.
    pub fn only_reads(&self) -> bool {
        match self {
            Operation::Lookup(_)
            | Operation::GetAttributes(_)
            | Operation::GetMany(_)
            | Operation::ReadDirectory(_)
            | Operation::ReadLink(_)
            | Operation::GetXattr(_)
            | Operation::ListXattr(_)
            | Operation::Parent(_)
            | Operation::Buckets(_)
            | Operation::Chunks(_)
            | Operation::Nameless(_) => true,
            Operation::Lock(lock) => match lock.wanted {
                LockWanted::TestShared | LockWanted::TestExclusive => true,
                LockWanted::Shared | LockWanted::Exclusive | LockWanted::Unlock => false,
            },
            Operation::SetAttributes(_)
            | Operation::Create(_)
            | Operation::CreateMany(_)
            | Operation::MakeDirectory(_)
            | Operation::Unlink(_)
            | Operation::RemoveDirectory(_)
            | Operation::Rename(_)
            | Operation::Link(_)
            | Operation::Open(_)
            | Operation::Commit(_)
            | Operation::Recommit(_)
            | Operation::Release(_)
            | Operation::SetXattr(_)
            | Operation::Copied(_)
            | Operation::TakeOver(_)
            | Operation::OpenChunk(_)
            | Operation::Append(_) => false,
        }
    }
}

impl Answer {
    /// A refusal.
    pub fn refused(errno: Errno) -> Answer {
        Answer::Refused(Refused { errno })
    }
}

/// Checks what the tests of each message check: it is encoded to bytes that decode to it.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use zazen_wire::Message;

    #[test]
    fn a_request_comes_back_from_its_bytes() {
        let name = Name::new(b"step-17.vtu").expect("a name");
        let at = At { directory: InodeId::new(PartitionNo(7), 9), name };
        let request = Request {
            client: 1,
            number: 2,
            oldest: 1,
            node: NodeNo(3),
            incarnation: Incarnation(4),
            epoch: Epoch(5),
            credentials: Credentials { uid: 1000, gid: 100, groups: vec![7] },
            operation: Operation::Lookup(at),
            place: None,
            knows_chunks: Some(true),
        };
        assert_eq!(request.operation.partition(), PartitionNo(7));
        assert_eq!(Request::decode(&request.encode()).expect("decodes"), request);
        let place = Place { holder: NodeNo(1), generation: 2, writing: true, copies: vec![NodeNo(4)] };
        assert_eq!(Place::decode(&place.encode()).expect("decodes"), place);
    }
}
