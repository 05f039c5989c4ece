//! Who is scanning and who is writing which dataset, so that neither is evicted from under them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use zazen_core::RelPath;
use zazen_env::Clock;

/// A scan that hands out nothing for this time no longer keeps its dataset, in nanoseconds.
const SCAN_REST_MAX_NS: u64 = 300_000_000_000;

/// Scans and puts under way in one dataset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) scans: u32,
    pub(crate) puts: u32,
    /// When a scan last handed out frames, or began.
    scanned_ns: Option<u64>,
}

impl Busy {
    /// Whether a scan goes on at `now_ns`.
    pub(crate) fn is_scanned(&self, now_ns: u64) -> bool {
        let recent = |then_ns| now_ns.saturating_sub(then_ns) < SCAN_REST_MAX_NS;
        self.scans > 0 && self.scanned_ns.is_some_and(recent)
    }
}

/// Scans and puts under way, by dataset.
pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    busy: Mutex<BTreeMap<String, Busy>>,
}

impl Activity {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Activity {
        Activity { clock, busy: Mutex::default() }
    }

    /// The time that the age of a scan is measured by.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn guard(&self) -> MutexGuard<'_, BTreeMap<String, Busy>> {
        self.busy.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

    /// Notes that the scan handed out frames just now: its dataset stays for some minutes more.
    pub fn goes_on(&self) {
        let now_ns = self.activity.now_ns();
        self.activity.change(&self.dataset, |busy| busy.scanned_ns = Some(now_ns));
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
    use zazen_env::ManualClock;

    #[test]
    fn a_scan_that_rests_for_minutes_keeps_nothing() {
        let clock = Arc::new(ManualClock::default());
        let activity = Arc::new(Activity::new(clock.clone()));
        let dataset = RelPath::new("d").unwrap();
        let is_scanned = |later: u64| activity.of("d").is_scanned(clock.now_ns() + later * 1_000_000_000);
        let guard = ScanGuard::new(activity.clone(), dataset.clone());
        let other = ScanGuard::new(activity.clone(), dataset);
        assert!(is_scanned(0) && is_scanned(290) && !is_scanned(301));
        drop(other);
        clock.advance_ns(400_000_000_000);
        assert!(!is_scanned(0));
        guard.goes_on();
        assert!(is_scanned(0));
        drop(guard);
        assert!(!is_scanned(0) && activity.guard().is_empty());
    }
}
