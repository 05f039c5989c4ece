//! The frames service: decodes a call, hands it to its operation, encodes the answer.

mod admin;
mod fetch;
mod open;
mod push;
mod query;
mod scan;

use crate::node::Node;
use std::sync::Arc;
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::frames::{self, frames_fn, service};

/// How long a heavy call waits for its user's other ones: a job's ranks may all open a large directory at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// The frames service of a node.
pub struct FramesService {
    node: Arc<Node>,
}

impl FramesService {
    /// The service of `node`.
    pub fn new(node: Arc<Node>) -> FramesService {
        FramesService { node }
    }
}

impl Service for FramesService {
    fn id(&self) -> u16 {
        service::FRAMES
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let node = &self.node;
        let payload = call.payload;
        let _share = match call.function {
            frames_fn::OPEN
            | frames_fn::FETCH
            | frames_fn::EVICT
            | frames_fn::VERIFY
            | frames_fn::LIST
            | frames_fn::DATASETS => {
                let line = call.line.clone();
                let stops = move || node.admit().is_err() || line.is_cut();
                Some(node.shares.heavy.wait(caller, PATIENCE, stops)?)
            }
            _ => None,
        };
        match call.function {
            frames_fn::OPEN => open::open(node, caller, frames::OpenDataset::decode(payload)?).map(reply),
            frames_fn::QUERY => query::query(node, caller, frames::Query::decode(payload)?).map(reply),
            frames_fn::SCAN_OPEN => scan::open(node, caller, frames::ScanOpen::decode(payload)?).map(reply),
            frames_fn::SCAN_NEXT => scan::next(node, caller, frames::ScanNext::decode(payload)?),
            frames_fn::SCAN_CLOSE => scan::close(node, caller, frames::ScanClose::decode(payload)?),
            frames_fn::PUSH => push::push(node, caller, frames::Push::decode(payload)?, call).map(reply),
            frames_fn::REPORT_BAD => admin::report_bad(node, caller, frames::ReportBad::decode(payload)?),
            frames_fn::FETCH => {
                fetch::fetch(node, caller, frames::Fetch::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::EVICT => admin::evict(node, caller, frames::Evict::decode(payload)?).map(reply),
            frames_fn::PIN => admin::pin(node, caller, frames::Pin::decode(payload)?),
            frames_fn::VERIFY => {
                admin::verify(node, caller, frames::Verify::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::LIST => query::list(node, caller, frames::List::decode(payload)?).map(reply),
            frames_fn::DATASETS => Ok(Reply {
                payload: crate::status::datasets(node, caller).to_string().into_bytes(),
                ..Reply::default()
            }),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the frames service has no function {other}; install the same release on both sides"),
            )),
        }
    }

    fn detach(&self, caller: &Caller) {
        self.node.sessions.release(caller.connection);
    }
}

fn reply(message: impl Message) -> Reply {
    Reply { payload: message.encode(), ..Reply::default() }
}
