//! What a plug-in's functions did: counted for every plug-in, without its help.

use crate::object::Description;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time buckets: the first has calls of less than 1 µs, each next one of less than twice as long,
/// the last all others.
pub const BUCKETS: usize = 26;

/// One function's counters. All zeros is a valid value, so they can lie in fresh memory.
#[repr(C)]
#[derive(Default)]
pub(crate) struct FunctionStats {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// What one call adds.
pub(crate) struct Sample {
    pub(crate) failed: bool,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) took: Duration,
}

/// The number of the bucket that a call of `nanoseconds` falls into.
fn bucket(nanoseconds: u64) -> usize {
    let microseconds = nanoseconds / 1000;
    (u64::BITS - microseconds.leading_zeros()).min(BUCKETS as u32 - 1) as usize
}

impl FunctionStats {
    pub(crate) fn add(&self, sample: &Sample) {
        let nanoseconds = u64::try_from(sample.took.as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.buckets[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        for (counter, value) in [
            (&self.errors, u64::from(sample.failed)),
            (&self.bytes_in, sample.bytes_in),
            (&self.bytes_out, sample.bytes_out),
        ] {
            if value > 0 {
                counter.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn read(&self, name: &str) -> FunctionReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FunctionReport {
            name: name.to_owned(),
            calls: get(&self.calls),
            errors: get(&self.errors),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            nanoseconds: get(&self.nanoseconds),
            buckets: self.buckets.iter().map(get).collect(),
        }
    }
}

/// One function's counters as of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its name in C.
    pub name: String,
    /// Calls that ended.
    pub calls: u64,
    /// Those whose transport status was not 0; what a function itself reports is not looked at.
    pub errors: u64,
    /// Bytes of requests, segments included.
    pub bytes_in: u64,
    /// Bytes of answers, segments included.
    pub bytes_out: u64,
    /// Time spent in all, in nanoseconds.
    pub nanoseconds: u64,
    /// Calls by time: below 1, 2, 4, … µs; the last one has the rest.
    pub buckets: Vec<u64>,
}

/// A plug-in's state as of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginReport {
    /// `ID=` of its header.
    pub id: u16,
    /// The header's name.
    pub name: String,
    /// The shared object.
    pub path: String,
    /// `in-process` or `isolated`.
    pub placement: String,
    /// `running`, or why not.
    pub state: String,
    /// Counts its starts.
    pub generation: u64,
    /// The process that it runs in; 0 if there is none, or one for each of several identities.
    pub pid: u32,
    /// Processes that it runs in for callers' identities; 0 for a plug-in that acts as the daemon's
    /// user.
    #[serde(default)]
    pub processes: u64,
    /// Times that its process ended without being told to.
    pub crashes: u64,
    /// Clients attached.
    pub clients: u64,
    /// Handles that they hold.
    pub handles: u64,
    /// Calls in progress.
    pub running: u64,
    /// Each function since the plug-in's last start.
    pub functions: Vec<FunctionReport>,
}

impl PluginReport {
    /// A counter summed over the functions.
    pub fn sum(&self, counter: impl Fn(&FunctionReport) -> u64) -> u64 {
        self.functions.iter().map(counter).sum()
    }

    /// Adds what another process of the same plug-in counted; such a process may say anything.
    pub(crate) fn add(&mut self, part: &PluginReport) {
        let add = |sum: &mut u64, part: u64| *sum = sum.saturating_add(part);
        add(&mut self.clients, part.clients);
        add(&mut self.handles, part.handles);
        add(&mut self.running, part.running);
        if self.functions.is_empty() {
            self.functions.clone_from(&part.functions);
            return;
        }
        for (sum, part) in self.functions.iter_mut().zip(&part.functions) {
            add(&mut sum.calls, part.calls);
            add(&mut sum.errors, part.errors);
            add(&mut sum.bytes_in, part.bytes_in);
            add(&mut sum.bytes_out, part.bytes_out);
            add(&mut sum.nanoseconds, part.nanoseconds);
            for (sum, part) in sum.buckets.iter_mut().zip(&part.buckets) {
                add(sum, *part);
            }
        }
    }

    /// One of a plug-in that does not run.
    pub(crate) fn of(description: &Description) -> PluginReport {
        PluginReport { id: description.id, name: description.name.clone(), ..PluginReport::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        let check = |microseconds: u64, expected| assert_eq!(bucket(microseconds * 1000), expected);
        check(0, 0);
        check(1, 1);
        check(2, 2);
        check(3, 2);
        check(4, 3);
        check(1 << 20, 21);
        assert_eq!(bucket(999), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counters_add_up() {
        let stats = FunctionStats::default();
        for failed in [true, false, false] {
            stats.add(&Sample { failed, bytes_in: 5, bytes_out: 7, took: Duration::from_micros(3) });
        }
        let report = stats.read("f");
        assert_eq!((report.calls, report.errors, report.bytes_in, report.bytes_out), (3, 1, 15, 21));
        assert_eq!((report.nanoseconds, report.buckets[2], report.buckets.len()), (9000, 3, BUCKETS));
    }
}
