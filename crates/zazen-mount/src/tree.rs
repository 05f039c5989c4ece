//! What can be mounted: the seam between FUSE and a file tree.
//!
//! The adapter brings what the kernel asks, one call for each request, from many threads at once.
//! The kernel has checked permissions by attributes that may be [`Tree::fresh_for`] old; the tree
//! checks again by the caller's credentials, and its word counts.
//!
//! A node's number is its inode number. The kernel forgets a node only by [`Tree::forget`]: until
//! then the tree must not give the number to another inode.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
pub use zazen_core::Credentials;
pub use zazen_namespace::{Errno, Kind, Name};

/// The result of an operation: the kernel's error numbers.
pub type Result<T> = std::result::Result<T, Errno>;
/// The number of an inode. [`ROOT`] is the tree's root.
pub type Node = u64;
/// What the tree calls something that it opened.
pub type Handle = u64;
/// The root directory of every tree.
pub const ROOT: Node = 1;

/// What `stat` shows. Times are nanoseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeStat {
    /// The inode.
    pub node: Node,
    /// What it is.
    pub kind: Kind,
    /// The lower twelve bits of its mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead to it.
    pub links: u32,
    /// Bytes.
    pub bytes: u64,
    /// Bytes on disk, in units of 512.
    pub blocks: u64,
    /// When it was read last.
    pub accessed_ns: i64,
    /// When its bytes changed last.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
    /// Number of a device, as `makedev` makes it.
    pub device: u32,
    /// Whether the kernel may keep these for [`Tree::fresh_for`]; false for what others write now.
    pub keep: bool,
}

/// Changes of attributes. What is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The lower twelve bits of the mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub bytes: Option<u64>,
    /// Time of the last read.
    pub accessed: Option<When>,
    /// Time of the last change.
    pub modified: Option<When>,
}

/// A time that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The tree's present time.
    Now,
    /// Nanoseconds since the epoch.
    At(i64),
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Every write goes to the file's end.
    pub append: bool,
    /// Its bytes are dropped.
    pub truncate: bool,
    /// With [`Tree::create`]: refuse an existing name.
    pub exclusive: bool,
}

/// An opened file.
#[derive(Debug)]
pub struct Opened {
    /// What the tree calls it.
    pub handle: Handle,
    /// Where its bytes come from.
    pub io: Io,
    /// The lower twelve bits of its mode, if they come for free.
    pub mode: Option<u32>,
    /// Whether the kernel may keep older attributes than those of the open. It forgets them.
    pub stale: bool,
}

/// Where the bytes of an opened file come from.
#[derive(Clone, Debug)]
pub enum Io {
    /// A plain local file, opened as [`How`] says. The kernel reads and writes it itself where it
    /// may, otherwise the adapter does. All opens of an inode at a time must be of one file.
    Local(Arc<OwnedFd>),
    /// [`Tree::read`] and [`Tree::write`]; the kernel may keep what was read, until the next open
    /// or a [`Change::Bytes`].
    Cached,
    /// [`Tree::read`] and [`Tree::write`], each time anew: others write the file meanwhile.
    Direct,
}

/// One entry of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Continues the listing behind this entry.
    pub cookie: u64,
    /// Its name. `.` and `..` are not listed.
    pub name: Name,
    /// The inode.
    pub node: Node,
    /// What it is.
    pub kind: Kind,
    /// Its attributes, if they come for free. With `plus`, each entry that is taken counts as a
    /// lookup.
    pub stat: Option<InodeStat>,
}

/// Space, for `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub bytes: u64,
    /// Bytes that nobody uses.
    pub bytes_free: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
}

/// A lock of bytes `start` to `end`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for the end of the file.
    pub end: u64,
}

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The kernel's number of the owner: a process for `fcntl`, an open file for `flock`.
    pub number: u64,
    /// The process.
    pub pid: u32,
    /// Whether it is `flock`'s. The two kinds do not see each other.
    pub whole: bool,
}

/// What is wanted of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// None any more.
    Unlock,
    /// One that others may share.
    Shared,
    /// One that nobody else has.
    Exclusive,
}

/// A lock that stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Its bytes.
    pub range: Range,
    /// Whether it excludes readers.
    pub exclusive: bool,
    /// Its process, or 0 if that is not on this machine.
    pub pid: u32,
}

/// What changed elsewhere: the kernel drops what it keeps of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes of an inode.
    Attributes(Node),
    /// Attributes and bytes of an inode.
    Bytes(Node),
    /// A name of a directory.
    Entry(Node, Name),
}

/// What differs whenever the bytes of a file do, apart from two writes in one tick of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesVersion {
    /// The version of its attributes.
    pub version: u64,
    /// When its bytes changed last.
    pub modified_ns: i64,
}

