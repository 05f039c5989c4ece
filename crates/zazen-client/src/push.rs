//! Pushing frames to the nodes' caches while a simulation writes them: threads and sockets around
//! [`zazen_push::Writer`].

use crate::NodeList;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_core::{Credentials, FrameNo, Result, Validator};
use zazen_push::{Counters, OnSlow};

/// How to push.
#[derive(Clone, Debug)]
pub struct PusherOptions {
    /// The nodes.
    pub nodes: NodeList,
    /// The cluster key file (`$ZAZEN_KEY`).
    pub key: PathBuf,
    /// Frames in flight.
    pub window_frames: usize,
    /// Bytes in flight.
    pub window_bytes: u64,
    /// When the window is full.
    pub on_slow: OnSlow,
    /// How long a node may take for one frame before it counts as dead.
    pub timeout: Duration,
    /// First node and order; `None`: random.
    pub seed: Option<u64>,
}

/// Where a pushed frame's bytes live on the backing store.
#[derive(Clone, Debug, Default)]
pub struct FrameSource {
    /// File beneath the dataset; `None`: as the dataset's pattern says.
    pub name: Option<String>,
    /// Byte offset in that file (0 for a file per frame).
    pub offset: u64,
    /// Whether the frame is only a piece of that file.
    pub piece: bool,
    /// What the source looks like; `None`: the writer looks at it now if it exists.
    pub validator: Option<Validator>,
    /// Owner and mode to record; `None`: this process's, 0o644 less umask.
    pub owner: Option<(Credentials, u32)>,
}

/// A writer into the caches of many nodes. Threads may share it.
pub struct Pusher {
    _private: (),
}

#[allow(unused_variables)]
impl Pusher {
    /// A pusher for the dataset at `dataset` (absolute path as the readers spell it). `pattern` names frames that come
    /// without a name. Connects lazily; fails with `Config`/`Authentication` for a bad key file.
    pub fn new(dataset: &Path, pattern: Option<&str>, options: PusherOptions) -> Result<Pusher> {
        todo!()
    }
    /// Hands over a frame; the bytes are taken. Returns at once unless the window is full and `OnSlow::Block` is set.
    /// An error is the caller's (bad number or name); the fate of accepted frames shows in [`Pusher::counters`].
    pub fn push(&self, number: FrameNo, bytes: Vec<u8>, source: FrameSource) -> Result<()> {
        todo!()
    }
    /// Fates so far.
    pub fn counters(&self) -> Counters {
        todo!()
    }
    /// The last few failures as text: node, frame, reason.
    pub fn problems(&self) -> Vec<String> {
        todo!()
    }
    /// Waits until every frame's fate is settled; returns the counters.
    pub fn finish(self) -> Result<Counters> {
        todo!()
    }
}
