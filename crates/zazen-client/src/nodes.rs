//! The list of nodes to push to: a file with one `host:port` a line, `#` comments, or the same joined by commas.

use zazen_core::Result;

/// One node's daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `host:port`.
    pub addr: String,
}

/// Nodes in the user's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeList {
    /// At least one.
    pub nodes: Vec<Node>,
}

/// The TCP port of a daemon where none is written.
pub const DEFAULT_PORT: u16 = 7345;

impl NodeList {
    /// Reads `spec`: a path of a node file, or `host[:port],host[:port]…`. Fails with `Config` naming file and
    /// line. Duplicates are an error.
    pub fn read(spec: &str) -> Result<NodeList> {
        let _ = spec;
        todo!()
    }
}
