//! Who is scanning and who is writing which dataset, so that neither is evicted from under them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use zazen_core::RelPath;

/// Scans and puts under way in one dataset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) scans: u32,
    pub(crate) puts: u32,
}

/// Scans and puts under way, by dataset.
#[derive(Default)]
pub(crate) struct Activity(Mutex<BTreeMap<String, Busy>>);

impl Activity {
    fn guard(&self) -> MutexGuard<'_, BTreeMap<String, Busy>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn of(&self, dataset: &str) -> Busy {
        self.guard().get(dataset).copied().unwrap_or_default()
    }

    fn change(&self, dataset: &RelPath, change: impl FnOnce(&mut Busy)) {
        let mut all = self.guard();
        let busy = all.entry(dataset.as_str().to_owned()).or_default();
        change(busy);
        if busy.scans == 0 && busy.puts == 0 {
            all.remove(dataset.as_str());
        }
    }

    pub(crate) fn put_begins(&self, dataset: &RelPath) {
        self.change(dataset, |busy| busy.puts += 1);
    }

    pub(crate) fn put_ends(&self, dataset: &RelPath) {
        self.change(dataset, |busy| busy.puts = busy.puts.saturating_sub(1));
    }
}

/// Keeps a dataset from being evicted while a scan of it is under way.
pub struct ScanGuard {
    activity: Arc<Activity>,
    dataset: RelPath,
}

impl ScanGuard {
    pub(crate) fn new(activity: Arc<Activity>, dataset: RelPath) -> ScanGuard {
        activity.change(&dataset, |busy| busy.scans += 1);
        ScanGuard { activity, dataset }
    }
}

impl Drop for ScanGuard {
    fn drop(&mut self) {
        self.activity.change(&self.dataset, |busy| busy.scans = busy.scans.saturating_sub(1));
    }
}
