//! OPEN_READ: OPEN, and READ_MANY if the dataset is a short file that is cached.
//!
//! Invariant: nothing is brought into the cache. Who opens a file need not read it, and programs
//! open files on many nodes to learn where they are.

use super::{open, scan};
use crate::node::Node;
use crate::session::Sessions;
use std::sync::Arc;
use zazen_call::{Caller, Line, Reply};
use zazen_core::{Blocks, Layout, Result, RunSet};
use zazen_frames::messages::{DatasetInfo, OpenRead, OpenedRead, ReadMany, ScanBatch};
use zazen_wire::Message;

pub(super) fn open_read(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: OpenRead,
    line: &Line,
) -> Result<Reply> {
    scan::local_only(caller)?;
    if let Some(handle) = ask.closes {
        sessions.with(caller.connection, |session| session.close_opened(handle));
    }
    let info = open::open(node, sessions, caller, ask.open, line)?;
    let read = short_and_cached(node, &info, ask.blocks_max).map(|set| {
        let ask = ReadMany { handle: info.handle, set, bytes_max: ask.bytes_max };
        scan::read_many(node, sessions, caller, ask, line)
    });
    let encode = |batch| OpenedRead { info: info.clone(), batch }.encode();
    match read {
        Some(Ok(batch)) => Ok(batch.into_reply_as(&encode)),
        // If they cannot be read, the caller learns why when it asks for them.
        Some(Err(_)) | None => {
            let none = ScanBatch { entries: Vec::new() };
            Ok(Reply { payload: encode(none), ..Reply::default() })
        }
    }
}

/// The blocks of the dataset, if there are at most `blocks_max` and all of them are cached.
fn short_and_cached(node: &Node, info: &DatasetInfo, blocks_max: u64) -> Option<RunSet> {
    let set = info.layout.as_ref().and_then(Layout::blocks).map(Blocks::extent)?;
    if set.is_empty() || set.len() > blocks_max {
        return None;
    }
    let (native, alien) = node.store.holdings(&info.dataset);
    set.difference(&native).difference(&alien).is_empty().then_some(set)
}
