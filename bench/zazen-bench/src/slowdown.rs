//! A writer that is pushed from, against the same writer alone; and beside it a writer whose files
//! a bare program sends away, without Zazen: what any pusher on the same processors costs it.

use crate::measure::{Interval, MedianInterval, Row, Spread, seconds};
use crate::push::remove;
use crate::rig::{Daemon, Folder, noise};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_testbed::beside_this_program;
use zazen_wire::checksum::frame_checksum;

/// Rounds of all sides, for each repeat.
const ROUNDS_A_REPEAT: usize = 4;
const FRAMES: u64 = 400;
const BYTES: usize = 430_000;
const COMPUTE: Duration = Duration::from_millis(5);
/// How far the bare sender stands back: as `zazen push --watch`.
const NICE: i32 = 10;

/// A writer that computes for some milliseconds, writes a frame, and so on.
struct Writer {
    backing: PathBuf,
    /// Where the bare program keeps what came.
    kept: PathBuf,
    block: Vec<u8>,
    daemon: Daemon,
    turn: u32,
}

pub(crate) fn slowdown(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let place = folder.fresh("slowdown")?;
    let (backing, kept) = (place.join("backing"), place.join("kept"));
    std::fs::create_dir_all(&backing).map_err(|error| Error::io("make the backing folder", error))?;
    let daemon = Daemon::start(&place, &backing)?;
    let mut writer = Writer { backing, kept, block: noise(BYTES), daemon, turn: 0 };
    let sides = [Writer::alone, Writer::pushed, Writer::bare];
    let mut times = [const { Vec::new() }; 3];
    // One round tells little: other work of the machine changes each side by some percent. The
    // first one is not counted.
    for round in 0..=repeats * ROUNDS_A_REPEAT {
        for nth in 0..sides.len() {
            let side = (round + nth) % sides.len();
            let time = sides[side](&mut writer)?;
            if round > 0 {
                times[side].push(time);
            }
        }
    }
    let [alone, pushed, bare] = times;
    let name = "slow-down of a writer that is pushed from";
    let bare_name = "slow-down of a writer, bare niced TCP sender";
    Ok(vec![row(name, "<= 5", &pushed, &alone), row(bare_name, "-", &bare, &alone)])
}

fn row(name: &str, goal: &'static str, with: &[f64], alone: &[f64]) -> Row {
    let percent: Vec<f64> =
        with.iter().zip(alone).map(|(with, alone)| (with / alone - 1.0) * 100.0).collect();
    let note = format!(
        "{FRAMES} frames of 430 KB, {} ms of computing each, {}, {}: {:.2} s, {:.2} s alone",
        COMPUTE.as_millis(),
        MedianInterval::of(&percent),
        Interval::of(&percent),
        Spread::of(with).median,
        Spread::of(alone).median
    );
    Row { name: name.to_owned(), value: Spread::of(&percent), unit: "%", goal, note }
}

impl Writer {
    /// A new folder for one turn of a side.
    fn fresh(&mut self) -> Result<PathBuf> {
        self.turn += 1;
        let path = self.backing.join(format!("turn{}", self.turn));
        std::fs::create_dir_all(&path).map_err(|error| Error::io("make the dataset", error))?;
        Ok(path)
    }

    /// Seconds that the writer takes; `written` learns of each frame.
    fn seconds(&self, dataset: &Path, written: impl FnMut(u64)) -> Result<f64> {
        std::thread::sleep(Duration::from_millis(300)); // the watch is set up
        rustix::fs::sync(); // what earlier turns wrote is not written to the disk in this one
        seconds(|| simulate(dataset, &self.block, written))
    }

    fn alone(&mut self) -> Result<f64> {
        let dataset = self.fresh()?;
        let time = self.seconds(&dataset, |_| {})?;
        remove(&dataset)?;
        Ok(time)
    }

    /// With `zazen push --watch` on its folder.
    fn pushed(&mut self) -> Result<f64> {
        let dataset = self.fresh()?;
        let mut watcher = Command::new(beside_this_program("zazen")?)
            .args(["push", "--pattern", "frame-{n:07}.bin", "--until", "END", "--nodes"])
            .args([&self.daemon.listen, "--watch"])
            .arg(&dataset)
            .arg("--key")
            .arg(&self.daemon.key)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::io("start zazen push", error))?;
        let time = self.seconds(&dataset, |_| {});
        std::fs::write(dataset.join("END"), "").map_err(|error| Error::io("write END", error))?;
        let status = watcher.wait().map_err(|error| Error::io("wait for zazen push", error))?;
        if !status.success() {
            return Err(Error::new(ErrorKind::Io, format!("zazen push ended with {status}")));
        }
        remove(&dataset)?;
        time
    }

    /// With a bare sender, which reads each file and sends it to a bare receiver, which keeps it.
    fn bare(&mut self) -> Result<f64> {
        let dataset = self.fresh()?;
        std::fs::create_dir_all(&self.kept).map_err(|error| Error::io("make a folder", error))?;
        let fail = |error| Error::io("send to this machine", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(fail)?;
        let out = TcpStream::connect(listener.local_addr().map_err(fail)?).map_err(fail)?;
        out.set_nodelay(true).map_err(fail)?;
        let (inn, _) = listener.accept().map_err(fail)?;
        let (tell, told) = channel();
        let (dataset, kept) = (dataset.as_path(), self.kept.as_path());
        let time = std::thread::scope(|scope| {
            let ends = [
                scope.spawn(move || send_files(dataset, told, out)),
                scope.spawn(move || keep_files(kept, inn)),
            ];
            // A number that nobody takes shows as a failed sender.
            let time = self.seconds(dataset, |number| {
                let _ = tell.send(number);
            });
            drop(tell);
            let ended = ends.into_iter().try_for_each(|end| {
                end.join().map_err(|_| Error::new(ErrorKind::Io, "a bare end panicked"))?.map_err(fail)
            });
            ended.and(time)
        })?;
        remove(dataset)?;
        remove(kept)?;
        Ok(time)
    }
}

fn send_files(dataset: &Path, told: Receiver<u64>, mut out: TcpStream) -> std::io::Result<()> {
    // Of this thread only.
    rustix::process::setpriority_process(None, NICE)?;
    for number in told {
        let bytes = std::fs::read(path_of(dataset, number))?;
        out.write_all(&frame_checksum(&bytes).to_le_bytes())?;
        out.write_all(&bytes)?;
    }
    Ok(())
}

fn keep_files(kept: &Path, mut inn: TcpStream) -> std::io::Result<()> {
    let (mut checksum, mut bytes) = ([0; 8], vec![0; BYTES]);
    for number in 0..FRAMES {
        inn.read_exact(&mut checksum)?;
        inn.read_exact(&mut bytes)?;
        if frame_checksum(&bytes) != u64::from_le_bytes(checksum) {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        File::create(path_of(kept, number))?.write_all(&bytes)?;
    }
    Ok(())
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("frame-{number:07}.bin"))
}

fn simulate(dataset: &Path, block: &[u8], mut written: impl FnMut(u64)) -> Result<()> {
    let mut bytes = block.to_vec();
    for number in 0..FRAMES {
        // A fixed amount of work, not of time, so another program on the core makes it longer.
        turns(work_for(COMPUTE));
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let path = path_of(dataset, number);
        std::fs::write(&path, &bytes)
            .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
        written(number);
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
