//! The list of nodes to push to: a file with one `host:port` a line, `#` comments, or the same joined by commas.

use std::collections::BTreeSet;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};

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

/// The largest node file, in bytes: a wrong path shall not be read to its end.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl NodeList {
    /// Reads `spec`: a path of a node file, or `host[:port],host[:port]…`. Fails with `Config` naming file and
    /// line. Duplicates are an error.
    ///
    /// An existing file wins over a host of that name; IPv6 addresses are written `[::1]:7345`.
    pub fn read(spec: &str) -> Result<NodeList> {
        let path = Path::new(spec);
        if path.is_file() || spec.contains('/') {
            let text = read_file(path)?;
            let lines = text.lines().enumerate();
            let named =
                lines.map(|(at, line)| (format!("node file {spec}, line {}", at + 1), without_comment(line)));
            return collect(named, &format!("node file {spec}"));
        }
        let named = spec.split(',').map(|entry| (format!("node list {spec:?}"), entry.trim()));
        collect(named, &format!("node list {spec:?} (and no file of that name is there)"))
    }
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

fn read_file(path: &Path) -> Result<String> {
    let config = |why: String| Error::new(ErrorKind::Config, format!("node file {}: {why}", path.display()));
    let bytes = std::fs::metadata(path).map_err(|error| config(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(config(format!(
            "has {bytes} bytes, more than any node list ({FILE_BYTES_MAX}); is it the right file?"
        )));
    }
    std::fs::read_to_string(path).map_err(|error| config(error.to_string()))
}

fn collect<'a>(entries: impl Iterator<Item = (String, &'a str)>, whole: &str) -> Result<NodeList> {
    let mut seen = BTreeSet::new();
    let mut nodes = Vec::new();
    for (place, entry) in entries.filter(|(_, entry)| !entry.is_empty()) {
        let addr = address(entry).map_err(|why| Error::new(ErrorKind::Config, format!("{place}: {why}")))?;
        if !seen.insert(addr.clone()) {
            let why = format!("{place}: node {addr} is there twice; list each node once");
            return Err(Error::new(ErrorKind::Config, why));
        }
        nodes.push(Node { addr });
    }
    if nodes.is_empty() {
        let why = format!("{whole}: names no node; write one host[:port] a line, or join them by commas");
        return Err(Error::new(ErrorKind::Config, why));
    }
    Ok(NodeList { nodes })
}

/// `entry` with its port written out.
fn address(entry: &str) -> std::result::Result<String, String> {
    if entry.chars().any(char::is_whitespace) {
        return Err(format!("{entry:?} has white space in it; write one host[:port] a line"));
    }
    let bracketed = entry.starts_with('[');
    let colons = entry.matches(':').count();
    if !bracketed && colons > 1 {
        return Err(format!("{entry:?} has several colons; write an IPv6 address as [address]:port"));
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) if !bracketed || host.ends_with(']') => (host, Some(port)),
        _ => (entry, None),
    };
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    if plain.is_empty() || (bracketed && !host.ends_with(']')) {
        return Err(format!("{entry:?} has no host; write host[:port]"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("{entry:?}: port {text:?} is not a number from 1 to 65535")),
        },
    };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, expected: std::result::Result<&[&str], &str>) {
        let found = NodeList::read(spec);
        match (found, expected) {
            (Ok(list), Ok(addrs)) => {
                let found: Vec<_> = list.nodes.iter().map(|node| node.addr.as_str()).collect();
                assert_eq!(found, addrs, "{spec:?}");
            }
            (Err(error), Err(part)) => {
                assert_eq!(error.kind(), ErrorKind::Config, "{spec:?}");
                assert!(error.to_string().contains(part), "{spec:?}: {error}");
            }
            (found, expected) => panic!("{spec:?}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_list_by_commas() {
        check("a,b:1,[::1]:9,[fe80::2]", Ok(&["a:7345", "b:1", "[::1]:9", "[fe80::2]:7345"]));
        check("a,,b,", Ok(&["a:7345", "b:7345"]));
        check("", Err("names no node"));
        check(",", Err("names no node"));
        check("a:0", Err("1 to 65535"));
        check("a:70000", Err("1 to 65535"));
        check("a:x", Err("1 to 65535"));
        check(":7", Err("no host"));
        check("::1", Err("[address]:port"));
        check("[::1", Err("no host"));
        check("a b", Err("white space"));
        check("a,b,a:7345", Err("a:7345 is there twice"));
    }

    #[test]
    fn a_file_names_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.txt");
        let spec = path.to_str().unwrap();
        std::fs::write(&path, "# cluster\n n1 # first\n\nn2:8000\n").unwrap();
        check(spec, Ok(&["n1:7345", "n2:8000"]));
        std::fs::write(&path, "n1\n\nn1:7345\n").unwrap();
        check(spec, Err("nodes.txt, line 3: node n1:7345 is there twice"));
        std::fs::write(&path, "n1\nn2:port\n").unwrap();
        check(spec, Err("line 2"));
        std::fs::write(&path, "# none\n").unwrap();
        check(spec, Err("names no node"));
        check("/nowhere/nodes.txt", Err("/nowhere/nodes.txt"));
    }
}
