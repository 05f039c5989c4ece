//! `zazen namespace` and `zazen locate`: how the namespace is, and which node holds a file.

mod archive;
mod balance;
mod leave;
mod locate;
mod names;
mod paths;
mod patterns;
mod quota;
mod scrub;

pub(crate) use locate::{Locate, locate};
use names::shown;

use crate::output::{self, Table, human_bytes};
use crate::target::{Done, Targets};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::core::operation::{ARCHIVE_WANTED, CHUNKS_WANTED, COPIES_WANTED, SetXattr};
use zazen_namespace_client::core::{Errno, Name};

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
  zazen namespace leave n3            # node n3 gives all away, and is no node then
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
    /// Say of a directory's files how many nodes shall have each, and whether many write one
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
  zazen namespace set /run1/shared --chunks 4 # each file there may be written by many nodes at once

Paths are those of the namespace: its root is /. What a directory says holds for files that are made
in it, or below it, two seconds later; the nearest directory above a file counts. The second copy of
a file is made after the file was closed. Through a mount, the same is
`setfattr -n user.zazen.copies -v 2 PATH`, `setfattr -n user.zazen.archive -v no PATH` and
`setfattr -n user.zazen.chunks -v 4 PATH`. A file keeps the chunks that it was made with.")]
struct Set {
    /// Directories or files of the namespace
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    targets: Targets,
    /// How many nodes shall have each file, with its holder
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    copies: Option<u8>,
    /// Whether the archive shall have the files, if the daemons have one
    #[arg(long, value_name = "WHETHER")]
    archive: Option<Whether>,
    /// Of how many MiB the chunks are, each of which has a holder of its own; 0 for no chunks
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(0..=1024))]
    chunks: Option<u16>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Whether {
    Yes,
    No,
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
                "node {} is leaving: it keeps {} partitions, {}and its programs have {} files open",
                number(&node["node"]),
                number(&leaving["partitions"]),
                // Nought may mean that they were not counted yet.
                match number(&leaving["files"]) {
                    0 => String::new(),
                    files => format!(
                        "has {files} files ({}), {} of them in use, ",
                        human_bytes(number(&leaving["bytes"])),
                        number(&leaving["in_use"])
                    ),
                },
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

/// What a refused attribute means.
fn refused(path: &Path, name: &[u8], errno: Errno) -> Error {
    if name == CHUNKS_WANTED && errno == Errno::EOPNOTSUPP {
        let why = format!(
            "{}: a file keeps the chunks that it was made with: copy it into a directory that has --chunks",
            path.display()
        );
        return Error::new(ErrorKind::Unsupported, why);
    }
    zazen_namespace_client::error(path.display(), errno)
}

fn set(arguments: &Set) -> Result<()> {
    if arguments.copies.is_none() && arguments.archive.is_none() && arguments.chunks.is_none() {
        let why = "nothing says what to set: give --copies N, --archive yes, --archive no or --chunks MIB";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let namespace = arguments.targets.namespace()?;
    for path in &arguments.paths {
        let found = namespace.stat(None, path.as_os_str().as_bytes(), true);
        let found = found.map_err(|errno| paths::refused(path, errno))?;
        let copies = arguments.copies.map(|copies| (COPIES_WANTED, copies.to_string()));
        let archive = arguments.archive.map(|whether| match whether {
            Whether::Yes => (ARCHIVE_WANTED, "yes".to_owned()),
            Whether::No => (ARCHIVE_WANTED, "no".to_owned()),
        });
        let chunks = arguments.chunks.map(|mib| (CHUNKS_WANTED, mib.to_string()));
        for (name, value) in copies.into_iter().chain(archive).chain(chunks) {
            let refused = |errno| refused(path, name, errno);
            let (name, value) = (Name::new(name).map_err(refused)?, Some(value.into_bytes()));
            let set = SetXattr { id: found.id, name, value, create: false, replace: false };
            namespace.set_xattr(None, set).map_err(refused)?;
        }
    }
    Ok(())
}
