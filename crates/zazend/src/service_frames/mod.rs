//! The frames service: decodes a call, hands it to its operation, encodes the answer.

mod admin;
mod explain;
mod fetch;
mod find_layout;
mod give;
mod open;
mod open_read;
mod places;
mod push;
mod query;
mod scan;

use crate::batch::Batch;
use crate::node::Node;
use crate::session::Sessions;
use crate::shares::{AllShares, Shares};
use find_layout::PATIENCE;
use std::sync::Arc;
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::{self, frames_fn};
use zazen_frames::scan_record::{AskNotes, AskReadNotes, AskRecords};
use zazen_wire::{Message, service};

/// How long a call for a block waits: the node that asks can read the backing store itself.
const PATIENCE_FOR_BLOCKS: Duration = Duration::from_secs(2);

/// The frames service of a node.
pub struct FramesService {
    node: Arc<Node>,
    /// What each connection holds.
    sessions: Sessions,
}

impl FramesService {
    /// The service of `node`.
    pub fn new(node: Arc<Node>) -> FramesService {
        FramesService { node, sessions: Sessions::default() }
    }
}

impl Service for FramesService {
    fn id(&self) -> u16 {
        service::FRAMES
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let FramesService { node, sessions } = self;
        let payload = call.payload;
        let line = call.line.clone();
        let stops = move || node.admit().is_err() || line.is_cut();
        let share = share_of(&node.shares, call.function);
        let wait = |(shares, patience): (&Arc<Shares>, Duration)| {
            crate::spans::queued(|| shares.wait(caller, patience, stops))
        };
        let _share = share.map(wait).transpose()?;
        match call.function {
            frames_fn::OPEN => {
                open::open(node, sessions, caller, messages::OpenDataset::decode(payload)?, &call.line)
                    .map(reply)
            }
            frames_fn::QUERY => {
                query::query(node, sessions, caller, messages::Query::decode(payload)?).map(reply)
            }
            frames_fn::SCAN_OPEN => {
                scan::open(node, sessions, caller, messages::ScanOpen::decode(payload)?).map(reply)
            }
            frames_fn::SCAN_NEXT => {
                scan::next(node, sessions, caller, messages::ScanNext::decode(payload)?, &call.line)
            }
            frames_fn::CLOSE => {
                let ask = messages::CloseDataset::decode(payload)?;
                sessions.with(caller.connection, |session| session.close_opened(ask.handle));
                Ok(Reply::default())
            }
            frames_fn::SCAN_CLOSE => scan::close(sessions, caller, messages::ScanClose::decode(payload)?),
            frames_fn::READ_MANY => {
                scan::read_many(node, sessions, caller, messages::ReadMany::decode(payload)?, &call.line)
                    .map(Batch::into_reply)
            }
            frames_fn::OPEN_READ => {
                open_read::open_read(node, sessions, caller, messages::OpenRead::decode(payload)?, &call.line)
            }
            frames_fn::PLACES => {
                places::places(node, sessions, caller, &messages::AskPlaces::decode(payload)?)
            }
            frames_fn::PUSH => push::push(node, caller, messages::Push::decode(payload)?, call).map(reply),
            frames_fn::PUSH_MANY => {
                push::push_many(node, caller, messages::PushMany::decode(payload)?, call).map(reply)
            }
            frames_fn::REPORT_BAD => {
                admin::report_bad(node, sessions, caller, messages::ReportBad::decode(payload)?)
            }
            frames_fn::FETCH => {
                fetch::fetch(node, sessions, caller, messages::Fetch::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::EVICT => {
                admin::evict(node, sessions, caller, messages::Evict::decode(payload)?).map(reply)
            }
            frames_fn::PIN => admin::pin(node, sessions, caller, messages::Pin::decode(payload)?),
            frames_fn::VERIFY => {
                admin::verify(node, sessions, caller, messages::Verify::decode(payload)?, &call.line)
                    .map(reply)
            }
            frames_fn::LIST => {
                query::list(node, sessions, caller, messages::List::decode(payload)?).map(reply)
            }
            frames_fn::GET_BLOCK => {
                give::give(node, caller, messages::GetBlock::decode(payload)?, &call.line)
            }
            frames_fn::GET_PIECE => {
                give::piece(node, caller, &messages::GetPiece::decode(payload)?, &call.line)
            }
            frames_fn::BRING => {
                fetch::bring(node, sessions, caller, messages::Bring::decode(payload)?, &call.line).map(reply)
            }
            frames_fn::DATASETS => Ok(Reply {
                payload: crate::status::datasets(node, caller).to_string().into_bytes(),
                ..Reply::default()
            }),
            frames_fn::SCAN_NOTES => {
                explain::notes(node, sessions, caller, AskNotes::decode(payload)?).map(reply)
            }
            frames_fn::READ_NOTES => {
                explain::read_notes(node, sessions, caller, AskReadNotes::decode(payload)?).map(reply)
            }
            frames_fn::KEEP_RECORD => explain::keep(node, caller, payload),
            frames_fn::RECORDS => {
                explain::records(node, sessions, caller, AskRecords::decode(payload)?).map(reply)
            }
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the frames service has no function {other}; install the same release on both sides"),
            )),
        }
    }

