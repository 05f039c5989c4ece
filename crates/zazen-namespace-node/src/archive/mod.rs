//! The archive: closed files go to a parallel file system in the background, and local bytes may go
//! when the archive has them.
//!
//! - `folders`: the archive, as the daemon has it open; `records`: what is archived; `state`: what
//!   else the node knows; `learn`: which part of the archive is the namespace's;
//! - `drain`: copies files there; `evict`: lets local bytes go; `recall`: brings them back; `lost`:
//!   reads files there whose holder is lost, and takes them over; `sums`: are bytes those that were
//!   archived;
//! - `names`: the tree that users see; `whole`, `wholes`: files in chunks there; `work`: the
//!   threads.
//!
//! Invariants. The daemon alone writes to and reads from the hidden folder. Bytes go from this disk
//! only while nobody has the file open, and while the archive has bytes that were compared with the
//! file's checksums. Bytes that come back are compared with the checksums, which never left; those
//! of a lost node's file with the checksums beside the archived object, in the hidden folder. What
//! users did to the archive, wrong bytes are an error.

mod drain;
mod evict;
mod folders;
mod learn;
mod lost;
mod names;
pub(crate) mod recall;
mod records;
pub(crate) mod state;
mod sums;
mod whole;
mod wholes;
pub(crate) mod work;
