//! The lines of `zazend --check` about the namespace: its folder, its nodes, its archive.
//!
//! Invariant: it makes nothing, and asks no other node.

use crate::namespace_settings::NamespaceConfig;
use crate::probe::{nearest, try_writing};
use std::io::ErrorKind as Io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_node::{Admit, NodeList};

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::Config, why)
}

/// The folder, which a start would make.
pub(crate) fn folder(told: &NamespaceConfig) -> Result<String> {
    let data = told.data.display();
    let place = nearest(&told.data);
    if !place.is_dir() {
        let why = format!("{} is not a directory; give another folder (--namespace)", place.display());
        return Err(refuse(why));
    }
    try_writing(&place, "give another folder (--namespace), or mend its permissions")?;
    Ok(match (told.data.is_dir(), has_begun(&told.data), told.format) {
        (false, _, _) => format!("{data} (would be made)"),
        (true, false, _) => format!("{data}, which has no node's files yet"),
        (true, true, false) => format!("{data}, which has a node's files"),
        (true, true, true) => format!("{data}, which has a node's files: --namespace-format does nothing"),
    })
}

/// Whether a node has begun in the folder. One that cannot be looked into counts as begun.
fn has_begun(data: &Path) -> bool {
    match std::fs::read_dir(data.join("node")) {
        Ok(mut files) => files.next().is_some(),
        Err(error) => error.kind() != Io::NotFound,
    }
}

/// The list of nodes, and whether this node is in it.
pub(crate) fn nodes(told: &NamespaceConfig, listen: Option<&str>) -> Result<String> {
    let Some(list) = &told.nodes else { return Ok("this node alone".into()) };
    let nodes = match list {
        NodeList::Nodes(nodes) => nodes.clone(),
        NodeList::File(path) => listed(path)?,
    };
    let count = nodes.len();
    if nodes.is_empty() {
        return Err(refuse("the list is empty: write one host:port a line, this node's among them".into()));
    }
    let listen = listen.unwrap_or_default();
    if nodes.iter().any(|node| node == listen || is_here(node, listen)) {
        return Ok(format!("{count}, this one among them"));
    }
    if has_begun(&told.data) {
        return Ok(format!("{count}, without this one, whose folder has a node's files"));
    }
    let not_there = format!("{listen} is none of the {count} nodes ({})", nodes.join(", "));
    if told.format {
        return Err(refuse(format!(
            "{not_there}: add it to the list on all nodes, or leave out --namespace-format to join a \
             namespace that runs"
        )));
    }
    if told.admit == Admit::Listed {
        return Err(refuse(format!("{not_there}, and admit = \"listed\": add it to the list on all nodes")));
    }
    Ok(format!("{not_there}: this node would ask them to let it in"))
}

/// The nodes that a file lists.
fn listed(path: &Path) -> Result<Vec<String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        Io::NotFound => refuse(format!(
            "{shown} is not there, and the daemon would wait for it: write one host:port a line, the same on \
             all nodes"
        )),
        _ => Error::io(format!("{shown} cannot be read; mend its permissions"), error),
    })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_address = |line: &str| {
        line.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    let node = |line: &str| match is_address(line) {
        true => Ok(line.to_owned()),
        false => Err(refuse(format!("{shown}: {line:?} is not host:port"))),
    };
    lines.map(node).collect()
}

/// Whether a listed node has an address of this machine and the port that this daemon listens at.
fn is_here(node: &str, listen: &str) -> bool {
    let port = |address: &str| address.rsplit_once(':').map(|(_, port)| port.to_owned());
    let is_ours = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    port(node) == port(listen)
        && node.to_socket_addrs().is_ok_and(|mut found| found.any(|address| is_ours(address.ip())))
}

/// The archive's folder. Nobody makes it: a file system that is not mounted is no empty archive.
pub(crate) fn archive(root: &Path) -> Result<String> {
    let shown = root.display();
    let found = std::fs::metadata(root)
        .map_err(|error| Error::io(format!("{shown}: mount its file system, or make the folder"), error))?;
    if !found.is_dir() {
        return Err(refuse(format!("{shown} is not a directory; give another --namespace-archive")));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) || found.mode() & 0o022 != 0 {
        return Err(refuse(format!(
            "{shown} must belong to root or to user {own}, and nobody else may write to it: change its \
             owner, or run `chmod go-w {shown}`"
        )));
    }
    Ok(shown.to_string())
}
