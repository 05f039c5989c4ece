//! What a node knows of its own leaving: the wish, how far it is, and the operations under way that
//! may still make a file here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zazen_namespace::service::Leaving;

/// The work of leaving.
#[derive(Default)]
pub(crate) struct Work {
    /// What was found and done.
    pub(crate) told: Mutex<Told>,
    /// Operations under way, by whether they began in an even or an odd time.
    under_way: [AtomicUsize; 2],
    time: AtomicU64,
    /// Held while the node for new files is chosen: a choice from before the wish never comes after
    /// one from after it.
    pub(crate) choosing: Mutex<()>,
}

/// What is known of it.
#[derive(Default)]
pub(crate) struct Told {
    /// Whether the node shall leave.
    pub(crate) wanted: bool,
    /// Since when the map has said that the node leaves.
    pub(crate) since: Option<Instant>,
    /// Nothing of other nodes is taken any more. From then on the node cannot stay: perhaps the
    /// stewards have been asked to forget it.
    pub(crate) closed: bool,
    /// When there is the next look.
    pub(crate) next: Option<Instant>,
    /// What the last look found, and what other nodes took.
    pub(crate) found: Leaving,
}

/// An operation is under way until this is dropped.
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work {
    /// An operation begins that may make a file here.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        loop {
            let time = self.time.load(Ordering::SeqCst);
            let count = &self.under_way[time as usize % 2];
            count.fetch_add(1, Ordering::SeqCst);
            let begun = UnderWay(count);
            if self.time.load(Ordering::SeqCst) == time {
                return begun;
            }
        }
    }

    /// Waits until all operations have ended that have begun before, at most so long. Whether they
    /// have.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let before = self.time.load(Ordering::SeqCst) as usize;
        // Those of the time before that must have ended first.
        for (step, at) in [before + 1, before].into_iter().enumerate() {
            if step == 1 {
                self.time.fetch_add(1, Ordering::SeqCst);
            }
            while self.under_way[at % 2].load(Ordering::SeqCst) > 0 {
                if Instant::now() > until {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_begun_before_is_waited_for() {
        let work = Work::default();
        let first = work.begin();
        assert!(!work.wait(Duration::from_millis(20)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| work.wait(Duration::from_secs(60)));
            // Others begin all the time.
            let later: Vec<_> = (0..3)
                .map(|_| {
                    let began = work.begin();
                    std::thread::sleep(Duration::from_millis(20));
                    began
                })
                .collect();
            drop(first);
            drop(later);
            assert!(waits.join().expect("waits"));
        });
        assert!(work.wait(Duration::ZERO));
    }
}
