//! The paper's cost model of the ring all-reduce (section 5.1), and what it and the owner
//! protocol's counted rounds give for other links and more nodes.

use super::rates::Rates;
use super::side::Side;
use super::spread::seconds;

/// T = 2(p−1)α + 2n(1−1/p)β + n(1−1/p)γ for a vector of `bytes` over `ranks`.
pub(crate) fn ring_s(ranks: usize, bytes: f64, alpha_s: f64, beta_s: f64, gamma_s: f64) -> f64 {
    let p = ranks as f64;
    let share = 1.0 - 1.0 / p;
    2.0 * (p - 1.0) * alpha_s + 2.0 * bytes * share * beta_s + bytes * share * gamma_s
}

/// The vector that a round of the bitmap protocol reduces, in bytes, and whether by the two-bit
/// operator.
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
    /// Local work as measured (its processor time: there each rank has a core), plus each round's
    /// messages and bytes over the assumed link. `side` was measured with as many ranks as there
    /// are nodes there (owner), or with any number where the local work does not depend on it
    /// (bitmaps).
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
                "header" | "fingerprint" | "held" | "node fingerprint" | "chunk counts"
                | "chunk fingerprints" | "native count" | "conflicts" | "wins" => {
                    messages += 2.0 * steps;
                    bytes += 2.0 * steps * phase.bytes_max as f64;
                }
                // An all-gather of lengths and one of blocks, over trees; the protocol counts its
                // block once.
                "tally" => {
                    messages += 2.0 * steps;
                    bytes += (p as f64 - 1.0) * (8.0 + phase.bytes_max as f64);
                }
                "links" => {
                    messages += 2.0;
                    bytes += 2.0 * (1 << 20) as f64;
                }
                "done" => {}
                // To every peer the length and the block.
                _ => {
                    messages += 2.0 * (p as f64 - 1.0);
                    bytes += phase.bytes_max as f64;
                }
            }
        }
        seconds_all += messages * alpha + bytes * beta;
        let arithmetic = format!(
            "{} local (measured, processor time) + {messages:.0} messages x {} = {} + {:.3} MB x {:.2} \
             ns/byte = {}{rings}",
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
}
