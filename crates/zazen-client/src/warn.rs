//! Warnings for the user. Each goes once per process, and once per job, to the log and to the front
//! end.
//!
//! Libraries do not print. A front end calls [`warnings`] after opening and after reading, and
//! shows the warnings in its own way.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use zazen_env::fork::PerProcess;

/// Warnings kept for a front end that doesn't drain.
const KEPT_MAX: usize = 100;
/// Keys remembered; beyond it a warning may be repeated.
const SAID_MAX: usize = 10_000;

#[derive(Default)]
struct Warnings {
    said: BTreeSet<String>,
    kept: VecDeque<String>,
}

/// A forked child begins with no warnings and does not use its parent's lock.
static WARNINGS: PerProcess<Mutex<Warnings>> = PerProcess::new();

/// Takes the warnings of this process since the last call, oldest first (the last 100). `tracing`
/// has logged them too. Any thread may call this.
pub fn warnings() -> Vec<String> {
    let mut warnings = WARNINGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    warnings.kept.drain(..).collect()
}

/// Warns, once per process for each `key`, and once per job for each `text` where several ranks of
/// a launcher would say the same.
pub(crate) fn warn_once(key: &str, text: &str) {
    let mut warnings = WARNINGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    if warnings.said.len() >= SAID_MAX {
        warnings.said.clear();
    }
    if !warnings.said.insert(key.to_owned()) {
        return;
    }
    if !crate::said::is_ours(text) {
        tracing::debug!("another rank of this job has said: {text}");
        return;
    }
    if warnings.kept.len() == KEPT_MAX {
        warnings.kept.pop_front();
    }
    warnings.kept.push_back(text.to_owned());
    drop(warnings);
    tracing::warn!("{text}");
}
