//! The paper's cost model of the ring all-reduce (section 5.1), with its parameters measured on this run's own
//! carrier, and what it and the owner protocol's counted rounds give for other links and more nodes.

use super::report::{Side, seconds};
use super::sample::barrier;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;
use zazen_assign::{Collectives, two_bit};
use zazen_core::Result;

/// Small exchanges by which alpha is taken.
const SMALL_EXCHANGES: usize = 21;
/// Large ones for beta, and their bytes per rank in all at most.
const LARGE_EXCHANGES: usize = 3;
const LARGE_BYTES: usize = 32 << 20;
/// The least that a rate is taken from: below, it would be the clock's.
const BYTES_MIN: usize = 1 << 20;
const COMBINED_TIMES: usize = 5;

/// The model's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Seconds per message.
    pub(crate) alpha_s: f64,
    /// Seconds per byte sent.
    pub(crate) beta_s: f64,
    /// Seconds per byte combined, by OR and by the two-bit operator.
    pub(crate) gamma_or_s: f64,
    pub(crate) gamma_two_bit_s: f64,
}

impl Rates {
    /// This rank's view of the carrier, taken with vectors no larger than those of `frames` frames. Collective.
    pub(crate) fn measure(collectives: &dyn Collectives, frames: u64) -> Result<Rates> {
        let bytes = ((frames / 4) as usize).clamp(BYTES_MIN, LARGE_BYTES);
        let peers = collectives.size() - 1;
        let (mut alpha_s, mut beta_s) = (0.0, 0.0);
        if peers > 0 {
            // An all-to-all of small blocks is two messages to each peer: the length, the block.
            let small = || vec![vec![0; 8]; collectives.size()];
            let small_s =
                median_of(SMALL_EXCHANGES, collectives, || collectives.alltoallv(small()).map(drop))?;
            alpha_s = small_s / (2 * peers) as f64;
            let block = vec![1; bytes / peers];
            let large_s =
                median_of(LARGE_EXCHANGES, collectives, || collectives.allgatherv(&block).map(drop))?;
            beta_s = (large_s - small_s).max(0.0) / (block.len() * peers) as f64;
        }
        let gamma_or_s = combine_s(bytes / 8, |a, b| a | b);
        let gamma_two_bit_s = combine_s(bytes / 8, two_bit);
        Ok(Rates { alpha_s, beta_s, gamma_or_s, gamma_two_bit_s })
    }

    /// The medians over the ranks.
    pub(crate) fn median(all: &[Rates]) -> Rates {
        let median = |of: fn(&Rates) -> f64| middle(all.iter().map(of).collect());
        Rates {
            alpha_s: median(|rates| rates.alpha_s),
            beta_s: median(|rates| rates.beta_s),
            gamma_or_s: median(|rates| rates.gamma_or_s),
            gamma_two_bit_s: median(|rates| rates.gamma_two_bit_s),
        }
    }
}

fn median_of(
    times: usize,
    collectives: &dyn Collectives,
    mut exchange: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let mut laps = Vec::with_capacity(times);
    for _ in 0..times {
        barrier(collectives)?;
        let begin = Instant::now();
        exchange()?;
        laps.push(begin.elapsed().as_secs_f64());
    }
    Ok(middle(laps))
}

/// The median; 0 of nothing.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    match values.len() {
        length if length % 2 == 0 && length > 0 => (values[length / 2 - 1] + upper) / 2.0,
        _ => upper,
    }
}

/// The best of some passes, per byte: other ranks share the cores.
fn combine_s(words: usize, operator: impl Fn(u64, u64) -> u64) -> f64 {
    let mut into = vec![0x4444_4444_4444_4444u64; words];
    let from = vec![0x1111_1111_1111_1111u64; words];
    let pass = |_| {
        let begin = Instant::now();
        for (into, from) in into.iter_mut().zip(&from) {
            *into = operator(*into, *from);
        }
        black_box(&mut into);
        begin.elapsed().as_secs_f64()
    };
    let best = (0..COMBINED_TIMES).map(pass).fold(f64::INFINITY, f64::min);
    best / (words * 8) as f64
}

