//! `zazen testbed status`: the processes and what is limited.

use crate::output::{self, Lines, Table, human_bytes};
use clap::Args;
use serde_json::json;
use std::path::Path;
use zazen_backing::served::ServedBacking;
use zazen_core::Result;
use zazen_testbed::{Disk, State, log_file, place, processor_seconds};

#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        let state = State::load(dir)?;
        match self.json {
            true => output::json(&as_json(&state)),
            false => output::print(&as_table(&state)),
        }
        Ok(())
    }
}

fn as_json(state: &State) -> serde_json::Value {
    let hosts: Vec<_> = state
        .nodes
        .iter()
        .chain([&state.server])
        .map(|host| {
            let alive = host.process.filter(|process| process.is_alive());
            json!({
                "name": host.name,
                "role": host.role,
                "alive": alive.is_some(),
                "pid": alive.map(|process| process.pid),
                "addr": host.addr,
                "socket": host.socket,
                "netns": host.netns,
                "log": log_file(host),
                "cpu_seconds": state.disk.as_ref().and_then(|limited| processor_seconds(limited, &host.name)),
            })
        })
        .collect();
    json!({
        "dir": state.dir,
        "backing": state.backing_root,
        "nodes_file": state.nodes_file,
        "key": state.key,
        "limits": state.limits,
        "net": state.net,
        "disk": state.disk,
        "hosts": hosts,
        "server_traffic": server_traffic(state),
    })
}

/// What the file server has handed out since it started, by its own count; null if it does not
/// answer.
fn server_traffic(state: &State) -> serde_json::Value {
    let ask = || -> Result<serde_json::Value> {
        place::enter(state, &state.server)?;
        let addr = state.server.addr.as_deref().unwrap_or_default();
        let traffic = ServedBacking::connect(addr)?.server_traffic()?;
        Ok(json!({"reads": traffic.reads, "opens": traffic.opens, "bytes": traffic.bytes}))
    };
    // A thread of its own goes to the server's namespace: this one stays where it is.
    std::thread::scope(|scope| scope.spawn(ask).join()).ok().and_then(Result::ok).unwrap_or_default()
}

fn as_table(state: &State) -> Lines {
    let mut table = Table::new(&["host", "state", ">pid", "address", "log"]);
    for host in state.nodes.iter().chain([&state.server]) {
        let alive = host.process.filter(|process| process.is_alive());
        table.row(vec![
            host.name.clone(),
            if alive.is_some() { "up" } else { "dead" }.to_owned(),
            alive.map_or_else(|| "-".to_owned(), |process| process.pid.to_string()),
            host.addr.clone().unwrap_or_else(|| "-".to_owned()),
            log_file(host).display().to_string(),
        ]);
    }
    let mut text = table.render();
    text.line(limits_line(state));
    text
}

/// One line that says what is limited and how.
pub(crate) fn limits_line(state: &State) -> String {
    let server = match state.limits.server_bytes_per_s {
        Some(rate) => format!("file server {}/s in all ({})", human_bytes(rate), state.limits.how),
        None => "file server not limited".to_owned(),
    };
    let links = state.net.as_ref().map_or_else(
        || "links not limited".to_owned(),
        |net| format!("links of nodes {}/s each way", human_bytes(net.link_bits_per_s / 8)),
    );
    let disks = state.disk.as_ref().map_or_else(|| "disks not limited".to_owned(), disks_phrase);
    format!("{server}; {links}; {disks}")
}

fn disks_phrase(disk: &Disk) -> String {
    let nodes = [
        disk.bytes_per_s.map(|rate| format!("{}/s each way", human_bytes(rate))),
        disk.iops.map(|iops| format!("{iops} reads/s")),
    ];
    let nodes: Vec<String> = nodes.into_iter().flatten().collect();
    let server = disk.server_bytes_per_s.map(|rate| format!("disk of file server {}/s", human_bytes(rate)));
    let nodes = (!nodes.is_empty()).then(|| format!("disks of nodes {}", nodes.join(", ")));
    nodes.into_iter().chain(server).collect::<Vec<_>>().join("; ")
}
