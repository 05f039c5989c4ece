//! How fast calls are on this machine: `cargo run --release -p zazen-call --example call_rates`.
//!
//! Client and server are threads of one process, which shared memory can't tell from two processes.
//! Round trips of calls that carry bytes to a service that looks at each cache line of them, or
//! writes them to a file in memory; the carriers take turns, so that a busy machine is busy for
//! all. Printed: minimum, 10th percentile and median, in microseconds. Then the same with each end
//! bound to a core of its own, and with both bound to one.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_call::{
    Call, Caller, Carrier, ClusterKey, Connection, Identity, PoolBuffer, Reply, Server, ServerLimits, Service,
};
use zazen_core::{Error, ErrorKind, Result};

const SERVICE: u16 = 7;
const TOUCH: u16 = 1;
const PWRITE: u16 = 2;
const PREAD: u16 = 3;
const BATCH: u16 = 4;
const SIZES: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

struct Rates(OwnedFd);

impl Service for Rates {
    fn id(&self) -> u16 {
        SERVICE
    }

    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let io = |error| Error::io("move bytes", error);
        match call.function {
            TOUCH => {
                let mut sum = 0u64;
                loop {
                    let piece = call.bulk.chunk(usize::MAX).map_err(io)?;
                    if piece.is_empty() {
                        return Ok(Reply { payload: sum.to_le_bytes().to_vec(), ..Reply::default() });
                    }
                    let mut line = [0];
                    for at in (0..piece.len()).step_by(64) {
                        piece.part(at, 1).copy_to(&mut line);
                        sum += u64::from(line[0]);
                    }
                }
            }
            PWRITE => {
                let mut at = 0;
                loop {
                    let piece = call.bulk.chunk(usize::MAX).map_err(io)?;
                    if piece.is_empty() {
                        return Ok(Reply::default());
                    }
                    at += piece.write_at(self.0.as_fd(), at).map_err(io)? as u64;
                }
            }
            PREAD => {
                let mut at = 0;
                loop {
                    let mut room = call.output.chunk(usize::MAX).map_err(io)?;
                    if room.is_empty() {
                        return Ok(Reply::default());
                    }
                    let got = room.read_at(self.0.as_fd(), at).map_err(io)?;
                    call.output.commit(got).map_err(io)?;
                    at += got as u64;
                }
            }
            BATCH => {
                let one = || self.0.as_fd().try_clone_to_owned().map_err(|error| Error::io("dup", error));
                Ok(Reply { fds: (0..64).map(|_| one()).collect::<Result<_>>()?, ..Reply::default() })
            }
            other => Err(Error::new(ErrorKind::Unsupported, format!("no function {other}"))),
        }
    }

    fn detach(&self, _caller: &Caller) {}
}

/// A thing to measure: its name and one round of it.
type Contender<'a> = (&'static str, Box<dyn FnMut() -> Result<()> + 'a>);

