//! Crashes and errors at every step of seeded workloads, on the simulated disk. A failure names its
//! seed and step.
//!
//! Held after every recovery: no wrong byte passes a reader who checks; what was committed is there
//! or is a miss, and what was committed before a `sync` is there; holdings and entries agree; the
//! account and the disk are within the budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use zazen_core::{Origin, RunSet};
use zazen_env::{Environment, ManualClock, SeededRandom, SimDisk};
use zazen_store::contract::{bytes_of, file_of, meta_of, put_version, series_in};
use zazen_store::{Store, StoreConfig};
use zazen_wire::checksum::frame_checksum;

const BUDGET: u64 = 384 << 10;
/// Frames up to this length are packed.
const PACKED: u64 = 16 << 10;
const CONFIG: StoreConfig =
    StoreConfig { budget_bytes: BUDGET, free_floor_bytes: 0, packed_bytes_max: PACKED };
const DATASETS: [&str; 3] = ["a", "a/b", "c"];
const LENGTHS: [usize; 5] = [0, 700, 9_000, 17_000, 40_000];

/// Every (dataset, number, version) that was ever begun, and what must be there whatever happens.
#[derive(Clone, Default)]
struct Model {
    begun: BTreeMap<(usize, u64), Vec<u64>>,
    safe: BTreeMap<(usize, u64), u64>,
    pinned: bool,
}

fn length_of(number: u64, version: u64) -> usize {
    LENGTHS[((number + version) % 5) as usize]
}

/// One random operation; `safe` loses what the operation may change.
fn step(store: &Arc<Store<SimDisk>>, model: &mut Model, random: &mut SeededRandom) {
    let at = random.below(3) as usize;
    let dataset = series_in(DATASETS[at]);
    let number = random.below(12);
    let origin = if random.percent(50) { Origin::Native } else { Origin::Alien };
    match random.below(21) {
        0..12 => {
            let begun = model.begun.entry((at, number)).or_default();
            let version = begun.last().copied().unwrap_or(0) + random.below(2);
            begun.push(version);
            // Making room may evict anything that is not pinned.
            model
                .safe
                .retain(|(held, other), _| *held == 0 && model.pinned && (*held, *other) != (at, number));
            let _ = put_version(store, DATASETS[at], number, version, length_of(number, version), origin);
        }
        12 => {
            let bytes = bytes_of(number, 777, 30_000);
            if let Ok(mut put) = store.put(&dataset, &file_of(number), &meta_of(number, 777, &bytes), origin)
            {
                let _ = put.write(&bytes[..20_000]);
            }
            model.safe.retain(|(held, _), _| *held == 0 && model.pinned);
        }
        13..15 => {
            model.safe.remove(&(at, number));
            let _ = store.drop_frame(&dataset, number);
        }
        15 => {
            model.safe.retain(|(held, _), _| *held != at);
            let set: RunSet = (0..4).map(|_| random.below(12)).collect();
            let _ = store.evict(&dataset, random.percent(50).then_some(&set));
        }
        16 => {
            let pinned = random.percent(50);
            if pinned {
                let _ = store.pin(&series_in("a"), true);
            } else {
                model.safe.retain(|(held, _), _| *held != 0);
                let _ = store.pin(&series_in("a"), false);
            }
            model.pinned = store.datasets().iter().any(|it| it.dataset == series_in("a") && it.pinned);
        }
        17 => {
            let _ = store.set_layout(&dataset, &layout());
        }
        18 => {
            let _ = store.compact(&dataset);
        }
        _ => {
            let before = holdings(store);
            if store.sync().is_ok() {
                model.safe = before;
            }
        }
    }
}

fn layout() -> zazen_core::Layout {
    zazen_core::Layout::Files(zazen_core::NameTemplate::parse("frame-{n:07}.dcd").unwrap())
}

/// (dataset, number) → version of all that the store says it has.
fn holdings(store: &Store<SimDisk>) -> BTreeMap<(usize, u64), u64> {
    let mut all = BTreeMap::new();
    for (at, dataset) in DATASETS.iter().enumerate() {
        for entry in store.entries(&series_in(dataset), &RunSet::range(0, 100)).unwrap_or_default() {
            all.insert((at, entry.meta.number.get()), entry.meta.validator.unwrap().mtime_ns as u64);
        }
    }
    all
}

