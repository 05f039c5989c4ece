//! Times and rates. A time is a whole number of picoseconds in a `u64`: 213 days fit.

/// Picoseconds of a second.
pub const SECOND_PS: u64 = 1_000_000_000_000;

/// The latest time that a run may reach: 106 days. A sum of two such times still fits.
pub const TIME_MAX_PS: u64 = u64::MAX / 2;

/// Whole picoseconds of a number of seconds, rounded; at most [`TIME_MAX_PS`], at least 0.
pub fn ps(seconds: f64) -> u64 {
    (seconds * SECOND_PS as f64 + 0.5).clamp(0.0, TIME_MAX_PS as f64) as u64
}

/// Seconds of a time.
pub fn seconds(time_ps: u64) -> f64 {
    time_ps as f64 / SECOND_PS as f64
}

/// How long a byte takes, in 2⁻²⁴ picoseconds. Times of bytes are exact to a
/// picosecond in 16 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    const FRACTION_BITS: u32 = 24;
    /// Bytes take no time.
    pub const INFINITE: Rate = Rate(0);

    /// `bytes_per_s`, which is at least 1e-6.
    pub fn per_second(bytes_per_s: f64) -> Rate {
        debug_assert!(bytes_per_s >= 1e-6);
        let each = SECOND_PS as f64 * (1_u64 << Rate::FRACTION_BITS) as f64 / bytes_per_s;
        Rate((each + 0.5).min(u64::MAX as f64) as u64)
    }

    /// How long `bytes` take; at most [`TIME_MAX_PS`].
    pub fn time_ps(self, bytes: u64) -> u64 {
        let product = (u128::from(self.0) * u128::from(bytes)) >> Rate::FRACTION_BITS;
        product.min(u128::from(TIME_MAX_PS)) as u64
    }

    /// Bytes that fit into a time, rounded down.
    pub fn bytes(self, time_ps: u64) -> u64 {
        let time = u128::from(time_ps) << Rate::FRACTION_BITS;
        time.checked_div(u128::from(self.0)).map_or(u64::MAX, |bytes| bytes.min(u128::from(u64::MAX)) as u64)
    }

    /// The rate at which a byte takes as long as at this one and `other` one after the other.
    pub fn then(self, other: Rate) -> Rate {
        Rate(self.0.saturating_add(other.0))
    }

    /// The slower of two.
    pub fn slower(self, other: Rate) -> Rate {
        Rate(self.0.max(other.0))
    }

    /// Bytes take `factor` times as long.
    pub fn stretched(self, factor: f64) -> Rate {
        Rate((self.0 as f64 * factor + 0.5).min(u64::MAX as f64) as u64)
    }

    /// Bytes per second.
    pub fn bytes_per_s(self) -> f64 {
        SECOND_PS as f64 * (1_u64 << Rate::FRACTION_BITS) as f64 / self.0 as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_agree() {
        let rate = Rate::per_second(165e6);
        assert!(rate.time_ps(165_000_000).abs_diff(SECOND_PS) < 10);
        assert!(rate.bytes(SECOND_PS).abs_diff(165_000_000) <= 1);
        assert_eq!(Rate::INFINITE.time_ps(u64::MAX), 0);
        assert_eq!(Rate::per_second(2.0).time_ps(u64::MAX), TIME_MAX_PS);
        assert_eq!(rate.then(rate), rate.stretched(2.0));
        assert_eq!((ps(1.5e-12), ps(-1.0), ps(0.25)), (2, 0, SECOND_PS / 4));
    }
}
