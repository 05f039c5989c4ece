//! The state of a node that did not do what it was asked. There is one word for each remedy.

use crate::cluster::Target;
use crate::nodes::Node;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use zazen_core::{Error, ErrorKind};

/// How long a second check may take.
const LOOK: Duration = Duration::from_secs(1);

/// Why a node's daemon did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Nobody listens there.
    Dead,
    /// The daemon accepts connections and does not answer.
    Hangs,
    /// Its machine does not answer at all.
    Unreachable,
    /// The host's name is not known.
    UnknownName,
    /// The cluster key is missing or differs.
    WrongKey,
    /// This machine's daemon belongs to another user.
    Untrusted,
    /// The daemon is at the limit of its connections.
    Busy,
    /// The daemon takes no new work.
    Draining,
    /// The daemon speaks another version, or the listener is not a daemon.
    Incompatible,
    /// The daemon answered with an error of its own.
    Failed,
}

impl NodeState {
    /// The state that `error` from the daemon at `target` shows. Checks once more if the error is
    /// ambiguous.
    pub fn of(target: &Target, error: &Error) -> NodeState {
        match error.kind() {
            ErrorKind::Authentication if matches!(target, Target::Local(_)) => NodeState::Untrusted,
            ErrorKind::Authentication => NodeState::WrongKey,
            ErrorKind::Busy => NodeState::Busy,
            ErrorKind::ShuttingDown => NodeState::Draining,
            ErrorKind::Protocol | ErrorKind::Unsupported => NodeState::Incompatible,
            ErrorKind::TimedOut => match target {
                Target::Local(_) => NodeState::Hangs,
                Target::Tcp(addr) if accepts(addr) => NodeState::Hangs,
                Target::Tcp(_) => NodeState::Unreachable,
            },
            ErrorKind::Unavailable => match target {
                Target::Tcp(addr) if (Node { addr: addr.clone() }).is_unknown().is_some() => {
                    NodeState::UnknownName
                }
                // The kernel has no route to the host (EHOSTUNREACH, ENETUNREACH).
                Target::Tcp(_) if error.to_string().contains("nreachable") => NodeState::Unreachable,
                _ => NodeState::Dead,
            },
            _ => NodeState::Failed,
        }
    }

    /// One or two words.
    pub fn word(self) -> &'static str {
        match self {
            NodeState::Dead => "dead",
            NodeState::Hangs => "hangs",
            NodeState::Unreachable => "unreachable",
            NodeState::UnknownName => "unknown name",
            NodeState::WrongKey => "wrong key",
            NodeState::Untrusted => "untrusted",
            NodeState::Busy => "busy",
            NodeState::Draining => "draining",
            NodeState::Incompatible => "incompatible",
            NodeState::Failed => "failed",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            NodeState::Dead => "nobody listens there: start `zazend` on that node, or correct its port",
            NodeState::Hangs => {
                "it accepts connections and does not answer: look at its log, then restart it"
            }
            NodeState::Unreachable => {
                "its machine does not answer: check that it is up, and the network and firewall on the way"
            }
            NodeState::UnknownName => {
                "no host has that name: correct the list of nodes, or mend the name service"
            }
            NodeState::WrongKey => "the cluster keys differ: give --key the file that its daemon was given",
            NodeState::Untrusted => "it belongs to another user: name the socket of root's or of your own",
            NodeState::Busy => "it is at the limit of its connections: try again, or raise connections_max",
            NodeState::Draining => "it is about to stop: start it again",
            NodeState::Incompatible => "it speaks another version: install the same release on all nodes",
            NodeState::Failed => "it answered with an error: look at its log",
        }
    }
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

fn accepts(addr: &str) -> bool {
    let addresses = addr.to_socket_addrs().into_iter().flatten();
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, LOOK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Remote;
    use std::net::TcpListener;
    use zazen_call::ClusterKey;

    #[test]
    fn four_troubles_have_four_words() {
        let key = ClusterKey::from_bytes(b"sixteen bytes or more").unwrap();
        let check = |target: Target, key: Option<&ClusterKey>, expected: NodeState| {
            let error = Remote::connect_within(&target, key, Duration::from_millis(200)).err().unwrap();
            assert_eq!(NodeState::of(&target, &error), expected, "{error}");
        };
        // The kernel's backlog accepts connections, and nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        check(Target::Tcp(address.clone()), Some(&key), NodeState::Hangs);
        check(Target::Tcp(address.clone()), None, NodeState::WrongKey);
        drop(silent);
        check(Target::Tcp(address), Some(&key), NodeState::Dead);
        check(Target::Tcp("no-such.invalid:7345".into()), Some(&key), NodeState::UnknownName);
        check(Target::Local("/nowhere/socket".into()), None, NodeState::Dead);
    }

    #[test]
    fn every_state_has_a_word_and_a_remedy_of_its_own() {
        use NodeState::{
            Busy, Dead, Draining, Failed, Hangs, Incompatible, UnknownName, Unreachable, Untrusted, WrongKey,
        };
        let all = [
            Dead,
            Hangs,
            Unreachable,
            UnknownName,
            WrongKey,
            Untrusted,
            Busy,
            Draining,
            Incompatible,
            Failed,
        ];
        let words: std::collections::BTreeSet<_> = all.iter().map(|state| state.word()).collect();
        let remedies: std::collections::BTreeSet<_> = all.iter().map(|state| state.remedy()).collect();
        assert_eq!((words.len(), remedies.len()), (all.len(), all.len()));
    }
}
