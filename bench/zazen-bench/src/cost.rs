//! Processor time. It stays valid on a machine that is busy with other work.

use crate::measure::Spread;
use crate::reads::read_with;
use crate::rig::{Daemon, drop_caches};
use std::path::Path;
use std::time::Instant;
use zazen_client::{Dataset, ReadOptions};
use zazen_core::{Result, RunSet};

/// Processor seconds per gigabyte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    client: f64,
    daemon: f64,
}

impl Cost {
    /// Medians of several.
    pub(crate) fn median(costs: &[Cost]) -> Cost {
        let median = |part: fn(&Cost) -> f64| Spread::of(&costs.iter().map(part).collect::<Vec<_>>()).median;
        Cost { client: median(|cost| cost.client), daemon: median(|cost| cost.daemon) }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "CPU {:.2} s/GB (reader {:.2}, daemon {:.2})",
            self.client + self.daemon,
            self.client,
            self.daemon
        )
    }
}

/// Measures reads of `bytes` through one daemon.
pub(crate) struct Meter {
    daemon: u32,
    bytes: u64,
}

impl Meter {
    pub(crate) fn of(daemon: &Daemon, bytes: u64) -> Meter {
        Meter { daemon: daemon.pid(), bytes }
    }

    /// Seconds that `work` took, and its processor time.
    pub(crate) fn measure(&self, work: impl FnOnce() -> Result<()>) -> Result<(f64, Cost)> {
        let before = (processor_seconds("self"), processor_seconds(&self.daemon.to_string()));
        let start = Instant::now();
        work()?;
        let time = start.elapsed().as_secs_f64();
        let gigabytes = self.bytes as f64 / 1e9;
        let client = (processor_seconds("self") - before.0) / gigabytes;
        let daemon = (processor_seconds(&self.daemon.to_string()) - before.1) / gigabytes;
        Ok((time, Cost { client, daemon }))
    }
}

/// Processor time of a process so far, threads that ended included.
fn processor_seconds(process: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    // utime and stime, counted in the kernel's fixed 100 a second.
    (ticks(11) + ticks(12)) / 100.0
}

/// One way to read a dataset.
pub(crate) struct Side {
    opened: Dataset,
    set: RunSet,
    options: ReadOptions,
    meter: Meter,
    /// Empties the page cache first.
    pub(crate) cold: bool,
    /// Of each time so far.
    pub(crate) costs: Vec<Cost>,
}

impl Side {
    /// Reads `set`, of `total` bytes, so that all of it is cached.
    pub(crate) fn new(
        daemon: &Daemon,
        source: &Path,
        (set, total): (&RunSet, u64),
        check: bool,
    ) -> Result<Side> {
        let options = ReadOptions { check, ..ReadOptions::default() };
        let (opened, meter) = (daemon.open(source)?, Meter::of(daemon, total));
        let mut side = Side { opened, set: set.clone(), options, meter, cold: false, costs: Vec::new() };
        side.seconds()?; // misses
        side.costs.clear();
        Ok(side)
    }

    /// Seconds that reading it once takes.
    pub(crate) fn seconds(&mut self) -> Result<f64> {
        if self.cold {
            drop_caches();
        }
        let Side { opened, set, options, meter, costs, .. } = self;
        let (time, cost) = meter.measure(|| read_with(opened, set, options).map(drop))?;
        costs.push(cost);
        Ok(time)
    }
}
