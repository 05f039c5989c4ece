//! SCAN_NOTES, READ_NOTES, KEEP_RECORD, RECORDS: what `zazen explain` is told.

use super::scan::local_only;
use crate::node::Node;
use crate::notes::{told, wall_ms};
use crate::scan_records;
use crate::session::Sessions;
use zazen_backing::Rights;
use zazen_call::{Caller, Reply};
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_frames::scan_record::{
    AskNotes, AskReadNotes, AskRecords, Part, RECORD_BYTES_MAX, Records, ScanNotes, ScanRecord,
};
use zazen_wire::Message;

/// Removals in one answer.
const REMOVALS_MAX: usize = 1000;

pub(super) fn notes(node: &Node, sessions: &Sessions, caller: &Caller, ask: AskNotes) -> Result<ScanNotes> {
    local_only(caller)?;
    let scan = sessions.with(caller.connection, |session| session.scan(ask.scan))?;
    Ok(scan.notes(node, caller))
}

pub(super) fn read_notes(
    node: &Node,
    sessions: &Sessions,
    caller: &Caller,
    ask: AskReadNotes,
) -> Result<ScanNotes> {
    local_only(caller)?;
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check(&node.store)?;
    let notes = sessions.with(caller.connection, |session| session.take_read_notes(ask.handle));
    Ok(notes.told(node, caller))
}

pub(super) fn keep(node: &Node, caller: &Caller, payload: &[u8]) -> Result<Reply> {
    local_only(caller)?;
    if payload.len() > RECORD_BYTES_MAX {
        let text = format!("a scan's record of {} bytes; the limit is {RECORD_BYTES_MAX}", payload.len());
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    let mut record = ScanRecord::decode(payload)?;
    if record.spent_ns.len() < Part::ALL.len() {
        let text = format!("a scan's record of {} parts of time; there are more", record.spent_ns.len());
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    scan_records::check(&record)?;
    record.node = node.config().name.clone();
    record.node_id = node.store.node();
    node.records.keep(caller.credentials.uid, record);
    Ok(Reply::default())
}

pub(super) fn records(node: &Node, sessions: &Sessions, caller: &Caller, ask: AskRecords) -> Result<Records> {
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check_now(&node.store, Rights::READ.and(Rights::SEARCH))?;
    let series = opened.series();
    // A directory of which the cache has no frames was opened without a series: all are meant.
    let is_meant = |other: &RelPath| match series.series_parts() {
        Some(_) => *other == series,
        None => other.series_parts().is_some_and(|(directory, _)| directory == series),
    };
    let (uid, spelled) = (caller.credentials.uid, opened.spelled());
    let sees_all = uid == 0 || node.is_privileged(caller);
    let mut records = node.records.last(|owner, dataset, series| {
        let is_here = RelPath::stored(series).map_or(dataset == spelled, |other| is_meant(&other));
        (sees_all || owner == uid) && is_here
    })?;
    // The path is the one that this caller opened, not one that the reader wrote.
    records.iter_mut().for_each(|kept| kept.record.dataset.clone_from(&spelled));
    let (native, _) = node.store.holdings(&series);
    let removals: Vec<_> = node.store.removals().of(is_meant).take(REMOVALS_MAX).cloned().collect();
    Ok(Records {
        node: node.config().name.clone(),
        node_id: node.store.node(),
        now_ms: wall_ms(),
        up_ms: node.started.elapsed().as_millis() as u64,
        native: (*native).clone(),
        removed: told(node, caller, removals.iter()),
        records,
    })
}
