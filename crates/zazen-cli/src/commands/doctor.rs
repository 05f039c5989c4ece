//! `zazen doctor`: looks at all nodes, and says what is wrong and what to do.
//!
//! Nodes tell facts (`facts.rs`), `judge.rs` compares them; this file asks and prints.

mod facts;
mod judge;

use crate::output::{self, Lines, Table, human_bytes};
use crate::target::{Done, Missed, Node, Targets};
use clap::Args;
use facts::{Facts, Looked};
use judge::{Finding, Level, judge};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_client::cluster::Remote;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::control::{BALLAST_BYTES_MAX, Examine};

/// How long a node may take to answer that it is there.
const PING_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to look at itself: a backing store that hangs is part of that.
const LOOK_WITHIN: Duration = Duration::from_secs(60);
/// How long messages of several packets may take, once others have arrived.
const BALLAST_WITHIN: Duration = Duration::from_secs(15);
/// How often the clock is looked at; the quickest answer counts.
const CLOCK_LOOKS: usize = 3;
/// Written to each cache's disk and read again.
const DISK_BYTES: u64 = 64 << 20;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen doctor --nodes nodes.txt --key /etc/zazen/key     # all nodes
  zazen doctor                                            # this machine's daemon
  zazen doctor --nodes nodes.txt --json | jq '.findings[]'

It looks at what answers, versions, kernels, limits, clocks, the network's packet sizes, the cache
disks (it writes 64 MiB to each and reads them again), permissions, keys, backing stores, and
settings that wait for a restart. Nodes are examined for root, the daemon's user and key holders.

Exit code 0 if there is no problem (there may be advice), 1 if there is one.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    targets: Targets,
    /// Do not measure the cache disks
    #[arg(long)]
    no_disk: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Doctor) -> Result<Done> {
    let nodes = arguments.targets.nodes()?;
    let disk_bytes = if arguments.no_disk { 0 } else { DISK_BYTES };
    // A dead node costs its whole time limit: all are asked at once.
    let looked: Vec<Looked> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            nodes.iter().map(|node| (node, scope.spawn(move || look(node, disk_bytes)))).collect();
        let end = |(node, thread): (&Node, std::thread::ScopedJoinHandle<'_, Looked>)| {
            let ended = || {
                let text = "the thread that asked it ended early, a bug; please report it";
                Looked::missed(node, Missed::new(node, Error::new(ErrorKind::Unavailable, text)))
            };
            thread.join().unwrap_or_else(|_| ended())
        };
        asked.into_iter().map(end).collect()
    });
    let findings = judge(&looked, env!("CARGO_PKG_VERSION"));
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, advice) = (count(Level::Problem), count(Level::Advice));
    match arguments.json {
        true => output::json(&json!({
            "nodes": looked.iter().map(as_json).collect::<Vec<_>>(),
            "findings": findings.iter().map(Finding::as_json).collect::<Vec<_>>(),
            "problems": problems,
            "advice": advice,
        })),
        false => output::print(&report(&looked, &findings)),
    }
    match problems {
        0 => Ok(Done::Wholly),
        1 => Err(Error::new(ErrorKind::Config, "doctor: 1 problem; the report says what to do")),
        _ => Err(Error::new(
            ErrorKind::Config,
            format!("doctor: {problems} problems; the report says what to do"),
        )),
    }
}

fn look(node: &Node, disk_bytes: u64) -> Looked {
    let begun = node.connect().and_then(|mut remote| {
        remote.set_timeout(Some(PING_WITHIN));
        let info = remote.hello()?;
        Ok((remote, info))
    });
    let (mut remote, info) = match begun {
        Ok(begun) => begun,
        Err(error) => return Looked::missed(node, Missed::new(node, error)),
    };
    let mut looked = Looked { version: Some(info.version), ..Looked::named(&info.name, node) };
    match examine(&mut remote, disk_bytes, &mut looked) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            looked.not_examined = Some(error.to_string())
        }
        Err(error) => looked.missed = Some(Missed::new(node, error)),
    }
    looked
}

