//! The client library: open a dataset, find out what is where, read frames at the disk's speed, push frames.
//!
//! Blocking, no async in any contract. A daemon that does not answer costs time, never results: reading falls
//! back to the backing store with one warning.

pub mod nodes;
pub mod push;
pub mod read;
pub mod session;
pub mod testbed_env;
pub mod watch;

pub use nodes::{Node, NodeList};
pub use push::{FrameSource, Pusher, PusherOptions};
pub use read::{Frame, FrameReader, ReadOptions, ReadStats};
pub use session::{Dataset, OpenOptions};
