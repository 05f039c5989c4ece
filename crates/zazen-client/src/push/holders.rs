//! Which node holds which natives of a series. A frame that is pushed again goes to its holder and
//! takes no space on a second node.
//!
//! All nodes are asked once, at the same time, before the first frame of a series is sent. A node
//! that does not answer in time counts as holding nothing. From then on, frames that this writer
//! sends are noted. Later frames of another writer are not seen. Such a frame may be on two nodes,
//! which costs only space.

use super::payload::Payload;
use crate::cluster::{Remote, Target};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_core::{Result, RunSet, Series};

/// How long a node may take to report its holdings.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most series that a writer remembers. Beyond this, all are asked for again.
const SERIES_MAX: usize = 64;
/// For a smaller frame, sending is cheaper than asking.
const ASKED_BYTES_MIN: usize = 64 << 10;

/// The natives of each node; `None` until the nodes were asked.
type Held = Arc<Mutex<Option<Vec<RunSet>>>>;

/// What is known about the nodes' holdings. Couriers share it.
#[derive(Default)]
pub(super) struct Holders(Mutex<HashMap<Series, Held>>);

impl Holders {
    fn of(&self, series: &Series) -> Held {
        let mut all = lock(&self.0);
        if all.len() >= SERIES_MAX && !all.contains_key(series) {
            all.clear();
        }
        all.entry(series.clone()).or_default().clone()
    }

    /// The node that has a native with the number of `payload`.
    pub(super) fn holder(&self, nodes: &[String], key: &ClusterKey, payload: &Payload) -> Option<usize> {
        if nodes.len() < 2 {
            return None;
        }
        let held = self.of(&payload.series);
        // A courier that comes while the nodes are asked waits for the answers.
        let mut held = lock(&held);
        let held = held.get_or_insert_with(|| ask_all(nodes, key, payload));
        held.iter().position(|natives| natives.contains(payload.meta.number.get()))
    }

    /// Notes that `node` now has the frame of `payload`.
    pub(super) fn note(&self, node: usize, payload: &Payload) {
        let held = self.of(&payload.series);
        if let Some(natives) = lock(&held).as_mut().and_then(|held| held.get_mut(node)) {
            natives.insert(payload.meta.number.get());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask_all(nodes: &[String], key: &ClusterKey, payload: &Payload) -> Vec<RunSet> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|node| scope.spawn(move || ask(node, key, payload))).collect();
        let answers = asked.into_iter().map(|thread| thread.join().ok().and_then(Result::ok));
        answers.map(Option::unwrap_or_default).collect()
    })
}

fn ask(node: &str, key: &ClusterKey, payload: &Payload) -> Result<RunSet> {
    let mut remote = Remote::connect_within(&Target::Tcp(node.to_owned()), Some(key), PATIENCE)?;
    remote.set_timeout(Some(PATIENCE));
    let pattern = payload.series.to_string();
    let info = remote.open_cached(Path::new(&payload.dataset), Some(&pattern))?;
    Ok(remote.query_all(info.handle)?.native)
}

/// Whether the daemon behind `remote` has exactly this frame of exactly this source. Then its bytes
/// need not be sent.
pub(super) fn has(remote: &mut Remote, payload: &Payload) -> Result<bool> {
    if payload.bytes.len() < ASKED_BYTES_MIN {
        return Ok(false);
    }
    let push = payload.message();
    let number = push.meta.number;
    let info = remote.open_cached(Path::new(&push.dataset), Some(&push.series.to_string()))?;
    let rows = remote.list(info.handle, number.get(), 1)?.rows;
    Ok(rows.first().is_some_and(|row| {
        let (had, comes) = (&row.meta, &push.meta);
        let same = (had.number, had.length, had.checksum) == (number, comes.length, comes.checksum);
        let agree = match (had.validator, comes.validator) {
            (Some(had), Some(comes)) => had.agrees_with(&comes),
            (None, Some(_)) => false,
            (_, None) => true,
        };
        same && agree && row.source == push.source && row.origin == zazen_core::Origin::Native
    }))
}
