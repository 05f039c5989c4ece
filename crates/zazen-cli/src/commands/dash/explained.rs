//! The last `explain` of datasets, for the page: made in the background, because it asks all nodes.
//!
//! Invariant: explaining takes a twentieth of the nodes' time at most, however many they are.

use crate::commands::explain;
use crate::target::Node;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_client::record_folder;

/// The least time from one explanation of a dataset to the next.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// An explanation that nobody asked for in this time is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(15);
/// Datasets that are explained for viewers at once.
const WANTED_MAX: usize = 8;
/// Datasets that are looked at for the last analysis of all.
const LOOKED_AT: usize = 4;
/// From one look for work to the next.
const REST: Duration = Duration::from_millis(200);

pub(super) struct Explained {
    nodes: Vec<Node>,
    flags: String,
    wanted: Mutex<Vec<Wanted>>,
}

struct Wanted {
    /// `None`: the last analysis of all.
    dataset: Option<String>,
    asked: Instant,
    /// When it is explained next.
    due: Instant,
    found: Value,
}

impl Explained {
    pub(super) fn new(nodes: Vec<Node>, flags: String) -> Explained {
        Explained { nodes, flags, wanted: Mutex::default() }
    }

    fn wanted(&self) -> MutexGuard<'_, Vec<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The explanation as far as there is one; from now on it is kept up to date.
    pub(super) fn of(&self, dataset: Option<String>) -> Value {
        let now = Instant::now();
        let mut wanted = self.wanted();
        if let Some(one) = wanted.iter_mut().find(|one| one.dataset == dataset) {
            one.asked = now;
            return one.found.clone();
        }
        if wanted.len() >= WANTED_MAX {
            wanted.sort_by_key(|one| one.asked);
            wanted.remove(0);
        }
        let found = json!({"asked": dataset, "state": "working"});
        wanted.push(Wanted { dataset, asked: now, due: now, found: found.clone() });
        found
    }

    /// Explains what is due, or rests. `lately_used`: datasets, the one that was used last first.
    pub(super) fn go_on(&self, lately_used: impl Fn() -> Vec<String>) {
        let now = Instant::now();
        let due = {
            let mut wanted = self.wanted();
            wanted.retain(|one| now.duration_since(one.asked) < FORGET_AFTER);
            wanted
                .iter()
                .filter(|one| one.due <= now)
                .min_by_key(|one| one.due)
                .map(|one| one.dataset.clone())
        };
        let Some(dataset) = due else { return std::thread::sleep(REST) };
        let found = match &dataset {
            Some(dataset) => self.explain(dataset),
            None => self.last_of_all(lately_used()),
        };
        let took = now.elapsed();
        if let Some(one) = self.wanted().iter_mut().find(|one| one.dataset == dataset) {
            one.found = found;
            one.due = Instant::now() + AGAIN_AFTER.max(20 * took);
        }
    }

    fn explain(&self, dataset: &str) -> Value {
        let looked = explain::look(Path::new(dataset), &self.nodes, 0, &self.flags);
        let mut found = match looked {
            Ok(looked) => {
                let mut found = explain::as_json(&looked.explanation, &looked.missed);
                found["began_ms"] =
                    looked.explanation.ranks.iter().map(|rank| rank.began_ms).min().unwrap_or(0).into();
                found["state"] = "found".into();
                found
            }
            Err(error) => json!({"state": "none", "why": error.to_string()}),
        };
        found["asked"] = dataset.into();
        found
    }

    /// Of the datasets that were used last, and the one of the newest record that the user has
    /// himself, the analysis that began last.
    fn last_of_all(&self, lately_used: Vec<String>) -> Value {
        let own = record_folder::read().into_iter().max_by_key(|record| record.began_ms);
        let mut looked_at: Vec<String> = lately_used.into_iter().take(LOOKED_AT).collect();
        looked_at.extend(own.map(|record| record.dataset));
        let found = looked_at.iter().map(|dataset| self.explain(dataset));
        let last = found.filter(|one| one["state"] == "found").max_by_key(|one| one["began_ms"].as_u64());
        let none = || json!({"state": "none", "why": "no analysis of yours is on record yet"});
        let mut found = last.unwrap_or_else(none);
        found["asked"] = Value::Null;
        found
    }
}
