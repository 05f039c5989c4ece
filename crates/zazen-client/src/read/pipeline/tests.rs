use super::super::buffer::Pool;
use super::super::job::Data;
use super::*;
use crate::direct::DirectSpec;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use zazen_frames::messages::Delivery;
use zazen_wire::checksum::frame_checksum;

fn job(number: u64, length: u64) -> Task {
    Task::Read(Job {
        number,
        delivery: None,
        path: Path::new("inline").into(),
        whole: true,
        length,
        checksum: None,
        data: Data::Inline(Arc::new(vec![7; length as usize]), 0),
    })
}

fn access() -> Access {
    let spec = DirectSpec { path: "/none".into(), pattern: None, backing: None };
    Access::new(Pool::new(1 << 20), true, None, spec, None)
}

/// Feeds `sizes`, lets readers do all they may before each take of the consumer, and returns the
/// most bytes that were read ahead at a time.
fn most_ahead(sizes: &[u64], memory_max: u64, readers: usize) -> u64 {
    let (pipeline, access) = (Pipeline::new(memory_max, readers), access());
    // Files on a disk: the bound is the user's own.
    pipeline.lock().warm_takes = 0;
    pipeline.feed(sizes.iter().enumerate().map(|(number, size)| job(number as u64, *size)));
    pipeline.fed();
    let (mut most, mut taken, mut local, mut last) = (0, 0, VecDeque::new(), None);
    loop {
        loop {
            let mut state = pipeline.lock();
            state.warm_takes = 0;
            let taken = pipeline.take_tasks(&mut state, By::Consumer);
            if taken.tasks.is_empty() {
                break;
            }
            drop(state);
            let mut done = Done::default();
            let count = taken.tasks.len();
            pipeline.carry_out(&access, taken, &mut last, &mut done);
            let mut state = pipeline.lock();
            pipeline.settle(&access, &mut state, count, &mut done.opened);
            state.results.extend(done.outcomes);
        }
        most = most.max(pipeline.used.load(Ordering::SeqCst));
        if local.is_empty() && !pipeline.next(&access, &mut last, &mut local, &mut Waits::default()) {
            break;
        }
        if let Some(outcome) = local.pop_front() {
            pipeline.taken(&outcome);
            taken += 1;
        }
    }
    assert_eq!(taken, sizes.len());
    assert_eq!(pipeline.used.load(Ordering::SeqCst), 0);
    most
}

#[test]
fn read_ahead_stays_within_the_bound() {
    assert_eq!(most_ahead(&[300; 40], 1000, 4), 900);
    assert_eq!(most_ahead(&[300; 40], 300, 4), 300);
    assert!(most_ahead(&[1, 999, 5, 800, 300, 700, 2], 1000, 2) <= 1000);
    assert_eq!(most_ahead(&[], 1000, 2), 0);
    assert_eq!(most_ahead(&[0; 100], 1, 2), 0);
}

#[test]
fn a_frame_beyond_the_bound_comes_alone() {
    assert_eq!(most_ahead(&[100, 5000, 100, 5000, 5000], 1000, 8), 5000);
}

#[test]
fn files_in_memory_are_read_ahead_only_as_far_as_caches_reach() {
    let pipeline = Pipeline::new(1 << 40, 4);
    pipeline.feed((0..100).map(|number| job(number, 1 << 20)));
    let mut state = pipeline.lock();
    while !pipeline.take_tasks(&mut state, By::Consumer).tasks.is_empty() {
        state.reading = 0;
    }
    assert_eq!(pipeline.used.load(Ordering::SeqCst), WARM_AHEAD);
}

/// Numbers that look random, the same for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

