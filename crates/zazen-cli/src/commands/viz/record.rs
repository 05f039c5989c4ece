//! A run of a visualization, as its records tell of it.

use serde::Serialize;

/// A read call is an outlier beyond the mean and this many deviations.
const OUTLIER_DEVIATIONS: f64 = 3.0;

/// A step over all ranks.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) time: f64,
    pub(super) local_bytes: u64,
    pub(super) remote_bytes: u64,
    pub(super) store_bytes: u64,
    pub(super) wait_s_mean: f64,
    pub(super) wait_s_max: f64,
    pub(super) slowest_rank: u32,
    pub(super) seconds: f64,
    pub(super) kept: bool,
    pub(super) ahead: bool,
    /// Whether a rank could not show it.
    pub(super) failed: bool,
    /// What each rank had of it, by rank.
    pub(super) ranks: Vec<Share>,
}

/// A rank's share of a step.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Share {
    pub(super) rank: u32,
    pub(super) local_bytes: u64,
    pub(super) remote_bytes: u64,
    pub(super) store_bytes: u64,
    pub(super) wait_s: f64,
    pub(super) seconds: f64,
    pub(super) kept: bool,
    pub(super) ahead: bool,
    pub(super) failed: bool,
}

/// Read calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Reads {
    pub(super) count: usize,
    pub(super) mean_s: f64,
    pub(super) deviation_s: f64,
    pub(super) p99_s: f64,
    pub(super) max_s: f64,
    pub(super) outliers: usize,
    /// A call beyond this is an outlier.
    #[serde(skip)]
    pub(super) limit_s: f64,
}

/// A run.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) folder: String,
    pub(super) strategy: String,
    pub(super) ranks: usize,
    pub(super) steps: Vec<Step>,
    pub(super) reads: Reads,
    /// The share of steps that every rank had within ten seconds.
    pub(super) within_10_s: f64,
    /// Of each read call, the step's time and the call's seconds.
    #[serde(skip)]
    pub(super) calls: Vec<(f64, f64)>,
}

pub(super) fn reads(calls: &[f64]) -> Reads {
    let mut sorted = calls.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let Some(max_s) = sorted.last().copied() else { return Reads::default() };
    let mean_s = sorted.iter().sum::<f64>() / count as f64;
    let spread = sorted.iter().map(|call| (call - mean_s).powi(2)).sum::<f64>() / count as f64;
    let deviation_s = spread.sqrt();
    let limit = mean_s + OUTLIER_DEVIATIONS * deviation_s;
    let outliers = sorted.iter().filter(|call| **call > limit).count();
    let p99_s = sorted[(count * 99).div_ceil(100) - 1];
    Reads { count, mean_s, deviation_s, p99_s, max_s, outliers, limit_s: limit }
}
