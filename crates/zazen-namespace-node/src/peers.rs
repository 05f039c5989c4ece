//! What connections of other daemons have proved: which node each is of.

use crate::handles::lock;
use crate::proof::Begun;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// Addresses of nodes that were not let in whose refusal the log has told.
const TOLD_MAX: usize = 256;

/// What the connections of other daemons have proved.
#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) by_connection: Mutex<HashMap<u64, Standing>>,
    refused: Mutex<HashSet<String>>,
}

/// How far a connection's proof is.
pub(crate) enum Standing {
    Begun(Box<Begun>),
    Proved(u128),
}

impl Peers {
    /// The connection has ended.
    pub(crate) fn ends(&self, connection: u64) {
        lock(&self.by_connection).remove(&connection);
    }

    /// Whether the log is to tell that this address was not let in.
    pub(crate) fn is_news(&self, address: &str) -> bool {
        let mut told = lock(&self.refused);
        told.len() < TOLD_MAX && told.insert(address.to_owned())
    }
}