/// Frames of all kinds, and what each must come out as: its bytes, or `None` for an error.
struct Mix {
    tasks: Vec<Task>,
    expected: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Mix {
    fn new(folder: &Path, draw: &mut Draw) -> Mix {
        let mut mix = Mix { tasks: Vec::new(), expected: BTreeMap::new() };
        while mix.tasks.len() < 60 {
            match draw.below(5) {
                0 => {
                    let number = mix.next();
                    mix.tasks.push(Task::Failed(number, Error::new(zazen_core::ErrorKind::NotFound, "gone")));
                    mix.expected.insert(number, None);
                }
                1 => {
                    let bytes = bytes(draw, 3000);
                    mix.add(Data::Inline(Arc::new(bytes.clone()), 0), None, bytes, draw);
                }
                2 => {
                    let bytes = bytes(draw, 400_000);
                    let file = file(folder, mix.next(), &bytes);
                    mix.add(Data::Descriptor(file, 0), Some(Delivery::Native), bytes, draw);
                }
                _ => mix.add_packed(folder, draw),
            }
        }
        mix
    }

    fn next(&self) -> u64 {
        self.expected.len() as u64
    }

    /// Several frames in one file, some of them with gaps between.
    fn add_packed(&mut self, folder: &Path, draw: &mut Draw) {
        let (mut all, mut parts) = (Vec::new(), Vec::new());
        for _ in 0..draw.below(40) {
            let bytes = bytes(draw, 5000);
            parts.push((all.len() as u64, bytes.clone()));
            all.extend(bytes);
            let gap = if draw.below(6) == 0 { 1000 } else { draw.below(64) };
            all.resize(all.len() + gap as usize, 0);
        }
        let file = file(folder, 1_000_000 + self.next(), &all);
        for (offset, bytes) in parts {
            self.add(Data::Descriptor(file.clone(), offset), Some(Delivery::Alien), bytes, draw);
        }
    }

    fn add(&mut self, data: Data, delivery: Option<Delivery>, bytes: Vec<u8>, draw: &mut Draw) {
        let number = self.next();
        let good = draw.below(12) > 0;
        let checksum = Some(frame_checksum(&bytes) ^ u64::from(!good));
        let length = bytes.len() as u64;
        self.tasks.push(Task::Read(Job {
            number,
            delivery,
            path: Path::new("packed").into(),
            whole: false,
            length,
            checksum,
            data,
        }));
        self.expected.insert(number, good.then_some(bytes));
    }
}

fn bytes(draw: &mut Draw, most: u64) -> Vec<u8> {
    let (length, first) = (draw.below(most), draw.below(251) as usize);
    (0..length as usize).map(|at| ((first + at) % 251) as u8).collect()
}

fn file(folder: &Path, name: u64, bytes: &[u8]) -> Arc<OwnedFd> {
    let path = folder.join(name.to_string());
    std::fs::write(&path, bytes).unwrap();
    Arc::new(std::fs::File::open(&path).unwrap().into())
}

/// Runs `mix` through feeder, readers and a consumer that stops after `frames_max` frames. Returns
/// the outcomes.
fn run_through(mix: Mix, seed: u64, frames_max: usize) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut draw = Draw(seed | 1);
    let memory_max = 1 + draw.below(600_000);
    let (pipeline, access) = (Pipeline::new(memory_max, 1 + draw.below(6) as usize), access());
    let lengths: BTreeMap<u64, u64> = mix
        .expected
        .iter()
        .map(|(number, bytes)| (*number, bytes.as_ref().map_or(0, Vec::len) as u64))
        .collect();
    let largest = lengths.values().copied().max().unwrap_or(0).max(400_000);
    let mut came = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..1 + draw.below(4) {
            scope.spawn(|| pipeline.run_reader(&access));
        }
        let mut feeding = Draw(seed.wrapping_mul(7) | 1);
        let mut tasks = mix.tasks.into_iter();
        let (pipeline, access) = (&pipeline, &access);
        scope.spawn(move || {
            while pipeline.wait_low(access) {
                let some: Vec<Task> = tasks.by_ref().take(1 + feeding.below(50) as usize).collect();
                if some.is_empty() {
                    break;
                }
                pipeline.feed(some);
            }
            pipeline.fed();
        });
        let (mut local, mut last) = (VecDeque::new(), None);
        while came.len() < frames_max {
            if draw.below(20) == 0 {
                // Sometimes the frames seem to come from a disk, sometimes not.
                pipeline.is_cold();
            }
            if draw.below(20) == 0 {
                // Sometimes for longer than the frames take.
                crowd::crowd_for(Duration::from_millis(1 << draw.below(12)));
            }
            let used = pipeline.used.load(Ordering::SeqCst);
            assert!(used <= memory_max.max(largest), "seed {seed}: {used} bytes ahead, not {memory_max}");
            if local.is_empty() && !pipeline.next(access, &mut last, &mut local, &mut Waits::default()) {
                break;
            }
            let Some(outcome) = local.pop_front() else { continue };
            pipeline.taken(&outcome);
            came.push((outcome.number, outcome.got.ok().map(|got| got.buffer.bytes().to_vec())));
        }
        access.stop.store(true, Ordering::Relaxed);
        pipeline.stop();
    });
    came
}

