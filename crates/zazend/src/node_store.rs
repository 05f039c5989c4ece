//! The daemon's store.

use zazen_env::{RealDisk, WatchedDisk};
use zazen_store::Store;

/// The store on this machine's disk.
pub type NodeStore = Store<WatchedDisk<RealDisk>>;
