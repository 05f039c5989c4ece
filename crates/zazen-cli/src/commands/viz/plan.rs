//! `zazen viz plan`: which rank would read which file of a visualization.

use super::ranks::{read, same_host};
use super::shown::files_text;
use crate::output::{self, Lines, Table, human_bytes};
use crate::target::Targets;
use clap::Args;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use zazen_client::Target;
use zazen_core::{Error, ErrorKind, Result};
use zazen_locate::{
    FrameCaches, Hdfs, HdfsUrl, HostsTable, InNamespace, Located, Locations, Locator, OpenedIndex, Storage,
    open_index_with,
};
use zazen_match::{FileAt, Matched, Problem, Strategy, match_files, sticky};

/// Steps and ranks that the table shows.
const SHOWN_MAX: usize = 40;
/// Hosts that a note names.
const NAMED_MAX: usize = 8;
/// One map for all time steps.
const STICKY: &str = "sticky";

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen viz plan /lustre/ocean/ts.vtm.series --ranks hosts.txt
  zazen viz plan '/lustre/ocean/step{t}/block{b}.vtu' --ranks hosts.txt --step 0
  zazen viz plan ts.pvd --ranks hosts.txt --hosts table.txt --strategy bytes --json
  zazen viz plan hdfs://namenode/ocean/ts.vtm.series --ranks hosts.txt
  zazen viz plan namespace:/ocean/ts.vtm.series --ranks hosts.txt

hosts.txt has the host of each rank, as for mpiexec: a host a line, HOST:RANKS, or HOST slots=RANKS.
Without --hosts and --hdfs, the caches of the nodes are asked (--nodes, the testbed, or
$ZAZEN_NODES). Of files in the namespace, in a mount of it or by namespace:/PATH, one of these nodes
is asked.")]
pub(super) struct Plan {
    /// An index (.vtm.series, .pvd, .vtm, .vtpd, .pvtu, .csv, …), or a pattern with {t} and {b}
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// The hosts of the job's ranks
    #[arg(long, value_name = "FILE")]
    ranks: PathBuf,
    /// blind, first-come, scarcest, least-demand, optimal, bytes, or sticky
    #[arg(long, value_name = "NAME", default_value = "optimal")]
    strategy: String,
    /// Only this time step, counted from 0
    #[arg(long, value_name = "STEP")]
    step: Option<usize>,
    /// A table of which hosts hold which files
    #[arg(long, value_name = "FILE", conflicts_with = "hdfs")]
    hosts: Option<PathBuf>,
    /// The files are in HDFS too, beneath this directory: hdfs://HOST[:WEB PORT]/DIRECTORY
    #[arg(long, value_name = "URL")]
    hdfs: Option<String>,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a step needs.
struct Planned {
    time: f64,
    files: usize,
    remote: u64,
    bound: u64,
    remote_bytes: u64,
    bytes: u64,
    bytes_max: u64,
    bytes_mean: u64,
    assigned: Vec<Vec<u32>>,
}

pub(super) fn run(arguments: &Plan) -> Result<()> {
    let ranks = read(&arguments.ranks)?;
    let opened = open_index_with(&arguments.index, &|| arguments.targets.namespace())?;
    let wanted = arguments.steps(&opened)?;
    // A map that stays is one of all steps, whichever are shown.
    let steps = if arguments.strategy == STICKY { all_of(&opened) } else { wanted.clone() };
    if let Some(note) = &opened.note {
        output::note(note);
    }
    for step in &wanted {
        if let Some(trouble) = &opened.index.steps[*step].trouble {
            output::note(format!("step {step}, time {}: {trouble}", opened.index.steps[*step].time));
        }
    }
    let mut locator = arguments.locator(&opened)?;
    // All files are located at one moment.
    let all: Vec<String> = steps.iter().flat_map(|step| opened.place.steps[*step].iter().cloned()).collect();
    let found = locator.locate(&all)?;
    let missing = arguments.missing(&opened, &found, &all);
    tell_troubles(&*locator, &found, &all, &missing);
    let (mut rest, mut rest_missing) = (&found.files[..], &missing[..]);
    let mut located: Vec<&[Located]> = Vec::new();
    // A step that cannot be shown has no part in a map of all steps: the reader leaves it out, too.
    let mut is_shown = Vec::new();
    for step in &steps {
        let files = opened.place.steps[*step].len();
        let (own, own_missing);
        (own, rest) = rest.split_at(files);
        (own_missing, rest_missing) = rest_missing.split_at(files);
        located.push(own);
        is_shown.push(!own_missing.contains(&true));
    }
    let names = host_names(&ranks, &found);
    strangers(&names, &found).iter().for_each(output::note);
    let times: Vec<f64> = steps.iter().map(|step| opened.index.steps[*step].time).collect();
    let blocks: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            let files = opened.place.steps[*step].len();
            opened.index.steps[*step].tree.blocks_of_files(files)
        })
        .collect();
    let blocks: Vec<(Vec<String>, bool)> = blocks.into_iter().zip(is_shown).collect();
    let planned = plan(&names, &times, &located, &blocks, &arguments.strategy)?;
    let shown = steps.iter().zip(planned).filter(|(step, _)| wanted.contains(step));
    let (steps, planned): (Vec<usize>, Vec<Planned>) = shown.map(|(step, planned)| (*step, planned)).unzip();
    if arguments.json {
        return output::json_of("plan", &arguments.as_json(&opened, &steps, &ranks, &planned));
    }
    output::print(&as_table(&ranks, &planned, &*locator));
    Ok(())
}

