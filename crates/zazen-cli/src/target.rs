//! Which daemons a command talks to: flags first, then the testbed, then this machine's own.

use crate::output;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_client::cluster::{Remote, Target};
use zazen_client::{NodeList, NodeState};
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::DatasetInfo;
use zazen_testbed::State;

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

    /// What it is shown as proof; `None` for this machine's.
    pub(crate) fn key(&self) -> Option<&ClusterKey> {
        self.key.as_ref()
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

    /// Opens what every node that answers has in its cache of the directory that the user spells `path`: the series of
    /// `pattern`, or each series there is; at least one for each node, which may be without frames. Fails if no node
    /// answers, or if none has the series of `pattern`.
    pub(crate) fn open_cached(&self, path: &Path, pattern: Option<&str>) -> Result<Answers<Opened>> {
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
                given.push(Opened::new(node, remote, info));
                continue;
            }
            // A handle is of one series, and each gets a connection of its own.
            for pattern in &info.series {
                let opened = node.connect().and_then(|mut remote| {
                    let info = remote.open_cached(&path, Some(pattern))?;
                    Ok(Opened::new(node.clone(), remote, info))
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

/// The error of a command that no node answered.
pub(crate) fn none_answers(missed: Vec<Missed>) -> Error {
    let count = missed.len();
    match missed.into_iter().next() {
        Some(first) if count == 1 => first.error,
        Some(first) => first.error.within(format!(
            "none of {count} nodes answers; the first one, {} ({})",
            first.node, first.state
        )),
        None => Error::new(ErrorKind::Config, "nodes: the list is empty; name at least one"),
    }
}

/// What the nodes answered, and which did not.
pub(crate) struct Answers<T> {
    /// At least one.
    pub(crate) given: Vec<T>,
    pub(crate) missed: Vec<Missed>,
}

/// A node that was to do something and did not.
pub(crate) struct Missed {
    /// Its name.
    pub(crate) node: String,
    /// What is the matter with it.
    pub(crate) state: NodeState,
    /// What it, or the way to it, said.
    pub(crate) error: Error,
}

impl Missed {
    /// `node` failed with `error`.
    pub(crate) fn new(node: &Node, error: Error) -> Missed {
        Missed { node: node.name.clone(), state: NodeState::of(&node.target, &error), error }
    }

    /// For a list of them in JSON.
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "node": self.node,
            "state": self.state.word(),
            "error": self.error.to_string(),
            "remedy": self.state.remedy(),
        })
    }
}

/// A list for JSON.
pub(crate) fn missed_json(missed: &[Missed]) -> Vec<Value> {
    missed.iter().map(Missed::as_json).collect()
}

/// Tells on stderr which nodes were missed and what that means; the exit status follows.
pub(crate) fn judge(missed: &[Missed], what_now: &str) -> Done {
    for one in missed {
        output::note(format!("node {}: {}: {}", one.node, one.state, one.error));
    }
    match missed.len() {
        0 => Done::Wholly,
        count => {
            let nodes = if count == 1 { "node was" } else { "nodes were" };
            output::note(format!("{count} {nodes} not reached: {what_now}"));
            Done::Partly
        }
    }
}

/// The command that does the rest.
pub(crate) fn again(command: &str, missed: &[Missed]) -> String {
    let nodes: Vec<&str> = missed.iter().map(|one| one.node.as_str()).collect();
    format!("when that is mended, do the rest with `{command} --nodes {}`", nodes.join(","))
}

/// How far a command that did not fail has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Done {
    /// All of it is done.
    Wholly,
    /// Some nodes were not reached; they have been told on stderr.
    Partly,
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
    /// The node.
    pub(crate) node: Node,
    /// The connection.
    pub(crate) remote: Remote,
    /// What the node says of the dataset.
    pub(crate) info: DatasetInfo,
}

impl Opened {
    fn new(node: Node, remote: Remote, info: DatasetInfo) -> Opened {
        let pattern = info.dataset.series_parts().map(|(_, pattern)| pattern).unwrap_or_default();
        Opened { name: node.name.clone(), pattern, node, remote, info }
    }
}

/// Whether the node, not the request, is at fault.
pub(crate) fn is_silence(error: &Error) -> bool {
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
