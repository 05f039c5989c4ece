//! How fast calls are on this machine: `cargo run --release -p zazen-call --example call_rates`.
//!
//! Client and server are threads of one process; five repeats, median and range.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_call::{Call, Caller, ClusterKey, Connection, Identity, Reply, Server, ServerLimits, Service};
use zazen_core::{Error, ErrorKind, Result};

const PING: u16 = 1;
const PUSH: u16 = 2;
const BATCH: u16 = 3;
const FRAME_BYTES: usize = 430_000;

struct Rates(std::fs::File);

impl Service for Rates {
    fn id(&self) -> u16 {
        7
    }

    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        match call.function {
            PUSH => {
                let mut frame = vec![0; call.bulk_bytes as usize];
                call.bulk.read_exact(&mut frame).map_err(|error| Error::io("read the frame", error))?;
                Ok(Reply::default())
            }
            BATCH => {
                let one = || self.0.as_fd().try_clone_to_owned().map_err(|error| Error::io("dup", error));
                Ok(Reply { fds: (0..64).map(|_| one()).collect::<Result<_>>()?, ..Reply::default() })
            }
            PING => Ok(Reply::default()),
            other => Err(Error::new(ErrorKind::Unsupported, format!("no function {other}"))),
        }
    }

    fn detach(&self, _caller: &Caller) {}
}

/// Prints the median and range of `rate` over five runs of `count` calls.
fn measure(what: &str, unit: &str, count: u32, mut once: impl FnMut() -> Result<f64>) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let mut amount = 0.0;
        for _ in 0..count {
            amount += once()?;
        }
        rates.push(amount / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!("{what:44} {:10.0} {unit}  ({:.0} .. {:.0})", rates[2], rates[0], rates[4]);
    Ok(())
}

fn main() -> Result<()> {
    let file = std::fs::File::open("/proc/self/exe").map_err(|error| Error::io("open", error))?;
    let key = ClusterKey::from_bytes(ClusterKey::generate()?.as_bytes())?;
    let limits = ServerLimits { connections_max: 8, stall_timeout: Duration::from_secs(10) };
    let server = Server::new(vec![Arc::new(Rates(file))], Some(key.clone()), limits);
    let socket = std::env::temp_dir().join(format!("zazen-call-rates-{}", std::process::id()));
    server.listen_unix(&socket)?;
    let address = server.listen_tcp("127.0.0.1:0")?.to_string();
    let patience = Duration::from_secs(10);
    let mut unix = Connection::unix(&socket, patience)?;
    let mut tcp = Connection::tcp(&address, &key, &Identity::of_this_process(), patience)?;
    let frame: Vec<u8> = (0..FRAME_BYTES).map(|at| at as u8).collect();
    let bulk: &[&[u8]] = &[&frame];
    let megabytes = FRAME_BYTES as f64 / 1e6;
    measure("ping, unix", "calls/s", 20_000, || unix.call(7, PING, b"", &[]).map(|_| 1.0))?;
    measure("ping, tcp loopback", "calls/s", 20_000, || tcp.call(7, PING, b"", &[]).map(|_| 1.0))?;
    measure("push 430 KB, unix", "MB/s", 1000, || unix.call(7, PUSH, b"", bulk).map(|_| megabytes))?;
    measure("push 430 KB, tcp loopback", "MB/s", 1000, || tcp.call(7, PUSH, b"", bulk).map(|_| megabytes))?;
    measure("batch of 64 descriptors, unix", "batches/s", 2000, || {
        unix.call(7, BATCH, b"", &[]).map(|_| 1.0)
    })?;
    measure("CRC-64/NVME of 430 KB", "MB/s", 2000, || {
        std::hint::black_box(zazen_wire::checksum::frame_checksum(std::hint::black_box(&frame)));
        Ok(megabytes)
    })?;
    measure("CRC-32C of 430 KB", "MB/s", 2000, || {
        std::hint::black_box(zazen_wire::checksum::crc32c(std::hint::black_box(&frame)));
        Ok(megabytes)
    })?;
    server.drain(patience);
    Ok(())
}