fn all_of(opened: &OpenedIndex) -> Vec<usize> {
    (0..opened.index.steps.len()).collect()
}

/// Says what is odd about the places. `missing`: by file, whether there is none.
fn tell_troubles(locator: &dyn Locator, found: &Locations, files: &[String], missing: &[bool]) {
    for (node, error) in &found.silent {
        output::note(format!("{node} does not answer, so what it holds counts as remote: {error}"));
    }
    let split = || found.files.iter().zip(files).filter(|(file, _)| file.blocks > 1);
    if let Some((file, name)) = split().next() {
        output::note(format!(
            "{} of {} files are kept in several blocks ({name} in {}), so no node may have a whole file; a \
             file counts as local where most of its bytes are. Load them with a block size of at least the \
             file",
            split().count(),
            files.len(),
            file.blocks
        ));
    }
    let mut gone = files.iter().zip(missing).filter(|(_, missing)| **missing);
    if let Some((name, _)) = gone.next() {
        let more = gone.count();
        let others = if more > 0 { format!(" and {more} more files") } else { String::new() };
        output::note(format!(
            "{name}{others}: there is no such file, or it is empty; its step cannot be shown, and here it \
             counts as remote"
        ));
    }
    let held = found.files.iter().zip(missing);
    let nowhere = held.filter(|(file, missing)| file.replicas.is_empty() && !**missing).count();
    if nowhere > 0 {
        output::note(format!(
            "{nowhere} of {} files are on no node that {} knows of; load them with zazen load --copies",
            files.len(),
            locator.describe()
        ));
    }
}

/// Each rank's host by the locator's name for it.
fn host_names(ranks: &[String], found: &Locations) -> Vec<String> {
    let mut known: Vec<&str> = found
        .files
        .iter()
        .flat_map(|file| file.replicas.iter().map(|replica| replica.node.as_str()))
        .collect();
    known.sort_unstable();
    known.dedup();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let name = |rank: &String| {
        let same = known
            .iter()
            .find(|node| **node == rank)
            .or_else(|| known.iter().find(|node| same_host(node, rank)));
        same.map_or_else(|| rank.clone(), |node| (*node).to_owned())
    };
    for rank in ranks {
        names.entry(rank).or_insert_with(|| name(rank));
    }
    ranks.iter().map(|rank| names[rank.as_str()].clone()).collect()
}

