//! Copies a tree from one file system to another: into the namespace (stage in) and out of it
//! (stage out).
//!
//! - `side`: what a copy needs of a file system; `plain`: one of the kernel's, mounts of the
//!   namespace too; `namespace`: the namespace without a mount; `objects`: a bucket, which is a
//!   destination only;
//! - `scan`: which files there are; `copy`: one file; `stage`: all of them.
//!
//! Invariants. A name at the destination is there only when its file is whole, checked, and has its
//! times: until then it is a *part*, `.NAME.zazen-part`. So a file whose length and time are those
//! of its source is done, and what a run left is taken up by the next. Any number of processes, on
//! any nodes, may stage the same tree at once: each part is locked by the process that writes it. A
//! bucket has no locks: two processes may send one object, and one of the two equal ones stays.
//!
//! What is not promised: a source that changes and keeps length and time counts as unchanged,
//! unless `compare` is asked for. Blocks of pipes, sockets and devices are not copied.

mod copy;
mod namespace;
mod objects;
mod plain;
mod scan;
mod side;
mod stage;

pub use namespace::NamespaceSide;
pub use objects::ObjectSide;
pub use plain::PlainSide;
pub use side::{Kind, Meta, OpenFile, Side, WholeFile, WholeFiles};
pub use stage::{Failure, Options, Progress, Report, stage};
