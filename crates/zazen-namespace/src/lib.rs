//! The namespace: one file system over the disks of a job's nodes. *Pure.*
//!
//! All metadata is spread over partitions; a partition has a primary and backups on different
//! nodes. An inode lives in the partition that its number names. A directory's entries live in the
//! directory's own partition, and a new file's inode beside its entry: so create, open, stat and
//! unlink are one operation on one partition. See `docs/decisions/0008-namespace.md`.
//!
//! - [`archive`]: what goes to a parallel file system, and which local bytes may go then.
//! - `operation`: what clients ask, and the answers; `attributes`, `name`, `id`, `errno`: their
//!   parts.
//! - [`map`]: which nodes keep which partition.
//! - [`node`]: the machine of a node: partitions, their log, replication, the lease, the stewards.
//! - [`partition`]: executes operations on the tables of one partition.
//! - `split`: routing to directories that are split into buckets.
//! - `service`: what goes between programs and daemons.

pub mod archive;
mod attributes;
mod errno;
mod id;
mod last;
pub mod map;
mod name;
pub mod node;
pub mod operation;
pub mod partition;
mod peer;
mod planted;
mod replica;
pub mod service;
pub mod split;
mod stewards;
mod tagged;

pub use attributes::{ARCHIVE, Attributes, ChunkOf, Chunked, Kind, Place};
pub use errno::Errno;
pub use id::{Epoch, Incarnation, InodeId, NodeNo, PARTITIONS_MAX, PartitionNo};
pub use name::{NAME_BYTES_MAX, Name};
pub use planted::Planted;
