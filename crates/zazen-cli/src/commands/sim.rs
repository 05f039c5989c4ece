//! `zazen sim`: what would a cluster do with a workload?

mod calibrate;
mod compare;
mod darshan;
mod files;
mod png;
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
    /// Find a cluster's parameters in the spans that its daemons recorded
    Calibrate(calibrate::Calibrate),
    /// Replay other spans, and say how far the simulator is from them
    Validate(calibrate::Validate),
    /// Compare the results of two runs
    Compare(compare::Compare),
    /// Convert spans, for Perfetto or as one file
    Export(calibrate::Export),
}

pub(crate) fn run(arguments: &Sim) -> Result<()> {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Calibrate(arguments) => calibrate::calibrate(arguments),
        Command::Validate(arguments) => calibrate::validate(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Export(arguments) => calibrate::export(arguments),
    }
}
