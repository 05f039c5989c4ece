//! QUERY and LIST: what the node holds of a dataset.

use super::find_layout::find_layout;
use crate::node::Node;
use crate::opened::OpenedDataset;
use crate::session::Sessions;
use zazen_backing::Rights;
use zazen_call::Caller;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{ErrorKind, RelPath, Request, Result, RunSet};
use zazen_frames::messages::{Holdings, List, ListRow, Listing, Query};
use zazen_store::CachedFrame;

/// Rows in one answer.
const ROWS_MAX: u64 = 4096;

pub(super) fn query(node: &Node, sessions: &Sessions, caller: &Caller, ask: Query) -> Result<Holdings> {
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check(&node.store)?;
    let request = Request::new(ask.begin, ask.end, ask.stride)?;
    find_layout(node, caller, &opened)?;
    let (native, alien) = node.store.holdings(&opened.series());
    node.counters.queries.add(1);
    let within = |set: &RunSet| match request.stride() {
        1 => set.slice(request.begin(), request.end()),
        _ => set.cut(&request).uncut(&request),
    };
    Ok(Holdings { native: within(&native), alien: within(&alien) })
}

pub(super) fn list(node: &Node, sessions: &Sessions, caller: &Caller, ask: List) -> Result<Listing> {
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check_now(&node.store, Rights::READ.and(Rights::SEARCH))?;
    let dataset = &opened.series();
    let (native, alien) = node.store.holdings(dataset);
    let held = native.union(&alien).slice(ask.from, FRAME_NO_MAX);
    let block = held.block(0, u64::from(ask.rows_max).clamp(1, ROWS_MAX));
    let mut entries = node.store.entries(dataset, &block)?;
    entries.sort_by_key(|entry| entry.meta.number);
    let privileged = node.is_privileged(caller);
    let hidden = hidden(&opened, &entries);
    let rows = entries.into_iter().zip(hidden).filter(|(_, hidden)| !hidden).map(|(entry, _)| ListRow {
        meta: entry.meta,
        origin: entry.origin,
        source: entry.source,
        path: if privileged { entry.path.to_string_lossy().into_owned() } else { String::new() },
    });
    Ok(Listing { rows: rows.collect(), next: held.select(block.len()) })
}

/// Which entries are of files in folders that the user may not search.
fn hidden(opened: &OpenedDataset, entries: &[CachedFrame]) -> Vec<bool> {
    let has_folders = entries.iter().any(|entry| entry.source.path.as_str().contains('/'));
    if opened.viewer.is_own() || !has_folders {
        return vec![false; entries.len()];
    }
    let paths: Vec<RelPath> = entries.iter().map(|entry| entry.source.path.clone()).collect();
    match opened.backing().stat_beneath(&opened.at.beneath, &paths.into()) {
        Ok(stats) => stats
            .iter()
            .map(|stat| stat.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied))
            .collect(),
        Err(_) => vec![true; entries.len()],
    }
}
