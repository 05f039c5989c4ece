//! Which daemons a command talks to: flags first, then the testbed, then this machine's own.

mod answers;
mod node;

pub(crate) use answers::{Answers, Done, Missed, again, is_silence, judge, missed_json, none_answers};
pub(crate) use node::Node;

use clap::Args;
use std::path::{Component, Path, PathBuf};
use zazen_call::{ClusterKey, Identity};
use zazen_client::NodeList;
use zazen_client::cluster::{Remote, Target};
use zazen_client::testbed_env::launcher_rank;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::socket_path::find_socket_path;
use zazen_frames::messages::DatasetInfo;
use zazen_namespace_client::Namespace;
use zazen_testbed::variables::{NODES, SOCKET, TESTBED};
use zazen_testbed::{State, place};

/// The socket of the one daemon that a command talks to: `given`, `$ZAZEN_SOCKET`, the testbed's
/// node of this rank, or this machine's.
pub(crate) fn one_socket(given: Option<&Path>) -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let dir = match given {
        Some(socket) => return Ok(socket.to_path_buf()),
        None => set(TESTBED).filter(|_| set(SOCKET).is_none()),
    };
    let Some(dir) = dir else { return Ok(find_socket_path()) };
    let state = State::load(Path::new(&dir))?;
    let node = place::host_of_rank(&state, launcher_rank().unwrap_or(0));
    node.socket.clone().ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("node {}: the testbed's record names no socket", node.name))
    })
}

/// The flags that choose daemons.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Targets {
    /// All these nodes: a file with one host:port a line, or host:port,host:port
    /// [default: on a testbed all its nodes, else $ZAZEN_NODES, else this machine's daemon]
    #[arg(long, value_name = "FILE|LIST")]
    nodes: Option<String>,
    /// The daemon behind this socket
    #[arg(long, value_name = "PATH", conflicts_with = "nodes")]
    socket: Option<PathBuf>,
    /// The cluster key's file, for --nodes [default: $ZAZEN_KEY]
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY", hide_env = true)]
    key: Option<PathBuf>,
}

impl Targets {
    /// These flags as a user would type them again.
    pub(crate) fn as_flags(&self) -> String {
        let nodes = self.nodes.as_ref().map(|nodes| format!(" --nodes {nodes}"));
        let socket = self.socket.as_ref().map(|socket| format!(" --socket {}", socket.display()));
        nodes.or(socket).unwrap_or_default()
    }

    fn listed(&self, spec: &str) -> Result<Vec<Node>> {
        let key = self.key.as_ref().map(|file| ClusterKey::from_file(file)).transpose()?;
        let list = NodeList::read(spec)?.nodes.into_iter();
        let node = |addr: String| Node { name: addr.clone(), target: Target::Tcp(addr), key: key.clone() };
        Ok(list.map(|listed| node(listed.addr)).collect())
    }

