//! The client library: open a dataset, find out what is where, read frames at the disk's speed,
//! push frames.
//!
//! All calls block; no contract is async. A daemon that does not answer costs time, never results:
//! readers then use the backing store, with one warning.

mod agree;
pub mod cluster;
mod daemon_spec;
mod direct;
mod indexes;
pub mod load;
mod lost;
pub mod node_state;
pub mod nodes;
pub mod push;
pub mod read;
pub mod record_folder;
mod said;
pub mod session;
mod shared_dataset;
pub mod testbed_env;
mod trajectory;
mod warn;
pub mod watch;
pub mod write_through;

pub use cluster::{Remote, Target};

pub use node_state::NodeState;

pub use direct::check_path;
pub use load::{LoadOptions, LoadProgress, LoadReport, load};
pub use nodes::{Node, NodeList};
pub use push::{FrameSource, Pusher, PusherOptions};
pub use read::{
    AnyReader, Frame, FrameLocation, FrameReader, OrderedReader, PlaceReader, ReadOptions, ReadStats,
    remove_frame_files,
};
pub use session::{Dataset, Holders, NO_OWNER, OpenOptions, READ_MANY_MAX};
pub use shared_dataset::SharedDataset;
pub use trajectory::OpenedTrajectory;
pub use warn::warnings;
pub use watch::{WatchEvent, WatchOptions, watch, watch_into};
pub use write_through::{WriteThrough, WriteThroughOptions, Written};
pub use zazen_env::fork::Mine;
