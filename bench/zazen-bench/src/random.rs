//! Small frames read one by one, in random order, against opening the file of each.

use crate::cost::{Cost, Meter};
use crate::measure::{Row, interleave, rate, seconds, speed_ratios};
use crate::reads::{files_of, read_plain};
use crate::rig::{Daemon, Folder, dataset};
use std::path::PathBuf;
use zazen_client::Dataset;
use zazen_core::{Result, RunSet};

const BYTES: usize = 3000;
const FRAMES: u64 = 20_000;
const READS: usize = 10_000;

pub(crate) fn random(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let place = folder.fresh("random")?;
    let backing = place.join("backing");
    let source = dataset(&backing, "sim", FRAMES, BYTES)?;
    let daemon = Daemon::start(&place, &backing)?;
    let mut opened = daemon.open(&source)?;
    crate::reads::read_through(&mut opened, &RunSet::range(0, FRAMES - 1))?; // misses
    let order = drawn();
    let files = files_of(&source)?;
    let drawn_files: Vec<PathBuf> = order.iter().map(|number| files[*number as usize].clone()).collect();
    let total = (READS * BYTES) as u64;
    let (meter, mut costs) = (Meter::of(&daemon, total), Vec::new());
    let (ours, plain) = interleave(
        repeats,
        || {
            let (time, cost) = meter.measure(|| read_each(&mut opened, &order))?;
            costs.push(cost);
            Ok(time)
        },
        || seconds(|| read_plain(&drawn_files, 1)),
    )?;
    let thousands = |times: &[f64]| rate(total, times) * 1e3 / BYTES as f64;
    let note = format!(
        "ours {:.1} k frames/s, {}; plain open, read, close {:.1} k frames/s",
        thousands(&ours),
        Cost::median(&costs),
        thousands(&plain)
    );
    let (name, value) =
        ("random reads one by one, 3 KB / plain open".to_owned(), speed_ratios(&ours, &plain));
    Ok(vec![Row { name, value, unit: "ratio", goal: ">= 1", note }])
}

fn read_each(opened: &mut Dataset, order: &[u64]) -> Result<()> {
    let mut sum = 0u64;
    for number in order {
        sum = sum.wrapping_add(u64::from(opened.read(*number)?.bytes()[0]));
    }
    std::hint::black_box(sum);
    Ok(())
}

/// Numbers that look random, the same in each run.
fn drawn() -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % FRAMES
    };
    (0..READS).map(|_| next()).collect()
}