/// Opens what a crash left and checks all that must hold; returns the store.
fn check(disk: &SimDisk, model: &Model, kill: bool, what: &str) -> Arc<Store<SimDisk>> {
    let (store, report) = Store::open(disk.clone(), CONFIG).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.problems.is_empty(), "{what}: {report:?}");
    let (space, on_disk) = (store.space(), disk.used_bytes());
    assert!(space.used <= BUDGET && space.reserved == 0, "{what}: {space:?}");
    assert!(
        !kill || on_disk <= space.used,
        "{what}: {on_disk} bytes on disk, {} counted: {:?}\n{}",
        space.used,
        disk.files(),
        store.dump()
    );
    let held = holdings(&store);
    for ((at, number), version) in &held {
        let begun = model.begun.get(&(*at, *number)).is_some_and(|all| all.contains(version));
        assert!(begun, "{what}: frame {number} of {} in version {version}, which nobody put", DATASETS[*at]);
    }
    for (at, dataset) in DATASETS.iter().enumerate() {
        let (native, alien) = store.holdings(&series_in(dataset));
        assert!(native.is_disjoint(&alien), "{what}: {dataset} has natives that are aliens");
        let listed: RunSet =
            held.keys().filter(|(other, _)| *other == at).map(|(_, number)| *number).collect();
        let missing = native.union(&alien).difference(&listed);
        assert!(listed.is_subset(&native.union(&alien)), "{what}: entries beyond the holdings of {dataset}");
        assert!(!kill || missing.is_empty(), "{what}: {missing:?} of {dataset} are held, and have no entry");
        for number in native.union(&alien).iter() {
            let good = read_checked(&store, at, number, what);
            let safe = model.safe.contains_key(&(at, number));
            assert!(good || !safe, "{what}: frame {number} of {dataset} was synced and is bad");
        }
    }
    for ((at, number), version) in &model.safe {
        assert_eq!(
            held.get(&(*at, *number)),
            Some(version),
            "{what}: frame {number} of {} was synced",
            DATASETS[*at]
        );
    }
    // A lost tombstone leaves the length of the old copy on the books, until somebody looks at the
    // frame.
    let (space, on_disk) = (store.space(), disk.used_bytes());
    assert!(
        on_disk <= space.used,
        "{what}: {on_disk} bytes on disk, {} counted: {:?}\n{}",
        space.used,
        disk.files(),
        store.dump()
    );
    store
}

/// Reads a frame as a careful reader does; panics if wrong bytes carry the right checksum.
fn read_checked(store: &Store<SimDisk>, at: usize, number: u64, what: &str) -> bool {
    use std::os::unix::fs::FileExt;
    let Some(frame) = store.open_frame(&series_in(DATASETS[at]), number).unwrap() else { return false };
    let mut bytes = vec![0; frame.meta.length as usize];
    frame.file.read_exact_at(&mut bytes, frame.offset).unwrap();
    let good = frame_checksum(&bytes) == frame.meta.checksum;
    if good {
        let version = frame.meta.validator.unwrap().mtime_ns as u64;
        assert!(bytes == bytes_of(number, version, bytes.len()), "{what}: wrong bytes of frame {number}");
    }
    let verdict = store.verify(&series_in(DATASETS[at]), number).unwrap();
    assert_eq!(verdict, Some(good), "{what}: verify of frame {number}");
    assert_eq!(
        store.open_frame(&series_in(DATASETS[at]), number).unwrap().is_some(),
        good,
        "{what}: a bad frame is dropped"
    );
    good
}

/// Runs `operations` of the workload of `seed`, with `disturb` done to the disk after half of them.
fn workload(
    seed: u64,
    operations: usize,
    disturb: impl Fn(&SimDisk),
) -> (SimDisk, Model, Arc<Store<SimDisk>>) {
    let disk = SimDisk::new(seed, 1 << 30);
    let mut random = SeededRandom::new(seed);
    let mut model = Model::default();
    let environment = Environment::simulated(Arc::new(ManualClock::default()), seed);
    let (store, _) = Store::open_in(environment, disk.clone(), CONFIG).unwrap();
    for at in 0..operations {
        if at == operations / 2 {
            disturb(&disk);
        }
        if disk.is_dead() {
            break;
        }
        step(&store, &mut model, &mut random);
        let (space, on_disk) = (store.space(), disk.used_bytes());
        let undisturbed = at < operations / 2;
        assert!(
            !undisturbed || on_disk <= space.used,
            "seed {seed}, operation {at}: {on_disk} bytes, {space:?}"
        );
        assert!(space.used + space.reserved <= BUDGET, "seed {seed}, operation {at}: {space:?}");
    }
    (disk, model, store)
}

fn crash_everywhere(seed: u64, operations: usize, kill: bool) {
    let (disk, ..) = workload(seed, operations, |_| {});
    let (half, ..) = workload(seed, operations / 2, |_| {});
    let from = half.steps();
    for at in from + 1..=disk.steps() {
        let what = format!("seed {seed}, {} at step {at}", if kill { "kill" } else { "power failure" });
        let (disk, model, store) = workload(seed, operations, |disk| disk.crash_at(at));
        drop(store);
        let next = if kill { disk.kill() } else { disk.power_fail() };
        let store = check(&next, &model, kill, &what);
        // And it goes on.
        let mut after = model.clone();
        let mut random = SeededRandom::new(seed ^ at);
        for _ in 0..6 {
            step(&store, &mut after, &mut random);
        }
        drop(store);
        check(&next.kill(), &after, true, &format!("{what}, and on"));
    }
}

