//! A client, and what it waits for.

use super::check::Key;
use zazen_namespace::operation::{Answer, Request};
use zazen_namespace::split::{Errand, Layouts};

/// A client.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) host: usize,
    pub(crate) number: u64,
    pub(crate) call: Option<Ongoing>,
    /// How large directories are split, as far as it met them.
    pub(crate) layouts: Layouts,
    /// Calls answered since the faults ended.
    pub(crate) calm_answers: u64,
}

/// A call that was not answered yet.
pub(crate) struct Ongoing {
    pub(crate) key: Key,
    pub(crate) call: usize,
    pub(crate) errand: Errand,
    /// What the errand asks now, and the answers that came.
    pub(crate) requests: Vec<(Request, Option<Answer>)>,
    pub(crate) repeats_ns: u64,
}

impl Client {
    pub(crate) fn new(id: u64, host: usize) -> Client {
        let layouts = Layouts::default();
        Client { id: id + 1, host, number: 0, call: None, layouts, calm_answers: 0 }
    }
}
