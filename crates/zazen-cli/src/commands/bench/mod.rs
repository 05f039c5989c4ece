//! `zazen bench`: measurements that need nothing but this program (and a launcher, for more than
//! one machine).

mod assign;
mod memory;
mod model;
mod options;
mod placement;
mod rates;
mod report;
mod sample;
mod side;
mod spread;

use clap::{Args, Subcommand};
use zazen_core::Result;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen bench assign --frames 1e9 --ranks 1                             # local work alone
  zazen bench assign --frames 1e8 --placement random --protocol both    # 8 ranks in one process
  mpiexec -n 4 zazen bench assign --frames 1e9 --json                   # over MPI

`zazen bench assign --help` explains what is printed.")]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Time, bytes and memory of the assignment protocol
    Assign(Box<options::Assign>),
}

pub(crate) fn run(arguments: &Bench) -> Result<()> {
    match &arguments.what {
        What::Assign(arguments) => assign::run(arguments),
    }
}