#[test]
fn a_kill_at_every_step() {
    for seed in 0..4 {
        crash_everywhere(seed, 60, true);
    }
}

#[test]
fn a_power_failure_at_every_step() {
    for seed in 100..107 {
        crash_everywhere(seed, 60, false);
    }
}

#[test]
fn a_crash_during_recovery() {
    for seed in 200..206 {
        let (disk, model, store) = workload(seed, 60, |disk| disk.crash_at(disk.steps() + 40));
        drop(store);
        let crashed = disk.power_fail();
        for at in 1..30 {
            let what = format!("seed {seed}, recovery crashed at step {at}");
            let again = crashed.fork(seed + at);
            again.crash_at(at);
            let opened = Store::open(again.clone(), CONFIG);
            let finished = opened.is_ok() && !again.is_dead();
            drop(opened);
            check(&again.power_fail(), &model, false, &what);
            if finished {
                break;
            }
        }
    }
}

#[test]
fn an_input_output_error_at_every_step() {
    for seed in 300..302 {
        let (disk, ..) = workload(seed, 50, |_| {});
        let (half, ..) = workload(seed, 25, |_| {});
        for at in half.steps() + 1..=disk.steps() {
            let what = format!("seed {seed}, EIO at step {at}");
            let (disk, mut model, store) = workload(seed, 50, |disk| disk.fail_at(at));
            let space = store.space();
            assert!(space.used <= BUDGET && space.reserved == 0, "{what}: {space:?}");
            // What was safe may have been hit by the error.
            model.safe.clear();
            drop(store);
            check(&disk.kill(), &model, false, &what);
        }
    }
}

#[test]
fn a_seed_replays_byte_by_byte() {
    for seed in 500..510 {
        let history = |disturb: &dyn Fn(&SimDisk)| {
            let (disk, _, store) = workload(seed, 60, disturb);
            drop(store);
            let next = disk.power_fail();
            let environment = Environment::simulated(Arc::new(ManualClock::default()), seed + 1);
            let opened = Store::open_in(environment, next.clone(), CONFIG).map(|_| ());
            (next.trace(), next.reads(), next.files(), format!("{opened:?}"))
        };
        assert_eq!(history(&|_| {}), history(&|_| {}), "seed {seed}");
        // The k-th read from the middle on is the same read in both runs.
        for read in [1, 7, 50] {
            let fail = |disk: &SimDisk| disk.fail_read_at(disk.reads() + read);
            assert_eq!(history(&fail), history(&fail), "seed {seed}, read {read} fails");
            let crash = |disk: &SimDisk| disk.crash_at(disk.steps() + read);
            assert_eq!(history(&crash), history(&crash), "seed {seed}, crash at step {read}");
        }
    }
}

#[test]
fn a_sync_that_succeeds_after_a_failed_one_still_keeps_its_promise() {
    let mut refused = 0;
    for seed in 600..606 {
        for step in 1..14 {
            let what = format!("seed {seed}, EIO at step {step} of the first sync");
            let (disk, mut model, store) = workload(seed, 40, |_| {});
            disk.fail_at(disk.steps() + step);
            let first = store.sync();
            disk.drop_lost_pages();
            model.safe = holdings(&store);
            let second = store.sync();
            refused += u32::from(first.is_err() && second.is_err());
            if second.is_err() {
                model.safe.clear();
            }
            drop(store);
            check(&disk.power_fail(), &model, false, &what);
        }
    }
    assert!(refused >= 6, "the sync of the whole disk failed in each seed: {refused}");
}

#[test]
fn a_full_disk_in_mid_frame_leaves_nothing() {
    for seed in 400..406 {
        let (disk, _, store) = workload(seed, 12, |_| {});
        // The kernel's space ends in the middle of the frame, though the store was told there is
        // more.
        let files = disk.files();
        for room in [0, 4_096, 8_192, 20_000, 40_000] {
            disk.set_lying_capacity(disk.used_bytes() + room);
            let bytes = bytes_of(50, 0, 60_000);
            let put = store.put(&series_in("new"), &file_of(50), &meta_of(50, 0, &bytes), Origin::Native);
            let result = put.and_then(|mut put| {
                put.write(&bytes)?;
                put.commit()
            });
            let error = result.expect_err("no room for it");
            assert_eq!(error.kind(), zazen_core::ErrorKind::NoSpace, "seed {seed}: {error}");
            disk.set_capacity(1 << 30);
        }
        let new: Vec<_> = disk.files().into_iter().filter(|file| !files.contains(file)).collect();
        assert!(new.is_empty(), "seed {seed}: left behind: {new:?}");
        assert_eq!(store.space().reserved, 0);
        drop(store);
        let (_, report) = Store::open(disk.kill(), CONFIG).unwrap();
        assert!(report.problems.is_empty() && report.temporaries_removed == 0, "seed {seed}: {report:?}");
    }
}
