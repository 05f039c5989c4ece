//! The testbed's network: a namespace per host on a bridge in a namespace of its own, links shaped
//! by tbf both ways. Nothing touches the host's own network. Needs root, `ip` and `tc`.

use crate::state::Net;
use crate::{Host, Role, State};
use std::process::{Command, Stdio};
use zazen_core::{Error, ErrorKind, Result};

/// The private network's first three numbers; it exists inside the namespaces only.
const PREFIX: &str = "10.77.0";
const SERVER_NUMBER: usize = 250;
const SIM_NUMBER: usize = 251;
/// TCP port of a node's daemon inside its namespace.
pub(crate) const NODE_PORT: u16 = zazen_core::DEFAULT_PORT;
/// TCP port of the file server inside its namespace.
pub(crate) const SERVER_PORT: u16 = 7350;

/// Address of `host`, which is the `index`-th node if it is one.
pub(crate) fn ip_address(role: Role, index: usize) -> String {
    match role {
        Role::Node => format!("{PREFIX}.{}", index + 1),
        Role::Server => format!("{PREFIX}.{SERVER_NUMBER}"),
        Role::Simulation => format!("{PREFIX}.{SIM_NUMBER}"),
    }
}

/// Checks that this process may and can build the network; the message names what is missing.
pub(crate) fn check_possible() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "network namespaces: need root; run as root, or leave --net out and limit with --server-rate",
        ));
    }
    for tool in ["ip", "tc"] {
        let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
        if !found {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{tool}: not found; install it with `apt-get install iproute2`, or leave --net out"),
            ));
        }
    }
    Ok(())
}

/// Whether a network namespace of a testbed called `tag` is there.
pub(crate) fn is_taken(tag: &str) -> bool {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    names.into_iter().any(|name| name.file_name().to_string_lossy().starts_with(tag))
}

/// Builds the network of `state`. What was built before a failure is removed by [`tear_down`].
pub(crate) fn set_up(state: &State, net: &Net) -> Result<()> {
    for command in set_up_commands(state, net) {
        run(&command)?;
    }
    Ok(())
}

/// Removes the network; what is not there is no error.
pub(crate) fn tear_down(state: &State, net: &Net, remark: &mut dyn FnMut(String)) {
    let names = state.hosts().filter_map(|host| host.netns.as_deref()).chain([net.switch.as_str()]);
    for name in names {
        let is_there = std::path::Path::new("/run/netns").join(name).exists();
        if is_there && let Err(error) = run(&words(&["ip", "netns", "del", name])) {
            remark(error.to_string());
        }
    }
}

fn set_up_commands(state: &State, net: &Net) -> Vec<Vec<String>> {
    let switch = net.switch.as_str();
    let mut commands = vec![
        words(&["ip", "netns", "add", switch]),
        words(&["ip", "-n", switch, "link", "add", "br0", "type", "bridge"]),
        words(&["ip", "-n", switch, "link", "set", "br0", "up"]),
    ];
    for (index, host) in state.hosts().enumerate() {
        commands.extend(host_commands(host, index, net));
    }
    commands
}

fn host_commands(host: &Host, index: usize, net: &Net) -> Vec<Vec<String>> {
    let Some(netns) = host.netns.as_deref() else { return Vec::new() };
    let switch = net.switch.as_str();
    let port = format!("p-{}", host.name);
    let address = format!("{}/24", ip_address(host.role, index));
    let rate = if host.role == Role::Server { net.server_link_bits_per_s } else { net.link_bits_per_s };
    vec![
        words(&["ip", "netns", "add", netns]),
        words(&["ip", "-n", netns, "link", "set", "lo", "up"]),
        words(&[
            "ip", "link", "add", "eth0", "netns", netns, "type", "veth", "peer", "name", &port, "netns",
            switch,
        ]),
        words(&["ip", "-n", netns, "addr", "add", &address, "dev", "eth0"]),
        words(&["ip", "-n", netns, "link", "set", "eth0", "up"]),
        words(&["ip", "-n", switch, "link", "set", &port, "master", "br0", "up"]),
        shape(netns, "eth0", rate),
        shape(switch, &port, rate),
    ]
}

/// A token bucket on one end of a link. Its depth is 2 ms of traffic, but never less than the
/// largest segment that the stack hands over (64 KiB), which would otherwise be dropped.
fn shape(netns: &str, device: &str, bits_per_s: u64) -> Vec<String> {
    let burst_bytes = (bits_per_s / 8 / 500).max(66_000);
    let (rate, burst) = (format!("{bits_per_s}bit"), format!("{burst_bytes}b"));
    words(&[
        "tc", "-n", netns, "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate, "burst", &burst,
        "latency", "50ms",
    ])
}

fn words(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn run(command: &[String]) -> Result<()> {
    let shown = command.join(" ");
    let output = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::io(format!("`{shown}`"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "`{shown}`: {}; `zazen testbed down` removes what was built, then try without --net",
            said.trim()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_do_not_clash() {
        let mut all: Vec<String> =
            (0..crate::state::NODES_MAX).map(|node| ip_address(Role::Node, node)).collect();
        all.push(ip_address(Role::Server, 64));
        all.push(ip_address(Role::Simulation, 65));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_bucket_is_never_smaller_than_a_segment() {
        let burst = |rate| shape("a", "b", rate)[12].clone();
        assert_eq!(shape("a", "b", 8_000)[11], "burst");
        assert_eq!(burst(160_000_000), "66000b");
        assert_eq!(burst(1_000_000_000), "250000b");
    }
}
