//! What a run measures: times by phase, stragglers, and how busy things were over time.

use crate::time::seconds;

/// Bits of a value below its highest one that a histogram keeps: values are known to 1 part in 128.
const KEPT_BITS: u32 = 7;

/// Times in logarithmic buckets: each value is known to 0.8 %. Merging two adds up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl Histogram {
    /// No value.
    pub fn new() -> Histogram {
        let buckets = vec![0; ((64 - KEPT_BITS + 1) << KEPT_BITS) as usize];
        Histogram { buckets, count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    fn bucket(value: u64) -> usize {
        let top = 63 - (value | 1).leading_zeros();
        match top.checked_sub(KEPT_BITS) {
            None => value as usize,
            Some(shift) => ((shift << KEPT_BITS) as u64 + (value >> shift)) as usize,
        }
    }

    /// The greatest value of a bucket.
    fn greatest(bucket: usize) -> u64 {
        let shift = (bucket >> KEPT_BITS).saturating_sub(1) as u32;
        let kept = bucket as u64 - (u64::from(shift) << KEPT_BITS);
        (kept << shift) | ((1_u64 << shift) - 1)
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.buckets[Histogram::bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; 0 without a value.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The least value; 0 without one.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The greatest value; 0 without one.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a part of all values does not exceed, at most 1 part in 128 too large. The
    /// least and the greatest value are exact.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Histogram::greatest(bucket).clamp(self.min(), self.max);
            }
        }
        self.max
    }
}

/// Intervals kept over time; more than twice as many bins are never used.
const BINS: usize = 256;

/// How many of something were busy, over time, in bins that grow with the run.
#[derive(Clone, Debug)]
pub struct Timeline {
    bin_ps: u64,
    /// Busy time that begins or ends within the bin.
    part: Vec<f64>,
    /// Change of the number that is busy through whole bins, from this bin on.
    whole: Vec<i64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline::new()
    }
}

impl Timeline {
    /// Nothing was busy.
    pub fn new() -> Timeline {
        Timeline { bin_ps: 1_000_000, part: vec![0.0; BINS], whole: vec![0; BINS + 1] }
    }

    /// One was busy from `start_ps` to `end_ps`.
    pub fn add(&mut self, start_ps: u64, end_ps: u64) {
        while end_ps / self.bin_ps >= BINS as u64 {
            self.widen();
        }
        let (first, last) = ((start_ps / self.bin_ps) as usize, (end_ps / self.bin_ps) as usize);
        if first == last {
            self.part[first] += (end_ps - start_ps) as f64;
            return;
        }
        self.part[first] += ((first as u64 + 1) * self.bin_ps - start_ps) as f64;
        self.part[last] += (end_ps - last as u64 * self.bin_ps) as f64;
        self.whole[first + 1] += 1;
        self.whole[last] -= 1;
    }

    fn widen(&mut self) {
        let busy = self.busy_ps();
        for bin in 0..BINS {
            self.part[bin] = if bin < BINS / 2 { busy[2 * bin] + busy[2 * bin + 1] } else { 0.0 };
        }
        self.whole.fill(0);
        self.bin_ps *= 2;
    }

    /// Busy time in all, in seconds.
    #[cfg(test)]
    pub(crate) fn total_s(&self) -> f64 {
        self.busy_ps().iter().sum::<f64>() * 1e-12
    }

    /// Busy time by bin, in picoseconds.
    fn busy_ps(&self) -> Vec<f64> {
        let mut through = 0;
        let bins = self.part.iter().zip(&self.whole);
        bins.map(|(part, change)| {
            through += change;
            part + through as f64 * self.bin_ps as f64
        })
        .collect()
    }

    /// (time in seconds, how many were busy on average) by bin, up to `end_ps`.
    pub fn series(&self, end_ps: u64) -> Vec<(f64, f64)> {
        let bins = (end_ps.div_ceil(self.bin_ps).max(1) as usize).min(BINS);
        let busy = self.busy_ps();
        (0..bins)
            .map(|bin| {
                let begin = bin as u64 * self.bin_ps;
                let length = self.bin_ps.min(end_ps.saturating_sub(begin).max(1));
                (seconds(begin), busy[bin] / length as f64)
            })
            .collect()
    }
}

/// The slowest few.
#[derive(Clone, Debug, Default)]
pub struct Slowest {
    /// (time, who), slowest first.
    kept: Vec<(u64, u32)>,
}

impl Slowest {
    const KEPT: usize = 10;

    /// Considers one.
    pub fn add(&mut self, time_ps: u64, who: u32) {
        if self.kept.len() == Slowest::KEPT && self.kept[Slowest::KEPT - 1].0 >= time_ps {
            return;
        }
        let at = self.kept.partition_point(|kept| kept.0 >= time_ps);
        self.kept.insert(at, (time_ps, who));
        self.kept.truncate(Slowest::KEPT);
    }

    /// (time, who), slowest first.
    pub fn kept(&self) -> &[(u64, u32)] {
        &self.kept
    }
}

/// When ranks were done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) times: Histogram,
    pub(crate) slowest: Slowest,
}

impl Ends {
    pub(crate) fn add(&mut self, time_ps: u64, who: u32) {
        self.times.add(time_ps);
        self.slowest.add(time_ps, who);
    }

    pub(crate) fn count(&self) -> u32 {
        self.times.count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, Stream};

    #[test]
    fn quantiles_are_close_to_the_sorted_ones() {
        let random = Random::new(2);
        let mut values: Vec<u64> =
            (0..10_000).map(|at| random.bits(0, Stream::Workload, at) >> (at % 50)).collect();
        let mut histogram = Histogram::new();
        values.iter().for_each(|value| histogram.add(*value));
        values.sort_unstable();
        for part in [0.001, 0.1, 0.5, 0.9, 0.99, 1.0] {
            let exact = values[((part * 10_000.0_f64).ceil() as usize).max(1) - 1];
            let found = histogram.quantile(part);
            assert!(found >= exact && found as f64 <= exact as f64 * (1.0 + 1.0 / 128.0) + 1.0, "{part}");
        }
        assert_eq!((histogram.min(), histogram.max()), (values[0], values[9_999]));
        assert_eq!(Histogram::new().quantile(0.5), 0);
        (0..200).for_each(|value| assert_eq!(Histogram::greatest(Histogram::bucket(value)), value));
    }

    /// Against adding up each interval by hand; no busy time is lost when bins widen.
    #[test]
    fn busy_time_adds_up() {
        let random = Random::new(9);
        let mut timeline = Timeline::new();
        let mut sum = 0.0;
        let mut end = 0;
        for at in 0..2_000 {
            let start = random.below(1 << (20 + at % 20), 0, Stream::Workload, 2 * at);
            let length = random.below(1 << (10 + at % 30), 0, Stream::Workload, 2 * at + 1);
            timeline.add(start, start + length);
            sum += length as f64;
            end = end.max(start + length);
        }
        let found: f64 = timeline.busy_ps().iter().sum();
        assert!((found / sum - 1.0).abs() < 1e-9);
        let mut one = Timeline::new();
        one.add(0, 1 << 40);
        assert!(one.series(1 << 40).iter().all(|(_, busy)| (busy - 1.0).abs() < 1e-9));
    }

    #[test]
    fn the_slowest_are_kept_in_order() {
        let mut slowest = Slowest::default();
        (0..100).for_each(|who| slowest.add(u64::from(who * 37 % 100), who));
        let times: Vec<u64> = slowest.kept().iter().map(|kept| kept.0).collect();
        assert_eq!(times, (90..100).rev().collect::<Vec<u64>>());
    }
}