    /// The daemons to talk to; at least one.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>> {
        if let Some(spec) = &self.nodes {
            return self.listed(spec);
        }
        if let Some(socket) = &self.socket {
            return Ok(vec![Node::local(socket.display().to_string(), socket.clone())]);
        }
        if let Some(dir) = std::env::var_os(TESTBED).filter(|dir| !dir.is_empty()) {
            let nodes = State::load(Path::new(&dir))?.nodes.into_iter();
            return Ok(nodes.filter_map(|node| Some(Node::local(node.name, node.socket?))).collect());
        }
        if let Ok(spec) = std::env::var(NODES)
            && !spec.is_empty()
        {
            return self.listed(&spec);
        }
        let socket = find_socket_path();
        Ok(vec![Node::local(socket.display().to_string(), socket)])
    }

    /// The namespace, through the first of the daemons that answers.
    pub(crate) fn namespace(&self) -> Result<Namespace> {
        let mut refusal = Error::new(ErrorKind::Unavailable, "no node is given");
        for node in self.nodes()? {
            let opened = match (&node.target, node.key()) {
                (Target::Local(socket), _) => Namespace::local(socket),
                (Target::Tcp(addr), Some(key)) => Namespace::remote(addr, key, &Identity::of_this_process()),
                (Target::Tcp(addr), None) => Err(Error::new(
                    ErrorKind::Config,
                    format!("node {addr}: give the cluster key by --key FILE"),
                )),
            };
            match opened {
                Ok(namespace) => return Ok(namespace),
                Err(error) => refusal = error.within(format!("node {}", node.name)),
            }
        }
        Err(refusal)
    }

    /// Opens what every node that answers has in its cache of the directory that the user spells
    /// `path`: the series of `pattern`, or each series there is; at least one for each node, which
    /// may be without frames. Fails if no node answers, or if none has the series of `pattern`.
    pub(crate) fn open_cached(&self, path: &Path, pattern: Option<&str>) -> Result<Answers<OpenedSeries>> {
        let path = dataset_path(path)?;
        let mut without = None;
        let answers = self.each(|node, remote| match remote.open_cached(&path, pattern) {
            Err(error) if pattern.is_some() && error.kind() == ErrorKind::NotFound => {
                without = Some(error);
                Ok(None)
            }
            found => Ok(Some((node.clone(), found?))),
        })?;
        let mut missed = answers.missed;
        let mut given = Vec::new();
        for (remote, found) in answers.given {
            let Some((node, info)) = found else { continue };
            if info.series.len() < 2 || pattern.is_some() {
                given.push(OpenedSeries::new(node, remote, info));
                continue;
            }
            // A handle is of one series, and each gets a connection of its own.
            for pattern in &info.series {
                let opened = node.connect().and_then(|mut remote| {
                    let info = remote.open_cached(&path, Some(pattern))?;
                    Ok(OpenedSeries::new(node.clone(), remote, info))
                });
                match opened {
                    Ok(opened) => given.push(opened),
                    // Evicted meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) if is_silence(&error) => missed.push(Missed::new(&node, error)),
                    Err(error) => return Err(error),
                }
            }
        }
        match without {
            Some(error) if given.is_empty() => Err(error),
            _ => Ok(Answers { given, missed }),
        }
    }

    /// What `ask` gets from every node that answers. Fails if none answers, or if one refuses.
    pub(crate) fn each<T>(
        &self,
        mut ask: impl FnMut(&Node, &mut Remote) -> Result<T>,
    ) -> Result<Answers<(Remote, T)>> {
        let nodes = self.nodes()?;
        let mut answers = Answers { given: Vec::new(), missed: Vec::new() };
        for node in &nodes {
            let asked = node.connect().map_err(|error| (true, error)).and_then(|mut remote| {
                let answer = ask(node, &mut remote);
                answer.map(|answer| (remote, answer)).map_err(|error| (is_silence(&error), error))
            });
            match asked {
                Ok(answer) => answers.given.push(answer),
                Err((true, error)) => answers.missed.push(Missed::new(node, error)),
                Err((false, error)) => return Err(error),
            }
        }
        if answers.given.is_empty() {
            return Err(none_answers(answers.missed));
        }
        Ok(answers)
    }
}

/// The flag that chooses one series of a directory.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Pattern {
    /// Only the frames of this pattern, like frame-{n:07}.dcd, or `pieces` or `list` [default: all
    /// of the directory]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
}

impl Pattern {
    /// As the user gave it.
    pub(crate) fn get(&self) -> Option<&str> {
        self.pattern.as_deref()
    }
}

/// A series of a dataset opened on one node.
pub(crate) struct OpenedSeries {
    /// The node's name.
    pub(crate) name: String,
    /// The series, as a pattern; empty if the cache has none of the directory.
    pub(crate) pattern: String,
    /// The node.
    pub(crate) node: Node,
    /// The connection.
    pub(crate) remote: Remote,
    /// What the node says of the dataset.
    pub(crate) info: DatasetInfo,
}

impl OpenedSeries {
    fn new(node: Node, remote: Remote, info: DatasetInfo) -> OpenedSeries {
        let pattern = info.dataset.series_parts().map(|(_, pattern)| pattern).unwrap_or_default();
        OpenedSeries { name: node.name.clone(), pattern, node, remote, info }
    }
}

/// The dataset's path as daemons know it: absolute, spelled as the user does (links are kept),
/// without `.` and `..`.
pub(crate) fn dataset_path(given: &Path) -> Result<PathBuf> {
    zazen_client::check_path(given)?;
    if let Some(plain) = given.to_str().and_then(zazen_backing::objects::plain_path) {
        return plain.map(PathBuf::from);
    }
    let within = |error| Error::io(format!("dataset {}", given.display()), error);
    let absolute = std::path::absolute(given).map_err(within)?;
    if absolute.components().any(|part| part == Component::ParentDir) {
        // What `..` means depends on links: only the kernel can say.
        return absolute.canonicalize().map_err(within);
    }
    Ok(absolute.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dataset_paths_are_absolute_and_plain() {
        assert_eq!(dataset_path(Path::new("/a//b/./c/")).unwrap(), Path::new("/a/b/c"));
        assert!(dataset_path(Path::new("x")).unwrap().is_absolute());
        assert!(dataset_path(Path::new("/no/such/../thing")).is_err());
        let empty = dataset_path(Path::new("")).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::InvalidArgument);
        assert!(empty.to_string().contains("is empty"), "{empty}");
    }
}
