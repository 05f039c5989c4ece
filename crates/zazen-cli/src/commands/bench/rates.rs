//! The parameters of the paper's cost model (section 5.1), measured on this run's own carrier.

use super::spread::middle;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;
use zazen_assign::{Collectives, sparse, two_bit};
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
    /// This rank's view of the carrier, taken with vectors no larger than those of `frames` frames.
    /// Collective.
    pub(crate) fn measure(collectives: &dyn Collectives, frames: u64) -> Result<Rates> {
        let bytes = ((frames / 4) as usize).clamp(BYTES_MIN, LARGE_BYTES);
        let peers = collectives.size() - 1;
        let (mut alpha_s, mut beta_s) = (0.0, 0.0);
        if peers > 0 {
            // An all-to-all of small blocks is two messages to each peer: the length, the block.
            let small = || sparse(vec![vec![0; 8]; collectives.size()]);
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

/// Returns on no rank before all have come to it.
pub(crate) fn barrier(collectives: &dyn Collectives) -> Result<()> {
    collectives.allreduce_sum(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

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
