//! What the ranks' measurements come to: over ranks the largest and the middle one, over repeats the median and
//! the range; as a table and as JSON.

use super::model::{Elsewhere, Rates, middle, reduced, ring_s};
use super::sample::{Phase, RankReport, Sample, ascending_sum};
use crate::output::{Table, human_bytes};
use serde::Serialize;
use serde_json::{Value, json};
use zazen_assign::Protocol;

/// The repeats' median and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(values: Vec<f64>) -> Spread {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(0.0, f64::max);
        Spread { median: middle(values), min: min.min(max), max }
    }
}

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
    /// The ranks' shares hold as many frames as were asked for, and their numbers have the same sum.
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

fn largest(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

pub(crate) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Owner => "owner",
        Protocol::Bitmaps => "bitmaps",
    }
}

/// A run as a whole.
pub(crate) struct Report {
    /// What was asked for, for people.
    pub(crate) title: String,
    /// The same for scripts.
    pub(crate) setting: Value,
    pub(crate) frames: u64,
    pub(crate) ranks: usize,
    pub(crate) sides: Vec<Side>,
    pub(crate) rates: Option<Rates>,
    pub(crate) memory: Memory,
    /// Modelled cluster, and by side: its name and modelled time.
    pub(crate) elsewhere: Option<(Elsewhere, Vec<(&'static str, super::model::Modelled)>)>,
}

/// Memory over all ranks, in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) before_bytes_sum: u64,
    pub(crate) with_sets_bytes_sum: u64,
    pub(crate) sets_heap_bytes_max: u64,
    pub(crate) natives_sum: u64,
    /// Building the holdings, of the slowest rank; outside of all other times.
    pub(crate) build_s: f64,
}

impl Memory {
    pub(crate) fn of(reports: &[RankReport]) -> Memory {
        let sum = |of: fn(&RankReport) -> u64| reports.iter().map(of).sum();
        Memory {
            before_bytes_sum: sum(|report| report.memory_before_bytes),
            with_sets_bytes_sum: sum(|report| report.memory_with_sets_bytes),
            sets_heap_bytes_max: reports.iter().map(|report| report.sets_heap_bytes).max().unwrap_or(0),
            natives_sum: sum(|report| report.natives),
            build_s: largest(reports.iter().map(|report| report.build_s).collect()),
        }
    }
}

/// A row of the model: a reduced vector's time as modelled and as measured.
struct ModelRow {
    round: String,
    bytes: f64,
    model_s: f64,
    measured: Spread,
}

impl Report {
    fn model_rows(&self) -> Vec<ModelRow> {
        let Some(rates) = self.rates else { return Vec::new() };
        let phases = self.sides.iter().flat_map(|side| &side.phases);
        let row = |phase: &PhaseRow| {
            let (bytes, two_bit) = reduced(&phase.round, self.frames)?;
            let gamma = if two_bit { rates.gamma_two_bit_s } else { rates.gamma_or_s };
            let model_s = ring_s(self.ranks, bytes, rates.alpha_s, rates.beta_s, gamma);
            Some(ModelRow { round: phase.round.clone(), bytes, model_s, measured: phase.collective_max_s })
        };
        phases.filter_map(row).collect()
    }

    /// How many times faster owner is than bitmaps, by medians of the same run.
    fn ratio(&self) -> Option<f64> {
        let of =
            |name: &str| self.sides.iter().find(|side| side.protocol == name).map(|side| side.total.median);
        Some(of("bitmaps")? / of("owner")?)
    }

    pub(crate) fn as_json(&self) -> Value {
        let rows: Vec<Value> = self
            .model_rows()
            .iter()
            .map(|row| {
                json!({"round": row.round, "bytes": row.bytes, "model_s": row.model_s, "measured_s": row.measured})
            })
            .collect();
        let model = self.rates.map(|rates| json!({"rates": rates, "rounds": rows}));
        let elsewhere = self.elsewhere.as_ref().map(|(there, times)| {
            let time = |(name, modelled): &(&str, super::model::Modelled)| {
                json!({"protocol": name, "seconds": modelled.seconds, "arithmetic": modelled.arithmetic})
            };
            json!({
                "nodes": there.nodes,
                "assumed_link_bytes_per_s": there.link_bytes_per_s,
                "assumed_latency_s": there.latency_s,
                "times": times.iter().map(time).collect::<Vec<_>>(),
            })
        });
        json!({
            "setting": self.setting,
            "protocols": self.sides,
            "bitmaps_over_owner": self.ratio(),
            "memory": self.memory,
            "model": model,
            "elsewhere": elsewhere,
        })
    }

