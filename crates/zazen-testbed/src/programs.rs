//! Where the programs are that a testbed runs.

use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, Result};

/// The two programs that a testbed runs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `zazen`: it serves the testbed's files and moves processes onto hosts.
    pub zazen: PathBuf,
    /// `zazend`.
    pub zazend: PathBuf,
}

impl Programs {
    /// This program is `zazen`; `zazend` is found as by [`find_program`].
    pub fn of_this_zazen() -> Result<Programs> {
        Ok(Programs { zazen: own_program()?, zazend: find_program("zazend", "ZAZEND", "pip install .")? })
    }
}

/// The running program.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::io("find the running program", error))
}

/// The program called `name`: what the environment variable `variable` says, else the one beside
/// this program, else the one on the search path. `install` is the command that installs it.
pub fn find_program(name: &str, variable: &str, install: &str) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(variable).filter(|given| !given.is_empty()) {
        return Ok(PathBuf::from(given));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = beside.into_iter().chain(std::env::split_paths(&path).map(|folder| folder.join(name)));
    candidates.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{name}: neither beside zazen nor on PATH; install it with `{install}`, or set {variable}"
            ),
        )
    })
}

/// The program called `name` that was built together with this one.
pub fn beside_this_program(name: &str) -> Result<PathBuf> {
    let path = own_program()?.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("{} is not there; build it: cargo build --release -p zazend -p zazen-cli", path.display()),
    ))
}
