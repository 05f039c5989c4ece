//! One-off timings of the protocols over in-process ranks:
//! `cargo run --release -p zazen-assign --example measure [FRAMES] [RANKS…] [WORD…]` (default 10⁹
//! frames, 1 and 8 ranks; only rows that contain all of the words).
//!
//! Prints seconds by phase as rank 0 sees them, and CPU seconds of the whole process. `bitmaps`
//! takes about three bits per frame and rank in memory.

#![allow(clippy::print_stdout)]

use std::time::Instant;
use zazen_assign::{Blocks, Collectives, Input, Observer, Protocol, Rules, assign_observed, threads};
use zazen_core::{Request, Result, Run, RunSet};

/// Local seconds by round.
struct Phases {
    since: Instant,
    local: Vec<(&'static str, f64)>,
    waiting: f64,
}

impl Observer for Phases {
    fn local_done(&mut self, round: &'static str, _bytes: u64) {
        self.local.push((round, self.since.elapsed().as_secs_f64()));
        self.since = Instant::now();
    }
    fn collective_done(&mut self, _round: &'static str) {
        self.waiting += self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
    }
}

/// Threads, with links that are said to be slow or fast.
struct Links<'a> {
    inner: &'a threads::ThreadRank,
    slow: bool,
}

impl Collectives for Links<'_> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.inner.allreduce_sum(values)
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        self.inner.allreduce_xor(values)
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.inner.allreduce_or(values)
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        self.inner.allreduce_two_bit(values)
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        self.inner.alltoallv(send)
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.allgatherv(mine)
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        self.inner.broadcast(mine)
    }
    fn is_slow(&self) -> Result<bool> {
        Ok(self.slow)
    }
}

fn inputs(frames: u64, native: &[RunSet]) -> Vec<Input> {
    let input = |(rank, native): (usize, &RunSet)| Input {
        node: rank as u128,
        native: native.clone(),
        alien: RunSet::new(),
        request: Request::new(0, frames - 1, 1).expect("frames are within the limit"),
        target: None,
        rules: Rules::Full,
        protocol: Protocol::Owner,
        verify_exact: false,
        seed: [7; 16],
    };
    native.iter().enumerate().map(input).collect()
}

/// CPU seconds of this process so far, in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.split_whitespace().skip(13).take(2).filter_map(|word| word.parse().ok()).collect();
    fields.iter().sum::<f64>() / 100.0
}

fn measure(name: &str, frames: u64, native: &[RunSet]) {
    let mut seconds = Vec::new();
    let variants = [(Protocol::Owner, false), (Protocol::Owner, true), (Protocol::Bitmaps, false)];
    for (protocol, slow) in variants {
        let row = format!("{name}: {protocol:?}{}", if slow { " packed" } else { "" });
        let words = std::env::args().skip(1).filter(|word| word.parse::<f64>().is_err());
        if !words.into_iter().all(|word| row.contains(&word)) {
            continue;
        }
        let inputs = inputs(frames, native);
        let (started, cpu) = (Instant::now(), cpu_seconds());
        let shares = threads::run(inputs.len(), |carrier| {
            let input = Input { protocol, ..inputs[carrier.rank()].clone() };
            let mut phases = Phases { since: Instant::now(), local: Vec::new(), waiting: 0.0 };
            let links = Links { inner: carrier, slow };
            let share = assign_observed(input, &links, &mut phases)?;
            Ok((share, phases))
        });
        let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        seconds.push(elapsed);
        let shares: Result<Vec<_>> = shares.into_iter().collect();
        match shares {
            Err(error) => println!("{row}: {error}"),
            Ok(shares) => {
                let (share, phases) = &shares[0];
                let local: Vec<String> =
                    phases.local.iter().map(|(round, spent)| format!("{round} {spent:.4}")).collect();
                println!(
                    "{row} {:?} {elapsed:.4} s, CPU {cpu:.2} s, {} rounds, {} bytes; {}; waiting {:.4}",
                    share.path,
                    share.rounds,
                    share.bytes_sent,
                    local.join(", "),
                    phases.waiting,
                );
            }
        }
    }
    if let [owner, _, bitmaps] = seconds[..] {
        println!("{name}: bitmaps / owner {:.1}", bitmaps / owner);
    }
}

/// Every frame on one node, drawn at random.
fn random(frames: u64, nodes: u64) -> Vec<RunSet> {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut words = vec![vec![0u64; frames.div_ceil(64) as usize]; nodes as usize];
    for at in 0..frames.div_ceil(64) {
        if nodes == 8 {
            let bits = [draw(), draw(), draw()];
            for (node, words) in words.iter_mut().enumerate() {
                let pick = |bit: usize| if node >> bit & 1 == 1 { bits[bit] } else { !bits[bit] };
                words[at as usize] = pick(0) & pick(1) & pick(2);
            }
        } else {
            (0..64).for_each(|bit| words[(draw() % nodes) as usize][at as usize] |= 1 << bit);
        }
        if frames - at * 64 < 64 {
            let used = (1u64 << (frames % 64)) - 1;
            words.iter_mut().for_each(|words| words[at as usize] &= used);
        }
    }
    words.into_iter().map(|words| RunSet::from_words(0, &words)).collect()
}

fn with_hole(mut native: Vec<RunSet>, frame: u64) -> Vec<RunSet> {
    let _ = native.iter_mut().any(|set| set.remove(frame));
    native
}

fn with_dead(mut native: Vec<RunSet>) -> Vec<RunSet> {
    if let Some(last) = native.last_mut() {
        *last = RunSet::new();
    }
    native
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|word| Some(word.parse::<f64>().ok()? as u64));
    let frames = arguments.next().unwrap_or(1_000_000_000);
    let ranks: Vec<u64> = arguments.collect();
    for ranks in if ranks.is_empty() { vec![1, 8] } else { ranks } {
        let robin: Vec<RunSet> = (0..ranks)
            .map(|first| Run::new(first, (frames - first).div_ceil(ranks), ranks).expect("a valid run"))
            .map(RunSet::from_run)
            .collect();
        let name = |what: &str| format!("{frames} frames, {ranks} ranks, {what}");
        measure(&name("round robin"), frames, &robin);
        measure(&name("round robin, a hole"), frames, &with_hole(robin.clone(), frames / 3));
        measure(&name("round robin, a node dead"), frames, &with_dead(robin));
        let random = random(frames, ranks);
        measure(&name("random"), frames, &random);
        measure(&name("random, a hole"), frames, &with_hole(random.clone(), frames / 3));
        measure(&name("random, a node dead"), frames, &with_dead(random));
    }
}
