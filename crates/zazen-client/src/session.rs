//! A dataset opened through the node's daemon, or straight from the backing store when none answers.

use std::path::{Path, PathBuf};
use zazen_assign::{Assignment, Collectives, Protocol, Rules};
use zazen_core::{Layout, Result, RunSet};

/// How to open.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Socket of the daemon; `None`: `$ZAZEN_SOCKET`, the testbed's node of this rank, or the default path.
    pub socket: Option<PathBuf>,
    /// File-name template; `None`: the manifest, or what the names tell.
    pub pattern: Option<String>,
    /// `tcp://host:port` of a served backing store to use when no daemon answers (`$ZAZEN_BACKING`); `None`: the
    /// dataset's path itself.
    pub backing: Option<String>,
    /// Don't ask a daemon at all.
    pub direct: bool,
}

/// An opened dataset. Not shared between threads.
pub struct Dataset {
    _private: (),
}

#[allow(unused_variables)]
impl Dataset {
    /// Opens the dataset whose directory is `path` (absolute or relative, as the user types it).
    ///
    /// With no daemon: a warning once per process, then the backing store. `NotFound` if there is no such directory.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Dataset> {
        todo!()
    }
    /// Absolute path as opened.
    pub fn path(&self) -> &Path {
        todo!()
    }
    /// Whether a daemon answered.
    pub fn has_daemon(&self) -> bool {
        todo!()
    }
    /// Identity of the node whose daemon answered; a random one (fixed for this Dataset) without a daemon.
    pub fn node(&self) -> u128 {
        todo!()
    }
    /// How numbers map to files, if known.
    pub fn layout(&self) -> Option<&Layout> {
        todo!()
    }
    /// The frame numbers that exist on the backing store (or, if that doesn't answer, in this node's cache). Listed
    /// on the first call, then remembered.
    pub fn extent(&mut self) -> Result<RunSet> {
        todo!()
    }
    /// What this node holds of begin..=end at stride, as frame numbers: (natives, aliens). Paper: `query`.
    pub fn query(&mut self, begin: u64, end: u64, stride: u64) -> Result<(RunSet, RunSet)> {
        todo!()
    }
    /// Runs the assignment protocol with the other ranks (collective) for begin..=end at stride, or for the whole
    /// dataset where `range` is `None` (rank 0's extent counts for all and is broadcast). Paper: `zazen`.
    pub fn assign(
        &mut self,
        range: Option<(u64, u64, u64)>,
        rules: Rules,
        protocol: Protocol,
        collectives: &dyn Collectives,
    ) -> Result<Assignment> {
        todo!()
    }
    /// Reads one frame: bytes checked against their checksum.
    pub fn read(&mut self, number: u64) -> Result<crate::Frame> {
        todo!()
    }
    /// Reads `set` in storage order with read-ahead.
    pub fn frames(&mut self, set: RunSet, options: &crate::ReadOptions) -> Result<crate::FrameReader> {
        todo!()
    }
}
