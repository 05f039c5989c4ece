//! The list of nodes: a file with one `host:port` a line, `#` comments, or the same joined by
//! commas.
//!
//! Invariant: a missing file is never silently taken for a host with its name.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zazen_core::{DEFAULT_PORT, Error, ErrorKind, Result};

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

/// The largest node file, in bytes, so that a wrong path is not read to its end.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Name endings of files that no host name has.
const FILE_ENDINGS: [&str; 9] =
    [".txt", ".list", ".lst", ".nodes", ".hosts", ".conf", ".cfg", ".toml", ".json"];
/// The most host names that are looked up at once; the most unknown names that an error lists.
const LOOKUPS_MAX: usize = 32;
const NAMED_MAX: usize = 5;
/// The C library's message if the name service does not answer. Then the name may be right.
const TEMPORARY: &str = "Temporary failure";

impl NodeList {
    /// Reads `spec`: a path of a node file, or `host[:port],host[:port]…`. Fails with `Config`
    /// naming file and line. Duplicates are an error.
    ///
    /// An existing file wins over a host of that name. Text that looks like a path must be a file.
    /// IPv6 addresses are written `[::1]:7345`. Hosts are not looked up here; see
    /// [`NodeList::look_up`].
    pub fn read(spec: &str) -> Result<NodeList> {
        let path = Path::new(spec);
        if path.exists() || looks_like_a_path(spec) {
            let text = read_file(path)?;
            let lines = text.lines().enumerate();
            let named =
                lines.map(|(at, line)| (format!("node file {spec}, line {}", at + 1), without_comment(line)));
            return collect(named, &format!("node file {spec}"));
        }
        let named = spec.split(',').map(|entry| (format!("node list {spec:?}"), entry.trim()));
        collect(named, &format!("node list {spec:?} (and no file of that name is there)"))
    }

    /// Checks in parallel that every host name is known. The error `Config` lists unknown names. If
    /// the name service does not answer, names count as known, unless no name at all is known.
    pub fn look_up(&self) -> Result<()> {
        let next = AtomicUsize::new(0);
        let unknown = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..LOOKUPS_MAX.min(self.nodes.len()) {
                scope.spawn(|| {
                    while let Some(node) = self.nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Some(why) = node.is_unknown() {
                            let mut unknown =
                                unknown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                            unknown.push((node.addr.as_str(), why));
                        }
                    }
                });
            }
        });
        let mut unknown = unknown.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if unknown.len() < self.nodes.len() {
            unknown.retain(|(_, why)| !why.contains(TEMPORARY));
        }
        let Some((addr, why)) = unknown.first() else { return Ok(()) };
        let named: Vec<_> = unknown.iter().take(NAMED_MAX).map(|(addr, _)| host_of(addr)).collect();
        let more = match unknown.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let file = match self.nodes.len() {
            1 => format!(
                ", and there is no file {} in this folder; give the path of a node file, or correct the name",
                host_of(addr)
            ),
            _ => "; correct the list of nodes".to_owned(),
        };
        Err(Error::new(
            ErrorKind::Config,
            format!("nodes: no host has the name {}{more} ({why}){file}", named.join(", ")),
        ))
    }
}

impl Node {
    /// Why the host name is unknown; `None` if it is known.
    pub fn is_unknown(&self) -> Option<String> {
        match self.addr.to_socket_addrs() {
            Ok(mut found) => found.next().is_none().then(|| "it has no address".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host)
}

/// Whether this text can only mean a file.
fn looks_like_a_path(spec: &str) -> bool {
    let one = !spec.contains(',');
    let lower = spec.to_ascii_lowercase();
    spec.contains('/')
        || one && (spec.starts_with(['.', '~']) || FILE_ENDINGS.iter().any(|end| lower.ends_with(end)))
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

fn read_file(path: &Path) -> Result<String> {
    let config = |why: String| Error::new(ErrorKind::Config, format!("node file {}: {why}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => config(
            "there is none; mend the path, write one host[:port] a line into it, or give \
             host[:port],host[:port]"
                .to_owned(),
        ),
        _ => config(error.to_string()),
    })?;
    if !found.is_file() {
        return Err(config("is not a plain file; give a file with one host[:port] a line".to_owned()));
    }
    let bytes = found.len();
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

/// `entry`, which is `host` or `host:port`, with its port written out.
pub fn address(entry: &str) -> std::result::Result<String, String> {
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
        check("/nowhere/nodes.txt", Err("node file /nowhere/nodes.txt: there is none"));
        check(folder.path().to_str().unwrap(), Err("is not a plain file"));
    }

    #[test]
    fn a_missing_file_is_no_host() {
        for spec in ["missing.txt", "Nodes.LIST", "./nodes", "~nodes", "cluster.conf", "sub/nodes"] {
            check(spec, Err("there is none"));
        }
        check("node1.example,nodes.txt", Ok(&["node1.example:7345", "nodes.txt:7345"]));
    }

    #[test]
    fn unknown_hosts_are_named() {
        let check = |spec: &str, expected: &[&str]| {
            let found = NodeList::read(spec).unwrap().look_up();
            match found {
                Ok(()) => assert!(expected.is_empty(), "{spec}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Config);
                    assert!(expected.iter().all(|part| error.to_string().contains(part)), "{spec}: {error}");
                    assert!(!expected.is_empty(), "{spec}: {error}");
                }
            }
        };
        check("127.0.0.1,[::1]:9,localhost:80", &[]);
        check("no-such.invalid", &["no-such.invalid", "no file no-such.invalid"]);
        check("no.invalid,nor.invalid:9", &["no.invalid", "nor.invalid", "correct the list"]);
    }
}
