//! How long things took since the daemon started, as histograms for the metrics page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::Result;
use zazen_frames::messages::frames_fn;
use zazen_wire::service;

/// Upper bounds of the buckets in microseconds; the last bucket has none. They reach from a call
/// through shared memory to a store that hangs.
const BOUNDS_US: [u64; 14] =
    [20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 30_000_000];

/// Counts durations by their length. Shared by threads; a count costs three additions. A reader may
/// see a duration in its bucket a moment before it sees it in the sum.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts `took`.
    pub fn add(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS_US.partition_point(|bound| bound * 1_000 < took_ns);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// The upper bound in seconds and the count of each bucket; not added up.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect()
    }

    /// All durations together, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Calls of a daemon by what they do. Plug-ins count their own time.
#[derive(Debug, Default)]
pub struct Calls {
    read: Histogram,
    push: Histogram,
    namespace: Histogram,
    other: Histogram,
}

impl Calls {
    /// Each with its name on the metrics page.
    pub fn all(&self) -> [(&'static str, &Histogram); 4] {
        [("read", &self.read), ("push", &self.push), ("namespace", &self.namespace), ("other", &self.other)]
    }

    fn of(&self, service_id: u16, function: u16) -> &Histogram {
        match (service_id, function) {
            (
                service::FRAMES,
                frames_fn::SCAN_NEXT | frames_fn::READ_MANY | frames_fn::GET_BLOCK | frames_fn::GET_PIECE,
            ) => &self.read,
            (service::FRAMES, frames_fn::PUSH | frames_fn::PUSH_MANY) => &self.push,
            (service::NAMESPACE, _) => &self.namespace,
            _ => &self.other,
        }
    }
}

/// `service`, with each of its calls counted in `calls`.
pub(crate) fn timed(calls: &Arc<Calls>, service: Arc<dyn Service>) -> Arc<dyn Service> {
    Arc::new(Timed { calls: calls.clone(), service })
}

struct Timed {
    calls: Arc<Calls>,
    service: Arc<dyn Service>,
}

impl Service for Timed {
    fn id(&self) -> u16 {
        self.service.id()
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let histogram = self.calls.of(self.service.id(), call.function);
        let began = call.began;
        let mut answer = self.service.call(caller, call);
        let ended = Instant::now();
        histogram.add(ended.saturating_duration_since(began));
        if let Ok(reply) = &mut answer {
            reply.ended = Some(ended);
        }
        answer
    }

    fn answered(&self, caller: &Caller) {
        self.service.answered(caller);
    }

    fn detach(&self, caller: &Caller) {
        self.service.detach(caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_once_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for took_us in [0, 20, 21, 1_000, 30_000_000, 30_000_001] {
            histogram.add(Duration::from_micros(took_us));
        }
        histogram.add(Duration::MAX);
        let counts: Vec<u64> = histogram.buckets().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(histogram.buckets().last().map(|(bound, _)| *bound), Some(f64::INFINITY));
    }
}
