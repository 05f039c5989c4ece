//! Interleaved repeats, medians, spreads, and the one way a row is printed.

use serde::Serialize;
use std::time::Instant;
use zazen_core::Result;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) name: String,
    /// The figure: a ratio, or a quantity where no peer exists.
    pub(crate) value: Spread,
    /// Its unit: "ratio", "ms", "MiB", "%".
    pub(crate) unit: &'static str,
    /// The goal, as text.
    pub(crate) goal: &'static str,
    /// Absolute rates, peers' settings, or why a row was skipped.
    pub(crate) note: String,
}

/// Smallest, median and largest of some repeats.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    pub(crate) repeats: usize,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Spread {
            min: sorted.first().copied().unwrap_or(f64::NAN),
            median,
            max: sorted.last().copied().unwrap_or(f64::NAN),
            repeats: sorted.len(),
        }
    }
}

/// The mean of some values that were taken one by one, and where the true mean lies with 95 %
/// confidence (Student's t).
pub(crate) struct Interval {
    mean: f64,
    half: f64,
    count: usize,
}

impl Interval {
    pub(crate) fn of(values: &[f64]) -> Interval {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let deviation = (squares / (count as f64 - 1.0)).sqrt();
        Interval { mean, half: student(count) * deviation / (count as f64).sqrt(), count }
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Interval { mean, half, count } = self;
        write!(f, "mean of {count} {mean:.1} (95 %: {:.1} … {:.1})", mean - half, mean + half)
    }
}

/// The median of some values that were taken one by one, and where the true median lies with at
/// least 95 % confidence (order statistics: no distribution is assumed, and no outlier widens it).
pub(crate) struct MedianInterval {
    pub(crate) low: f64,
    median: f64,
    pub(crate) high: f64,
    count: usize,
}

impl MedianInterval {
    /// Infinite ends for fewer than 6 values, which cannot give this confidence.
    pub(crate) fn of(values: &[f64]) -> MedianInterval {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // So many of the smallest, and of the largest, lie outside.
        let outside = ranks_outside(count);
        let (low, high) = match outside {
            0 => (f64::NEG_INFINITY, f64::INFINITY),
            _ => (sorted[outside - 1], sorted[count - outside]),
        };
        MedianInterval { low, median: Spread::of(values).median, high, count }
    }
}

impl std::fmt::Display for MedianInterval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MedianInterval { low, median, high, count } = self;
        write!(f, "median of {count} {median:.1} (95 %: {low:.1} … {high:.1})")
    }
}

/// The largest rank r for which the true median of `count` values lies between the r-th smallest
/// and the r-th largest with at least 95 % confidence; 0 if there is none. For up to 1,000 values.
fn ranks_outside(count: usize) -> usize {
    // Each value is below the true median with probability 1/2: the number below is binomial.
    let (mut term, mut below, mut rank) = (0.5f64.powi(count as i32), 0.0, 0);
    while rank < count / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        term *= (count - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    rank
}

/// The 97.5 % point of Student's t for the mean of `count` values, at most 1 % too large.
fn student(count: usize) -> f64 {
    const FEW: [f64; 10] = [f64::NAN, 12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27];
    let freedom = count.saturating_sub(1);
    match FEW.get(freedom) {
        Some(value) => *value,
        // The first terms of its expansion around the normal distribution's.
        None => 1.96 + 2.4 / freedom as f64 + 2.8 / (freedom as f64).powi(2),
    }
}

/// Seconds that `work` took.
pub(crate) fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Times of `ours` and `peer`, taken in turn (A B, B A, …) after one uncounted turn of each.
pub(crate) fn interleave(
    repeats: usize,
    mut ours: impl FnMut() -> Result<f64>,
    mut peer: impl FnMut() -> Result<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    ours()?;
    peer()?;
    for turn in 0..repeats {
        if turn % 2 == 0 {
            a.push(ours()?);
            b.push(peer()?);
        } else {
            b.push(peer()?);
            a.push(ours()?);
        }
    }
    Ok((a, b))
}

/// Pairwise ratios `peer / ours` of two time series: above 1, ours is faster.
pub(crate) fn speed_ratios(ours: &[f64], peer: &[f64]) -> Spread {
    Spread::of(&ours.iter().zip(peer).map(|(ours, peer)| peer / ours).collect::<Vec<_>>())
}

/// `bytes` at the median of `times`, in MB/s.
pub(crate) fn rate(bytes: u64, times: &[f64]) -> f64 {
    bytes as f64 / 1e6 / Spread::of(times).median
}

#[allow(clippy::print_stdout)] // a command's own output
pub(crate) fn print_head() {
    println!("{:<44} {:>9} {:>19} {:>7}  {:<10} note", "figure", "median", "min … max", "unit", "goal");
}

#[allow(clippy::print_stdout)] // a command's own output
pub(crate) fn print(row: &Row) {
    let Spread { min, median, max, .. } = row.value;
    let spread = format!("{min:.3} … {max:.3}");
    println!("{:<44} {median:>9.3} {spread:>19} {:>7}  {:<10} {}", row.name, row.unit, row.goal, row.note);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From tables of the sign test: ranks of a 95 % interval of the median.
    #[test]
    fn ranks_of_a_medians_interval_are_those_of_the_tables() {
        for (count, rank) in
            [(0, 0), (1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (36, 12), (80, 31), (100, 40)]
        {
            assert_eq!(ranks_outside(count), rank, "{count}");
        }
    }

    #[test]
    fn an_outlier_moves_the_mean_and_not_the_medians_interval() {
        let mut values: Vec<f64> = (1..=20).map(f64::from).collect();
        let calm = MedianInterval::of(&values);
        assert_eq!((calm.low, calm.median, calm.high), (6.0, 10.5, 15.0));
        values[19] = 1e6;
        let wild = MedianInterval::of(&values);
        assert_eq!((wild.low, wild.high), (calm.low, calm.high));
        assert_eq!(MedianInterval::of(&values[..5]).high, f64::INFINITY);
    }
}
