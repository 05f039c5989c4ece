//! What is known of an inode, apart from its names.

use crate::last::Last;
use crate::{InodeId, NodeNo};
use zazen_wire::field::{self, Nested, Opt};

/// What an inode is, as the kernel numbers it in the upper bits of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    File = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl Kind {
    /// The kind with this number: the upper four bits of a mode.
    pub fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Fifo,
            2 => Kind::CharDevice,
            4 => Kind::Directory,
            6 => Kind::BlockDevice,
            8 => Kind::File,
            10 => Kind::Symlink,
            12 => Kind::Socket,
            _ => return None,
        })
    }
}

impl field::Field for Kind {
    type Value = Kind;
    const BYTES_MIN: usize = 1;
    fn write(value: &Kind, writer: &mut zazen_wire::codec::Writer) {
        writer.u8(*value as u8);
    }
    fn read(reader: &mut zazen_wire::codec::Reader<'_>) -> zazen_core::Result<Kind> {
        let number = reader.u8()?;
        Kind::of(number).ok_or_else(|| reader.malformed(format_args!("kind {number}")))
    }
}

zazen_wire::messages! {
    /// What `stat` shows. Times are nanoseconds since the epoch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Attributes {
        /// The inode.
        id: InodeId,
        /// What it is.
        kind: Kind,
        /// Permission bits: the lower twelve bits of a mode.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Names that lead to it. For a directory: 2, and 1 for each directory in it.
        links: u32,
        /// Bytes of a file, of a symbolic link's target, or entries of a directory. For a file that
        /// is being written: as of the last commit; [`Attributes::place`] tells whom to ask.
        bytes: u64,
        /// Bytes on disk, in units of 512, as of the last commit.
        blocks: u64,
        /// When its bytes were read last.
        accessed_ns: i64,
        /// When its bytes, or a directory's entries, changed last.
        modified_ns: i64,
        /// When anything of it changed last.
        changed_ns: i64,
        /// When it was made.
        created_ns: i64,
        /// Number of a device.
        device: u32,
        /// Grows with each change of the inode.
        version: u64,
        /// Where a file's bytes are; `None` for a file that never had any, and for other kinds. A
        /// directory that was split has a place of no node: its entries, links and times are to be
        /// summed up over its buckets. Programs do not see such a place.
        place: Option<Place> = Opt<Nested<Place>>,
        /// For a file whose bytes are in chunks: each is an inode of its own, with a place, and the
        /// file has none. Its length, blocks and time of change are theirs.
        chunks: Option<Chunked> = Last<Nested<Chunked>>,
        /// For a chunk: what it is a part of.
        chunk_of: Option<ChunkOf> = Last<Nested<ChunkOf>>,
    }

    /// A file whose bytes are in chunks: chunk `i` has those from `i * chunk_bytes` on. Where there
    /// is no chunk, or where it ends early, the bytes are zeros.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Chunked {
        /// Bytes of a chunk, at most.
        chunk_bytes: u64,
        /// How many chunks there are.
        count: u64,
        /// Whether some node has a chunk open for writing: then its holder knows the length and
        /// times better than the last commit.
        writing: bool,
    }

    /// What a chunk is a part of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ChunkOf {
        /// The file.
        file: InodeId,
        /// Which of the file's chunks it is.
        index: u64,
        /// Bytes of a chunk, at most.
        chunk_bytes: u64,
    }

    /// Where the bytes of a file are. All reads and writes of a file go through its holder, so that
    /// every node sees the same bytes at every moment.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Place {
        /// The node that holds the bytes.
        holder: NodeNo,
        /// With the inode's number, names the object on the holder's disk. A new holder, and a
        /// rewrite from nothing, has a new generation: an old descriptor never reaches new bytes.
        generation: u64,
        /// Whether some node has the file open for writing: then the holder knows its length and
        /// times better than the last commit.
        writing: bool,
        /// Nodes with a full copy of the bytes as of the last commit; [`ARCHIVE`] for the archive.
        copies: Vec<NodeNo> = field::List<NodeNo>,
    }
}

impl Chunked {
    /// The chunk that has the byte at `offset`.
    pub fn index_of(&self, offset: u64) -> u64 {
        offset / self.chunk_bytes.max(1)
    }
}

impl ChunkOf {
    /// The chunk's first byte, as an offset in the file.
    pub fn offset(&self) -> u64 {
        self.index.saturating_mul(self.chunk_bytes)
    }
}

impl Attributes {
    /// Those of an inode of root without rights, bytes and times, with one name.
    pub fn new(id: InodeId, kind: Kind) -> Attributes {
        Attributes {
            id,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            links: 1,
            bytes: 0,
            blocks: 0,
            accessed_ns: 0,
            modified_ns: 0,
            changed_ns: 0,
            created_ns: 0,
            device: 0,
            version: 1,
            place: None,
            chunks: None,
            chunk_of: None,
        }
    }

    /// Whether some node has the file open for writing, or chunks of it: then others than the
    /// metadata may know better how long it is.
    pub fn is_written(&self) -> bool {
        let chunks = self.chunks.as_ref().is_some_and(|chunks| chunks.writing);
        chunks || self.place.as_ref().is_some_and(|place| place.writing)
    }
}

/// What stands for the archive among the nodes that have a copy of a file: no node has this number.
pub const ARCHIVE: NodeNo = NodeNo(u32::MAX);

impl Place {
    /// Whether the archive has the bytes as of the last commit.
    pub fn is_archived(&self) -> bool {
        self.copies.contains(&ARCHIVE)
    }

    /// The nodes with a full copy, without the archive.
    pub fn nodes_with_copy(&self) -> impl Iterator<Item = NodeNo> {
        self.copies.iter().copied().filter(|node| *node != ARCHIVE)
    }

    /// The place of a directory that is split: see [`Attributes::place`].
    pub(crate) fn nowhere() -> Place {
        Place { holder: NodeNo(0), generation: 0, writing: true, copies: Vec::new() }
    }
}
