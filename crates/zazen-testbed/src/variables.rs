//! The environment variables by which programs find a testbed: one list.

use std::process::Command;

/// The testbed's folder.
pub const TESTBED: &str = "ZAZEN_TESTBED";
/// The cluster key's file.
pub const KEY: &str = "ZAZEN_KEY";
/// The nodes' addresses.
pub const NODES: &str = "ZAZEN_NODES";
/// How the backing store is spelled.
pub const BACKING: &str = "ZAZEN_BACKING";
/// The name of the node that a process runs on.
pub const NODE: &str = "ZAZEN_NODE";
/// The socket of that node's daemon.
pub const SOCKET: &str = "ZAZEN_SOCKET";

/// All of them.
pub const NAMES: [&str; 6] = [TESTBED, KEY, NODES, BACKING, NODE, SOCKET];

/// Removes these variables from `command`'s environment: a daemon gets all it needs by flags.
pub fn without_variables(command: &mut Command) -> &mut Command {
    NAMES.iter().fold(command, |command, name| command.env_remove(name))
}
