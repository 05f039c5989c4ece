//! `zazen bench assign`: the assignment protocol at any scale, its ranks as threads or under an MPI
//! launcher.

use super::model::{Elsewhere, Modelled};
use super::options::Assign;
use super::placement::Plan;
use super::rates::Rates;
use super::report::{Memory, Report};
use super::sample::{RankReport, Task, run_rank};
use super::side::{Side, name};
use crate::output;
use zazen_assign::{Collectives, Protocol, threads};
use zazen_client::testbed_env::launcher_rank;
use zazen_core::{Error, ErrorKind, Result};
use zazen_mpi::{MpiCollectives, Started, launched_ranks};

pub(crate) fn run(arguments: &Assign) -> Result<()> {
    let launched = launched_ranks();
    let task = match arguments.task(launched) {
        Ok(task) => task,
        // Every rank finds the same mistake; one tells it, and the others do not end the job before
        // it has.
        Err(_) if launched.is_some() && launcher_rank().is_some_and(|rank| rank != 0) => return Ok(()),
        Err(error) => return Err(error),
    };
    let ranks = arguments.ranks(launched);
    // A launcher of one rank needs no MPI.
    let (carrier, reports) = match launched.filter(|ranks| *ranks > 1) {
        None => ("threads of one process".to_owned(), on_threads(&task, ranks)?),
        Some(launched) => match under_launcher(&task, launched)? {
            Some(done) => done,
            None => return Ok(()),
        },
    };
    finish(arguments, &task, ranks, &carrier, &reports)
}

/// The ranks as threads; reports by rank.
fn on_threads(task: &Task, ranks: usize) -> Result<Vec<RankReport>> {
    let results = threads::run(ranks, |member| run_rank(task, member));
    // A rank that only waited for another says less than the one that failed.
    let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let mut errors: Vec<Error> = failed.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() == ErrorKind::Unavailable);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(done.into_iter().flatten().flatten().collect()),
    }
}

/// This process as one rank of MPI_COMM_WORLD. The carrier's name and the reports by rank, on rank
/// 0.
fn under_launcher(task: &Task, launched: usize) -> Result<Option<(String, Vec<RankReport>)>> {
    let started = Started::new()?;
    let work = || {
        let collectives = MpiCollectives::world()?;
        if collectives.size() != launched {
            let context = format!(
                "the launcher says that it started {launched} ranks, but MPI_COMM_WORLD has {}; use the \
                 mpiexec that belongs to {}",
                collectives.size(),
                started.file()
            );
            return Err(Error::new(ErrorKind::Mpi, context));
        }
        let reports = run_rank(task, &collectives)?;
        Ok((collectives.rank() == 0).then_some(reports))
    };
    match work() {
        Ok(reports) => Ok(reports.map(|reports| (format!("MPI ({})", started.file()), reports))),
        Err(error) => {
            // The others may be in a collective: MPI_Finalize would wait for them, our exit ends
            // the job.
            std::mem::forget(started);
            Err(error.within(format!("rank {}", launcher_rank().unwrap_or(0))))
        }
    }
}

fn finish(
    arguments: &Assign,
    task: &Task,
    ranks: usize,
    carrier: &str,
    reports: &[RankReport],
) -> Result<()> {
    let frames = task.plan.frames;
    let side = |(at, protocol): (usize, &Protocol)| Side::of(*protocol, at, reports, frames);
    let sides: Vec<Side> = task.protocols.iter().enumerate().map(side).collect();
    let rates: Vec<Rates> = reports.iter().filter_map(|report| report.rates).collect();
    let rates = (!rates.is_empty()).then(|| Rates::median(&rates));
    let elsewhere = match (arguments.elsewhere(), rates) {
        (Some(there), Some(rates)) => Some((there, modelled(task, &there, &sides, ranks, carrier, &rates)?)),
        _ => None,
    };
    let report = Report {
        title: arguments.title(task, ranks, carrier),
        setting: arguments.setting(task, ranks, carrier),
        frames,
        ranks,
        sides,
        rates,
        memory: Memory::of(reports),
        elsewhere,
    };
    if arguments.json {
        output::json(&report.as_json());
    } else {
        output::print(&report.as_text());
    }
    match report.sides.iter().find(|side| !side.adds_up) {
        None => Ok(()),
        Some(side) => Err(Error::new(
            ErrorKind::Protocol,
            format!(
                "protocol {}: the ranks' shares are not the {frames} frames asked for, each once; please \
                 report the command line",
                side.protocol
            ),
        )),
    }
}

