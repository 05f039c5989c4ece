//! Many runs side by side: one thread each, as many at once as there are processors and memory.
//!
//! Invariants: results do not depend on how many run at once; what was finished is kept when the
//! user interrupts.

use crate::output;
use indicatif::ProgressBar;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::record::{RunRecord, digest};
use zazen_sim::{Job, memory_bytes};

/// Part of the machine's free memory that runs may take together.
const MEMORY_SHARE: f64 = 0.8;

/// How to run.
pub(crate) struct Sweep<'a> {
    pub(crate) jobs: &'a [Job],
    /// Where finished runs are kept.
    pub(crate) out: Option<&'a Path>,
    /// Whether runs that are kept there are not done again.
    pub(crate) resume: bool,
    pub(crate) threads: Option<usize>,
    /// Bytes that runs may take together; without it, a share of what is free.
    pub(crate) memory: Option<u64>,
}

/// The records in the order of the jobs; `None` for those that an interruption kept from being
/// done.
pub(crate) fn run(sweep: &Sweep) -> Result<Vec<Option<RunRecord>>> {
    let threads = threads(sweep)?;
    let found: Vec<Option<RunRecord>> = match sweep.out.filter(|_| sweep.resume) {
        Some(out) => sweep.jobs.iter().map(|job| kept(out, job)).collect(),
        None => vec![None; sweep.jobs.len()],
    };
    let todo: Vec<usize> = (0..sweep.jobs.len()).rev().filter(|index| found[*index].is_none()).collect();
    if sweep.resume && todo.len() < sweep.jobs.len() {
        output::note(format!(
            "{} of {} runs are done already",
            sweep.jobs.len() - todo.len(),
            sweep.jobs.len()
        ));
    }
    let steps: u64 = todo.iter().map(|index| steps_of(&sweep.jobs[*index])).fold(0, u64::saturating_add);
    let bar = output::steps_bar(steps, "simulating");
    let interrupted = Arc::new(AtomicBool::new(false));
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    let hooks: Vec<_> = signals
        .into_iter()
        // A second signal ends the process at once: a step that is never asked may take long.
        .flat_map(|signal| {
            let second = signal_hook::flag::register_conditional_default(signal, interrupted.clone());
            [second, signal_hook::flag::register(signal, interrupted.clone())]
        })
        .flatten()
        .collect();
    let results = Mutex::new(found);
    let failure = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(todo.len()) {
            scope.spawn(|| {
                while let Some(index) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match one(&sweep.jobs[*index], sweep.out, &interrupted, &bar, &done) {
                        Ok(record) => {
                            results.lock().unwrap_or_else(PoisonError::into_inner)[*index] = record;
                        }
                        Err(error) => {
                            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                            interrupted.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    hooks.into_iter().for_each(|hook| {
        signal_hook::low_level::unregister(hook);
    });
    bar.finish_and_clear();
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn steps_of(job: &Job) -> u64 {
    job.work.steps(job.ranks())
}

fn one(
    job: &Job,
    out: Option<&Path>,
    interrupted: &AtomicBool,
    bar: &ProgressBar,
    done: &AtomicU64,
) -> Result<Option<RunRecord>> {
    if interrupted.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut before = 0;
    let outcome = zazen_sim::run(job, &mut |progress| {
        let all = done.fetch_add(progress.steps - before, Ordering::Relaxed) + progress.steps - before;
        before = progress.steps;
        bar.set_position(all);
        match interrupted.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let outcome = outcome.map_err(|error| error.within(format!("{} at {} nodes", job.name, job.nodes)))?;
    let Some(outcome) = outcome else { return Ok(None) };
    done.fetch_add(steps_of(job).saturating_sub(before), Ordering::Relaxed);
    let text = RunRecord::new(job, &outcome).to_json()?;
    if let Some(out) = out {
        super::files::write_whole(&place(out, job), &text)?;
    }
    // The last digit of a number may change when it is read back. So each record is read back,
    // whether it was kept or not: `--resume` gives the same bytes.
    RunRecord::from_json(&text).map(Some)
}

fn place(out: &Path, job: &Job) -> PathBuf {
    out.join("runs").join(format!("{}.json", digest(job)))
}

/// The record of a run that was finished before; nothing if there is none, or it was cut.
fn kept(out: &Path, job: &Job) -> Option<RunRecord> {
    let text = std::fs::read_to_string(place(out, job)).ok()?;
    RunRecord::from_json(&text).ok().filter(|record| record.job == digest(job))
}

/// How many runs fit side by side. `NoSpace` if the largest one alone does not fit into memory.
fn threads(sweep: &Sweep) -> Result<usize> {
    let mut needs = sweep.jobs.iter().map(memory_bytes).collect::<Result<Vec<u64>>>()?;
    needs.sort_unstable_by(|one, other| other.cmp(one));
    let free = free_memory().map(|free| (free as f64 * MEMORY_SHARE) as u64);
    let limit = sweep.memory.or(free).unwrap_or(u64::MAX);
    let largest = needs.first().copied().unwrap_or(0);
    if largest > limit {
        let show = zazen_core::byte_size::show;
        let why = format!(
            "the largest run needs about {} of memory, and {} may be used; simulate fewer nodes, choose \
             --fidelity path, or raise --memory",
            show(largest),
            show(limit)
        );
        return Err(Error::new(ErrorKind::NoSpace, why));
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = sweep.threads.unwrap_or(processors).max(1);
    let mut sum = 0_u64;
    let fitting = needs.iter().take_while(|need| {
        sum = sum.saturating_add(**need);
        sum <= limit
    });
    Ok(wanted.min(fitting.count().max(1)))
}

/// Memory that the kernel says can be had.
pub(super) fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
