//! One protocol over all ranks and repeats: over ranks the largest and the middle value, over
//! repeats the median and the range.

use super::sample::{Phase, RankReport, Sample, ascending_sum};
use super::spread::{Spread, largest, middle};
use serde::Serialize;
use zazen_assign::Protocol;

/// A round over all ranks.
#[derive(Debug, Serialize)]
pub(crate) struct PhaseRow {
    pub(crate) round: String,
    /// Local work before the collective, seconds, of the slowest and of the middle rank.
    pub(crate) local_max_s: Spread,
    pub(crate) local_median_s: Spread,
    pub(crate) collective_max_s: Spread,
    pub(crate) collective_median_s: Spread,
    pub(crate) bytes_max: u64,
    pub(crate) bytes_sum: u64,
}

/// A protocol over all ranks and repeats.
#[derive(Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) protocol: &'static str,
    pub(crate) path: &'static str,
    pub(crate) rounds: u32,
    /// Between two barriers.
    #[serde(rename = "total_s")]
    pub(crate) total: Spread,
    /// All local work of the rank that has most.
    #[serde(rename = "local_s")]
    pub(crate) local: Spread,
    /// Its processor time: what it would take on a core of its own.
    #[serde(rename = "local_cpu_s")]
    pub(crate) local_cpu: Spread,
    pub(crate) phases: Vec<PhaseRow>,
    pub(crate) bytes_sent_max: u64,
    pub(crate) bytes_sent_sum: u64,
    pub(crate) native: u64,
    pub(crate) alien: u64,
    pub(crate) residue: u64,
    /// Of all frames, those that are read where they lie.
    pub(crate) local_share: f64,
    /// The ranks' shares hold as many frames as were asked for, and their numbers have the same
    /// sum.
    pub(crate) adds_up: bool,
    pub(crate) peak_growth_bytes_max: u64,
    pub(crate) peak_growth_bytes_sum: u64,
}

impl Side {
    /// Of protocol `at` in `reports`.
    pub(crate) fn of(protocol: Protocol, at: usize, reports: &[RankReport], frames: u64) -> Side {
        let repeats = reports[0].samples[at].len();
        let by_repeat: Vec<Vec<&Sample>> = (0..repeats)
            .map(|repeat| reports.iter().map(|report| &report.samples[at][repeat]).collect())
            .collect();
        let over_repeats = |of_rank: &dyn Fn(&Sample) -> f64, over: fn(Vec<f64>) -> f64| {
            let one = |ranks: &Vec<&Sample>| over(ranks.iter().map(|sample| of_rank(sample)).collect());
            Spread::of(by_repeat.iter().map(one).collect())
        };
        let last = &by_repeat[repeats - 1];
        let row = |(number, phase): (usize, &Phase)| {
            let local = |sample: &Sample| sample.phases[number].local_s;
            let collective = |sample: &Sample| sample.phases[number].collective_s;
            let bytes = || last.iter().map(|sample| sample.phases[number].bytes);
            PhaseRow {
                round: phase.round.clone(),
                local_max_s: over_repeats(&local, largest),
                local_median_s: over_repeats(&local, middle),
                collective_max_s: over_repeats(&collective, largest),
                collective_median_s: over_repeats(&collective, middle),
                bytes_max: bytes().max().unwrap_or(0),
                bytes_sum: bytes().sum(),
            }
        };
        let [native, alien, residue] = last[0].total;
        let expected = (frames, ascending_sum(0, frames, 1));
        let whole = |ranks: &Vec<&Sample>| {
            let sum = ranks.iter().map(|sample| sample.sum).fold(0, u64::wrapping_add);
            (ranks.iter().map(|sample| sample.frames).sum::<u64>(), sum) == expected
                && ranks.iter().all(|sample| sample.total.iter().sum::<u64>() == frames)
        };
        let peaks = || {
            let peak = |report: &RankReport| {
                report.samples[at].iter().map(|sample| sample.peak_growth_bytes).max().unwrap_or(0)
            };
            reports.iter().map(peak)
        };
        Side {
            protocol: name(protocol),
            path: if last[0].fingerprint { "fingerprint" } else { "exchange" },
            rounds: last[0].rounds,
            total: over_repeats(&|sample| sample.total_s, largest),
            local: over_repeats(&|sample| sample.phases.iter().map(|phase| phase.local_s).sum(), largest),
            local_cpu: over_repeats(&|sample| sample.local_cpu_s, largest),
            phases: last[0].phases.iter().enumerate().map(row).collect(),
            bytes_sent_max: last.iter().map(|sample| sample.bytes_sent).max().unwrap_or(0),
            bytes_sent_sum: last.iter().map(|sample| sample.bytes_sent).sum(),
            native,
            alien,
            residue,
            local_share: (native + alien) as f64 / frames as f64,
            adds_up: by_repeat.iter().all(whole),
            peak_growth_bytes_max: peaks().max().unwrap_or(0),
            peak_growth_bytes_sum: peaks().sum(),
        }
    }
}

/// The protocol as the command line spells it.
pub(crate) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Owner => "owner",
        Protocol::Bitmaps => "bitmaps",
    }
}
