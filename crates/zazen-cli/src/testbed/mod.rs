//! A cluster in a box: what a testbed consists of and how it is recorded, shaped and taken down.
//!
//! Invariants: whatever is made is written to `testbed.json` before it is made, so that `down` finds it after a
//! crash; a record counts only where nobody but its owner could have written it, and only as far as what it names is
//! what `up` would have named; only recorded processes are ever signalled, and only while boot, start time and user
//! are the recorded ones.

pub(crate) mod disk;
pub(crate) mod folder;
pub(crate) mod launch;
pub(crate) mod net;
pub(crate) mod place;
pub(crate) mod process;
pub(crate) mod state;

pub(crate) use folder::Folder;
pub(crate) use process::Process;
pub(crate) use state::{Disk, Host, Limits, Net, Role, State};
