//! `zazen testbed exec`: becomes a command on a host of the testbed. `run` puts it before every
//! rank. A rank of several under MPICH runs as its child (`supervise.rs`).

use super::supervise;
use crate::output;
use clap::Args;
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use zazen_core::launcher::RANK_VARIABLES;
use zazen_core::{Error, ErrorKind, Result};
use zazen_testbed::variables::SOCKET;
use zazen_testbed::{Host, State, place};

#[derive(Args)]
pub(crate) struct Exec {
    /// The host; else the node of this launcher rank
    #[arg(long, value_name = "HOST")]
    on: Option<String>,
    /// Count live nodes only when the rank chooses
    #[arg(long)]
    live: bool,
    /// Leave the environment as it is
    #[arg(long)]
    bare: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let error = match self.start(dir) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if self.on.is_none() && launcher_rank().is_ok() {
            // MPICH's mpiexec does not end the job for a rank that exits before MPI_Init: the other
            // ranks would wait for it for ever. A rank that a signal ends does end the job.
            output::note(format!("this rank did not start, so the job ends: {error}"));
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        }
        Err(error)
    }

    fn start(&self, dir: &Path) -> Result<()> {
        let state = State::load(dir)?;
        let host = match &self.on {
            Some(name) => state.host(name)?,
            None if self.live => place::live_host_of_rank(&state, launcher_rank()?)?,
            None => place::host_of_rank(&state, launcher_rank()?),
        };
        let mut command = match self.bare {
            false => on_host(&state, Some(host), &self.command)?,
            true => {
                place::enter(&state, host)?;
                let mut command = Command::new(&self.command[0]);
                command.args(&self.command[1..]);
                command
            }
        };
        match self.on.is_none() && supervise::is_wanted() {
            true => supervise::supervise(&mut command, launcher_rank()?),
            false => become_command(&mut command),
        }
    }
}

/// Becomes `command` on `host`; returns only if it could not be started.
pub(crate) fn replace(state: &State, host: Option<&Host>, command: &[String]) -> Result<()> {
    become_command(&mut on_host(state, host, command)?)
}

/// Takes this process to `host`; returns `command` with the environment of a program there.
fn on_host(state: &State, host: Option<&Host>, command: &[String]) -> Result<Command> {
    if let Some(host) = host {
        place::enter(state, host)?;
    }
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).env_remove(SOCKET).envs(place::environment(state, host));
    Ok(process)
}

fn become_command(command: &mut Command) -> Result<()> {
    let error = command.exec();
    Err(Error::io(format!("start {}", command.get_program().to_string_lossy()), error))
}

fn launcher_rank() -> Result<usize> {
    zazen_client::testbed_env::launcher_rank().ok_or_else(|| {
        Error::new(
            ErrorKind::Mpi,
            format!(
                "rank: no launcher's rank in the environment ({RANK_VARIABLES}); start by `zazen testbed run \
                 -n 4 -- CMD`, or name a host with --on n0"
            ),
        )
    })
}