/// T = 2(p−1)α + 2n(1−1/p)β + n(1−1/p)γ for a vector of `bytes` over `ranks`.
pub(crate) fn ring_s(ranks: usize, bytes: f64, alpha_s: f64, beta_s: f64, gamma_s: f64) -> f64 {
    let p = ranks as f64;
    let share = 1.0 - 1.0 / p;
    2.0 * (p - 1.0) * alpha_s + 2.0 * bytes * share * beta_s + bytes * share * gamma_s
}

/// The vector that a round of the bitmap protocol reduces, in bytes, and whether by the two-bit operator.
pub(crate) fn reduced(round: &str, frames: u64) -> Option<(f64, bool)> {
    match round {
        "natives" => Some((frames as f64 / 8.0, false)),
        "native entries" | "alien entries" => Some((frames as f64 / 4.0, true)),
        _ => None,
    }
}

/// A cluster that is not at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) nodes: usize,
    pub(crate) link_bytes_per_s: f64,
    pub(crate) latency_s: f64,
}

/// A modelled time and how it comes about.
pub(crate) struct Modelled {
    pub(crate) seconds: f64,
    pub(crate) arithmetic: String,
}

impl Elsewhere {
    /// Local work as measured (its processor time: there each rank has a core), plus each round's messages and bytes over the assumed link. `side` was measured
    /// with as many ranks as there are nodes there (owner), or with any number where the local work does not
    /// depend on it (bitmaps).
    pub(crate) fn time(&self, side: &Side, frames: u64, rates: &Rates) -> Modelled {
        let (alpha, beta) = (self.latency_s, 1.0 / self.link_bytes_per_s);
        let p = self.nodes;
        let steps = (p as f64).log2().ceil();
        let (mut messages, mut bytes, mut seconds_all) = (0.0, 0.0, side.local_cpu.median);
        let mut rings = String::new();
        for phase in &side.phases {
            if let Some((vector, two_bit)) = reduced(&phase.round, frames) {
                let gamma = if two_bit { rates.gamma_two_bit_s } else { rates.gamma_or_s };
                let ring = ring_s(p, vector, alpha, beta, gamma);
                seconds_all += ring;
                let name = &phase.round;
                rings.push_str(&format!(" + {} {name} (ring, n = {:.0} MB)", seconds(ring), vector / 1e6));
                continue;
            }
            match phase.round.as_str() {
                // Small reductions go there and back over a tree.
                "fingerprint" | "chunk counts" | "chunk fingerprints" | "native count" | "tally" | "wins" => {
                    messages += 2.0 * steps;
                    bytes += 2.0 * steps * phase.bytes_max as f64;
                }
                // To every peer the length and the block; an all-gather's block is counted once by the protocol.
                "header" => {
                    messages += 2.0 * (p as f64 - 1.0);
                    bytes += (p as f64 - 1.0) * phase.bytes_max as f64;
                }
                "done" => {}
                _ => {
                    messages += 2.0 * (p as f64 - 1.0);
                    bytes += phase.bytes_max as f64;
                }
            }
        }
        seconds_all += messages * alpha + bytes * beta;
        let arithmetic = format!(
            "{} local (measured, processor time) + {messages:.0} messages x {} = {} + {:.3} MB x {:.2} ns/byte = {}{rings}",
            seconds(side.local_cpu.median),
            seconds(alpha),
            seconds(messages * alpha),
            bytes / 1e6,
            beta * 1e9,
            seconds(bytes * beta),
        );
        Modelled { seconds: seconds_all, arithmetic }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_model_is_the_papers() {
        let check = |ranks, bytes, expected: f64| {
            let got = ring_s(ranks, bytes, 1e-3, 1e-6, 1e-7);
            assert!((got - expected).abs() < 1e-12, "{ranks} ranks, {bytes} bytes: {got} is not {expected}");
        };
        check(1, 1e6, 0.0);
        check(2, 1e6, 2e-3 + 1.0 + 0.05);
        check(4, 1e6, 6e-3 + 1.5 + 0.075);
    }

    #[test]
    fn parameters_of_threads_are_positive_and_a_lone_rank_sends_nothing() {
        for size in [1, 3] {
            for rates in zazen_assign::threads::run(size, |rank| Rates::measure(rank, 1000)) {
                let rates = rates.unwrap();
                assert_eq!(rates.alpha_s > 0.0, size > 1);
                assert!(rates.gamma_or_s > 0.0 && rates.gamma_two_bit_s > 0.0);
            }
        }
    }
}
