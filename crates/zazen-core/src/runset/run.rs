//! One strided run and its closed-form arithmetic.
//!
//! Invariant of a valid run: `count ≥ 1`, `step ≥ 1`, `step = 1` where `count = 1`, last ≤
//! [`NUMBER_MAX`]. No function here walks the numbers of a run.

use crate::error::{Error, ErrorKind, Result};

/// The largest number that a run or a set can hold. One below `u64::MAX`, so that the length of
/// every set fits in a u64.
pub const NUMBER_MAX: u64 = u64::MAX - 1;

/// The numbers `first, first + step, …` (`count` of them). `count ≥ 1`, `step ≥ 1`; `step` is 1
/// where `count` is 1; the last number is at most [`NUMBER_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// The distance between neighbours.
    pub step: u64,
}

impl Run {
    /// A run; fails with `InvalidArgument` if `count` or `step` is 0, `TooLarge` if the last number
    /// is beyond [`NUMBER_MAX`].
    pub fn new(first: u64, count: u64, step: u64) -> Result<Run> {
        if count == 0 || step == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("run of {count} numbers from {first} by {step}: count and step must be at least 1"),
            ));
        }
        let run = Run::normal(first, count, step);
        if !run.is_valid() {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "run of {count} numbers from {first} by {step}: its last number is beyond {NUMBER_MAX}"
                ),
            ));
        }
        Ok(run)
    }

    /// The run that holds just `number`.
    pub fn single(number: u64) -> Run {
        Run { first: number, count: 1, step: 1 }
    }

    /// The last number.
    pub fn last(&self) -> u64 {
        self.first + (self.count - 1) * self.step
    }

    /// Whether `number` is in it.
    pub fn contains(&self, number: u64) -> bool {
        number >= self.first && number <= self.last() && (number - self.first).is_multiple_of(self.step)
    }

    /// The numbers in both runs, in closed form (Chinese remainder theorem); `None` if there are
    /// none.
    pub fn intersection(&self, other: &Run) -> Option<Run> {
        let (low, high) = (self.first.max(other.first), self.last().min(other.last()));
        if low > high {
            return None;
        }
        if self.step == 1 {
            return other.clip(low, high);
        }
        if other.step == 1 {
            return self.clip(low, high);
        }
        let common = gcd(self.step, other.step);
        let apart = i128::from(other.first) - i128::from(self.first);
        if apart % i128::from(common) != 0 {
            return None;
        }
        let modulus = i128::from(other.step / common);
        let own = i128::from(self.step / common);
        let times = (apart / i128::from(common)).rem_euclid(modulus) as u128 * inverse(own, modulus);
        let times = times % modulus as u128;
        let period = u128::from(self.step) * modulus as u128;
        let mut meet = u128::from(self.first) + u128::from(self.step) * times;
        if meet < u128::from(low) {
            meet += (u128::from(low) - meet).div_ceil(period) * period;
        }
        if meet > u128::from(high) {
            return None;
        }
        let more = (u128::from(high) - meet) / period;
        Some(Run::normal(meet as u64, more as u64 + 1, period as u64))
    }

    /// With the step that a run of one number must have.
    pub(super) fn normal(first: u64, count: u64, step: u64) -> Run {
        Run { first, count, step: if count == 1 { 1 } else { step } }
    }

    pub(super) fn is_valid(&self) -> bool {
        let last =
            self.step.checked_mul(self.count.wrapping_sub(1)).and_then(|span| span.checked_add(self.first));
        self.count > 0 && self.step > 0 && last.is_some_and(|last| last <= NUMBER_MAX)
    }

    /// How many of its numbers are smaller than `number`.
    pub(super) fn rank(&self, number: u64) -> u64 {
        if number <= self.first {
            return 0;
        }
        ((number - self.first - 1) / self.step + 1).min(self.count)
    }

    /// The numbers from rank `start` up to, not including, rank `end`.
    pub(super) fn ranks(&self, start: u64, end: u64) -> Option<Run> {
        (start < end).then(|| Run::normal(self.first + start * self.step, end - start, self.step))
    }

    /// Its numbers within `low ..= high`.
    pub(super) fn clip(&self, low: u64, high: u64) -> Option<Run> {
        let end = if high == u64::MAX { self.count } else { self.rank(high + 1) };
        self.ranks(self.rank(low), end)
    }

    /// Its numbers below `number`, and the others.
    pub(super) fn split(&self, number: u64) -> (Option<Run>, Option<Run>) {
        let below = self.rank(number);
        (self.ranks(0, below), self.ranks(below, self.count))
    }

    /// Appends `next`, which lies wholly behind, if the two make one run; false if they don't.
    pub(super) fn join(&mut self, next: &Run) -> bool {
        let apart = next.first - self.last();
        let step = match (self.count, next.count) {
            (1, 1) => apart,
            (1, _) => next.step,
            (_, _) => self.step,
        };
        let fits = apart == step && (next.count == 1 || next.step == step);
        if fits {
            *self = Run { first: self.first, count: self.count + next.count, step };
        }
        fits
    }
}