/// Runs the contenders in turns and prints what a round of each took.
fn race(what: &str, rounds: usize, contenders: &mut [Contender<'_>]) -> Result<()> {
    const TURNS: usize = 10;
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for _ in 0..TURNS {
        for ((_, once), times) in contenders.iter_mut().zip(&mut times) {
            // What the other contenders left in the caches is not this one's to pay.
            for _ in 0..rounds / TURNS / 10 {
                once()?;
            }
            for _ in 0..rounds / TURNS {
                let start = Instant::now();
                once()?;
                times.push(start.elapsed());
            }
        }
    }
    for ((name, _), times) in contenders.iter().zip(&mut times) {
        times.sort();
        let us = |at: usize| times[at].as_secs_f64() * 1e6;
        println!(
            "{what:14} {name:22} {:9.2} {:9.2} {:9.2}",
            us(0),
            us(times.len() / 10),
            us(times.len() / 2)
        );
    }
    Ok(())
}

fn shown(size: usize) -> String {
    if size < 1024 {
        format!("{size} B")
    } else if size < 1 << 20 {
        format!("{} KiB", size >> 10)
    } else {
        format!("{} MiB", size >> 20)
    }
}

fn send(connection: &mut Connection, function: u16, bytes: &[u8]) -> Result<()> {
    connection.exchange(SERVICE, function, b"sixteen bytes...", &[IoSlice::new(bytes)], &mut []).map(|_| ())
}

fn fetch(connection: &mut Connection, bytes: &mut [u8]) -> Result<()> {
    let got = connection.exchange(SERVICE, PREAD, b"", &[], &mut [IoSliceMut::new(bytes)])?;
    assert_eq!(got.bulk_bytes, bytes.len() as u64);
    Ok(())
}

/// Measures with the server's threads where this thread is bound, and this thread bound to
/// `client_cpu` then.
fn measure(client_cpu: Option<usize>) -> Result<()> {
    let context = |errno: rustix::io::Errno| Error::io("make a file in memory", errno.into());
    let file = rustix::fs::memfd_create("rates", rustix::fs::MemfdFlags::CLOEXEC).map_err(context)?;
    let direct = file.try_clone().map_err(|error| Error::io("dup", error))?;
    let key = ClusterKey::from_bytes(ClusterKey::generate()?.as_bytes())?;
    let limits = ServerLimits {
        connections_max: 16,
        stall_timeout: Duration::from_secs(10),
        ..ServerLimits::default()
    };
    let server = Server::new(vec![Arc::new(Rates(file))], Some(key.clone()), limits);
    let socket = std::env::temp_dir().join(format!("zazen-call-rates-{}", std::process::id()));
    server.listen_unix(&socket)?;
    let address = server.listen_tcp("127.0.0.1:0")?.to_string();
    if let Some(cpu) = client_cpu {
        bind(cpu)?;
    }
    let patience = Duration::from_secs(10);
    let local = |carrier| Connection::local(&socket, carrier, patience);
    let (mut unix, mut shm, mut pooled) = (local(Carrier::Unix)?, local(Carrier::Shm)?, local(Carrier::Shm)?);
    let mut tcp = Connection::tcp(&address, &key, &Identity::of_this_process(), patience)?;
    println!("carrier of the shm rows: {:?}", shm.carrier());
    println!("{:14} {:22} {:>9} {:>9} {:>9}   (microseconds)", "", "", "min", "p10", "median");
    for size in SIZES {
        let rounds = if size < 1 << 20 { 10_000 } else { 1_000 };
        let bytes = vec![7u8; size];
        let shared: PoolBuffer = pooled.allocate(size);
        for (function, name) in [(TOUCH, "look at"), (PWRITE, "pwrite")] {
            let mut contenders: Vec<Contender<'_>> = vec![
                ("unix", Box::new(|| send(&mut unix, function, &bytes))),
                ("tcp", Box::new(|| send(&mut tcp, function, &bytes))),
                ("shm", Box::new(|| send(&mut shm, function, &bytes))),
                ("shm, from the pool", Box::new(|| send(&mut pooled, function, &shared))),
            ];
            if function == PWRITE {
                contenders.push((
                    "direct",
                    Box::new(|| {
                        rustix::io::pwrite(&direct, &bytes, 0).map_err(context)?;
                        Ok(())
                    }),
                ));
            }
            race(&format!("{name} {}", shown(size)), rounds, &mut contenders)?;
        }
        let (mut one, mut two, mut three, mut own) =
            (bytes.clone(), bytes.clone(), bytes.clone(), bytes.clone());
        let mut shared = shared;
        let mut contenders: Vec<Contender<'_>> = vec![
            ("unix", Box::new(|| fetch(&mut unix, &mut one))),
            ("tcp", Box::new(|| fetch(&mut tcp, &mut two))),
            ("shm", Box::new(|| fetch(&mut shm, &mut three))),
            ("shm, into the pool", Box::new(|| fetch(&mut pooled, &mut shared))),
            (
                "direct",
                Box::new(|| {
                    rustix::io::pread(&direct, &mut own, 0).map_err(context)?;
                    Ok(())
                }),
            ),
        ];
        race(&format!("pread {}", shown(size)), rounds, &mut contenders)?;
    }
    let mut contenders: Vec<Contender<'_>> = vec![
        ("unix", Box::new(|| unix.call(SERVICE, BATCH, b"", &[]).map(|_| ()))),
        ("shm", Box::new(|| shm.call(SERVICE, BATCH, b"", &[]).map(|_| ()))),
    ];
    race("64 descriptors", 2000, &mut contenders)?;
    drop(contenders);
    server.drain(patience);
    Ok(())
}

/// Binds this thread, and those that it starts from now on, to `cpu`.
fn bind(cpu: usize) -> Result<()> {
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).map_err(|errno| Error::io("bind to a CPU", errno.into()))
}

fn main() -> Result<()> {
    let cpu = rustix::thread::sched_getcpu();
    match std::env::args().nth(1).as_deref() {
        None => {
            println!("ends where the kernel puts them");
            measure(None)?;
            std::io::stdout().flush().map_err(|error| Error::io("print", error))?;
            for mode in ["two-cores", "one-core"] {
                let me = std::env::current_exe();
                let again = me.and_then(|me| std::process::Command::new(me).arg(mode).status());
                again.map_err(|error| Error::io("run it once more", error))?;
            }
            Ok(())
        }
        Some("one-core") => {
            println!("\nboth ends bound to one core");
            bind(cpu)?;
            measure(None)
        }
        Some("two-cores") => {
            println!("\neach end bound to a core of its own");
            bind(if cpu == 0 { 1 } else { 0 })?;
            measure(Some(cpu))
        }
        Some(other) => Err(Error::new(ErrorKind::InvalidArgument, format!("{other}: two-cores or one-core"))),
    }
}
