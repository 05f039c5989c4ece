//! Who is scanning and who is writing which dataset, so that neither is evicted from under them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use zazen_core::RelPath;

/// A scan that hands out nothing for so long keeps its dataset no more.
const SCAN_REST_MAX: Duration = Duration::from_secs(300);

/// Scans and puts under way in one dataset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) scans: u32,
    pub(crate) puts: u32,
    /// When a scan last handed out frames, or began.
    scanned: Option<Instant>,
}

impl Busy {
    /// Whether a scan goes on at `now`.
    pub(crate) fn is_scanned(&self, now: Instant) -> bool {
        let recent = |then| now.saturating_duration_since(then) < SCAN_REST_MAX;
        self.scans > 0 && self.scanned.is_some_and(recent)
    }
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

/// Keeps a dataset from being evicted for want of room while a scan of it goes on.
pub struct ScanGuard {
    activity: Arc<Activity>,
    dataset: RelPath,
}

impl ScanGuard {
    pub(crate) fn new(activity: Arc<Activity>, dataset: RelPath) -> ScanGuard {
        activity.change(&dataset, |busy| busy.scans += 1);
        let guard = ScanGuard { activity, dataset };
        guard.goes_on();
        guard
    }

    /// The scan has handed out frames just now: its dataset stays for some minutes more.
    pub fn goes_on(&self) {
        self.activity.change(&self.dataset, |busy| busy.scanned = Some(Instant::now()));
    }
}

impl Drop for ScanGuard {
    fn drop(&mut self) {
        self.activity.change(&self.dataset, |busy| busy.scans = busy.scans.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_rests_for_minutes_keeps_nothing() {
        let activity = Arc::new(Activity::default());
        let dataset = RelPath::new("d").unwrap();
        let is_scanned =
            |later: u64| activity.of("d").is_scanned(Instant::now() + Duration::from_secs(later));
        let guard = ScanGuard::new(activity.clone(), dataset.clone());
        let other = ScanGuard::new(activity.clone(), dataset);
        assert!(is_scanned(0) && is_scanned(290) && !is_scanned(301));
        drop(other);
        guard.goes_on();
        assert!(is_scanned(0));
        drop(guard);
        assert!(!is_scanned(0) && activity.guard().is_empty());
    }
}
