//! `zazen key`: the cluster's shared secret.
//!
//! Invariant: what `zazen key new` leaves behind is a whole key that only its owner can read, or
//! nothing.

use crate::output;
use clap::{Args, Subcommand};
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen key new /etc/zazen/key      # then copy it to every node and set key = \"/etc/zazen/key\"
  export ZAZEN_KEY=/etc/zazen/key")]
pub(crate) struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write a fresh key to a new file that only you can read
    New {
        /// The file; it must not exist. Left out: the key goes to standard output
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

pub(crate) fn run(arguments: &Key) -> Result<()> {
    let Action::New { file } = &arguments.action;
    match file {
        Some(file) => {
            write_new(file)?;
            output::line(format!(
                "key written to {}; copy it to every node and keep it secret",
                file.display()
            ));
        }
        None => print_new()?,
    }
    Ok(())
}

/// Writes a fresh key to `file`, which must not exist, readable by its owner alone.
pub(crate) fn write_new(file: &Path) -> Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.map_err(|error| refuse(file, error))?;
    let written = write_key(&mut opened);
    if written.is_err() {
        // An empty or cut key is worse than none.
        let _ = std::fs::remove_file(file);
    }
    written.map_err(|error| error.within(format!("key file {}", file.display())))
}

fn refuse(file: &Path, error: std::io::Error) -> Error {
    let shown = file.display();
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            ErrorKind::Conflict,
            format!("key file {shown}: exists already, and daemons may be using it; remove it first"),
        ),
        std::io::ErrorKind::NotFound if !folder.exists() => {
            let folder = folder.display();
            let why = format!(
                "key file {shown}: there is no folder {folder}; make it first, with `mkdir -p {folder}`"
            );
            Error::new(ErrorKind::NotFound, why)
        }
        _ => Error::io(format!("make the key file {shown} in a folder that you may write to"), error),
    }
}

/// Writes a fresh key to standard output. A file there (`zazen key new > FILE`) becomes its owner's
/// alone first.
fn print_new() -> Result<()> {
    let out = std::io::stdout().as_fd().try_clone_to_owned();
    let mut out = File::from(out.map_err(|error| Error::io("standard output", error))?);
    let found = out.metadata().map_err(|error| Error::io("standard output", error))?;
    if found.is_file() {
        if found.len() > 0 {
            let why = "standard output: the file has contents already; name a new file, `zazen key new FILE`";
            return Err(Error::new(ErrorKind::Conflict, why));
        }
        out.set_permissions(Permissions::from_mode(0o600))
            .map_err(|error| Error::io("standard output: make the file unreadable for others", error))?;
    }
    write_key(&mut out).map_err(|error| error.within("standard output"))
}

fn write_key(out: &mut File) -> Result<()> {
    let text = zazen_call::ClusterKey::generate()?;
    let written = out.write_all(format!("{}\n", text.trim_end()).as_bytes());
    written.map_err(|error| Error::io("write the key", error))
}
