//! `zazen sim`: what would a cluster do with a workload?

mod files;
mod run;
mod scales;
mod sweep;

use clap::{Args, Subcommand};
use zazen_core::Result;

#[derive(Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate a workload at one or many scales
    Run(run::Run),
}

pub(crate) fn run(arguments: &Sim) -> Result<()> {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
    }
}
