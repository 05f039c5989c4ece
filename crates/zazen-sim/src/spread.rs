//! How long something takes, as parameter files say it: always the same, or with a spread.

use crate::math;
use crate::random::{Random, Stream};
use crate::time::ps;
use serde::{Deserialize, Serialize};
use zazen_core::{Error, ErrorKind, Result};

/// A time in microseconds: a number, or a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a time: write microseconds such as 25.0, { mean_us = 25.0 }, \
                 { median_us = 25.0, sigma = 0.5 } or { quantiles_us = [20.0, 25.0, 90.0] }"
)]
pub enum Spread {
    /// Always the same.
    Constant(f64),
    /// Exponential.
    Exponential {
        /// The mean.
        mean_us: f64,
    },
    /// Log-normal: the logarithm has the standard deviation `sigma`.
    LogNormal {
        /// The median.
        median_us: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Measured quantiles at equal steps of probability, the least value first, the greatest last;
    /// in between, values lie on straight lines.
    Quantiles {
        /// The values.
        quantiles_us: Vec<f64>,
    },
}

impl Spread {
    /// `Config` if a number is negative, not finite, beyond a day, or missing. `name` says which
    /// parameter it is.
    pub fn check(&self, name: &str) -> Result<()> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Config, format!("{name}: {why}")));
        let value = |value: f64| {
            if !(0.0..=86_400e6).contains(&value) {
                return refuse(format!("{value} µs is not a time between 0 and a day"));
            }
            Ok(())
        };
        match self {
            Spread::Constant(us) => value(*us),
            Spread::Exponential { mean_us } => value(*mean_us),
            Spread::LogNormal { median_us, sigma } => {
                if !(0.0..=5.0).contains(sigma) {
                    return refuse(format!("sigma {sigma} is not between 0 and 5"));
                }
                value(*median_us)
            }
            Spread::Quantiles { quantiles_us } => {
                if quantiles_us.len() < 2 || !quantiles_us.is_sorted() {
                    return refuse("quantiles_us needs two or more values that do not fall".to_owned());
                }
                quantiles_us.iter().try_for_each(|us| value(*us))
            }
        }
    }

    /// The mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        match self {
            Spread::Constant(us) => *us,
            Spread::Exponential { mean_us } => *mean_us,
            Spread::LogNormal { median_us, sigma } => median_us * math::exp(sigma * sigma / 2.0),
            Spread::Quantiles { quantiles_us } => {
                let pairs = quantiles_us.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
                pairs.sum::<f64>() / (quantiles_us.len() - 1) as f64
            }
        }
    }

    /// The time that a draw gives.
    pub fn draw_ps(&self, random: Random, node: u32, stream: Stream, counter: u64) -> u64 {
        let us = match self {
            Spread::Constant(us) => *us,
            Spread::Exponential { mean_us } => mean_us * random.exponential(node, stream, counter),
            Spread::LogNormal { median_us, sigma } => {
                median_us * math::exp(sigma * random.normal(node, stream, counter))
            }
            Spread::Quantiles { quantiles_us } => {
                let at = random.uniform(node, stream, counter) * (quantiles_us.len() - 1) as f64;
                let below = (at as usize).min(quantiles_us.len() - 2);
                let (low, high) = (quantiles_us[below], quantiles_us[below + 1]);
                low + (high - low) * (at - below as f64)
            }
        };
        ps(us * 1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean() {
        let check = |spread: Spread| {
            let count = 100_000;
            let draw = |at| spread.draw_ps(Random::new(3), 1, Stream::Service, at) as f64 / 1e6;
            let mean = (0..count).map(draw).sum::<f64>() / count as f64;
            assert!((mean / spread.mean_us() - 1.0).abs() < 0.02, "{spread:?}: {mean}");
        };
        check(Spread::Constant(7.0));
        check(Spread::Exponential { mean_us: 50.0 });
        check(Spread::LogNormal { median_us: 20.0, sigma: 0.8 });
        check(Spread::Quantiles { quantiles_us: vec![1.0, 2.0, 10.0, 100.0] });
    }

    /// A key that is left out of account would change the times without a word.
    #[test]
    fn a_key_of_another_form_is_refused() {
        let read = |text: &str| toml::from_str::<std::collections::BTreeMap<String, Spread>>(text);
        let check = |form: &str| {
            let error = read(&format!("time_us = {form}")).unwrap_err().to_string();
            assert!(error.contains("a time: write microseconds"), "{form}: {error}");
        };
        check("{ mean_us = 25.0, sigma = 0.5 }");
        check("{ mean_us = 1.0, median_us = 25.0, sigma = 0.5 }");
        check("{ mean_us = 3.0, quantiles_us = [1.0, 2.0] }");
        check("{ mean_us = 3.0, typo = 1 }");
        let good = read("time_us = { median_us = 25.0, sigma = 0.5 }").unwrap();
        assert_eq!(good["time_us"], Spread::LogNormal { median_us: 25.0, sigma: 0.5 });
    }

    #[test]
    fn absurd_times_are_refused() {
        let check = |spread: Spread, expected: &str| {
            let message = spread.check("daemon.open_us").unwrap_err().to_string();
            assert!(message.contains("daemon.open_us") && message.contains(expected), "{message}");
        };
        check(Spread::Constant(-1.0), "-1 µs");
        check(Spread::Constant(f64::NAN), "NaN");
        check(Spread::Exponential { mean_us: 1e12 }, "a day");
        check(Spread::LogNormal { median_us: 1.0, sigma: 50.0 }, "sigma 50");
        check(Spread::Quantiles { quantiles_us: vec![3.0, 1.0] }, "do not fall");
    }
}
