//! Random kills under load at two replicas: nothing that was acknowledged is lost.
//!
//! `make test` kills a few daemons. `ZAZEN_KILLS=1000 cargo test -p zazend --test namespace_kills`
//! kills so many; `ZAZEN_KILLS_SEED` is the seed, and `ZAZEN_KILLS_RECORD` names a file that counts
//! the kills of all runs, so that a run which was ended goes on with the next seed.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

mod namespaces;

use namespaces::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::Errno;
use zazen_namespace_client::core::operation::Mode;

const READ: Mode = Mode { read: true, write: false, truncate: false };
const WRITE: Mode = Mode { read: true, write: true, truncate: false };
const NODES: usize = 4;
/// After a kill, everything must be there again within this time, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(90);

/// What must be there, by path: the bytes follow from the number. `None`: nothing must be there.
type Ledger = Mutex<BTreeMap<String, Option<u64>>>;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn bytes_of(number: u64) -> Vec<u8> {
    noise(1 + (zazen_core::fnv::mixed(number) % 20_000) as usize, number)
}

fn write(ns: &Namespace, path: &str, bytes: &[u8]) -> Result<(), Errno> {
    let file = ns.open_or_create(None, path.as_bytes(), 0o644, WRITE, false)?;
    file.write_all_at(bytes, 0)?;
    file.close()
}

fn read(ns: &Namespace, path: &str) -> Result<Vec<u8>, Errno> {
    let file = ns.open(None, path.as_bytes(), READ)?;
    let mut bytes = vec![0; file.attributes().bytes as usize + 1];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Writes, renames and removes files until told to stop. What was answered goes into the ledger;
/// what was not may be or not be, and leaves it.
fn work(ns: &Namespace, at: usize, round: u64, stop: &AtomicBool, ledger: &Ledger, acknowledged: &AtomicU64) {
    for count in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let number = (round << 32) | (at as u64) << 24 | count;
        let bytes = bytes_of(number);
        let path = format!("/d{}/r{round}-{at}-{count}", count % 6);
        if write(ns, &path, &bytes).is_err() {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        acknowledged.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let moved = format!("/d{}/m{round}-{at}-{count}", (count + 1) % 6);
        let (path, there) = match count % 4 {
            1 => match ns.rename_path(None, path.as_bytes(), moved.as_bytes()) {
                Ok(()) => {
                    ledger.lock().unwrap().insert(path, None);
                    (moved, Some(number))
                }
                Err(_) => continue,
            },
            3 => match ns.remove(None, path.as_bytes()) {
                Ok(()) => (path, None),
                Err(_) => continue,
            },
            _ => (path, Some(number)),
        };
        ledger.lock().unwrap().insert(path, there);
    }
}

/// Everything in the ledger is as it was acknowledged; nodes may take some time to be back.
fn verify(nodes: &[Namespace], ledger: &Ledger, what: &str) {
    let ledger = ledger.lock().unwrap();
    for (at, (path, number)) in ledger.iter().enumerate() {
        let begun = Instant::now();
        loop {
            let got = read(&nodes[at % nodes.len()], path);
            match (&got, number) {
                (Ok(bytes), Some(number)) => {
                    assert!(*bytes == bytes_of(*number), "{what}: {path} has other bytes");
                    break;
                }
                (Err(Errno::ENOENT), None) => break,
                (Ok(_), None) => panic!("{what}: {path} was removed, and is there"),
                (Err(Errno::ENOENT), Some(_)) => panic!("{what}: {path} was acknowledged, and is lost"),
                (Err(errno), _) => {
                    assert!(begun.elapsed() < BACK_WITHIN, "{what}: {path}: {errno:?}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }
}

#[test]
fn random_kills_under_load_lose_nothing_that_was_acknowledged() {
    let record = std::env::var_os("ZAZEN_KILLS_RECORD");
    let before: u64 = record
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok())
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let kills = setting("ZAZEN_KILLS", 4).saturating_sub(before);
    let seed = setting("ZAZEN_KILLS_SEED", 1) + before;
    println!("{kills} kills after {before}, seed {seed}");
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        zazen_core::fnv::mixed(state) % below
    };
    let mut cluster = Cluster::with(NODES, &["--namespace-replicas", "2"]);
    let nodes: Vec<Namespace> = (0..NODES).map(|at| cluster.client(at)).collect();
    let backed = |ns: &Namespace| {
        let map = ns.map();
        map.is_ok_and(|map| map.partitions.iter().all(|seat| !seat.backups.is_empty()))
    };
    eventually("each partition has a backup", || backed(&nodes[0]));
    for dir in 0..6 {
        nodes[0].mkdir(None, format!("/d{dir}").as_bytes(), 0o755).unwrap();
    }
    let (ledger, acknowledged) = (Ledger::default(), AtomicU64::new(0));
    for round in 1..=kills {
        let what = format!("seed {seed}, kill {round}");
        let stop = AtomicBool::new(false);
        let (victim, after_ms) = (draw(NODES as u64) as usize, draw(700));
        // Mostly sooner than the lease of the dead node ends, sometimes later.
        let away_ms = if draw(4) == 0 { 5_000 } else { draw(800) };
        std::thread::scope(|scope| {
            for (at, ns) in nodes.iter().enumerate() {
                let (stop, ledger, acknowledged) = (&stop, &ledger, &acknowledged);
                scope.spawn(move || work(ns, at, round, stop, ledger, acknowledged));
            }
            std::thread::sleep(Duration::from_millis(after_ms));
            cluster.kill(victim);
            std::thread::sleep(Duration::from_millis(away_ms));
            cluster.start(victim);
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
        verify(&nodes, &ledger, &what);
        // Two nodes at once are more than two replicas survive.
        let begun = Instant::now();
        while !nodes.iter().all(backed) {
            assert!(begun.elapsed() < BACK_WITHIN, "{what}: a partition has no backup");
            std::thread::sleep(Duration::from_millis(50));
        }
        if round % 8 == 0 {
            for (path, number) in std::mem::take(&mut *ledger.lock().unwrap()) {
                if number.is_some() {
                    nodes[0].remove(None, path.as_bytes()).ok();
                }
            }
        }
        if let Some(file) = &record {
            let bytes = acknowledged.load(Ordering::Relaxed);
            let text = format!("{} kills, {bytes} bytes acknowledged in this run, 0 lost\n", before + round);
            std::fs::write(file, text).unwrap();
        }
    }
    println!("{kills} kills, {} bytes acknowledged, 0 lost", acknowledged.load(Ordering::Relaxed));
}
