//! Daemons for tests, benches and demos: one of your own, or a testbed, which is a cluster on one
//! machine.
//!
//! [`Launch`] is the one place that knows how a daemon is started. The CLI, the Rust tests and the
//! benches use it; Python has `zazen.testing`.
//!
//! Invariants of testbeds: [`up`] records what it makes in `testbed.json` before it makes it, so
//! that [`take_down`] finds everything after a crash. A record counts only if nobody but its owner
//! could have written it, and only if it names what [`up`] would have named. Only recorded
//! processes are ever signalled, and only while their boot, start time and user are the recorded
//! ones.

mod daemon;
mod disk;
mod disk_record;
mod down;
mod folder;
mod hosts;
mod namespace;
mod net;
pub mod place;
mod process;
mod programs;
mod site;
pub mod state;
mod up;
pub mod variables;

pub use daemon::{Daemon, Launch, Ready};
pub use disk::{DiskLimits, processor_seconds};
pub use disk_record::Disk;
pub use down::take_down;
pub use folder::Folder;
pub use hosts::{log_file, start_node};
pub use process::Process;
pub use programs::{Programs, beside_this_program, find_program, own_program};
pub use site::Site;
pub use state::{Host, Role, State, directory};
pub use up::{LinkRates, Plan, up};
pub use variables::without_variables;