    pub(crate) fn as_text(&self) -> String {
        let mut text = format!("{}\n\n{}", self.title, self.summary());
        if let Some(ratio) = self.ratio() {
            text.push_str(&format!("owner is {ratio:.1} times as fast as bitmaps\n"));
        }
        text.push_str(&format!(
            "\n{}\nholdings: built in {}, {} at most per rank; memory of all ranks before {}, with holdings {}\n",
            self.phases(),
            seconds(self.memory.build_s),
            human_bytes(self.memory.sets_heap_bytes_max),
            human_bytes(self.memory.before_bytes_sum),
            human_bytes(self.memory.with_sets_bytes_sum),
        ));
        self.write_model(&mut text);
        self.write_elsewhere(&mut text);
        text
    }

    fn summary(&self) -> String {
        let mut table = Table::new(&[
            "protocol",
            "found by",
            ">rounds",
            ">total (min … max)",
            ">local work",
            ">its cpu",
            ">sent per rank",
            ">sent",
            ">peak memory",
            ">local share",
            "adds up",
        ]);
        for side in &self.sides {
            table.row(vec![
                side.protocol.to_owned(),
                side.path.to_owned(),
                side.rounds.to_string(),
                spread(&side.total),
                seconds(side.local.median),
                seconds(side.local_cpu.median),
                human_bytes(side.bytes_sent_max),
                human_bytes(side.bytes_sent_sum),
                format!("+{}", human_bytes(side.peak_growth_bytes_sum)),
                format!("{:.6}", side.local_share),
                if side.adds_up { "yes" } else { "NO" }.to_owned(),
            ]);
        }
        table.render()
    }

    fn phases(&self) -> String {
        let mut table = Table::new(&[
            "protocol",
            "round",
            ">local: slowest rank",
            ">middle",
            ">collective: slowest rank",
            ">middle",
            ">sent per rank",
        ]);
        for side in &self.sides {
            for phase in &side.phases {
                table.row(vec![
                    side.protocol.to_owned(),
                    phase.round.clone(),
                    spread(&phase.local_max_s),
                    seconds(phase.local_median_s.median),
                    spread(&phase.collective_max_s),
                    seconds(phase.collective_median_s.median),
                    human_bytes(phase.bytes_max),
                ]);
            }
        }
        table.render()
    }

    fn write_model(&self, text: &mut String) {
        let (Some(rates), rows) = (self.rates, self.model_rows()) else { return };
        if rows.is_empty() {
            return;
        }
        text.push_str(&format!(
            "\nmodel T = 2(p-1)a + 2n(1-1/p)b + n(1-1/p)g (ring all-reduce), p = {}; measured in this run: a = {} per \
             message, b = {:.3} ns per byte, g = {:.3} (or) and {:.3} (two-bit) ns per byte\n",
            self.ranks,
            seconds(rates.alpha_s),
            rates.beta_s * 1e9,
            rates.gamma_or_s * 1e9,
            rates.gamma_two_bit_s * 1e9,
        ));
        let mut table = Table::new(&["round", ">n", ">model", ">measured"]);
        for row in rows {
            let bytes = human_bytes(row.bytes as u64);
            table.row(vec![row.round, bytes, seconds(row.model_s), spread(&row.measured)]);
        }
        text.push_str(&table.render());
    }

    fn write_elsewhere(&self, text: &mut String) {
        let Some((there, times)) = &self.elsewhere else { return };
        text.push_str(&format!(
            "\nmodelled at {} nodes, links of {:.0} MB/s and {} per message (both assumed):\n",
            there.nodes,
            there.link_bytes_per_s / 1e6,
            seconds(there.latency_s),
        ));
        for (name, modelled) in times {
            text.push_str(&format!("  {name}: {} = {}\n", seconds(modelled.seconds), modelled.arithmetic));
        }
    }
}

fn spread(spread: &Spread) -> String {
    format!("{} ({} … {})", seconds(spread.median), seconds(spread.min), seconds(spread.max))
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
