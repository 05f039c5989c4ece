//! Runs each target a bounded number of times, from a seed: some seconds for each.
//! `ZAZEN_FUZZ_SEED` and `ZAZEN_FUZZ_RUNS` (a factor, 40 by default) run others and more. A failure
//! says how to repeat it.

use std::panic::catch_unwind;
use zazen_env::SeededRandom;
use zazen_fuzz::{TARGETS, mutate::mutate};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn no_input_makes_a_decoder_panic() {
    let (seed, factor) = (setting("ZAZEN_FUZZ_SEED", 1), setting("ZAZEN_FUZZ_RUNS", 40));
    std::thread::scope(|scope| {
        for target in TARGETS {
            scope.spawn(move || {
                let seeds = (target.seeds)();
                let mut random = SeededRandom::new(seed);
                let begun = std::time::Instant::now();
                for run in 0..seeds.len() as u64 + u64::from(target.runs) * factor {
                    let first = seeds.get(run as usize).cloned();
                    let input = first.unwrap_or_else(|| mutate(&mut random, &seeds));
                    if catch_unwind(|| (target.run)(&input)).is_err() {
                        panic!(
                            "target {}, ZAZEN_FUZZ_SEED={seed}, run {run}; its input is {}",
                            target.name,
                            hex(&input)
                        );
                    }
                }
                println!(
                    "{}: {} seeds, {} runs in {:?}",
                    target.name,
                    seeds.len(),
                    target.runs,
                    begun.elapsed()
                );
            });
        }
    });
}
