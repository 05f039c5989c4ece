//! The cost of checks: comparing each frame with its source (decision 2) and with its checksum
//! (decision 3). Warm, so that no disk hides the cost.

use crate::cost::{Cost, Side};
use crate::measure::{Row, interleave, rate, speed_ratios};
use crate::rig::{Daemon, Folder, dataset};
use zazen_core::{Result, RunSet};

/// (name, bytes of a frame, frames)
const SIZES: [(&str, usize, u64); 3] =
    [("4 KB", 4096, 32_768), ("64 KB", 64 << 10, 4096), ("430 KB", 430_000, 600)];

pub(crate) fn checks(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, bytes, count) in SIZES {
        let place = folder.fresh("checks")?;
        let backing = place.join("backing");
        let source = dataset(&backing, "sim", count, bytes)?;
        let compares = Daemon::start_with(&place.join("always"), &backing, &["--validate", "always"])?;
        let trusts = Daemon::start_with(&place.join("never"), &backing, &["--validate", "never"])?;
        let (set, total) = (RunSet::range(0, count - 1), bytes as u64 * count);
        let mut both = Side::new(&compares, &source, (&set, total), true)?;
        let without = [
            ("stale check", Side::new(&trusts, &source, (&set, total), true)?),
            ("checksum", Side::new(&compares, &source, (&set, total), false)?),
        ];
        for (what, mut off) in without {
            both.costs.clear();
            let (with, without) = interleave(repeats, || both.seconds(), || off.seconds())?;
            let note = format!(
                "with {:.0} MB/s, {}; without {:.0} MB/s, {}",
                rate(total, &with),
                Cost::median(&both.costs),
                rate(total, &without),
                Cost::median(&off.costs)
            );
            let value = speed_ratios(&with, &without);
            let name = format!("warm read, {name}: {what} on / off");
            rows.push(Row { name, value, unit: "ratio", goal: "-", note });
        }
    }
    Ok(rows)
}
