//! `zazen locate`: which nodes hold the bytes of files.

use super::names::shown;
use super::patterns;
use crate::output::{self, Table, human_bytes};
use crate::target::Targets;
use clap::Args;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::service::MapView;
use zazen_namespace_client::core::{ARCHIVE, Kind, NodeNo};
use zazen_namespace_client::held_by;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen locate /run1/step-17.vtu /run1/step-18.vtu
  zazen locate --hosts '/run1/*.vtu'      # a hosts list for a scheduler
  zazen locate --json /run1/step-17.vtu

Paths are those of the namespace: its root is /. Patterns are as in a shell, which cannot expand them
itself: quote them.")]
pub(crate) struct Locate {
    /// Files of the namespace, or patterns of them (*, ?, [...])
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    targets: Targets,
    /// Print the hosts that hold any of them, one a line, the one with the most bytes first
    #[arg(long, conflicts_with = "json")]
    hosts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where a file's bytes are.
struct At {
    path: String,
    bytes: u64,
    /// The nodes that hold bytes, and how many: the one with the most first.
    holders: Vec<(NodeNo, u64)>,
    /// Nodes with a copy of all bytes.
    copies: Vec<NodeNo>,
    is_archived: bool,
    /// How long its chunks are, and how many there are.
    chunks: Option<(u64, u64)>,
}

/// Name and host of a node. No name: it has not said it to the daemon that was asked.
fn host(map: &MapView, node: NodeNo) -> (Option<String>, String) {
    let found = map.nodes.iter().find(|view| view.node == node);
    found.map_or_else(Default::default, |view| {
        let host = view.addr.rsplit_once(':').map_or("", |(host, _)| host);
        (Some(view.name.clone()).filter(|name| !name.is_empty()), host.to_owned())
    })
}

/// The names of these nodes, one a line: the one with the most bytes first. A node without a name
/// is left out, and people are told.
fn tell_hosts(map: &MapView, nodes: &BTreeMap<NodeNo, u64>) {
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    for (node, bytes) in nodes {
        match host(map, *node) {
            (Some(name), _) => *names.entry(name).or_default() += bytes,
            (None, host) => output::note(format!(
                "node {node} (host {host}) does not answer and its name is not known: it is left out"
            )),
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    names.into_iter().for_each(|(name, _)| output::line(name));
}

fn find(namespace: &Namespace, path: &Path) -> Result<At> {
    let shown = path.display();
    let within = |errno| zazen_namespace_client::error(format!("{shown}"), errno);
    let found = namespace.stat(None, path.as_os_str().as_bytes(), true).map_err(within)?;
    if found.kind != Kind::File {
        let why = format!("{shown}: only files have bytes on a node; this is not a file");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let (path, bytes) = (shown.to_string(), found.bytes);
    if let Some(of) = &found.chunks {
        let all = namespace.chunks(None, found.id).map_err(within)?;
        // A node has a copy of the file if it has one of each chunk.
        let mut copies: Option<BTreeSet<NodeNo>> = None;
        let mut is_archived = bytes > 0;
        for place in all.iter().filter(|chunk| chunk.bytes > 0).filter_map(|chunk| chunk.place.as_ref()) {
            is_archived &= place.is_archived();
            let here: BTreeSet<NodeNo> = place.nodes_with_copy().collect();
            copies = Some(copies.map_or_else(|| here.clone(), |before| &before & &here));
        }
        let copies = copies.into_iter().flatten().collect();
        let chunks = Some((of.chunk_bytes, all.len() as u64));
        return Ok(At { path, bytes, holders: held_by(&all), copies, is_archived, chunks });
    }
    let (holder, copies) = found.place.map_or_else(Default::default, |at| (Some(at.holder), at.copies));
    let is_archived = copies.contains(&ARCHIVE);
    let copies = copies.into_iter().filter(|node| *node != ARCHIVE).collect();
    let holders = holder.map(|node| (node, bytes)).into_iter().collect();
    Ok(At { path, bytes, holders, copies, is_archived, chunks: None })
}

pub(crate) fn locate(arguments: &Locate) -> Result<()> {
    let namespace = arguments.targets.namespace()?;
    let paths = arguments.paths.iter().map(|given| patterns::files(&namespace, given));
    let paths = paths.collect::<Result<Vec<_>>>()?.concat();
    let files = paths.iter().map(|path| find(&namespace, path)).collect::<Result<Vec<At>>>()?;
    let mut nodes: BTreeMap<NodeNo, u64> = BTreeMap::new();
    for at in &files {
        let copies = at.copies.iter().map(|node| (*node, at.bytes));
        for (node, bytes) in at.holders.iter().copied().chain(copies) {
            let held = nodes.entry(node).or_default();
            *held = held.saturating_add(bytes);
        }
    }
    let map = namespace.map_with_names(&nodes.keys().copied().collect())?;
    match (arguments.json, arguments.hosts) {
        (true, _) => output::json(&files.iter().map(|at| row(&map, at)).collect()),
        (_, true) => tell_hosts(&map, &nodes),
        _ => {
            let mut table = Table::new(&["path", "node", "name", "host", "copies", "size"]);
            files.iter().flat_map(|at| lines(&map, at)).for_each(|line| table.row(line));
            output::print(&table.render());
        }
    }
    Ok(())
}

/// A file as JSON. Its node is the one with the most bytes.
fn row(map: &MapView, at: &At) -> Value {
    let holder = at.holders.first().map(|(node, _)| *node);
    let (name, address) = holder.map_or_else(Default::default, |node| host(map, node));
    let copies: Vec<Option<String>> = at.copies.iter().map(|node| host(map, *node).0).collect();
    let mut row = json!({
        "path": at.path,
        "node": holder.map(|node| node.0),
        "name": holder.map_or(Some(String::new()), |_| name),
        "host": address,
        "copies": copies,
        "archived": at.is_archived,
        "bytes": at.bytes,
    });
    if let Some((chunk_bytes, count)) = at.chunks {
        let holders = at.holders.iter().map(|(node, bytes)| {
            let (name, host) = host(map, *node);
            json!({"node": node.0, "name": name, "host": host, "bytes": bytes})
        });
        row["chunk_bytes"] = json!(chunk_bytes);
        row["chunks"] = json!(count);
        row["holders"] = holders.collect();
    }
    row
}

/// A file as lines of the table: one for each node that holds bytes of it.
fn lines(map: &MapView, at: &At) -> Vec<Vec<String>> {
    let mut copies: Vec<String> = at.copies.iter().map(|node| shown(host(map, *node).0.as_deref())).collect();
    copies.extend(at.is_archived.then(|| "archive".to_owned()));
    let copies = if copies.is_empty() { "-".to_owned() } else { copies.join(",") };
    let line = |(node, bytes): &(NodeNo, u64)| {
        let (name, address) = host(map, *node);
        let bytes = match at.chunks {
            Some(_) => format!("{} of {}", human_bytes(*bytes), human_bytes(at.bytes)),
            None => human_bytes(*bytes),
        };
        let name = shown(name.as_deref());
        vec![at.path.clone(), node.to_string(), name, address, copies.clone(), bytes]
    };
    if at.holders.is_empty() {
        let (node, nothing) = ("-".to_owned(), String::new());
        return vec![vec![at.path.clone(), node, nothing.clone(), nothing, copies, human_bytes(at.bytes)]];
    }
    at.holders.iter().map(line).collect()
}
