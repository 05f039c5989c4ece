//! One daemon that a command talks to.

use std::path::PathBuf;
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_client::cluster::{Remote, Target};
use zazen_core::Result;

/// How long a node may take to accept a connection before it counts as dead.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// One daemon to talk to.
#[derive(Clone)]
pub(crate) struct Node {
    /// The testbed's name for it, or where it listens.
    pub(crate) name: String,
    /// Where it listens.
    pub(crate) target: Target,
    /// What it is shown as proof; `None` for this machine's.
    pub(super) key: Option<ClusterKey>,
}

impl Node {
    /// Connects; a dead one is told within seconds.
    pub(crate) fn connect(&self) -> Result<Remote> {
        Remote::connect_within(&self.target, self.key.as_ref(), CONNECT_WITHIN)
    }

    /// What it is shown as proof; `None` for this machine's.
    pub(crate) fn key(&self) -> Option<&ClusterKey> {
        self.key.as_ref()
    }

    /// This machine's daemon behind `socket`.
    pub(super) fn local(name: String, socket: PathBuf) -> Node {
        Node { name, target: Target::Local(socket), key: None }
    }
}
