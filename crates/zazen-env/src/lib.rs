//! Disks, clocks and randomness for Zazen's cores, real and simulated.
//!
//! The cores use the machine only through this crate. The module [`sim_disk`] states the fault
//! model: what the simulated disk may do to data that was not synced.

pub mod clock;
pub mod contract;
pub mod disk;
pub mod environment;
pub mod fork;
pub mod identity;
pub mod installed;
pub mod ownership;
pub mod plain_file;
pub mod random;
pub mod real_disk;
pub mod seldom;
pub mod sim_disk;
mod sim_inode;
mod sim_trace;
mod sim_tree;
pub mod socket_path;
pub mod watched_disk;

pub use clock::{Clock, ManualClock, RealClock};
pub use disk::{Disk, DiskFile, DiskPath, FileStat, MARK_BIT};
pub use environment::Environment;
pub use identity::Identity;
pub use random::{Identities, KernelIdentities, SeededIdentities, SeededRandom, random_u128};
pub use real_disk::{RealDisk, RealFile};
pub use seldom::Seldom;
pub use sim_disk::{SimDisk, SimFile};
pub use watched_disk::{DiskHealth, DiskReport, WatchedDisk, is_trouble};