/// A file tree. Every operation is complete in itself and may be called from many threads.
#[allow(clippy::too_many_arguments)]
pub trait Tree: Send + Sync + 'static {
    /// How long the kernel may keep attributes and names without asking again.
    fn fresh_for(&self) -> Duration {
        Duration::from_secs(1)
    }
    /// What differs whenever the bytes of a file do. `None` if that is not known, or if anybody may
    /// have the file open for writing.
    fn bytes_version(&self, node: Node) -> Option<BytesVersion> {
        let _ = node;
        None
    }
    /// What changed elsewhere. The adapter takes it once, when it starts.
    fn changes(&self) -> Option<Receiver<Change>> {
        None
    }

    /// Whether the tree itself takes the set-id bits away from a file that somebody writes.
    fn drops_set_id(&self) -> bool {
        false
    }

    /// Whether the caller may name this inode. The kernel lets root pass closed directories by
    /// names that others have looked up. `ESTALE`: the kernel is to look up the whole path again.
    fn vet(&self, who: &Credentials, node: Node) -> Result<()> {
        let _ = (who, node);
        Ok(())
    }
    /// Finds a name. Counts as one lookup of the node.
    fn lookup(&self, who: &Credentials, parent: Node, name: &Name) -> Result<InodeStat>;
    /// Ends `count` lookups of a node.
    fn forget(&self, node: Node, count: u64) {
        let _ = (node, count);
    }
    /// Attributes, as they are now.
    fn stat(&self, who: &Credentials, node: Node, handle: Option<Handle>) -> Result<InodeStat>;
    /// Changes attributes, all or none.
    fn set(
        &self,
        who: &Credentials,
        node: Node,
        handle: Option<Handle>,
        changes: &Changes,
    ) -> Result<InodeStat>;
    /// The target of a symbolic link.
    fn read_link(&self, who: &Credentials, node: Node) -> Result<Vec<u8>>;
    /// Makes an inode that is neither a directory nor a link. Counts as a lookup, as all below that
    /// give a [`InodeStat`] of a name.
    fn make_node(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<InodeStat>;
    /// Makes a directory.
    fn make_directory(&self, who: &Credentials, parent: Node, name: &Name, mode: u32) -> Result<InodeStat>;
    /// Makes a symbolic link.
    fn make_link(&self, who: &Credentials, parent: Node, name: &Name, target: &[u8]) -> Result<InodeStat>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()>;
    /// Renames. `flags` are `renameat2`'s: none, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`; `EINVAL`
    /// for others.
    fn rename(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        new_parent: Node,
        new_name: &Name,
        flags: u32,
    ) -> Result<()>;
    /// Gives an inode another name.
    fn link(&self, who: &Credentials, node: Node, parent: Node, name: &Name) -> Result<InodeStat>;

    /// Opens a file.
    fn open(&self, who: &Credentials, node: Node, how: How) -> Result<Opened>;
    /// Makes a file and opens it; opens an existing one unless `how.exclusive`.
    fn create(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        mode: u32,
        how: How,
    ) -> Result<(InodeStat, Opened)>;
    /// Reads at `offset` into `buffer`; fewer bytes only at the file's end.
    fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Writes all of `bytes` at `offset`, or at the end if `append`.
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize>;
    /// A descriptor was closed; its error is `close`'s.
    fn flush(&self, handle: Handle) -> Result<()>;
    /// The last use of the handle ended.
    fn release(&self, handle: Handle);
    /// `fsync`; for [`Io::Local`] the adapter has synced the bytes already.
    fn sync(&self, handle: Handle, data_only: bool) -> Result<()>;
    /// `fallocate`; not called for [`Io::Local`].
    fn allocate(&self, handle: Handle, mode: i32, offset: u64, bytes: u64) -> Result<()> {
        let _ = (handle, mode, offset, bytes);
        Err(Errno::EOPNOTSUPP)
    }
    /// `SEEK_DATA` or `SEEK_HOLE`; not called for [`Io::Local`].
    fn seek(&self, handle: Handle, offset: u64, data: bool) -> Result<u64>;
    /// Copies inside the tree. `EOPNOTSUPP`: the adapter reads and writes instead. Not called where
    /// both are [`Io::Local`].
    fn copy(&self, from: Handle, from_offset: u64, to: Handle, to_offset: u64, bytes: u64) -> Result<u64> {
        let _ = (from, from_offset, to, to_offset, bytes);
        Err(Errno::EOPNOTSUPP)
    }

    /// Opens a directory for listing.
    fn open_directory(&self, who: &Credentials, node: Node) -> Result<Handle>;
    /// Entries behind `cookie` (0: from the start), until `take` returns false or the end. Cookies
    /// are above 255 and below 2⁶³.
    fn list(
        &self,
        handle: Handle,
        cookie: u64,
        plus: bool,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()>;
    /// Ends a listing.
    fn release_directory(&self, handle: Handle);
    /// `fsync` of a directory.
    fn sync_directory(&self, handle: Handle) -> Result<()> {
        let _ = handle;
        Ok(())
    }
    /// Space for what is made at `node`: that of the whole tree, unless a quota bounds it.
    fn space(&self, node: Node) -> Result<Space>;

    /// An extended attribute. `ENODATA` if there is none.
    fn get_xattr(&self, who: &Credentials, node: Node, name: &Name) -> Result<Vec<u8>>;
    /// Sets one; `flags` are `setxattr`'s.
    fn set_xattr(&self, who: &Credentials, node: Node, name: &Name, value: &[u8], flags: i32) -> Result<()>;
    /// Removes one.
    fn remove_xattr(&self, who: &Credentials, node: Node, name: &Name) -> Result<()>;
    /// Their names.
    fn list_xattr(&self, who: &Credentials, node: Node) -> Result<Vec<Name>>;

    /// The lock that would stand in the way, if any.
    fn test_lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<Option<Blocking>>;
    /// Takes or ends a lock, without waiting: `EAGAIN` if another stands in the way.
    fn lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<()>;
}
