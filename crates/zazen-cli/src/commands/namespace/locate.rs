//! `zazen locate`: which nodes hold the bytes of files.

use super::names::shown;
use super::{paths, patterns};
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

Paths are those of the namespace: its root is /. Patterns are as in a shell, which cannot expand
them itself: quote them. Copies that are marked \"in chunks\" are of a file in chunks: the nodes named
have one of each chunk together, and none of them has all.")]
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
    /// Nodes that together have a copy of each chunk, where none of them has a copy of all.
    copies_in_chunks: Vec<NodeNo>,
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
    let within = |errno| paths::refused(path, errno);
    let found = namespace.stat(None, path.as_os_str().as_bytes(), true).map_err(within)?;
    if found.kind != Kind::File {
        let why = format!("{shown}: only files have bytes on a node; this is not a file");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let (path, bytes) = (shown.to_string(), found.bytes);
    if let Some(of) = &found.chunks {
        let all = namespace.chunks(None, found.id).map_err(within)?;
        let places = || all.iter().filter(|chunk| chunk.bytes > 0).filter_map(|chunk| chunk.place.as_ref());
        let is_archived = bytes > 0 && places().all(|place| place.is_archived());
        let (copies, copies_in_chunks) = copies_of(places().map(|place| place.nodes_with_copy().collect()));
        let chunks = Some((of.chunk_bytes, all.len() as u64));
        let holders = held_by(&all);
        return Ok(At { path, bytes, holders, copies, copies_in_chunks, is_archived, chunks });
    }
    let (holder, copies) = found.place.map_or_else(Default::default, |at| (Some(at.holder), at.copies));
    let is_archived = copies.contains(&ARCHIVE);
    let copies = copies.into_iter().filter(|node| *node != ARCHIVE).collect();
    let holders = holder.map(|node| (node, bytes)).into_iter().collect();
    Ok(At { path, bytes, holders, copies, copies_in_chunks: Vec::new(), is_archived, chunks: None })
}

/// Of the nodes with a copy of each chunk: those with a copy of all chunks; if there is none, and
/// each chunk has a copy, all of them.
fn copies_of(chunks: impl Iterator<Item = BTreeSet<NodeNo>>) -> (Vec<NodeNo>, Vec<NodeNo>) {
    let chunks: Vec<BTreeSet<NodeNo>> = chunks.collect();
    let of_all = chunks.iter().cloned().reduce(|before, here| &before & &here).unwrap_or_default();
    if !of_all.is_empty() || chunks.iter().any(BTreeSet::is_empty) {
        return (of_all.into_iter().collect(), Vec::new());
    }
    let of_any: BTreeSet<NodeNo> = chunks.into_iter().flatten().collect();
    (Vec::new(), of_any.into_iter().collect())
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
    let shown = files.iter().flat_map(|at| at.copies_in_chunks.iter()).chain(nodes.keys());
    let map = namespace.map_with_names(&shown.copied().collect())?;
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
    let names = |nodes: &[NodeNo]| nodes.iter().map(|node| host(map, *node).0).collect::<Vec<_>>();
    let mut row = json!({
        "path": at.path,
        "node": holder.map(|node| node.0),
        "name": holder.map_or(Some(String::new()), |_| name),
        "host": address,
        "copies": names(&at.copies),
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
        row["copies_in_chunks"] = json!(names(&at.copies_in_chunks));
    }
    row
}

/// A file as lines of the table: one for each node that holds bytes of it.
fn lines(map: &MapView, at: &At) -> Vec<Vec<String>> {
    let name = |node: &NodeNo| shown(host(map, *node).0.as_deref());
    let mut copies: Vec<String> = at.copies.iter().map(name).collect();
    if !at.copies_in_chunks.is_empty() {
        let names: Vec<String> = at.copies_in_chunks.iter().map(name).collect();
        copies.push(format!("{} (in chunks)", names.join(",")));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_chunks_on_several_nodes_are_told_from_copies_of_the_file() {
        let check = |chunks: &[&[u32]], copies: &[u32], in_chunks: &[u32]| {
            let nodes = |numbers: &[u32]| numbers.iter().copied().map(NodeNo).collect::<Vec<_>>();
            let given = chunks.iter().map(|chunk| nodes(chunk).into_iter().collect());
            assert_eq!(copies_of(given), (nodes(copies), nodes(in_chunks)), "{chunks:?}");
        };
        check(&[], &[], &[]);
        check(&[&[2], &[2, 3]], &[2], &[]);
        check(&[&[2], &[3], &[2]], &[], &[2, 3]);
        check(&[&[2], &[], &[3]], &[], &[]);
    }
}