    fn detach(&self, caller: &Caller) {
        self.sessions.release(caller.connection);
    }
}

/// Of what a call takes a share, and how long it waits for one.
fn share_of(shares: &AllShares, function: u16) -> Option<(&Arc<Shares>, Duration)> {
    match function {
        frames_fn::OPEN
        | frames_fn::OPEN_READ
        | frames_fn::FETCH
        | frames_fn::BRING
        | frames_fn::EVICT
        | frames_fn::VERIFY
        | frames_fn::LIST
        | frames_fn::READ_MANY
        | frames_fn::PLACES
        | frames_fn::REPORT_BAD
        | frames_fn::RECORDS
        | frames_fn::SCAN_NOTES
        | frames_fn::READ_NOTES
        | frames_fn::DATASETS => Some((&shares.heavy, PATIENCE)),
        frames_fn::GET_BLOCK | frames_fn::GET_PIECE => Some((&shares.given, PATIENCE_FOR_BLOCKS)),
        _ => None,
    }
}

fn reply(message: impl Message) -> Reply {
    Reply { payload: message.encode(), ..Reply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_cost_memory_or_time_take_shares() {
        let shares = AllShares::default();
        let of = |function| share_of(&shares, function).map(|(shares, _)| Arc::as_ptr(shares));
        assert_eq!(of(frames_fn::GET_BLOCK), Some(Arc::as_ptr(&shares.given)));
        assert_eq!(of(frames_fn::GET_PIECE), Some(Arc::as_ptr(&shares.given)));
        assert_eq!(of(frames_fn::BRING), Some(Arc::as_ptr(&shares.heavy)));
        assert_eq!(of(frames_fn::RECORDS), Some(Arc::as_ptr(&shares.heavy)));
        assert_eq!(of(frames_fn::READ_MANY), Some(Arc::as_ptr(&shares.heavy)));
        assert_eq!(of(frames_fn::PLACES), Some(Arc::as_ptr(&shares.heavy)));
        assert_eq!(of(frames_fn::OPEN_READ), Some(Arc::as_ptr(&shares.heavy)));
        assert_eq!(of(frames_fn::SCAN_NOTES), Some(Arc::as_ptr(&shares.heavy)));
        // It reads the whole copy.
        assert_eq!(of(frames_fn::REPORT_BAD), Some(Arc::as_ptr(&shares.heavy)));
        // Whoever holds a heavy share reads on by these.
        assert_eq!(of(frames_fn::SCAN_NEXT), None);
        assert_eq!(of(frames_fn::SCAN_CLOSE), None);
    }
}
