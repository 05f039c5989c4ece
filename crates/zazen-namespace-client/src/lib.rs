//! The namespace for programs: files, directories and places, through the daemon of this node.
//!
//! All calls block, and any thread may make them: each call takes a connection of its own for its
//! time. The daemon finds the partition and the holder, and repeats what has to be repeated; so
//! this crate knows no map.
//!
//! - `link`: the connections to the daemon, and what happens when it is restarted;
//! - `tree`: operations on inodes, as a mount needs them, each on behalf of [`Who`];
//! - `walk`: the same by path, and `known`: directories that were found lately;
//! - `many`: many paths in few calls;
//! - `file`: an open file.
//!
//! What is not promised: a change whose answer was lost with the *local* daemon may have happened
//! or not; it is answered with `EIO` and not repeated. What was open at that daemon is gone with
//! it: an open [`File`] answers `ESTALE` from then on.

mod file;
mod known;
mod link;
mod many;
mod tree;
mod walk;

pub use file::File;
pub use link::Namespace;
pub use many::{Holder, Located, held_by};
pub use tree::{Found, Who};
pub use walk::{At, Listed};
pub use zazen_call::{ClusterKey, Identity};
pub use zazen_namespace as core;

use zazen_core::Error;
use zazen_namespace::Errno;

/// A refused operation as an error for people: `what` names the object.
pub fn error(what: impl std::fmt::Display, errno: Errno) -> Error {
    Error::io(what.to_string(), std::io::Error::from_raw_os_error(i32::from(errno as u16)))
}