/// What to say of ranks on hosts that hold none of the files: a list of ranks may name hosts in
/// another way than the nodes call themselves.
fn strangers(ranks: &[String], found: &Locations) -> Option<String> {
    let replicas = found.files.iter().flat_map(|file| &file.replicas);
    let holders: BTreeSet<&str> = replicas.map(|replica| replica.node.as_str()).collect();
    let alone: BTreeSet<&str> =
        ranks.iter().map(String::as_str).filter(|host| !holders.contains(host)).collect();
    let some = |hosts: &BTreeSet<&str>| {
        let shown: Vec<&str> = hosts.iter().copied().take(NAMED_MAX).collect();
        shown.join(", ") + if hosts.len() > NAMED_MAX { ", …" } else { "" }
    };
    (!alone.is_empty() && !holders.is_empty()).then(|| {
        let count = ranks.iter().filter(|host| alone.contains(host.as_str())).count();
        format!(
            "{count} of {} ranks are on hosts that hold none of the files ({}); the files are on {}",
            ranks.len(),
            some(&alone),
            some(&holders)
        )
    })
}

fn plan(
    ranks: &[String],
    times: &[f64],
    steps: &[&[Located]],
    blocks: &[(Vec<String>, bool)],
    strategy: &str,
) -> Result<Vec<Planned>> {
    let places = |files: &[Located]| -> Vec<FileAt<String>> {
        files.iter().map(|file| FileAt { bytes: file.bytes, holders: file.holders() }).collect()
    };
    let maps: Vec<(Vec<u32>, u64)> = if strategy == "sticky" {
        let all: Vec<_> = steps.iter().map(|files| places(files)).collect();
        let bound = |files: &Vec<FileAt<String>>| -> Result<u64> {
            Ok(match_files(&Problem::new(ranks, files)?, Strategy::Optimal, 0).bound)
        };
        let maps = sticky_maps(ranks, times, &all, blocks)?;
        maps.into_iter().zip(&all).map(|(map, files)| Ok((map, bound(files)?))).collect::<Result<_>>()?
    } else {
        let refuse = |error: Error| Error::new(error.kind(), format!("{} and sticky", error.context()));
        let strategy: Strategy = strategy.parse().map_err(refuse)?;
        let map = |files: &&[Located]| -> Result<(Vec<u32>, u64)> {
            let Matched { rank_of_file, bound, .. } =
                match_files(&Problem::new(ranks, &places(files))?, strategy, 0);
            Ok((rank_of_file, bound))
        };
        steps.iter().map(map).collect::<Result<_>>()?
    };
    let judged = steps.iter().zip(maps).zip(times);
    Ok(judged.map(|((files, (map, bound)), time)| judge(ranks, *time, files, &map, bound)).collect())
}

