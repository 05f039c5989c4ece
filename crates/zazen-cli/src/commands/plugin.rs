//! `zazen plugin`: what writers of plug-ins need (stubs from a header, the C files that they stand
//! on, a template), and what those who run them do (who is there, does it answer, what has it
//! done).

mod ask;
mod generate;
mod list;
mod ping;
mod runtime;
mod sdk;
mod stats;
mod template;

use crate::target::Done;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use zazen_core::Result;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen plugin new adder && make -C adder test           # a plug-in that works, to be changed
  zazen plugin sdk sdk                                  # zazen_plugin.h, zazen_stub.h, the runtimes
  zazen plugin generate adder.h --out generated          # client stubs, dispatcher, schema, tests
  zazen plugin list                                      # what this machine's daemon serves
  zazen plugin stats adder                               # calls, errors, bytes, times

docs/plugins.md is the tutorial and the reference of the header's annotations.")]
pub(crate) struct Plugin {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Turn an annotated C header into client stubs (C, Rust, Python), a dispatcher, a schema and
    /// tests
    Generate(generate::Generate),
    /// Write the headers and the runtimes that generated code stands on
    Sdk {
        /// Where to; made if it is not there
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Make a plug-in that builds, passes its test and runs: header, functions, client, Makefile,
    /// test
    New {
        /// Its name: letters, digits and _, as in C
        #[arg(value_name = "NAME")]
        name: String,
        /// Where to put it [default: NAME]; must not exist, or be empty
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Show which plug-ins a daemon serves
    List(list::List),
    /// See whether plug-ins answer; fails if one does not
    Ping(ping::Ping),
    /// Show what a plug-in's functions have done
    Stats(stats::Stats),
}

pub(crate) fn run(arguments: &Plugin) -> Result<Done> {
    let wholly = |()| Done::Wholly;
    match &arguments.action {
        Action::Generate(arguments) => arguments.run().map(wholly),
        Action::Sdk { folder } => sdk::write(folder).map(wholly),
        Action::New { name, dir } => template::make(name, dir.as_deref()).map(wholly),
        Action::List(arguments) => arguments.run(),
        Action::Ping(arguments) => arguments.run(),
        Action::Stats(arguments) => arguments.run(),
    }
}
