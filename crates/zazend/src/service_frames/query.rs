//! QUERY and LIST: what the node holds of a dataset.

use crate::node::Node;
use zazen_call::Caller;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Request, Result, RunSet};
use zazen_wire::frames::{Holdings, List, ListRow, Listing, Query};

/// Rows in one answer.
const ROWS_MAX: u64 = 4096;

pub(super) fn query(node: &Node, caller: &Caller, ask: Query) -> Result<Holdings> {
    let opened = node.sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    let request = Request::new(ask.begin, ask.end, ask.stride)?;
    opened.layout().ok();
    let (native, alien) = node.store.holdings(&opened.series());
    node.counters.queries.add(1);
    let within = |set: &RunSet| match request.stride() {
        1 => set.slice(request.begin(), request.end()),
        _ => set.cut(&request).uncut(&request),
    };
    Ok(Holdings { native: within(&native), alien: within(&alien) })
}

pub(super) fn list(node: &Node, caller: &Caller, ask: List) -> Result<Listing> {
    let opened = node.sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    let dataset = &opened.series();
    let (native, alien) = node.store.holdings(dataset);
    let held = native.union(&alien).slice(ask.from, FRAME_NO_MAX);
    let block = held.block(0, u64::from(ask.rows_max).clamp(1, ROWS_MAX));
    let mut entries = node.store.entries(dataset, &block)?;
    entries.sort_by_key(|entry| entry.meta.number);
    let rows = entries.into_iter().map(|entry| ListRow {
        meta: entry.meta,
        origin: entry.origin,
        source: entry.source,
        path: entry.path.to_string_lossy().into_owned(),
    });
    Ok(Listing { rows: rows.collect(), next: held.select(block.len()) })
}