/// By step, the rank of each file, where a block has one rank in all steps. `blocks`: by step, the
/// block of each file, and whether the step can be shown. One that can't takes no part.
fn sticky_maps(
    ranks: &[String],
    times: &[f64],
    steps: &[Vec<FileAt<String>>],
    blocks: &[(Vec<String>, bool)],
) -> Result<Vec<Vec<u32>>> {
    let files_of: Vec<BTreeMap<&str, usize>> =
        blocks.iter().map(|(step, _)| step.iter().map(String::as_str).zip(0..).collect()).collect();
    let is_shown = |step: &usize| blocks[*step].1 && !files_of[*step].is_empty();
    let mut shown = (0..steps.len()).filter(is_shown);
    let Some(first) = shown.next() else {
        return Ok(files_of.iter().map(|files| vec![0; files.len()]).collect());
    };
    if let Some(other) = shown.find(|step| !files_of[*step].keys().eq(files_of[first].keys())) {
        let why = format!(
            "strategy sticky keeps each block on its rank, but the step of time {} has other blocks than \
             that of time {}; take another strategy",
            times[other], times[first]
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    // Steps may list the same blocks in unlike orders: the first one's counts.
    let order: Vec<&str> = blocks[first].0.iter().map(String::as_str).collect();
    let listed: Vec<Vec<FileAt<String>>> = (0..steps.len())
        .filter(is_shown)
        .map(|step| order.iter().map(|block| steps[step][files_of[step][block]].clone()).collect())
        .collect();
    let rank_of_block = sticky(ranks, &listed)?.rank_of_block;
    let map = |files: &BTreeMap<&str, usize>| {
        let mut ranks = vec![0; files.len()];
        for (block, rank) in order.iter().zip(&rank_of_block) {
            if let Some(file) = files.get(block) {
                ranks[*file] = *rank;
            }
        }
        ranks
    };
    Ok(files_of.iter().map(map).collect())
}

/// What a map costs.
fn judge(ranks: &[String], time: f64, files: &[Located], rank_of_file: &[u32], bound: u64) -> Planned {
    let mut assigned = vec![Vec::new(); ranks.len()];
    let mut load = vec![0_u64; ranks.len()];
    let (mut remote, mut remote_bytes) = (0, 0);
    for (file, (located, rank)) in files.iter().zip(rank_of_file).enumerate() {
        let rank = *rank as usize;
        assigned[rank].push(file as u32);
        remote += u64::from(!located.holders().contains(&ranks[rank]));
        remote_bytes += located.remote_bytes(&ranks[rank]);
        load[rank] += located.bytes;
    }
    let bytes: u64 = load.iter().sum();
    let bytes_max = load.iter().copied().max().unwrap_or(0);
    let bytes_mean = bytes / ranks.len() as u64;
    let files = files.len();
    Planned { time, files, remote, bound, remote_bytes, bytes, bytes_max, bytes_mean, assigned }
}

impl Plan {
    fn steps(&self, opened: &OpenedIndex) -> Result<Vec<usize>> {
        let count = opened.index.steps.len();
        match self.step {
            None => Ok(all_of(opened)),
            Some(step) if step < count => Ok(vec![step]),
            Some(step) => {
                let why = format!("step {step}: the index has {count} steps, counted from 0");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    /// By file, whether it is missing as far as this machine can tell.
    fn missing(&self, opened: &OpenedIndex, found: &Locations, files: &[String]) -> Vec<bool> {
        if opened.storage != Storage::Mounted {
            return found.files.iter().map(|file| file.bytes == 0 && file.replicas.is_empty()).collect();
        }
        // What is in HDFS need not be mounted here.
        let directory = PathBuf::from(&opened.place.directory);
        let is_missing = |file: &String| match std::fs::metadata(directory.join(file)) {
            Ok(file) => file.len() == 0,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        files.iter().map(|file| self.hdfs.is_none() && is_missing(file)).collect()
    }

    fn locator(&self, opened: &OpenedIndex) -> Result<Box<dyn Locator>> {
        let directory = PathBuf::from(&opened.place.directory);
        if let Some(table) = &self.hosts {
            return Ok(Box::new(HostsTable::read(table, &directory)?));
        }
        if let Some(url) = &self.hdfs {
            return Ok(Box::new(Hdfs::of_environment(HdfsUrl::parse(url)?)));
        }
        if let Storage::Hdfs(url) = &opened.storage {
            return Ok(Box::new(Hdfs::of_environment(url.clone())));
        }
        if let Some(directory) = opened.in_namespace()? {
            return Ok(Box::new(InNamespace::new(self.targets.namespace()?, &directory)));
        }
        let nodes = self.targets.nodes()?.into_iter().map(|node| {
            let host = match &node.target {
                Target::Tcp(addr) => addr.rsplit_once(':').map_or(addr.as_str(), |(host, _)| host).to_owned(),
                Target::Local(_) => node.name.clone(),
            };
            (host, node.target.clone(), node.key().cloned())
        });
        Ok(Box::new(FrameCaches {
            nodes: nodes.collect(),
            directory,
            template: opened.place.template.clone(),
        }))
    }

    fn as_json(
        &self,
        opened: &OpenedIndex,
        steps: &[usize],
        ranks: &[String],
        planned: &[Planned],
    ) -> serde_json::Value {
        let remote: u64 = planned.iter().map(|step| step.remote).sum();
        let files: usize = planned.iter().map(|step| step.files).sum();
        let of_step = |(step, planned): (&usize, &Planned)| {
            let names = &opened.place.steps[*step];
            let named =
                |files: &Vec<u32>| files.iter().map(|file| names[*file as usize].clone()).collect::<Vec<_>>();
            json!({
                "step": step, "time": planned.time, "files": planned.files, "remote": planned.remote,
                "bound": planned.bound, "bytes": planned.bytes, "remote_bytes": planned.remote_bytes,
                "bytes_max": planned.bytes_max, "bytes_mean": planned.bytes_mean,
                "assigned": planned.assigned.iter().map(named).collect::<Vec<_>>(),
            })
        };
        json!({
            "directory": opened.place.directory,
            "pattern": opened.place.template.as_ref().map(ToString::to_string),
            "strategy": self.strategy,
            "ranks": ranks,
            "files": files,
            "remote": remote,
            "bound": planned.iter().map(|step| step.bound).sum::<u64>(),
            "remote_share": share(remote, files as u64),
            "steps": steps.iter().zip(planned).map(of_step).collect::<Vec<_>>(),
        })
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn as_table(ranks: &[String], planned: &[Planned], locator: &dyn Locator) -> Lines {
    let mut text = Lines::default();
    if let [step] = planned {
        let mut table = Table::new(&["rank", "host", ">files", "which"]);
        for (rank, (host, files)) in ranks.iter().zip(&step.assigned).enumerate().take(SHOWN_MAX) {
            table.row(vec![rank.to_string(), host.clone(), files.len().to_string(), files_text(files)]);
        }
        text.add(&table.render());
        more(&mut text, ranks.len(), "ranks");
    }
    let mut table = Table::new(&[
        "time",
        ">files",
        ">remote",
        ">at least",
        ">remote bytes",
        ">bytes a rank, mean",
        ">most",
    ]);
    for step in planned.iter().take(SHOWN_MAX) {
        table.row(vec![
            step.time.to_string(),
            step.files.to_string(),
            step.remote.to_string(),
            step.bound.to_string(),
            human_bytes(step.remote_bytes),
            human_bytes(step.bytes_mean),
            human_bytes(step.bytes_max),
        ]);
    }
    text.add(&table.render());
    more(&mut text, planned.len(), "steps");
    let (remote, bound) =
        (planned.iter().map(|step| step.remote).sum(), planned.iter().map(|step| step.bound).sum());
    let files = planned.iter().map(|step| step.files as u64).sum();
    text.line(format!(
        "{:.2} % of {files} files are read remotely by {} ranks; at best {:.2} % (places: {})",
        100.0 * share(remote, files),
        ranks.len(),
        100.0 * share(bound, files),
        locator.describe()
    ));
    text
}

fn more(text: &mut Lines, count: usize, what: &str) {
    let more = count.saturating_sub(SHOWN_MAX);
    if more > 0 {
        text.line(format!("… {more} more {what}; --json shows all"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_locate::Replica;

    #[test]
    fn ranks_on_hosts_without_files_are_named() {
        let check = |ranks: &[&str], holders: &[&str], expected: Option<&str>| {
            let replica = |node: &&str| Replica { node: (*node).to_owned(), bytes: 1 };
            let file = Located { bytes: 1, replicas: holders.iter().map(replica).collect(), blocks: 1 };
            let found = Locations { files: vec![file], ..Locations::default() };
            let ranks: Vec<String> = ranks.iter().map(|rank| (*rank).to_owned()).collect();
            assert_eq!(strangers(&ranks, &found).as_deref(), expected, "{ranks:?}");
        };
        check(&["n1", "n2"], &["n1", "n2"], None);
        check(&["n1"], &[], None);
        let said = "2 of 3 ranks are on hosts that hold none of the files (node1); the files are on n0, n1";
        check(&["node1", "node1", "n1"], &["n1", "n0"], Some(said));
    }
}
