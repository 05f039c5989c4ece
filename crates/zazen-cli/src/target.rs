//! Which daemons a command talks to: flags first, then the testbed, then this machine's own.

use crate::output;
use crate::testbed::State;
use clap::Args;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_client::NodeList;
use zazen_client::cluster::{Remote, Target};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::frames::DatasetInfo;

/// How long a node may take to accept a connection before it counts as dead.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The flags that choose daemons.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Targets {
    /// All these nodes: a file with one host:port a line, or host:port,host:port
    /// [default: on a testbed all its nodes, else this machine's daemon]
    #[arg(long, value_name = "FILE|LIST")]
    nodes: Option<String>,
    /// The daemon behind this socket
    #[arg(long, value_name = "PATH", conflicts_with = "nodes")]
    socket: Option<PathBuf>,
    /// The cluster key's file, for --nodes [default: $ZAZEN_KEY]
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY", hide_env = true)]
    key: Option<PathBuf>,
}

/// One daemon to talk to.
#[derive(Clone)]
pub(crate) struct Node {
    /// The testbed's name for it, or where it listens.
    pub(crate) name: String,
    /// Where it listens.
    pub(crate) target: Target,
    key: Option<ClusterKey>,
}

impl Node {
    /// Connects; a dead one is told within seconds.
    pub(crate) fn connect(&self) -> Result<Remote> {
        Remote::connect_within(&self.target, self.key.as_ref(), CONNECT_WITHIN)
    }

    fn local(name: String, socket: PathBuf) -> Node {
        Node { name, target: Target::Local(socket), key: None }
    }
}

impl Targets {
    /// The daemons to talk to; at least one.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>> {
        if let Some(spec) = &self.nodes {
            let key = self.key.as_ref().map(|file| ClusterKey::from_file(file)).transpose()?;
            let list = NodeList::read(spec)?.nodes.into_iter();
            return Ok(list
                .map(|node| Node {
                    name: node.addr.clone(),
                    target: Target::Tcp(node.addr),
                    key: key.clone(),
                })
                .collect());
        }
        if let Some(socket) = &self.socket {
            return Ok(vec![Node::local(socket.display().to_string(), socket.clone())]);
        }
        if let Some(dir) = std::env::var_os("ZAZEN_TESTBED").filter(|dir| !dir.is_empty()) {
            let nodes = State::load(Path::new(&dir))?.nodes.into_iter();
            return Ok(nodes.filter_map(|node| Some(Node::local(node.name, node.socket?))).collect());
        }
        let socket = zazen_env::socket_path::find_socket_path();
        Ok(vec![Node::local(socket.display().to_string(), socket)])
    }

    /// The same as addresses, with the key that those on other machines want.
    pub(crate) fn targets_and_key(&self) -> Result<(Vec<Target>, Option<ClusterKey>)> {
        let nodes = self.nodes()?;
        let key = nodes.iter().find_map(|node| node.key.clone());
        Ok((nodes.into_iter().map(|node| node.target).collect(), key))
    }

    /// Opens what every node that answers has in its cache of the directory that the user spells `path`: the series of
    /// `pattern`, or each series there is; at least one for each node, which may be without frames. The other nodes
    /// are told on stderr. Fails if none answers, or if none has the series of `pattern`.
    pub(crate) fn open_cached(&self, path: &Path, pattern: Option<&str>) -> Result<Vec<Opened>> {
        let path = dataset_path(path)?;
        let answers = self.each(|node, remote| {
            let found = remote.open_cached(&path, pattern);
            match found {
                Err(error) if pattern.is_some() && error.kind() == ErrorKind::NotFound => {
                    Ok((node.clone(), Err(error)))
                }
                found => found.map(|info| (node.clone(), Ok(info))),
            }
        })?;
        let mut all = Vec::new();
        let mut missing = None;
        for (remote, (node, info)) in answers {
            let info = match info {
                Ok(info) => info,
                Err(error) => {
                    missing = Some(error);
                    continue;
                }
            };
            if info.series.len() < 2 || pattern.is_some() {
                let found = info.dataset.series_parts().map(|(_, pattern)| pattern);
                all.push(Opened { name: node.name, pattern: found.unwrap_or_default(), remote, info });
                continue;
            }
            drop(remote);
            for pattern in info.series {
                // A handle is of one series; a scan through one must not wait for another's.
                let mut remote = node.connect()?;
                let info = remote.open_cached(&path, Some(&pattern))?;
                all.push(Opened { name: node.name.clone(), pattern, remote, info });
            }
        }
        match missing {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// What `ask` gets from every node that answers; the others are told on stderr. Fails if none answers, or if
    /// one refuses.
    pub(crate) fn each<T>(
        &self,
        mut ask: impl FnMut(&Node, &mut Remote) -> Result<T>,
    ) -> Result<Vec<(Remote, T)>> {
        let nodes = self.nodes()?;
        let (mut answers, mut silent) = (Vec::new(), Vec::new());
        for node in &nodes {
            match node.connect() {
                Ok(mut remote) => match ask(node, &mut remote) {
                    Ok(answer) => answers.push((remote, answer)),
                    Err(error) if is_silence(&error) => silent.push((node, error)),
                    Err(error) => return Err(error),
                },
                Err(error) if error.kind() == ErrorKind::Authentication => return Err(error),
                Err(error) => silent.push((node, error)),
            }
        }
        if answers.is_empty() {
            let count = silent.len();
            return Err(match silent.into_iter().next() {
                Some((_, error)) if count == 1 => error,
                Some((_, error)) => error.within(format!("none of {count} nodes answers; the first one")),
                None => Error::new(ErrorKind::Config, "nodes: the list is empty; name at least one"),
            });
        }
        for (node, error) in silent {
            output::note(format!("node {}: {error}; left out", node.name));
        }
        Ok(answers)
    }
}

/// The flag that chooses one series of a directory.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Pattern {
    /// Only the frames of this pattern, like frame-{n:07}.dcd, or `pieces` or `list` [default: all of the directory]
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
pub(crate) struct Opened {
    /// The node's name.
    pub(crate) name: String,
    /// The series, as a pattern; empty if the cache has none of the directory.
    pub(crate) pattern: String,
    /// The connection.
    pub(crate) remote: Remote,
    /// What the node says of the dataset.
    pub(crate) info: DatasetInfo,
}

/// Whether the node, not the request, is at fault.
fn is_silence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::ShuttingDown)
}

/// The dataset's path as daemons know it: absolute, spelled as the user does (links are kept), without `.` and `..`.
pub(crate) fn dataset_path(given: &Path) -> Result<PathBuf> {
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
    }
}
