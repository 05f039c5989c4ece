//! Runs seeds until one breaks a promise; `make vopr`.

use clap::Parser;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use zazen_vopr::{Fidelity, Mutant, Outcome, Planted, Stats, run, tell, tell_namespace};

/// Simulates whole clusters with faults, one for each seed, and checks that no promise is broken.
#[derive(Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Runs this seed alone, twice, and compares the traces.
    #[arg(long)]
    seed: Option<u64>,
    /// With `--seed`: prints what happens.
    #[arg(long)]
    story: bool,
    /// Plants a bug, by its name; without a value the names are listed.
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    mutant: Option<String>,
    /// Simulates namespaces instead of caches.
    #[arg(long)]
    namespace: bool,
    /// With `--namespace`: packets go over a network of the simulator, loggp, path, flow or hop,
    /// and meet the faults above it.
    #[arg(long, requires = "namespace", value_name = "FIDELITY")]
    over: Option<Fidelity>,
    /// Threads, each of which runs seeds of its own.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.namespace {
        return namespaces(&arguments);
    }
    let mutant = arguments.mutant.as_deref().map(|name| (name, Mutant::named(name)));
    if let Some((name, None)) = mutant {
        for mutant in Mutant::ALL {
            say(&format!("{mutant:?}"));
        }
        return if name.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mutant = mutant.and_then(|(_, mutant)| mutant);
    match arguments.seed {
        Some(seed) => one(seed, mutant, arguments.story),
        None => many(&arguments, mutant),
    }
}

#[allow(clippy::print_stdout)] // a front end
fn say(line: &str) {
    println!("{line}");
}

fn one(seed: u64, mutant: Option<Mutant>, in_words: bool) -> ExitCode {
    let (first, story) = tell(seed, mutant, in_words);
    let second = run(seed, mutant);
    story.iter().for_each(|line| say(line));
    say(&format!("seed {seed}: trace {:016x}, {:?}", first.trace, first.stats));
    if let Some(violation) = &first.violation {
        say(&format!("seed {seed}: {violation}"));
    }
    if first != second {
        say(&format!("seed {seed}: a second run has the trace {:016x}; runs must not differ", second.trace));
    }
    if first.violation.is_none() && first == second { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The same for namespaces.
fn namespaces(arguments: &Arguments) -> ExitCode {
    let named = |name: &String| {
        Planted::ALL.iter().copied().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name))
    };
    let planted = arguments.mutant.as_ref().map(named);
    if planted == Some(None) {
        Planted::ALL.iter().for_each(|bug| say(&format!("{bug:?}")));
        return ExitCode::FAILURE;
    }
    let planted = planted.flatten();
    if let Some(seed) = arguments.seed {
        let (first, story) = tell_namespace(seed, planted, arguments.over, arguments.story);
        story.iter().for_each(|line| say(line));
        say(&format!("seed {seed}: {first:?}"));
        let same = first == tell_namespace(seed, planted, arguments.over, false).0;
        if !same {
            say(&format!("seed {seed}: a second run differs; runs must not differ"));
        }
        return if first.violation.is_none() && same { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let start = Instant::now();
    let end = arguments.from.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.from);
    let sums = Mutex::new((0, 0, 0));
    let found: Mutex<Option<(u64, String)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_found = found.lock().unwrap_or_else(PoisonError::into_inner).is_some();
                    if seed >= end || is_found {
                        return;
                    }
                    let outcome = tell_namespace(seed, planted, arguments.over, false).0;
                    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                    *sums = (sums.0 + outcome.events, sums.1 + outcome.answers, sums.2 + outcome.faults);
                    drop(sums);
                    if let Some(violation) = outcome.violation {
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        if found.as_ref().is_none_or(|(other, _)| seed < *other) {
                            *found = Some((seed, violation));
                        }
                    }
                }
            });
        }
    });
    let (events, answers, faults) = *sums.lock().unwrap_or_else(PoisonError::into_inner);
    let ran = next.load(Ordering::Relaxed).min(end) - arguments.from;
    say(&format!(
        "{ran} namespaces from seed {} on in {:.1} s: {events} events, {answers} answers, {faults} faults",
        arguments.from,
        start.elapsed().as_secs_f64()
    ));
    match found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => ExitCode::SUCCESS,
        Some((seed, violation)) => {
            say(&format!("seed {seed} breaks a promise: {violation}"));
            let over = arguments.over.map_or(String::new(), |over| format!(" --over {}", over.name()));
            let again = format!("cargo run -p zazen-vopr -- --namespace{over} --seed {seed} --story");
            say(&format!("to see it again: {again}"));
            ExitCode::FAILURE
        }
    }
}

fn many(arguments: &Arguments, mutant: Option<Mutant>) -> ExitCode {
    let start = Instant::now();
    let end = arguments.from.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.from);
    let found: Mutex<Option<(u64, Outcome)>> = Mutex::new(None);
    let total: Mutex<Stats> = Mutex::default();
    let is_found = || found.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || is_found() {
                        return;
                    }
                    let outcome = run(seed, mutant);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.events += outcome.stats.events;
                    total.pushed += outcome.stats.pushed;
                    total.read += outcome.stats.read;
                    total.net_faults += outcome.stats.net_faults;
                    total.ends += outcome.stats.ends;
                    total.virtual_ms += outcome.stats.virtual_ms;
                    drop(total);
                    if outcome.violation.is_some() {
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        let is_lower = found.as_ref().is_none_or(|(other, _)| seed < *other);
                        if is_lower {
                            *found = Some((seed, outcome));
                        }
                    }
                }
            });
        }
    });
    let total = *total.lock().unwrap_or_else(PoisonError::into_inner);
    let ran = next.load(Ordering::Relaxed).min(end) - arguments.from;
    say(&format!(
        "{ran} seeds from {} on in {:.1} s: {total:?}",
        arguments.from,
        start.elapsed().as_secs_f64()
    ));
    match found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => ExitCode::SUCCESS,
        Some((seed, outcome)) => {
            let violation = outcome.violation.unwrap_or_default();
            let planted = mutant.map_or(String::new(), |mutant| format!(" --mutant {mutant:?}"));
            say(&format!("seed {seed} breaks a promise: {violation}"));
            say(&format!("to see it again: cargo run -p zazen-vopr -- --seed {seed}{planted}"));
            ExitCode::FAILURE
        }
    }
}
