//! The seam between Zazen's cores and the machine: disks, clocks, randomness; real and simulated.
//!
//! Only this crate touches them on behalf of the cores. What the simulated disk may do to data that were not
//! synced is the fault model that stores are tested against; it is stated in the module [`sim_disk`].

pub mod clock;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
pub mod disk;
pub mod environment;
pub mod fork;
pub mod identity;
pub mod installed;
pub mod ownership;
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
pub use disk::{Disk, DiskFile, DiskPath, MARK_BIT, Stat};
pub use environment::Environment;
pub use identity::Identity;
pub use random::{Identities, KernelIdentities, SeededIdentities, SeededRandom, random_u128};
pub use real_disk::{RealDisk, RealFile};
pub use seldom::Seldom;
pub use sim_disk::{SimDisk, SimFile};
pub use watched_disk::{DiskHealth, DiskReport, WatchedDisk, is_trouble};
