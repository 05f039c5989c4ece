//! A client, and what it waits for.

use super::check::Key;
use zazen_namespace::operation::Request;

/// A client.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) host: usize,
    pub(crate) number: u64,
    pub(crate) call: Option<Ongoing>,
    /// Calls answered since the faults ended.
    pub(crate) calm_answers: u64,
}

/// A call that was not answered yet.
pub(crate) struct Ongoing {
    pub(crate) key: Key,
    pub(crate) call: usize,
    pub(crate) request: Request,
    pub(crate) repeats_ns: u64,
}

impl Client {
    pub(crate) fn new(id: u64, host: usize) -> Client {
        Client { id: id + 1, host, number: 0, call: None, calm_answers: 0 }
    }
}
