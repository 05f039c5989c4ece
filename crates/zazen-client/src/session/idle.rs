//! Connections of closed datasets, for those that are opened next: connecting costs more round
//! trips than opening a dataset and reading a small file of it.
//!
//! Invariants: a process uses no connection of the process that it was forked from, nor one that
//! was made with other rights. No call is under way on a connection that is kept. Closing a dataset
//! waits for no answer: its handle is given back when the connection is used again.

use crate::cluster::{Remote, Target, own_identity};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_env::fork::PerProcess;
use zazen_wire::control::NodeInfo;

/// Connections that are kept at most: one for each thread that reads files at a time.
const KEPT_MAX: usize = 8;
/// How long one is of use. Daemons close connections that are idle for much longer.
const KEPT_FOR: Duration = Duration::from_secs(20);

/// A connection whose dataset is closed here.
struct Idle {
    remote: Remote,
    node: NodeInfo,
    /// The dataset's, at the daemon.
    handle: u32,
    since: Instant,
    silence: Duration,
}

fn all() -> MutexGuard<'static, Vec<Idle>> {
    static ALL: PerProcess<Mutex<Vec<Idle>>> = PerProcess::new();
    // What a child inherits is left as it is: its parent uses it.
    ALL.get_or(|_| Mutex::default()).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the connection of a dataset that is closed.
pub(super) fn keep(remote: Remote, node: NodeInfo, handle: u32, silence: Duration) {
    if !remote.is_alive() {
        return;
    }
    let mut all = all();
    all.retain(|idle| idle.since.elapsed() < KEPT_FOR);
    if all.len() >= KEPT_MAX {
        // The oldest: it may be another daemon's.
        all.remove(0);
    }
    all.push(Idle { remote, node, handle, since: Instant::now(), silence });
}

/// A connection to this daemon, with this patience and the rights that this process has now; and a
/// handle of the daemon's that is to be given back. The daemon may be gone.
pub(super) fn take(target: &Target, silence: Duration) -> Option<(Remote, NodeInfo, u32)> {
    let mut all = all();
    if all.is_empty() {
        return None;
    }
    all.retain(|idle| idle.since.elapsed() < KEPT_FOR);
    let who = own_identity().credentials;
    let fits =
        |idle: &Idle| idle.remote.target() == target && idle.silence == silence && *idle.remote.who() == who;
    let found = all.iter().rposition(fits)?;
    let Idle { remote, node, handle, .. } = all.remove(found);
    Some((remote, node, handle))
}
