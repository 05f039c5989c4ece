//! Pushing against writing the same files locally; a writer that is pushed from against the same
//! writer alone.

use crate::cost::{Cost, Meter};
use crate::measure::{Interval, Row, Spread, interleave, rate, seconds, speed_ratios};
use crate::rig::{Daemon, Folder, noise};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zazen_client::{FrameSource, NodeList, Pusher, PusherOptions};
use zazen_core::{Error, ErrorKind, FrameNo, Result};
use zazen_push::OnSlow;
use zazen_testbed::beside_this_program;

fn options(daemon: &Daemon) -> Result<PusherOptions> {
    Ok(PusherOptions {
        nodes: NodeList::read(&daemon.listen)?,
        key: daemon.key.clone(),
        window_frames: 32,
        window_bytes: 256 << 20,
        on_slow: OnSlow::Block,
        timeout: Duration::from_secs(30),
        seed: Some(1),
        copies: 1,
    })
}

pub(crate) fn throughput(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, bytes, count) in
        [("64 KB", 64 << 10, 4096_u64), ("430 KB", 430_000, 1000), ("2 MB", 2 << 20, 200)]
    {
        let place = folder.fresh("push")?;
        let backing = place.join("backing");
        std::fs::create_dir_all(&backing).map_err(|error| Error::io("make the backing folder", error))?;
        let daemon = Daemon::start(&place, &backing)?;
        let block = noise(bytes);
        let total = bytes as u64 * count;
        let (meter, mut costs, mut plain_costs) = (Meter::of(&daemon, total), Vec::new(), Vec::new());
        let mut turn = 0;
        let ours = || {
            turn += 1;
            // Use a new dataset each time, because a frame that is pushed again is already there.
            let dataset = backing.join(format!("sim{turn}"));
            std::fs::create_dir_all(&dataset).map_err(|error| Error::io("make the dataset", error))?;
            let (time, cost) = meter.measure(|| push_all(&dataset, &daemon, &block, count))?;
            costs.push(cost);
            Ok(time)
        };
        let mut other = 0;
        let peer = || {
            other += 1;
            let target = place.join(format!("plain{other}"));
            std::fs::create_dir_all(&target).map_err(|error| Error::io("make the folder", error))?;
            let (time, cost) = meter.measure(|| write_all(&target, &block, count))?;
            plain_costs.push(cost);
            Ok(time)
        };
        let (ours, peer) = interleave(repeats, ours, peer)?;
        let note = format!(
            "push {:.0} MB/s, {}; plain writes {:.0} MB/s, {}",
            rate(total, &ours),
            Cost::median(&costs),
            rate(total, &peer),
            Cost::median(&plain_costs)
        );
        let value = speed_ratios(&ours, &peer);
        rows.push(Row {
            name: format!("push, {name} frames / local writes"),
            value,
            unit: "ratio",
            goal: if bytes == 64 << 10 { ">= 0.8" } else { "-" },
            note,
        });
    }
    Ok(rows)
}

fn push_all(dataset: &Path, daemon: &Daemon, block: &[u8], count: u64) -> Result<()> {
    let pusher = Pusher::new(dataset, Some("frame-{n:07}.bin"), options(daemon)?)?;
    for number in 0..count {
        let mut bytes = block.to_vec();
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        pusher.push(FrameNo::new(number)?, bytes, FrameSource::default())?;
    }
    let counters = pusher.finish()?;
    if counters.pushed != count {
        return Err(Error::new(
            ErrorKind::Io,
            format!("pushed {} of {count} frames: {counters:?}", counters.pushed),
        ));
    }
    Ok(())
}

fn write_all(target: &Path, block: &[u8], count: u64) -> Result<()> {
    let mut bytes = block.to_vec();
    for number in 0..count {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let path = target.join(format!("frame-{number:07}.bin"));
        std::fs::write(&path, &bytes)
            .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
    }
    Ok(())
}

/// Pairs of a writer that is pushed from and one alone, for each repeat.
const PAIRS_A_REPEAT: usize = 4;

/// A writer that computes for some milliseconds, writes a frame, and so on; alone, and with
/// `zazen push --watch` on its folder.
pub(crate) fn slowdown(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    const FRAMES: u64 = 400;
    const COMPUTE: Duration = Duration::from_millis(5);
    let place = folder.fresh("slowdown")?;
    let backing = place.join("backing");
    std::fs::create_dir_all(&backing).map_err(|error| Error::io("make the backing folder", error))?;
    let daemon = Daemon::start(&place, &backing)?;
    let block = noise(430_000);
    let fresh = |name: String| -> Result<PathBuf> {
        let path = backing.join(name);
        std::fs::create_dir_all(&path).map_err(|error| Error::io("make the dataset", error))?;
        Ok(path)
    };
    let (mut turn, mut other) = (0, 0);
    let pushed = || {
        turn += 1;
        let dataset = fresh(format!("pushed{turn}"))?;
        let mut watcher = Command::new(beside_this_program("zazen")?)
            .args([
                "push",
                "--pattern",
                "frame-{n:07}.bin",
                "--until",
                "END",
                "--nodes",
                &daemon.listen,
                "--watch",
            ])
            .arg(&dataset)
            .arg("--key")
            .arg(&daemon.key)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::io("start zazen push", error))?;
        std::thread::sleep(Duration::from_millis(300)); // the watch is set up
        let time = seconds(|| simulate(&dataset, &block, FRAMES, COMPUTE));
        std::fs::write(dataset.join("END"), "").map_err(|error| Error::io("write END", error))?;
        let status = watcher.wait().map_err(|error| Error::io("wait for zazen push", error))?;
        if !status.success() {
            return Err(Error::new(ErrorKind::Io, format!("zazen push ended with {status}")));
        }
        time
    };
    let alone = || {
        other += 1;
        let dataset = fresh(format!("alone{other}"))?;
        seconds(|| simulate(&dataset, &block, FRAMES, COMPUTE))
    };
    // One pair tells little: other work of the machine changes each side by some percent.
    let (with, without) = interleave(repeats * PAIRS_A_REPEAT, pushed, alone)?;
    let percent: Vec<f64> =
        with.iter().zip(&without).map(|(with, without)| (with / without - 1.0) * 100.0).collect();
    let note = format!(
        "{FRAMES} frames of 430 KB, {} ms of computing each, {}: {:.2} s pushed from, {:.2} s alone",
        COMPUTE.as_millis(),
        Interval::of(&percent),
        Spread::of(&with).median,
        Spread::of(&without).median
    );
    let name = "slow-down of a writer that is pushed from".to_owned();
    Ok(vec![Row { name, value: Spread::of(&percent), unit: "%", goal: "<= 5", note }])
}

fn simulate(dataset: &Path, block: &[u8], frames: u64, compute: Duration) -> Result<()> {
    let mut bytes = block.to_vec();
    for number in 0..frames {
        // A fixed amount of work, not of time, so another program on the core makes it longer.
        turns(work_for(compute));
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let path = dataset.join(format!("frame-{number:07}.bin"));
        std::fs::write(&path, &bytes)
            .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
    }
    Ok(())
}

/// Loop turns that take about `time` on this machine, measured once.
fn work_for(time: Duration) -> u64 {
    static PER_MS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let per_ms = PER_MS.get_or_init(|| {
        const TURNS: u64 = 20_000_000;
        let begin = Instant::now();
        turns(TURNS);
        TURNS * 1_000_000 / begin.elapsed().as_nanos().max(1) as u64
    });
    per_ms * time.as_millis() as u64
}

fn turns(count: u64) {
    for turn in 0..count {
        std::hint::black_box(turn);
    }
}
