//! A run as a table and as JSON.

use super::model::{Elsewhere, Modelled, reduced, ring_s};
use super::rates::Rates;
use super::sample::RankReport;
use super::side::{PhaseRow, Side};
use super::spread::{Spread, largest, seconds};
use crate::output::{Lines, Table, human_bytes};
use serde::Serialize;
use serde_json::{Value, json};

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
    pub(crate) elsewhere: Option<(Elsewhere, Vec<(&'static str, Modelled)>)>,
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
                json!({"round": row.round, "bytes": row.bytes, "model_s": row.model_s,
                    "measured_s": row.measured})
            })
            .collect();
        let model = self.rates.map(|rates| json!({"rates": rates, "rounds": rows}));
        let elsewhere = self.elsewhere.as_ref().map(|(there, times)| {
            let time = |(name, modelled): &(&str, Modelled)| {
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

    pub(crate) fn as_text(&self) -> Lines {
        let mut text = Lines::default();
        text.line(&self.title);
        text.line("");
        text.add(&self.summary());
        if let Some(ratio) = self.ratio() {
            text.line(format!("owner is {ratio:.1} times as fast as bitmaps"));
        }
        text.line("");
        text.add(&self.phases());
        text.line("");
        text.line(format!(
            "holdings: built in {}, {} at most per rank; memory of all ranks before {}, with holdings {}",
            seconds(self.memory.build_s),
            human_bytes(self.memory.sets_heap_bytes_max),
            human_bytes(self.memory.before_bytes_sum),
            human_bytes(self.memory.with_sets_bytes_sum),
        ));
        self.write_model(&mut text);
        self.write_elsewhere(&mut text);
        text
    }

    fn summary(&self) -> Lines {
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

    fn phases(&self) -> Lines {
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

    fn write_model(&self, text: &mut Lines) {
        let (Some(rates), rows) = (self.rates, self.model_rows()) else { return };
        if rows.is_empty() {
            return;
        }
        text.line("");
        text.line(format!(
            "model T = 2(p-1)a + 2n(1-1/p)b + n(1-1/p)g (ring all-reduce), p = {}; measured in this run: a \
             = {} per message, b = {:.3} ns per byte, g = {:.3} (or) and {:.3} (two-bit) ns per byte",
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
        text.add(&table.render());
    }

    fn write_elsewhere(&self, text: &mut Lines) {
        let Some((there, times)) = &self.elsewhere else { return };
        text.line("");
        text.line(format!(
            "modelled at {} nodes, links of {:.0} MB/s and {} per message (both assumed):",
            there.nodes,
            there.link_bytes_per_s / 1e6,
            seconds(there.latency_s),
        ));
        for (name, modelled) in times {
            text.line(format!("  {name}: {} = {}", seconds(modelled.seconds), modelled.arithmetic));
        }
    }
}

fn spread(spread: &Spread) -> String {
    format!("{} ({} … {})", seconds(spread.median), seconds(spread.min), seconds(spread.max))
}
