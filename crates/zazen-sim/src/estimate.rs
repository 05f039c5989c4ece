//! What calibration found of a parameter.

use crate::random::{Random, Stream};

/// Bootstrap samples.
const SAMPLES: usize = 200;

/// What a parameter was found to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The parameter.
    pub name: String,
    /// Its value, and the bootstrap's 95 % interval; `None`: the data do not tell.
    pub value: Option<(f64, f64, f64)>,
    /// Spans that it rests on.
    pub spans: usize,
    /// What it rests on, or why the data do not tell.
    pub word: String,
}

/// The middle value; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

/// The bootstrap's 95 % interval of a statistic over chosen indices.
pub fn interval(count: usize, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> (f64, f64) {
    let random = Random::new(seed);
    let size = count.min(120);
    let mut found: Vec<f64> = (0..SAMPLES)
        .map(|sample| {
            let draw = |at| random.below(count as u64, sample as u32, Stream::Workload, at) as usize;
            statistic(&(0..size as u64).map(draw).collect::<Vec<usize>>())
        })
        .collect();
    found.sort_unstable_by(f64::total_cmp);
    // Samples smaller than the data spread more, by the root of the ratio.
    let centre = median(found.clone());
    let shrink = (size as f64 / count as f64).sqrt();
    let at = |part: f64| centre + (found[(part * (SAMPLES - 1) as f64) as usize] - centre) * shrink;
    (at(0.025), at(0.975))
}
