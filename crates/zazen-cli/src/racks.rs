//! Which rack a node is in, as a file says it.

use crate::parse::text_file;
use crate::target::Node;
use std::collections::BTreeMap;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};

/// The longest file of racks; that of a million nodes is shorter.
const RACKS_BYTES_MAX: u64 = 64 << 20;

/// The rack of each of `nodes`, from `file`: a host, or a node as it is listed, and its rack in
/// each line; `#` begins a comment.
pub(crate) fn of(file: &Path, nodes: &[Node]) -> Result<Vec<String>> {
    let text = text_file(file, RACKS_BYTES_MAX, "file of racks")?;
    let racks = parse(&text).map_err(|error| error.within(format!("file of racks {}", file.display())))?;
    let rack = |node: &Node| {
        let host = node.name.rsplit_once(':').map_or(node.name.as_str(), |(host, _)| host);
        racks.get(node.name.as_str()).or_else(|| racks.get(host)).map(|rack| (*rack).to_owned()).ok_or_else(
            || {
                let why = format!("{}: names no rack of node {}", file.display(), node.name);
                Error::new(ErrorKind::Config, why)
            },
        )
    };
    nodes.iter().map(rack).collect()
}

fn parse(text: &str) -> Result<BTreeMap<&str, &str>> {
    let mut racks = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [] => {}
            [host, rack] if !racks.contains_key(host) => drop(racks.insert(host, rack)),
            [host, _] => {
                let why = format!("line {}: {host} has two racks", at + 1);
                return Err(Error::new(ErrorKind::Config, why));
            }
            _ => {
                let why = format!("line {}: {line:?} is not a host and its rack", at + 1);
                return Err(Error::new(ErrorKind::Config, why));
            }
        }
    }
    Ok(racks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_rack() {
        let racks = parse("# host rack\nnode1 a\nnode2:7345  b # far\n\n").unwrap();
        assert_eq!(racks, BTreeMap::from([("node1", "a"), ("node2:7345", "b")]));
        for (bad, words) in [("node1", "line 1"), ("a b c", "line 1"), ("a b\na c", "two racks")] {
            let error = parse(bad).unwrap_err();
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(words), "{error}");
        }
    }
}
