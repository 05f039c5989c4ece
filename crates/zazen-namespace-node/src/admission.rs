//! Which node a connection from another daemon is of, and what such a node may ask.
//!
//! The cluster key lets a daemon connect; it does not say which node it is. A connection that has
//! proved nothing more may ask what programs ask. What nodes ask of each other needs the proof of
//! a node's key: a node speaks for itself only.

use crate::handles::lock;
use crate::node::{Admit, NamespaceNode};
use crate::peers::Standing;
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::NodeNo;
use zazen_namespace::node::SentBy;
use zazen_namespace::operation::Request;
use zazen_namespace::service::{Introduced, Introduction, Proof};

fn denied(why: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, why)
}

impl NamespaceNode {
    /// A daemon begins to prove which node it is.
    pub(crate) fn introduced(&self, caller: &Caller, theirs: &Introduction) -> Result<Introduced> {
        let Some(secret) = self.links.secret() else {
            let why = format!("the namespace on {} has not begun yet", self.told.name);
            return Err(Error::new(ErrorKind::Unavailable, why));
        };
        let (answer, begun) = secret.introduced(theirs)?;
        lock(&self.peers.by_connection).insert(caller.connection, Standing::Begun(Box::new(begun)));
        Ok(answer)
    }

    /// It proves it.
    pub(crate) fn proved(&self, caller: &Caller, proof: &Proof) -> Result<()> {
        let begun = lock(&self.peers.by_connection).remove(&caller.connection);
        let Some(Standing::Begun(begun)) = begun else {
            return Err(Error::new(ErrorKind::Protocol, "a proof of a node that was not begun"));
        };
        let key = begun.proved(proof)?;
        lock(&self.peers.by_connection).insert(caller.connection, Standing::Proved(key));
        Ok(())
    }

    /// The key that the caller has proved. `PermissionDenied` if it has proved none.
    pub(crate) fn key_of(&self, caller: &Caller) -> Result<u128> {
        match lock(&self.peers.by_connection).get(&caller.connection) {
            Some(Standing::Proved(key)) => Ok(*key),
            _ => Err(denied(
                "this function is for other nodes of the namespace, which prove who they are; \
                 this caller has not"
                    .to_owned(),
            )),
        }
    }

    /// The caller is a node that the map has.
    pub(crate) fn check_member(&self, key: u128) -> Result<()> {
        if self.map().nodes.iter().any(|node| node.key == key) {
            return Ok(());
        }
        Err(denied(format!("the namespace on {} does not know this node", self.told.name)))
    }

    /// Requests come from the node that they name.
    pub(crate) fn check_requests(&self, key: u128, requests: &[Request]) -> Result<()> {
        let map = self.map();
        let is_it = |number: NodeNo| map.nodes.iter().any(|node| node.node == number && node.key == key);
        match requests.iter().find(|request| !is_it(request.node)) {
            None => Ok(()),
            Some(request) => {
                Err(denied(format!("the caller is not node {}, for which it asks", request.node)))
            }
        }
    }

    /// Envelopes come from the node that they name, which is where they say it is; and one that the
    /// map does not know may come in.
    pub(crate) fn check_envelopes(&self, key: u128, envelopes: &[Vec<u8>]) -> Result<()> {
        let mut last = None;
        for bytes in envelopes {
            let from = SentBy::of(bytes)?;
            if last.as_ref() == Some(&from) {
                continue;
            }
            if from.key != key {
                return Err(denied("an envelope of another node than the one that sends it".to_owned()));
            }
            if self.told.admit == Admit::Listed
                && self.check_member(key).is_err()
                && !self.listed()?.unwrap_or_default().contains(&from.address)
            {
                self.tell_refused(&from.address);
                return Err(denied(format!(
                    "{} is not in this namespace's list of nodes; write it there on all nodes",
                    from.address
                )));
            }
            if !self.links.confirms(&from.address, key) {
                return Err(denied(format!(
                    "the daemon at {} does not prove to be the node that says it is there",
                    from.address
                )));
            }
            last = Some(from);
        }
        Ok(())
    }

    fn tell_refused(&self, address: &str) {
        if self.peers.is_news(address) {
            tracing::warn!(
                "namespace: a node at {address:?} wants to come in, and is not in the list of nodes"
            );
        }
    }

    /// Whether the caller may do what changes all users' files: a local process of root or of the
    /// daemon's user, another node, or a holder of the cluster key who says to be root.
    pub(crate) fn administers(&self, caller: &Caller) -> bool {
        match caller.is_local() {
            true => self.vouches(caller),
            false => caller.credentials.uid == 0 || self.key_of(caller).is_ok(),
        }
    }
}
