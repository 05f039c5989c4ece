//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC'11).
//!
//! A draw is a function of (seed, node, stream, counter). It does not depend on which draws came
//! before it, so the order of events cannot change what a node draws.

use crate::math;

/// What a draw is for. Streams of one node are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// How fast the node's disk is.
    DiskSpeed = 1,
    /// Whether the node is a slow one.
    Slow = 2,
    /// Variation of disk requests.
    DiskNoise = 3,
    /// Service times of the daemon.
    Service = 4,
    /// Times of computing.
    Compute = 5,
    /// Failures and repairs.
    Failure = 6,
    /// Peers, offsets and other choices of a workload.
    Workload = 7,
}

/// Draws of one run.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    seed: u64,
}

impl Random {
    /// The draws that follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random { seed }
    }

    /// 64 random bits.
    pub fn bits(self, node: u32, stream: Stream, counter: u64) -> u64 {
        let words = philox(
            [counter as u32, (counter >> 32) as u32, node, stream as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        );
        u64::from(words[0]) | u64::from(words[1]) << 32
    }

    /// A number between 0 and 1, neither of them included.
    pub fn uniform(self, node: u32, stream: Stream, counter: u64) -> f64 {
        ((self.bits(node, stream, counter) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(self, bound: u64, node: u32, stream: Stream, counter: u64) -> u64 {
        ((u128::from(self.bits(node, stream, counter)) * u128::from(bound)) >> 64) as u64
    }

    /// A number of the standard normal distribution.
    pub fn normal(self, node: u32, stream: Stream, counter: u64) -> f64 {
        math::normal_quantile(self.uniform(node, stream, counter))
    }

    /// A number of the exponential distribution with mean 1.
    pub fn exponential(self, node: u32, stream: Stream, counter: u64) -> f64 {
        -math::ln(self.uniform(node, stream, counter))
    }
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let one = u64::from(counter[0]) * 0xD251_1F53;
        let two = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (two >> 32) as u32 ^ counter[1] ^ key[0],
            two as u32,
            (one >> 32) as u32 ^ counter[3] ^ key[1],
            one as u32,
        ];
    }
    counter
}

/// Mixes 64 bits well: the finaliser of SplitMix64. For hashing keys, not for drawing.
pub fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let random = Random::new(7);
        let count = 200_000;
        let check = |draw: &dyn Fn(u64) -> f64, mean: f64, deviation: f64| {
            let draws: Vec<f64> = (0..count).map(draw).collect();
            let found = draws.iter().sum::<f64>() / count as f64;
            let square = draws.iter().map(|draw| (draw - found).powi(2)).sum::<f64>() / count as f64;
            assert!((found - mean).abs() < 5.0 * deviation / (count as f64).sqrt(), "mean {found}");
            assert!((square.sqrt() / deviation - 1.0).abs() < 0.01, "deviation {}", square.sqrt());
        };
        check(&|at| random.uniform(1, Stream::Service, at), 0.5, (1.0_f64 / 12.0).sqrt());
        check(&|at| random.normal(2, Stream::Service, at), 0.0, 1.0);
        check(&|at| random.exponential(3, Stream::Service, at), 1.0, 1.0);
        check(&|at| random.uniform(at as u32, Stream::Slow, 0), 0.5, (1.0_f64 / 12.0).sqrt());
    }
}
