//! Runs a node of the namespace: drives the pure machines of `zazen-namespace` with a disk, a clock
//! and connections, and serves programs and other daemons.
//!
//! - `node`: puts a node together; `form`: how it begins; `folder`, `reserve`: its place on the
//!   disk;
//! - `engine`: the seam to the pure machines; `driver`: runs them; `links`: the way to other nodes;
//! - `objects`: the bytes of files; `gone`: those that go; `seals`: their checksums; `data`:
//!   functions on them, here or at their holder; `keeper`, `waiting`: what is done for them in the
//!   background; `scrub`: a look at all; `copies`, `incoming`: copies on other nodes; `balance`:
//!   files that move to other nodes; `leave`, `leaving`: all files of a node that leaves; `place`:
//!   where new files go when the disk is full;
//! - `chunked`: files in chunks, of which many nodes hold parts; `parts`: what a handle has open of
//!   them;
//! - `archive`: closed files on a parallel file system;
//! - `route`: operations to the primaries of their partitions; `away`: primaries that were waited
//!   for in vain; `looks`: how long a call may look at directories above; `session`, `handles`,
//!   `opened`: what a caller has open; `per_user`: how much that may be;
//! - `service`: who may call what; `proof`, `peers`, `admission`: nodes prove who they are;
//!   `squash`: what root is here; `quota`, `books`, `limit`: how much users and directories may
//!   take;
//! - `repeats`: calls that come again.
//!
//! Invariants. A caller acts only with its own rights: the kernel, or the cluster key, says who it
//! is. Another node proves besides that it is that node. A caller names open files by handles,
//! which are its own. Lengths and generations come from the metadata and from the disk, never from
//! a caller. An object that should be here and is not is an error, never an empty file.

mod admission;
mod archive;
mod away;
mod balance;
mod books;
mod chunked;
mod copies;
mod data;
mod driver;
pub mod engine;
pub mod folder;
mod form;
mod gone;
mod handles;
mod incoming;
mod keeper;
mod lease;
mod leave;
mod leaving;
mod limit;
pub mod links;
mod looks;
mod node;
pub mod objects;
mod opened;
mod parts;
mod peers;
mod per_user;
mod place;
pub mod proof;
mod quota;
mod repeats;
pub mod reserve;
mod route;
mod scrub;
pub mod seals;
mod service;
mod session;
mod squash;
mod waiting;
mod watch;
mod watchers;
mod wish;
mod wishes;

pub use archive::state::ArchiveTold;
pub use node::{Admit, Durability, NamespaceNode, NodeList, Told};
pub use place::free_bytes_min;
pub use service::NamespaceService;
