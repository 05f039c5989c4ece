//! `zazen testbed run`: an MPI program with every rank on its node, or one command on one host.

use clap::Args;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use zazen_core::{Error, Result};
use zazen_testbed::{State, find_program, own_program, place};

/// Makes MPICH's ranks talk over their node's shaped link: it takes the namespaces for one host
/// otherwise, and would pass the links by through shared memory.
const OVER_THE_LINKS: [(&str, &str); 4] = [
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("FI_PROVIDER", "tcp"),
    ("FI_TCP_IFACE", "eth0"),
];

#[derive(Args)]
pub(crate) struct Run {
    /// Ranks to start; rank r runs on node r modulo the number of nodes
    #[arg(short = 'n', long, value_name = "RANKS", required_unless_present = "on",
          value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// No ranks on nodes whose daemon is dead: rank r runs on live node r modulo their number
    #[arg(long, requires = "ranks")]
    live: bool,
    /// Run on this host alone, without mpiexec: n0, n1, …, fs, sim
    #[arg(long, value_name = "HOST", conflicts_with = "ranks")]
    on: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    /// Returns only if the command could not be started: its process takes this one's place.
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let state = State::load(dir)?;
        if let Some(name) = &self.on {
            return super::exec::replace(&state, Some(state.host(name)?), &self.command);
        }
        let ranks = self.ranks.unwrap_or(1).to_string();
        let launcher = find_program("mpiexec", "ZAZEN_MPIEXEC", "pip install mpich")?;
        let mut command = Command::new(&launcher);
        command.args(["-n", &ranks]).arg(own_program()?);
        command.args(["testbed", "exec", "--dir"]).arg(&state.dir);
        if self.live {
            command.arg("--live");
        }
        command.arg("--").args(&self.command);
        for (name, value) in place::environment(&state, None) {
            command.env(name, value);
        }
        if state.net.is_some() {
            command.envs(OVER_THE_LINKS);
        }
        Err(Error::io(format!("start {}", launcher.display()), command.exec()))
    }
}
