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
use zazen_frames::messages::{self, frames_fn};
use zazen_wire::{Message, service};

/// How long a heavy call waits for its user's other ones: a job's ranks may all open a large
/// directory at once.
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
            frames_fn::OPEN => open::open(node, caller, messages::OpenDataset::decode(payload)?).map(reply),
            frames_fn::QUERY => query::query(node, caller, messages::Query::decode(payload)?).map(reply),
            frames_fn::SCAN_OPEN => scan::open(node, caller, messages::ScanOpen::decode(payload)?).map(reply),
            frames_fn::SCAN_NEXT => scan::next(node, caller, messages::ScanNext::decode(payload)?),
            frames_fn::SCAN_CLOSE => scan::close(node, caller, messages::ScanClose::decode(payload)?),
            frames_fn::PUSH => push::push(node, caller, messages::Push::decode(payload)?, call).map(reply),
            frames_fn::PUSH_MANY => {
                push::push_many(node, caller, messages::PushMany::decode(payload)?, call).map(reply)
            }
            frames_fn::REPORT_BAD => admin::report_bad(node, caller, messages::ReportBad::decode(payload)?),
            frames_fn::FETCH => {
                fetch::fetch(node, caller, messages::Fetch::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::EVICT => admin::evict(node, caller, messages::Evict::decode(payload)?).map(reply),
            frames_fn::PIN => admin::pin(node, caller, messages::Pin::decode(payload)?),
            frames_fn::VERIFY => {
                admin::verify(node, caller, messages::Verify::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::LIST => query::list(node, caller, messages::List::decode(payload)?).map(reply),
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
