//! The control service: who the daemon is, how it is doing.

use crate::node::Node;
use crate::shares::{AllShares, Shares};
use std::sync::Arc;
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::control::{BALLAST_BYTES_MAX, Examine, NodeInfo, control_fn};
use zazen_wire::{Message, service};

/// How long a STATUS waits for its user's other heavy calls: people and monitors wait for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The control service of a node.
pub struct ControlService {
    node: Arc<Node>,
}

impl ControlService {
    /// The service of `node`.
    pub fn new(node: Arc<Node>) -> ControlService {
        ControlService { node }
    }

    fn info(&self) -> NodeInfo {
        let node = &self.node;
        NodeInfo {
            node: node.store.node(),
            name: node.config().name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backing_roots: node.roots.roots.iter().map(|root| root.directory.clone()).collect(),
            cache_root: node.cache_root.clone(),
            readers: node.readers(),
        }
    }
}

impl ControlService {
    fn examine(&self, caller: &Caller, payload: &[u8]) -> Result<Reply> {
        if !self.node.is_operator(caller) {
            let why = "only root, the daemon's user and key holders may have a node examined; run `zazen \
                       doctor` as one";
            return Err(Error::new(ErrorKind::PermissionDenied, why));
        }
        let how = Examine::decode(payload)?;
        let bytes = (how.answer_bytes as usize).min(BALLAST_BYTES_MAX);
        let found = crate::examine::examine(&self.node, how.disk_bytes);
        Ok(Reply { payload: found.to_string().into_bytes(), bulk: vec![0; bytes], ..Reply::default() })
    }
}

impl Service for ControlService {
    fn id(&self) -> u16 {
        service::CONTROL
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let stops = || self.node.is_draining() || call.line.is_cut();
        let share = share_of(&self.node.shares, call.function);
        let _share = share.map(|shares| shares.wait(caller, PATIENCE, stops)).transpose()?;
        let payload = match call.function {
            control_fn::HELLO => self.info().encode(),
            control_fn::STATUS => crate::status::status(&self.node, caller).to_string().into_bytes(),
            control_fn::DUMP if self.node.is_operator(caller) => crate::status::dump(&self.node).into_bytes(),
            control_fn::DUMP => {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    "the state dump names everybody's files; only root and the daemon's user may have it",
                ));
            }
            control_fn::PING => Vec::new(),
            control_fn::EXAMINE => return self.examine(caller, call.payload),
            other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "the control service has no function {other}; install the same release on both sides"
                    ),
                ));
            }
        };
        Ok(Reply { payload, ..Reply::default() })
    }

    fn detach(&self, _caller: &Caller) {}
}

/// Of what a call takes a share.
fn share_of(shares: &AllShares, function: u16) -> Option<&Arc<Shares>> {
    match function {
        // It asks of each cached dataset whether the caller may list it.
        control_fn::STATUS => Some(&shares.heavy),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_of_its_users_heavy_calls() {
        let shares = AllShares::default();
        let of = |function| share_of(&shares, function).map(Arc::as_ptr);
        assert_eq!(of(control_fn::STATUS), Some(Arc::as_ptr(&shares.heavy)));
        // Whoever wants to know whether the daemon is there is told at once.
        assert_eq!((of(control_fn::HELLO), of(control_fn::PING)), (None, None));
    }
}
