//! `zazen namespace` and `zazen locate`: how the namespace is, and which node holds a file.

mod archive;
mod balance;
mod leave;
mod names;
mod patterns;
mod quota;
mod scrub;

use names::shown;

use crate::output::{self, Table, human_bytes};
use crate::target::{Done, Targets};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::core::operation::{ARCHIVE_WANTED, COPIES_WANTED, SetXattr};
use zazen_namespace_client::core::service::MapView;
use zazen_namespace_client::core::{ARCHIVE, Kind, Name, NodeNo};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace status              # nodes, partitions, space, as this machine's daemon sees it
  zazen namespace status --json
  zazen namespace locate /run1/step-17.vtu
  zazen namespace set /run1 --copies 2
  zazen namespace set /scratch --archive no
  zazen namespace archive --wait      # until the archive has all files of this node
  zazen namespace quota /run1 --bytes 2T
  zazen namespace balance             # move files from full disks to empty ones
  zazen namespace leave n3            # node n3 gives all away, and is no node of the namespace then
  zazen namespace scrub               # compare all bytes on the nodes' disks with their checksums")]
pub(crate) struct NamespaceCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show nodes, partitions, space
    Status(Status),
    /// Show which node holds a file's bytes
    Locate(Locate),
    /// Say how many nodes shall have the files of a directory, and whether the archive shall
    Set(Set),
    /// Show what this node has archived, or wait until it has archived all
    Archive(archive::ArchiveCommand),
    /// Set or show how much users and directories may take
    Quota(quota::QuotaCommand),
    /// Move files from full disks to empty ones
    Balance(balance::BalanceCommand),
    /// Have a node give away what it keeps, and leave
    Leave(leave::LeaveCommand),
    /// Compare the bytes on the nodes' disks with their checksums, and remove what no file names
    Scrub(scrub::Scrub),
}

#[derive(Args)]
struct Status {
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace set /run1 --copies 2        # files that are made in /run1 and below from now on
  zazen namespace set /run1/result.h5 --copies 2
  zazen namespace set /scratch --archive no   # the archive gets no files that are made there

Paths are those of the namespace: its root is /. What a directory says holds for files that are made
in it, or below it, two seconds later; the nearest directory above a file counts. The second copy of
a file is made after the file was closed. Through a mount, the same is
`setfattr -n user.zazen.copies -v 2 PATH` and `setfattr -n user.zazen.archive -v no PATH`.")]
struct Set {
    /// Directories or files of the namespace
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    targets: Targets,
    /// How many nodes shall have each file, with its holder
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    #[arg(required_unless_present = "archive")]
    copies: Option<u8>,
    /// Whether the archive shall have the files, if the daemons have one
    #[arg(long, value_name = "WHETHER")]
    archive: Option<Whether>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Whether {
    Yes,
    No,
}

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
    /// Print the hosts that hold any of them, one a line
    #[arg(long, conflicts_with = "json")]
    hosts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &NamespaceCommand) -> Result<Done> {
    match &arguments.command {
        Command::Status(arguments) => status(arguments).map(|()| Done::Wholly),
        Command::Locate(arguments) => locate(arguments).map(|()| Done::Wholly),
        Command::Set(arguments) => set(arguments).map(|()| Done::Wholly),
        Command::Archive(arguments) => archive::run(arguments),
        Command::Quota(arguments) => quota::run(arguments),
        Command::Balance(arguments) => balance::run(arguments),
        Command::Leave(arguments) => leave::run(arguments),
        Command::Scrub(arguments) => scrub::run(arguments),
    }
}

fn status(arguments: &Status) -> Result<()> {
    let namespace = arguments.targets.namespace()?;
    let text = namespace.status()?;
    let status: Value = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Protocol, "the daemon's status").caused_by(error))?;
    if arguments.json {
        output::json(&status);
        return Ok(());
    }
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    output::line(format!(
        "node {} ({}), life {}: {} partitions, epoch {}, {} of {} free, {} open files",
        number(&status["node"]),
        text(&status["name"]),
        number(&status["incarnation"]),
        number(&status["partitions"]),
        number(&status["epoch"]),
        human_bytes(number(&status["bytes_free"])),
        human_bytes(number(&status["bytes"])),
        number(&status["open_files"]),
    ));
    let mut table = Table::new(&["node", "name", "address", "state", "primary of", "backup of"]);
    for node in status["nodes"].as_array().into_iter().flatten() {
        table.row(vec![
            number(&node["node"]).to_string(),
            shown(node["name"].as_str()),
            text(&node["address"]),
            text(&node["state"]),
            number(&node["primary_of"]).to_string(),
            number(&node["backup_of"]).to_string(),
        ]);
    }
    output::print(&table.render());
    for node in status["nodes"].as_array().into_iter().flatten() {
        let leaving = &node["leaving"];
        if leaving.is_object() {
            output::note(format!(
                "node {} is leaving: it keeps {} partitions, has {} files ({}), {} of them in use, \
                 and its programs have {} files open",
                number(&node["node"]),
                number(&leaving["partitions"]),
                number(&leaving["files"]),
                human_bytes(number(&leaving["bytes"])),
                number(&leaving["in_use"]),
                number(&leaving["open_files"]),
            ));
        }
    }
    // Others than operators are told of their own only; the daemon knows who asks.
    if let Ok(told) = namespace.quotas()
        && !told.quotas.is_empty()
    {
        output::print(&quota::table(&told.quotas).render());
    }
    let damaged = number(&status["damaged_files"]);
    if damaged > 0 {
        output::note(format!(
            "{damaged} files of this node have bytes that are not what was written; \
             `zazen namespace scrub` names them"
        ));
    }
    if status["archive"].is_object() {
        archive::show(&status);
    }
    if let Some(why) = status["broken"].as_str() {
        output::note(format!("this node answers nobody: {why}"));
    }
    Ok(())
}

