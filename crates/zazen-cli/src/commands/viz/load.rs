//! `zazen viz load`: copies a visualization into HDFS, each file in one block.

use crate::output::{self, human_bytes};
use clap::Args;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result};
use zazen_locate::{Hdfs, HdfsUrl, Locations, Locator, Storage, open_index};

/// The most replicas; HDFS's own limit is 512.
const COPIES_MAX: u32 = 512;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen viz load /lustre/ocean/ts.vtm.series hdfs://namenode/ocean
  zazen viz plan hdfs://namenode/ocean/ts.vtm.series --ranks hosts.txt

Each file becomes one block, so that a node with a replica has the whole file. Run this on a host
that is no data node: HDFS puts the first replica of each file onto the data node that writes it.
$HADOOP_USER_NAME names the user.")]
pub(super) struct Load {
    /// An index (.vtm.series, .pvd, .vtm, .vtpd, .pvtu, …)
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// The directory in HDFS: hdfs://HOST[:WEB PORT]/DIRECTORY
    #[arg(value_name = "URL")]
    url: String,
    /// Replicas of each file
    #[arg(long, value_name = "R", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(COPIES_MAX)))]
    copies: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Load) -> Result<()> {
    let opened = open_index(&arguments.index)?;
    if opened.storage != Storage::Mounted || opened.index_files.is_empty() {
        let why = "give an index file in a mounted directory; it and the files that it names are copied";
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{}: {why}", arguments.index.display())));
    }
    for step in &opened.index.steps {
        if let Some(trouble) = &step.trouble {
            output::note(format!("time {}: {trouble}; what the index names else is copied", step.time));
        }
    }
    let directory = PathBuf::from(&opened.place.directory);
    let absolute = std::path::absolute(&arguments.index)
        .map_err(|error| Error::io(arguments.index.display().to_string(), error))?;
    let folder = absolute.parent().unwrap_or(&directory);
    let mut files: BTreeSet<String> = opened.place.steps.iter().flatten().cloned().collect();
    for index in &opened.index_files {
        let path = folder.join(index);
        let beneath = path.strip_prefix(&directory).ok().and_then(|beneath| beneath.to_str());
        files.extend(beneath.filter(|_| path.exists()).map(str::to_owned));
    }
    let files: Vec<String> = files.into_iter().collect();
    let mut hdfs = Hdfs::of_environment(HdfsUrl::parse(&arguments.url)?);
    let bytes = hdfs.load(&directory, &files, arguments.copies)?;
    let found = hdfs.locate(&files)?;
    tell_troubles(&files, &found, arguments.copies);
    if arguments.json {
        let report = json!({"files": files.len(), "bytes": bytes, "copies": arguments.copies});
        return output::json_of("load", &report);
    }
    output::line(format!(
        "{} files, {}, {} copies of each asked for",
        files.len(),
        human_bytes(bytes),
        arguments.copies
    ));
    Ok(())
}

/// Says what keeps later reads from being local.
fn tell_troubles(files: &[String], found: &Locations, copies: u32) {
    let fewer = found.files.iter().filter(|file| file.replicas.len() < copies as usize).count();
    if fewer > 0 {
        output::note(format!("{fewer} of {} files have fewer than {copies} copies by now", files.len()));
    }
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    for replica in found.files.iter().flat_map(|file| &file.replicas) {
        *by_node.entry(&replica.node).or_default() += 1;
    }
    let nodes = by_node.len();
    let all = by_node.iter().find(|(_, held)| **held == files.len());
    if let (Some((node, _)), true) = (all, nodes > copies as usize && files.len() > nodes) {
        output::note(format!(
            "{node} has a copy of every file, as if they had been written there; load from a host that is no \
             data node, so that HDFS spreads all copies"
        ));
    }
}