fn examine(remote: &mut Remote, disk_bytes: u64, looked: &mut Looked) -> Result<()> {
    remote.set_timeout(Some(LOOK_WITHIN));
    for _ in 0..CLOCK_LOOKS {
        let (begin, before) = (Instant::now(), wall_s());
        let facts = ask(remote, 0, 0)?;
        let round_trip_s = begin.elapsed().as_secs_f64();
        if looked.round_trip_s.is_none_or(|least| round_trip_s < least) {
            #[allow(clippy::cast_precision_loss)] // to a microsecond
            let theirs = facts.wall_ns as f64 / 1e9;
            looked.round_trip_s = Some(round_trip_s);
            looked.clock_offset_s = Some(theirs - (before + round_trip_s / 2.0));
        }
        looked.facts = Some(facts);
    }
    remote.set_timeout(Some(
        BALLAST_WITHIN + LOOK_WITHIN.min(Duration::from_secs_f64(3.0 * looked.round_trip_s.unwrap_or(0.0))),
    ));
    if let Err(error) = ask(remote, 0, BALLAST_BYTES_MAX) {
        looked.large_messages = Some(error.to_string());
        return Ok(());
    }
    if disk_bytes > 0 {
        remote.set_timeout(Some(LOOK_WITHIN));
        looked.facts = Some(ask(remote, disk_bytes, 0)?);
    }
    Ok(())
}

fn ask(remote: &mut Remote, disk_bytes: u64, ballast: usize) -> Result<Facts> {
    #[allow(clippy::cast_possible_truncation)] // at most BALLAST_BYTES_MAX
    let how = Examine { disk_bytes, answer_bytes: ballast as u32, ballast: vec![0; ballast] };
    let text = remote.examine(&how)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("{}: its facts: {error}", remote.target())))
}

fn wall_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn as_json(looked: &Looked) -> Value {
    json!({
        "node": looked.name,
        "target": looked.target,
        "state": looked.missed.as_ref().map_or("up", |missed| missed.state.word()),
        "version": looked.version,
        "clock_offset_s": looked.clock_offset_s,
        "round_trip_s": looked.round_trip_s,
        "facts": looked.facts,
    })
}

fn report(looked: &[Looked], findings: &[Finding]) -> Lines {
    let mut table = Table::new(&[
        "node",
        "state",
        "version",
        "kernel",
        ">clock",
        ">MTU",
        ">disk writes",
        ">disk reads",
        ">budget",
    ]);
    for one in looked {
        let dash = || "-".to_owned();
        let of =
            |fact: &dyn Fn(&Facts) -> Option<String>| one.facts.as_ref().and_then(fact).unwrap_or_else(dash);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rate, for people
        let rate = |rate: Option<f64>| Some(format!("{}/s", human_bytes(rate? as u64)));
        table.row(vec![
            one.name.clone(),
            one.missed.as_ref().map_or("up", |missed| missed.state.word()).to_owned(),
            one.version.clone().unwrap_or_else(dash),
            of(&|facts| Some(facts.kernel.clone())),
            one.clock_offset_s.map_or_else(dash, |offset| format!("{offset:+.3} s")),
            of(&|facts| Some(facts.mtu()?.to_string())),
            of(&|facts| rate(facts.rate(|measured| measured.write_bytes_per_s))),
            of(&|facts| rate(facts.rate(|measured| measured.read_bytes_per_s))),
            of(&|facts| Some(human_bytes(facts.caches.iter().map(|cache| cache.budget).sum()))),
        ]);
    }
    let mut text = table.render();
    for finding in findings {
        let level = finding.level.word();
        text.line(format!("{level}: {}: {}: {}", finding.node, finding.check, finding.what));
        text.line(format!("    {}", finding.remedy));
    }
    if findings.is_empty() {
        let nodes = if looked.len() == 1 { "the node is" } else { "all nodes are" };
        text.line(format!("{nodes} well"));
    }
    text
}

impl Looked {
    fn named(name: &str, node: &Node) -> Looked {
        Looked { name: name.to_owned(), target: node.target.to_string(), ..Looked::default() }
    }

    fn missed(node: &Node, missed: Missed) -> Looked {
        Looked { missed: Some(missed), ..Looked::named(&node.name, node) }
    }
}
