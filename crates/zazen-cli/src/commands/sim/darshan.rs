//! Darshan logs, by the Python package `darshan`: Darshan's own library reads them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zazen_core::{Error, ErrorKind, Result};
use zazen_sim::replay::Log;

/// Prints a log as lines for [`Log::read`].
const SCRIPT: &str = include_str!("darshan.py");
/// Exit codes of the script.
const PACKAGE_MISSING: i32 = 3;
/// The variable that names the interpreter.
const PYTHON: &str = "ZAZEN_PYTHON";

/// Reads a log. `NotFound` with the command that installs it if the package is missing, and
/// `Corrupt` if the log was cut, is damaged, or is none.
pub(crate) fn read(path: &Path) -> Result<Log> {
    let here = || path.display().to_string();
    std::fs::metadata(path).map_err(|error| Error::io(here(), error))?;
    let mut last = None;
    let pythons = pythons();
    for python in &pythons {
        // Not from the folder where the user is: a file there could have the name of a module.
        let mut command = Command::new(python);
        command.env("PYTHONSAFEPATH", "1").arg("-c").arg(SCRIPT).arg(path).stdin(Stdio::null());
        let Ok(output) = command.output() else { continue };
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().last().unwrap_or("").trim_start_matches("Error: ").to_owned();
        match output.status.code() {
            Some(0) => {
                let text = String::from_utf8_lossy(&output.stdout);
                return Log::read(&text).map_err(|error| error.within(here()));
            }
            Some(PACKAGE_MISSING) => last = Some(missing(python, path)),
            _ => return Err(Error::new(ErrorKind::Corrupt, format!("{}: Darshan log: {reason}", here()))),
        }
    }
    Err(last.unwrap_or_else(|| {
        let tried: Vec<String> = pythons.iter().map(|python| python.display().to_string()).collect();
        let (log, tried) = (here(), tried.join(", "));
        let why = format!(
            "{log}: Darshan logs are read by Python, and {tried} does not start; name one by {PYTHON}"
        );
        Error::new(ErrorKind::NotFound, why)
    }))
}

fn missing(python: &Path, log: &Path) -> Error {
    let (python, log) = (python.display(), log.display());
    let why = format!(
        "{log}: Darshan logs are read by the Python package darshan, which {python} does not have; install \
         it with `{python} -m pip install darshan`, or name another interpreter by {PYTHON}"
    );
    Error::new(ErrorKind::NotFound, why)
}

/// Interpreters to ask: the one that the user names, or else the one that this program is installed
/// beside, then the one in PATH.
fn pythons() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(PYTHON).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python3"));
    beside.into_iter().filter(|python| python.exists()).chain(["python3".into()]).collect()
}
