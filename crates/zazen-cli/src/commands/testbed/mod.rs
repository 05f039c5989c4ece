//! `zazen testbed`: a cluster in a box.

mod down;
mod env;
mod exec;
mod kill;
mod run;
mod serve_files;
mod status;
mod supervise;
mod up;

use clap::{Args, Subcommand};
use std::path::PathBuf;
use zazen_core::Result;
use zazen_testbed::directory;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen testbed up 4                                   # 4 daemons, no root needed
  zazen testbed up 4 --server-rate 20MB                # … whose file server gives 20 MB/s in all
  sudo zazen testbed up 4 --net --link 160mbit     # … each in a network of its own, shaped
  eval \"$(zazen testbed env)\"; zazen status
  zazen testbed run -n 4 -- python analysis.py         # rank r runs on node r mod 4
  zazen testbed run --on sim -- zazen push --watch .testbed/server/sim1
  zazen testbed kill n2; zazen testbed revive n2
  zazen testbed down")]
pub(crate) struct Testbed {
    /// Directory of the testbed [default: $ZAZEN_TESTBED, else .testbed]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start N daemons and a file server on this machine
    Up(up::Up),
    /// Stop and remove everything that `up` made
    Down,
    /// Show the testbed's processes and limits
    Status(status::Status),
    /// Kill a node's daemon at once (SIGKILL)
    Kill(kill::Kill),
    /// Start a killed node's daemon again, on the same cache and address
    Revive(kill::Revive),
    /// Print the testbed's environment variables as shell commands
    Env(env::Env),
    /// Run a command under mpiexec with each rank on its node, or on one host
    Run(run::Run),
    /// Run a command on the node of this launcher rank
    #[command(hide = true)]
    Exec(exec::Exec),
    /// Serve a directory's files at a bounded rate
    #[command(hide = true)]
    ServeFiles(serve_files::ServeFiles),
}

pub(crate) fn run(arguments: Testbed) -> Result<()> {
    let dir = directory(arguments.dir.as_deref())?;
    match arguments.action {
        Action::Up(up) => up.run(&dir),
        Action::Down => down::run(&dir),
        Action::Status(status) => status.run(&dir),
        Action::Kill(kill) => kill.run(&dir),
        Action::Revive(revive) => revive.run(&dir),
        Action::Env(env) => env.run(&dir),
        Action::Run(run) => run.run(&dir),
        Action::Exec(exec) => exec.run(&dir),
        Action::ServeFiles(serve) => serve.run(),
    }
}
