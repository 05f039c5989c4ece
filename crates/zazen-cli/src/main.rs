//! `zazen`: the operator's and the user's tool.
//!
//! Invariants: results go to stdout, everything else to stderr; an error is one line that names the
//! object, the limit and the next step. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but for
//! nodes that were not reached.

mod commands;
mod output;
mod parse;
mod racks;
mod target;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{
    assign, bench, dash, datasets, doctor, evict, explain, index, key, load, ls, number, pin, plugin, push,
    run, sim, stat, status, verify, viz,
};
use std::process::ExitCode;
use target::Done;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Zazen keeps the frames of simulations on the disks of the nodes that analyse them.
#[derive(Parser)]
#[command(
    name = "zazen",
    version,
    max_term_width = 100,
    after_help = "EXAMPLES:
  zazen push --watch /lustre/sim1 --nodes nodes.txt      # while the simulation runs
  zazen status --nodes nodes.txt                         # who holds what, dead nodes
  zazen testbed up 4                                     # try it all on this machine

`zazen COMMAND --help` shows examples of each command.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but for nodes that were not reached."
)]
struct Zazen {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the state of the nodes: frames, space, hit rate, dead nodes
    Status(status::Status),
    /// Show all nodes, datasets and what runs, live, as a page in a browser
    Dash(dash::Dash),
    /// Look at all nodes: what is wrong with them, and what to do
    Doctor(doctor::Doctor),
    /// Say why the last analysis of a dataset was slow, and what would help
    Explain(explain::Explain),
    /// List the datasets that are cached
    Datasets(datasets::Datasets),
    /// List the cached frames of a dataset
    Ls(ls::Ls),
    /// Show everything about one frame
    Stat(stat::Stat),
    /// Push frames to the nodes' caches, from files or while a simulation writes them
    Push(push::Push),
    /// Fill the caches from the backing store
    Load(load::Load),
    /// Number files whose names hold no frame number
    Number(number::Number),
    /// Find the frames of trajectory files
    Index(index::Index),
    /// Remove frames from the caches
    Evict(evict::Evict),
    /// Keep a dataset from being evicted
    Pin(pin::Pin),
    /// Check cached frames against their checksums
    Verify(verify::Verify),
    /// Run the assignment protocol on a scenario
    Assign(assign::Assign),
    /// Match the files of a visualization to the ranks near them
    Viz(viz::Viz),
    /// Simulate what a cluster would do with a workload, up to millions of nodes
    Sim(sim::Sim),
    /// Measure: the assignment protocol at any scale
    Bench(bench::Bench),
    /// Set up, use and remove a cluster on this machine
    Testbed(commands::testbed::Testbed),
    /// Generate the stubs of a plug-in from its header
    Plugin(plugin::Plugin),
    /// Run an unmodified program with its files forwarded to a daemon
    Run(run::Run),
    /// Mount the namespace on a folder
    Mount(commands::mount::Mount),
    /// Unmount what `zazen mount` has mounted
    Unmount(commands::mount::Unmount),
    /// Show how the namespace is
    Namespace(commands::namespace::NamespaceCommand),
    /// Show which node holds a file of the namespace
    Locate(commands::namespace::Locate),
    /// Copy a tree into the namespace
    StageIn(commands::stage::StageIn),
    /// Copy a tree out of the namespace
    StageOut(commands::stage::StageOut),
    /// Start daemons for one job, on its nodes, as its user
    Job(commands::job::Job),
    /// Make a cluster key
    Key(key::Key),
    /// Print a shell's completions of this command
    Completions(commands::completions::Completions),
    /// Write the man pages
    Man(commands::completions::Man),
}

/// `zazen run` alone. Users start many short programs by it, and to build the parser of all other
/// commands would take a good part of its time.
#[derive(Parser)]
#[command(name = "zazen", version)]
struct Running {
    #[command(subcommand)]
    command: OnlyRun,
}

#[derive(Subcommand)]
enum OnlyRun {
    Run(run::Run),
}

impl Running {
    /// `None`: another command is asked for, or the whole parser shall say what is wrong.
    fn parsed() -> Option<Command> {
        if std::env::args_os().nth(1)? != "run" {
            return None;
        }
        let OnlyRun::Run(arguments) = Running::try_parse().ok()?.command;
        Some(Command::Run(arguments))
    }
}

fn main() -> ExitCode {
    let asked = std::env::var("ZAZEN_LOG").ok().filter(|text| !text.is_empty());
    let shown = asked.and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer().with_writer(|| output::Log).with_ansi(false);
    let shown = shown.unwrap_or_default();
    // A list of crates, or a word that is no level, must not hide the errors of all others.
    let shown = match shown.default_level() {
        None => shown.with_default(Level::ERROR),
        Some(_) => shown,
    };
    tracing_subscriber::registry().with(shown).with(lines).init();
    let wholly = |outcome: zazen_core::Result<()>| outcome.map(|()| Done::Wholly);
    let command = Running::parsed()
        .unwrap_or_else(|| Zazen::try_parse().unwrap_or_else(|error| output::refuse(&error)).command);
    let outcome = match command {
        Command::Status(arguments) => status::run(&arguments),
        Command::Dash(arguments) => dash::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Datasets(arguments) => datasets::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Push(arguments) => wholly(push::run(&arguments)),
        Command::Load(arguments) => load::run(&arguments),
        Command::Number(arguments) => wholly(number::run(&arguments)),
        Command::Index(arguments) => wholly(index::run(&arguments)),
        Command::Evict(arguments) => evict::run(&arguments),
        Command::Pin(arguments) => pin::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Assign(arguments) => wholly(assign::run(&arguments)),
        Command::Viz(arguments) => wholly(viz::run(&arguments)),
        Command::Sim(arguments) => wholly(sim::run(&arguments)),
        Command::Bench(arguments) => wholly(bench::run(&arguments)),
        Command::Testbed(arguments) => wholly(commands::testbed::run(arguments)),
        Command::Plugin(arguments) => plugin::run(&arguments),
        Command::Run(arguments) => wholly(run::run(&arguments)),
        Command::Mount(arguments) => wholly(commands::mount::run(&arguments)),
        Command::Unmount(arguments) => wholly(commands::mount::unmount(&arguments)),
        Command::Namespace(arguments) => commands::namespace::run(&arguments),
        Command::Locate(arguments) => wholly(commands::namespace::locate(&arguments)),
        Command::StageIn(arguments) => wholly(commands::stage::stage_in(&arguments)),
        Command::StageOut(arguments) => wholly(commands::stage::stage_out(&arguments)),
        Command::Job(arguments) => wholly(commands::job::run(&arguments)),
        Command::Key(arguments) => wholly(key::run(&arguments)),
        Command::Completions(arguments) => {
            wholly(commands::completions::completions(&arguments, Zazen::command()))
        }
        Command::Man(arguments) => wholly(commands::completions::man(&arguments, Zazen::command())),
    };
    match outcome {
        Ok(Done::Wholly) => ExitCode::SUCCESS,
        Ok(Done::Partly) => ExitCode::from(3),
        Err(error) => {
            output::note(error.to_string());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer lines are broken on a terminal of the usual width, and leave lines of one word.
    #[test]
    fn examples_in_help_texts_have_lines_of_at_most_100_characters() {
        fn long_lines(command: &clap::Command) -> Vec<String> {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = text.lines().filter(|line| line.chars().count() > 100);
            let long = long.map(|line| format!("{}: {line}", command.get_name()));
            long.chain(command.get_subcommands().flat_map(long_lines)).collect()
        }
        assert_eq!(long_lines(&Zazen::command()), [""; 0]);
    }
}