/// The owner protocol's local work and bytes depend on the number of nodes: it is run once more
/// among as many ranks as the model has nodes, as threads. That of the bitmaps does not.
fn modelled(
    task: &Task,
    there: &Elsewhere,
    sides: &[Side],
    ranks: usize,
    carrier: &str,
    rates: &Rates,
) -> Result<Vec<(&'static str, Modelled)>> {
    let frames = task.plan.frames;
    let as_there = ranks == there.nodes && task.plan.nodes as usize == ranks;
    let mut times = Vec::new();
    for side in sides {
        let rerun = side.protocol == name(Protocol::Owner) && !(as_there && carrier.starts_with("threads"));
        if !rerun {
            times.push((side.protocol, there.time(side, frames, rates)));
            continue;
        }
        let plan = Plan { nodes: there.nodes as u64, ..task.plan.clone() };
        let again = Task {
            plan,
            protocols: vec![Protocol::Owner],
            repeats: task.repeats.min(3),
            rates: false,
            one_process: true,
            ..*task
        };
        let reports = on_threads(&again, there.nodes)?;
        let side = Side::of(Protocol::Owner, 0, &reports, frames);
        times.push((side.protocol, there.time(&side, frames, rates)));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::parse;
    use super::*;

    fn measure(line: &str) -> serde_json::Value {
        let arguments = parse(line);
        let (task, ranks) = (arguments.task(None).unwrap(), arguments.ranks(None));
        let reports = on_threads(&task, ranks).unwrap();
        assert_eq!(reports.len(), ranks);
        let side = |(at, protocol): (usize, &Protocol)| Side::of(*protocol, at, &reports, task.plan.frames);
        let rates: Vec<Rates> = reports.iter().filter_map(|report| report.rates).collect();
        let report = Report {
            title: arguments.title(&task, ranks, "threads"),
            setting: arguments.setting(&task, ranks, "threads"),
            frames: task.plan.frames,
            ranks,
            sides: task.protocols.iter().enumerate().map(side).collect(),
            rates: (!rates.is_empty()).then(|| Rates::median(&rates)),
            memory: Memory::of(&reports),
            elsewhere: None,
        };
        assert!(report.as_text().as_str().contains("adds up"));
        report.as_json()
    }

    #[test]
    fn every_placement_is_assigned_whole_by_both_protocols() {
        for (line, paths, residue) in [
            ("--placement round-robin", ["fingerprint", "exchange"], 0),
            ("--placement contiguous --ranks-per-node 2", ["fingerprint", "exchange"], 0),
            ("--placement random", ["fingerprint", "exchange"], 0),
            ("--placement random --verify exact", ["exchange", "exchange"], 0),
            ("--placement holes --hole-share 1e-3", ["exchange", "exchange"], 100),
            ("--placement round-robin --dead-nodes 1", ["exchange", "exchange"], 25_000),
            ("--placement aliens --rules paper", ["exchange", "exchange"], 1),
            ("--placement aliens", ["exchange", "exchange"], 0),
        ] {
            let report = measure(&format!("{line} --frames 100000 --ranks 4 --repeats 2 --protocol both"));
            for (side, path) in report["protocols"].as_array().unwrap().iter().zip(paths) {
                assert_eq!(side["adds_up"], true, "{line}: {side}");
                assert_eq!(side["path"], path, "{line}: {side}");
                assert_eq!(side["residue"], residue, "{line}: {side}");
            }
            assert!(report["bitmaps_over_owner"].as_f64().unwrap() > 0.0);
            let rounds = report["model"]["rounds"].as_array().unwrap();
            assert!(rounds.iter().any(|row| row["round"] == "natives"), "{line}: {rounds:?}");
        }
    }
}
