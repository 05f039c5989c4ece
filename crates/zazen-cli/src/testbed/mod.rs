//! A cluster in a box: what a testbed consists of and how it is recorded, shaped and taken down.
//!
//! Invariants: whatever is made is written to `testbed.json` before it is made, so that `down` finds it after a
//! crash; only recorded processes are ever signalled, and only while their start time is the recorded one.

pub(crate) mod disk;
pub(crate) mod launch;
pub(crate) mod net;
pub(crate) mod place;
pub(crate) mod process;
pub(crate) mod state;

pub(crate) use process::Process;
pub(crate) use state::{Disk, Host, Limits, Net, Role, State};
