//! Pushing against writing the same files locally.

use crate::cost::{Cost, Meter};
use crate::measure::{Row, interleave, rate, seconds, speed_ratios};
use crate::rig::{Daemon, Folder, noise};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use zazen_client::{FrameSource, NodeList, Pusher, PusherOptions};
use zazen_core::{Error, ErrorKind, FrameNo, Result};
use zazen_push::OnSlow;
use zazen_wire::checksum::frame_checksum;

fn options(daemon: &Daemon) -> Result<PusherOptions> {
    Ok(PusherOptions {
        nodes: NodeList::read(&daemon.listen)?,
        key: daemon.key.clone(),
        window_frames: 64,
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
            rustix::fs::sync(); // what earlier turns wrote is not written to the disk in this one
            let (time, cost) = meter.measure(|| push_all(&dataset, &daemon, &block, count))?;
            costs.push(cost);
            Ok(time)
        };
        let mut other = 0;
        let peer = || {
            other += 1;
            let target = place.join(format!("plain{other}"));
            std::fs::create_dir_all(&target).map_err(|error| Error::io("make the folder", error))?;
            rustix::fs::sync();
            let (time, cost) = meter.measure(|| write_all(&target, &block, count))?;
            plain_costs.push(cost);
            remove(&target)?;
            Ok(time)
        };
        let (times, peer) = interleave(repeats, ours, peer)?;
        let note = format!(
            "push {:.0} MB/s, {}; plain writes {:.0} MB/s, {}",
            rate(total, &times),
            Cost::median(&costs),
            rate(total, &peer),
            Cost::median(&plain_costs)
        );
        let value = speed_ratios(&times, &peer);
        rows.push(Row {
            name: format!("push, {name} frames / local writes"),
            value,
            unit: "ratio",
            goal: if bytes == 64 << 10 { ">= 0.8" } else { "-" },
            note,
        });
        rows.push(bare_push(repeats, &place, &block, (name, count))?);
    }
    Ok(rows)
}

/// What a push cannot do without: each frame is copied and checksummed, goes through a TCP
/// connection, is checksummed again and appended to a file. Without Zazen, against local writes.
fn bare_push(repeats: usize, place: &Path, block: &[u8], (name, count): (&str, u64)) -> Result<Row> {
    let (mut turn, mut other) = (0, 0);
    let total = block.len() as u64 * count;
    let bare = || {
        turn += 1;
        let target = place.join(format!("bare{turn}"));
        std::fs::create_dir_all(&target).map_err(|error| Error::io("make the folder", error))?;
        rustix::fs::sync();
        let time = seconds(|| send_all(&target, block, count));
        remove(&target)?;
        time
    };
    let plain = || {
        other += 1;
        let target = place.join(format!("local{other}"));
        std::fs::create_dir_all(&target).map_err(|error| Error::io("make the folder", error))?;
        rustix::fs::sync();
        let time = seconds(|| write_all(&target, block, count));
        remove(&target)?;
        time
    };
    let (times, peer) = interleave(repeats, bare, plain)?;
    Ok(Row {
        name: format!("bare TCP, checksums, file, {name} / local writes"),
        value: speed_ratios(&times, &peer),
        unit: "ratio",
        goal: "-",
        note: format!(
            "bare {:.0} MB/s over {CONNECTIONS} connections, plain writes {:.0} MB/s; no Zazen",
            rate(total, &times),
            rate(total, &peer)
        ),
    })
}

/// Connections of the bare sender: as many as a push to one node has.
const CONNECTIONS: u64 = 2;

/// Sends `count` frames over [`CONNECTIONS`] connections into as many files in `target`.
fn send_all(target: &Path, block: &[u8], count: u64) -> Result<()> {
    let fail = |error| Error::io("send to this machine", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for connection in 0..CONNECTIONS {
            let mut sender = TcpStream::connect(address).map_err(fail)?;
            sender.set_nodelay(true).map_err(fail)?;
            let (mut receiver, _) = listener.accept().map_err(fail)?;
            let file = target.join(format!("{connection}"));
            let share = count / CONNECTIONS;
            ends.push(scope.spawn(move || -> std::io::Result<()> {
                for number in 0..share {
                    let mut bytes = block.to_vec();
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    sender.write_all(&frame_checksum(&bytes).to_le_bytes())?;
                    sender.write_all(&bytes)?;
                }
                Ok(())
            }));
            ends.push(scope.spawn(move || -> std::io::Result<()> {
                let mut file = File::create(file)?;
                let (mut checksum, mut bytes) = ([0; 8], vec![0; block.len()]);
                for _ in 0..share {
                    receiver.read_exact(&mut checksum)?;
                    receiver.read_exact(&mut bytes)?;
                    if frame_checksum(&bytes) != u64::from_le_bytes(checksum) {
                        return Err(std::io::ErrorKind::InvalidData.into());
                    }
                    file.write_all(&bytes)?;
                }
                Ok(())
            }));
        }
        ends.into_iter().try_for_each(|end| {
            end.join().map_err(|_| Error::new(ErrorKind::Io, "a bare sender panicked"))?.map_err(fail)
        })
    })
}

pub(crate) fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).map_err(|error| Error::io(format!("remove {}", folder.display()), error))
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