/// Replaces runs of one step that interleave evenly (the shares of a round-robin deal) by the one
/// run that they make together.
pub(crate) fn mesh(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_by_key(|run| (run.step, run.first));
    let mut out = Vec::with_capacity(runs.len());
    let mut rest = runs.as_slice();
    while let Some(first) = rest.first() {
        let same = |run: &&Run| run.step == first.step && run.first - first.first < first.step;
        let (group, others) = rest.split_at(rest.iter().take_while(same).count());
        let ways = group.len() as u64;
        let count = group.iter().try_fold(0u64, |sum, run| sum.checked_add(run.count));
        let even = |(at, run): (usize, &Run)| {
            let at = at as u64;
            let share = count.map(|count| (count + ways - 1 - at) / ways);
            run.first - first.first == at * (first.step / ways) && share == Some(run.count)
        };
        match count {
            Some(count) if ways > 1 && first.step % ways == 0 && group.iter().enumerate().all(even) => {
                out.push(Run { first: first.first, count, step: first.step / ways });
            }
            _ => out.extend_from_slice(group),
        }
        rest = others;
    }
    out
}

/// Runs whose spans overlap, directly or through other runs.
pub(crate) struct Cluster {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) runs: Vec<Run>,
}

/// `runs` in the clusters that they make, ascending.
pub(crate) fn clusters(mut runs: Vec<Run>) -> Vec<Cluster> {
    runs.sort_by_key(|run| run.first);
    let mut clusters: Vec<Cluster> = Vec::new();
    for run in runs {
        match clusters.last_mut() {
            Some(cluster) if run.first <= cluster.last => {
                cluster.last = cluster.last.max(run.last());
                cluster.runs.push(run);
            }
            _ => clusters.push(Cluster { first: run.first, last: run.last(), runs: vec![run] }),
        }
    }
    clusters
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The inverse of `value` modulo `modulus`; the two are coprime.
fn inverse(value: i128, modulus: i128) -> u128 {
    let (mut old, mut new) = ((value.rem_euclid(modulus), 1i128), (modulus, 0i128));
    while new.0 != 0 {
        let quotient = old.0 / new.0;
        (old, new) = (new, (old.0 - quotient * new.0, old.1 - quotient * new.1));
    }
    old.1.rem_euclid(modulus) as u128
}

/// Turns ascending numbers and runs into the greedy sequence of runs. Each run takes its second
/// number at any distance, and then all following numbers at that distance. The result depends only
/// on the set.
#[derive(Clone, Debug, Default)]
pub(super) struct Greedy {
    open: Option<Run>,
}

impl Greedy {
    /// Takes the next number; returns the run that it ended, if it did.
    pub(super) fn number(&mut self, number: u64) -> Option<Run> {
        match &mut self.open {
            None => {
                self.open = Some(Run::single(number));
                None
            }
            Some(open) => {
                if open.join(&Run::single(number)) {
                    return None;
                }
                self.open.replace(Run::single(number))
            }
        }
    }

    /// Takes the next run; returns the run that it ended, if it did, and what is left to give again
    /// (three calls take any run).
    pub(super) fn run(&mut self, run: Run) -> (Option<Run>, Option<Run>) {
        match &mut self.open {
            None => {
                self.open = Some(run);
                (None, None)
            }
            Some(open) => {
                if open.join(&run) {
                    return (None, None);
                }
                (self.number(run.first), run.ranks(1, run.count))
            }
        }
    }

    /// The last run.
    pub(super) fn finish(&mut self) -> Option<Run> {
        self.open.take()
    }
}
