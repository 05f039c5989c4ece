//! What nodes answered, which of them did not, and what a command makes of that.

use super::node::Node;
use crate::output;
use serde_json::{Value, json};
use zazen_client::NodeState;
use zazen_core::{Error, ErrorKind};

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

/// Whether the node, not the request, is at fault.
pub(crate) fn is_silence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::ShuttingDown)
}
