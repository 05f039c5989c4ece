//! Many measurements as few numbers, and times for people.

use serde::Serialize;

/// The repeats' median and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: Vec<f64>) -> Spread {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(0.0, f64::max);
        Spread { median: middle(values), min: min.min(max), max }
    }
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

/// The largest of `values`, none of which is negative.
pub(crate) fn largest(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

/// A time for people: three digits and a unit.
pub(crate) fn seconds(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 0.9995 => (value, "s"),
        value if value >= 0.9995e-3 => (value * 1e3, "ms"),
        value => (value * 1e6, "us"),
    };
    let digits = match scaled {
        scaled if scaled >= 99.95 => 0,
        scaled if scaled >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let check = |value: f64, expected: &str| assert_eq!(seconds(value), expected);
        check(14.9, "14.9 s");
        check(0.9999, "1.00 s");
        check(0.0123, "12.3 ms");
        check(0.000_000_5, "0.50 us");
        check(123.4e-6, "123 us");
    }

    #[test]
    fn a_spread_is_median_and_range() {
        let expected = Spread { median: 2.0, min: 1.0, max: 9.0 };
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0]), expected);
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(vec![0.0]), Spread { median: 0.0, min: 0.0, max: 0.0 });
    }
}
