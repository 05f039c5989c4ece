//! What the backing store says of a file: what it looks like, and what somebody may do with it.

use crate::frame::Validator;

/// Rights on a file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// Read the file, or list the directory.
    pub const READ: Rights = Rights(4);
    /// Write the file, or change names in the directory.
    pub const WRITE: Rights = Rights(2);
    /// Reach what is in the directory.
    pub const SEARCH: Rights = Rights(1);

    /// Both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a source file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStat {
    /// Size, times and inode, and whether the source was too young to detect a later change.
    pub validator: Validator,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// True for a directory.
    pub is_dir: bool,
}
