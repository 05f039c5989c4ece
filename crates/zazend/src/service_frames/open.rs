//! OPEN: finds a dataset and tells its layout and extent, as far as the caller's own rights show them.

use crate::guarded_backing::is_outage;
use crate::node::{Node, Opened};
use std::sync::Arc;
use zazen_backing::dataset;
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Layout, RelPath, Result, RunSet};
use zazen_wire::frames::{DatasetInfo, OpenDataset};

pub(super) fn open(node: &Arc<Node>, caller: &Caller, ask: OpenDataset) -> Result<DatasetInfo> {
    node.admit()?;
    let viewer = node.powers.viewer(caller)?;
    let at = node.roots.locate(&ask.path)?;
    let (native, alien) = node.store.holdings(&at.dataset);
    let held = !native.is_empty() || !alien.is_empty();
    let known = node.store.layout(&at.dataset);
    let opened = Opened::new(at.clone(), ask.pattern.clone(), viewer)?;
    let mut extent = None;
    let backing_ok = match look(node, &opened, &ask) {
        Ok(told) => {
            node.seen.note(&opened.viewer, &at.dataset);
            extent = told.extent;
            if let Some(layout) = told.layout.or(known.clone()) {
                remember(node, &at.dataset, held && known.as_ref() != Some(&layout), &layout);
                opened.set_layout(layout);
            }
            true
        }
        // Frames may be pushed here before a shared file system shows their directory, and outlive it. What exists
        // is then what the caches hold.
        Err(error) if held && (is_outage(&error) || error.kind() == ErrorKind::NotFound) => {
            if !opened.was_open_before(node) {
                return Err(opened.unknowable(error));
            }
            if let Some(layout) = known {
                opened.set_layout(layout);
            }
            false
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            node.seen.forget(&opened.viewer, &at.dataset);
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "dataset {}: user {} may not open it ({error}); ask the owner for permission",
                    ask.path, caller.credentials.uid
                ),
            ));
        }
        Err(error) => return Err(error.within(format!("dataset {}", ask.path))),
    };
    let layout = opened.known_layout();
    let handle = node.sessions.with(caller.connection, |session| {
        session.keep_opened(&ask.path, Arc::new(opened), || node.shares.opened.take(caller))
    })?;
    node.counters.opens.add(1);
    Ok(DatasetInfo { handle, dataset: at.dataset, layout, extent, backing_ok })
}

/// Keeps the layout with the cached frames, for when the backing store does not answer.
fn remember(node: &Node, dataset: &RelPath, is_news: bool, layout: &Layout) {
    if is_news && let Err(error) = node.store.set_layout(dataset, layout) {
        if let Some(left_out) = zazen_call::may_say("layout", "") {
            tracing::warn!("the layout of {dataset} is not remembered: {error}{left_out}");
        }
    }
}

struct Told {
    layout: Option<Layout>,
    extent: Option<RunSet>,
}

fn look(node: &Node, opened: &Opened, ask: &OpenDataset) -> Result<Told> {
    let (backing, beneath) = (opened.backing(), &opened.at.beneath);
    if ask.want_extent {
        let described = dataset::describe(backing, beneath, ask.pattern.as_deref())?;
        return Ok(Told { layout: described.layout, extent: Some(described.extent) });
    }
    let layout = node.layouts.of(
        backing,
        &opened.at.dataset,
        beneath,
        ask.pattern.as_deref(),
        opened.viewer.is_own(),
    )?;
    Ok(Told { layout, extent: None })
}
