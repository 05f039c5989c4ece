//! SCAN_OPEN, SCAN_NEXT, SCAN_CLOSE, READ_MANY: for local callers, since descriptors don't travel.

use super::find_layout::find_layout;
use crate::batch::Batch;
use crate::node::Node;
use crate::scan::Scan;
use crate::session::{Session, Sessions};
use std::sync::Arc;
use zazen_call::{Caller, Line, Reply};
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::{ReadMany, ScanClose, ScanNext, ScanOpen, ScanOpened};

/// Memory of a scan's set that counts as one more scan.
const SET_BYTES_OF_A_SHARE: usize = 512 << 10;

pub(super) fn local_only(caller: &Caller) -> Result<()> {
    if caller.is_local() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "scans hand out descriptors, to programs on the same node only; connect to the local daemon's socket",
    ))
}

pub(super) fn open(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: ScanOpen,
) -> Result<ScanOpened> {
    local_only(caller)?;
    node.admit()?;
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check(&node.store)?;
    // A scan keeps its set until it is closed.
    let weight = 1 + ask.set.heap_bytes() / SET_BYTES_OF_A_SHARE;
    let share = node.shares.scans.take_weighing(caller, weight)?;
    find_layout(node, caller, &opened)?;
    let (scan, cached) = Scan::begin(node, &opened, caller, &ask.set);
    let scan = sessions.with(caller.connection, |session| session.keep_scan(Arc::new(scan), share))?;
    node.counters.scans.add(1);
    Ok(ScanOpened { scan, cached })
}

pub(super) fn next(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: ScanNext,
    line: &Line,
) -> Result<Reply> {
    local_only(caller)?;
    let scan = sessions.with(caller.connection, |session| session.scan(ask.scan))?;
    scan.next(node, &ask, line)
}

pub(super) fn close(sessions: &Sessions, caller: &Caller, ask: ScanClose) -> Result<Reply> {
    local_only(caller)?;
    sessions.with(caller.connection, |session| session.close_scan(ask.scan));
    Ok(Reply::default())
}

/// Random access: a scan that ends with its only answer.
pub(super) fn read_many(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: ReadMany,
    line: &Line,
) -> Result<Batch> {
    local_only(caller)?;
    node.admit()?;
    let of = |session: &mut Session| Ok((session.opened(ask.handle)?, session.read_notes(ask.handle)));
    let (opened, notes) = sessions.with(caller.connection, of)?;
    opened.check(&node.store)?;
    // This call has a share already.
    opened.layout().ok();
    let (scan, _) = Scan::begin_noting(node, &opened, caller, &ask.set, notes);
    Ok(scan.all(node, ask.set.len(), ask.bytes_max, line))
}