/// `work` on a thread of its own; a hang is a failure, not a test that never ends.
fn within_a_minute<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("seed {seed}: hangs or panicked"))
}

#[test]
fn every_frame_comes_once_whatever_its_kind() {
    for seed in 1..=40 {
        let folder = tempfile::tempdir().unwrap();
        let mix = Mix::new(folder.path(), &mut Draw(seed * 0x9E37_79B9));
        let expected = mix.expected.clone();
        let mut came = within_a_minute(seed, move || run_through(mix, seed, usize::MAX));
        came.sort();
        let wanted: Vec<_> = expected.into_iter().collect();
        assert_eq!(came.len(), wanted.len(), "seed {seed}");
        for (came, wanted) in came.iter().zip(&wanted) {
            assert!(came == wanted, "seed {seed}: frame {} came as another than frame {}", came.0, wanted.0);
        }
    }
}

#[test]
fn a_reader_dropped_at_any_time_lets_its_threads_go() {
    for seed in 1..=40 {
        let folder = tempfile::tempdir().unwrap();
        let mix = Mix::new(folder.path(), &mut Draw(seed * 0x51_7CC1));
        let most = Draw(seed).below(60) as usize;
        let came = within_a_minute(seed, move || run_through(mix, seed, most));
        assert!(came.len() <= most, "seed {seed}");
    }
}

#[test]
fn packed_frames_are_taken_together_and_their_windows_asked_for_once() {
    packed_are_taken_together(4096);
    packed_are_taken_together(64 << 10);
}

/// Frames of `length` bytes; the largest that the store packs are read one by one, in windows too.
fn packed_are_taken_together(length: u64) {
    let folder = tempfile::tempdir().unwrap();
    let file = file(folder.path(), 1, &vec![0; 9 << 20]);
    let pipeline = Pipeline::new(1 << 30, 1);
    let packed = |number: u64| {
        Task::Read(Job {
            number,
            delivery: Some(Delivery::Native),
            path: Path::new("segment").into(),
            whole: false,
            length,
            checksum: None,
            data: Data::Descriptor(file.clone(), number * length),
        })
    };
    pipeline.feed((0..(8 << 20) / length).map(packed));
    let mut state = pipeline.lock();
    (state.warm_takes, state.reading) = (0, 0);
    let (mut windows, mut counts) = (Vec::new(), Vec::new());
    loop {
        state.warm_takes = 0;
        let taken = pipeline.take_tasks(&mut state, By::Consumer);
        if taken.tasks.is_empty() {
            break;
        }
        state.reading = 0;
        counts.push(taken.tasks.len());
        windows.extend(taken.bring);
    }
    assert!(counts.iter().all(|count| *count as u64 == (256 << 10) / length), "{counts:?}: each is 256 KiB");
    assert_eq!(windows, [0, 4 << 20, 8 << 20], "each is asked for half a window ahead");
}
