//! `zazen testbed kill` and `revive`: a node dies without a word, and comes back on the same cache
//! and address.

use crate::output;
use clap::Args;
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};
use zazen_testbed::{Programs, State, start_node};

#[derive(Args)]
pub(crate) struct Kill {
    /// The node: n0, n1, … or its number
    #[arg(value_name = "NODE")]
    node: String,
}

#[derive(Args)]
pub(crate) struct Revive {
    /// The node: n0, n1, … or its number
    #[arg(value_name = "NODE")]
    node: String,
}

/// A killed process ends within milliseconds, on a machine with much other work within seconds.
const KILL_PATIENCE: Duration = Duration::from_secs(60);

impl Kill {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let _held = State::load(dir)?.folder()?.lock()?;
        let mut state = State::load(dir)?;
        let index = state.node_index(&self.node)?;
        let node = &mut state.nodes[index];
        let name = node.name.clone();
        match node.process.take() {
            Some(process) if process.signal(Signal::KILL) => {
                // Its locks and its address are free only then.
                if !process.wait_gone(KILL_PATIENCE) {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        format!("node {name}: process {} does not end, though it was killed", process.pid),
                    ));
                }
                state.save()?;
                output::line(format!("node {name}: killed"));
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::NotFound,
                format!("node {name}: is dead already; `zazen testbed revive {name}` starts it again"),
            )),
        }
    }
}

impl Revive {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let _held = State::load(dir)?.folder()?.lock()?;
        let mut state = State::load(dir)?;
        let index = state.node_index(&self.node)?;
        let name = state.nodes[index].name.clone();
        if state.nodes[index].process.is_some_and(|process| process.is_alive()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("node {name}: is up; `zazen testbed kill {name}` first"),
            ));
        }
        start_node(&mut state, index, &Programs::of_this_zazen()?)?;
        output::line(format!("node {name}: up"));
        Ok(())
    }
}
