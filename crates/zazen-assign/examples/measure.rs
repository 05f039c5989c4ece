//! One-off timings of the protocols over in-process ranks: `cargo run --release -p zazen-assign --example measure`.

#![allow(clippy::print_stdout)]

use std::time::Instant;
use zazen_assign::{Collectives, Input, Protocol, Rules, assign, threads};
use zazen_core::{Request, Run, RunSet};

const RANKS: usize = 8;

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

fn measure(name: &str, inputs: &[Input]) {
    for (protocol, exact) in [(Protocol::Owner, false), (Protocol::Owner, true), (Protocol::Bitmaps, true)] {
        let started = Instant::now();
        let shares = threads::run(inputs.len(), |carrier| {
            let input = Input { protocol, verify_exact: exact, ..inputs[carrier.rank()].clone() };
            assign(input, carrier)
        });
        let elapsed = started.elapsed();
        let shares: Result<Vec<_>, _> = shares.into_iter().collect();
        match shares {
            Err(error) => println!("{name}: {protocol:?} exact={exact}: {error}"),
            Ok(shares) => println!(
                "{name}: {protocol:?} exact={exact} {:?} {:.3} s, {} rounds, {} bytes from rank 0, total {:?}",
                shares[0].path,
                elapsed.as_secs_f64(),
                shares[0].rounds,
                shares[0].bytes_sent,
                shares[0].total
            ),
        }
    }
}

fn random(frames: u64, seed: u64) -> Vec<RunSet> {
    let mut state = seed;
    let mut frames_of: Vec<Vec<u64>> = vec![Vec::new(); RANKS];
    for frame in 0..frames {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        frames_of[(state >> 61) as usize].push(frame);
    }
    frames_of.into_iter().map(RunSet::from_ascending).collect()
}

fn main() {
    let robin = |frames: u64| -> Vec<RunSet> {
        let run = |first| Run::new(first, frames / RANKS as u64, RANKS as u64).expect("a valid run");
        (0..RANKS as u64).map(|first| RunSet::from_run(run(first))).collect()
    };
    let billion = 1_000_000_000;
    measure("10^9 round robin", &inputs(billion, &robin(billion)));
    let mut holed = robin(billion);
    holed[3].remove(400_000_003);
    measure("10^9 round robin, one hole", &inputs(billion, &holed));
    let mut dead = robin(billion);
    dead[5] = RunSet::new();
    measure("10^9 round robin, one node empty", &inputs(billion, &dead));
    dead[2] = RunSet::new();
    measure("10^9 round robin, two nodes empty", &inputs(billion, &dead));
    let placed = random(100_000_000, 1);
    measure("10^8 random", &inputs(100_000_000, &placed));
    let mut holed = placed.clone();
    let _ = holed.iter_mut().any(|set| set.remove(50_000_000));
    measure("10^8 random, one hole", &inputs(100_000_000, &holed));
    let mut double = inputs(10_000_000, &random(10_000_000, 1));
    random(10_000_000, 2).into_iter().zip(&mut double).for_each(|(set, input)| {
        input.native = input.native.union(&set);
    });
    measure("10^7 random, each pushed twice", &double);
}
