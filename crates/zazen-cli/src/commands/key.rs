//! `zazen key`: the cluster's shared secret.

use crate::output;
use clap::{Args, Subcommand};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
        /// The file; it must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(arguments: &Key) -> Result<()> {
    let Action::New { file } = &arguments.action;
    write_new(file)?;
    output::line(format!("key written to {}; copy it to every node and keep it secret", file.display()));
    Ok(())
}

/// Writes a fresh key to `file`, which must not exist, readable by its owner alone.
pub(crate) fn write_new(file: &Path) -> Result<()> {
    let text = zazen_call::ClusterKey::generate()?;
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            ErrorKind::Conflict,
            format!(
                "key file {}: exists already, and daemons may be using it; remove it first",
                file.display()
            ),
        ),
        _ => Error::io(format!("key file {}", file.display()), error),
    })?;
    let written = opened.write_all(format!("{}\n", text.trim_end()).as_bytes());
    written.map_err(|error| Error::io(format!("key file {}", file.display()), error))
}