/// Name and host of a node. No name: it has not said it to the daemon that was asked.
fn host(map: &MapView, node: NodeNo) -> (Option<String>, String) {
    let found = map.nodes.iter().find(|view| view.node == node);
    found.map_or_else(Default::default, |view| {
        let host = view.addr.rsplit_once(':').map_or("", |(host, _)| host);
        (Some(view.name.clone()).filter(|name| !name.is_empty()), host.to_owned())
    })
}

fn set(arguments: &Set) -> Result<()> {
    let namespace = arguments.targets.namespace()?;
    for path in &arguments.paths {
        let within = |errno| zazen_namespace_client::error(path.display(), errno);
        let found = namespace.stat(None, path.as_os_str().as_bytes(), true).map_err(within)?;
        let copies = arguments.copies.map(|copies| (COPIES_WANTED, copies.to_string()));
        let archive = arguments.archive.map(|whether| match whether {
            Whether::Yes => (ARCHIVE_WANTED, "yes".to_owned()),
            Whether::No => (ARCHIVE_WANTED, "no".to_owned()),
        });
        for (name, value) in copies.into_iter().chain(archive) {
            let (name, value) = (Name::new(name).map_err(within)?, Some(value.into_bytes()));
            let set = SetXattr { id: found.id, name, value, create: false, replace: false };
            namespace.set_xattr(None, set).map_err(within)?;
        }
    }
    Ok(())
}

/// The names of these nodes, one a line. A node without a name is left out, and people are told.
fn tell_hosts(map: &MapView, nodes: &BTreeSet<NodeNo>) {
    let mut names = BTreeSet::new();
    for node in nodes {
        match host(map, *node) {
            (Some(name), _) => drop(names.insert(name)),
            (None, host) => output::note(format!(
                "node {node} (host {host}) does not answer and its name is not known: it is left out"
            )),
        }
    }
    names.iter().for_each(output::line);
}

pub(crate) fn locate(arguments: &Locate) -> Result<()> {
    let namespace = arguments.targets.namespace()?;
    let mut files = Vec::new();
    let paths = arguments.paths.iter().map(|given| patterns::files(&namespace, given));
    for path in paths.collect::<Result<Vec<_>>>()?.concat() {
        let found = namespace.stat(None, path.as_os_str().as_bytes(), true);
        let found =
            found.map_err(|errno| zazen_namespace_client::error(format!("{}", path.display()), errno))?;
        if found.kind != Kind::File {
            let why = format!("{}: only files have bytes on a node; this is not a file", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let (holder, copies) = found.place.map_or_else(Default::default, |at| (Some(at.holder), at.copies));
        let is_archived = copies.contains(&ARCHIVE);
        let copies: Vec<NodeNo> = copies.into_iter().filter(|node| *node != ARCHIVE).collect();
        files.push((path.display().to_string(), holder, copies, is_archived, found.bytes));
    }
    let nodes: BTreeSet<NodeNo> =
        files.iter().flat_map(|(_, holder, copies, ..)| holder.iter().chain(copies)).copied().collect();
    let map = namespace.map_with_names(&nodes)?;
    let mut rows = Vec::new();
    let mut table = Table::new(&["path", "node", "name", "host", "copies", "size"]);
    for (path, holder, copies, is_archived, bytes) in files {
        let (name, host) = holder.map_or_else(Default::default, |node| host(&map, node));
        let copies: Vec<Option<String>> = copies.iter().map(|node| self::host(&map, *node).0).collect();
        rows.push(json!({
            "path": path,
            "node": holder.map(|node| node.0),
            "name": holder.map_or(Some(String::new()), |_| name.clone()),
            "host": host,
            "copies": copies,
            "archived": is_archived,
            "bytes": bytes,
        }));
        let node = holder.map_or("-".to_owned(), |node| node.to_string());
        let name = holder.map_or(String::new(), |_| shown(name.as_deref()));
        let mut copies: Vec<String> = copies.iter().map(|name| shown(name.as_deref())).collect();
        copies.extend(is_archived.then(|| "archive".to_owned()));
        let copies = if copies.is_empty() { "-".to_owned() } else { copies.join(",") };
        table.row(vec![path, node, name, host, copies, human_bytes(bytes)]);
    }
    match (arguments.json, arguments.hosts) {
        (true, _) => output::json(&json!(rows)),
        (_, true) => tell_hosts(&map, &nodes),
        _ => output::print(&table.render()),
    }
    Ok(())
}
