//! OPEN: finds a dataset, checks that the caller may search its directories, tells its layout and extent.

use crate::backing_roots::Located;
use crate::guarded_backing::is_outage;
use crate::node::{Node, Opened};
use std::sync::Arc;
use zazen_backing::{Backing, dataset};
use zazen_call::Caller;
use zazen_core::{Error, ErrorKind, Layout, RelPath, Result, RunSet, Series};
use zazen_wire::frames::{DatasetInfo, OpenDataset};

pub(super) fn open(node: &Arc<Node>, caller: &Caller, ask: OpenDataset) -> Result<DatasetInfo> {
    node.admit()?;
    let at = node.roots.locate(&ask.path)?;
    let mut info = DatasetInfo {
        handle: 0,
        dataset: at.dataset.clone(),
        layout: None,
        extent: None,
        backing_ok: true,
        series: Vec::new(),
    };
    let searched = at.root.backing.may_search(&caller.credentials, &at.beneath);
    if let Ok(false) = searched {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "dataset {}: user {} may not search its directories; ask the owner for permission",
                ask.path, caller.credentials.uid
            ),
        ));
    }
    let opened = if ask.only_cached {
        if let Err(error) = searched
            && !node.is_operator(caller)
        {
            return Err(error.within(format!("dataset {}", ask.path)));
        }
        open_cached(node, &at, &ask, &mut info)?
    } else {
        open_source(node, &at, &ask, searched.map(|_| ()), &mut info)?
    };
    info.layout = opened.known_layout();
    info.dataset = opened.series();
    info.handle =
        node.sessions.with(caller.connection, |session| session.keep_opened(&ask.path, Arc::new(opened)))?;
    node.counters.opens.add(1);
    Ok(info)
}

/// A dataset as its backing store has it; `searched` says whether the store answered.
fn open_source(
    node: &Arc<Node>,
    at: &Located,
    ask: &OpenDataset,
    searched: Result<()>,
    info: &mut DatasetInfo,
) -> Result<Opened> {
    let opened = Opened::new(at.clone(), ask.pattern.clone(), None);
    let within = |error: Error| error.within(format!("dataset {}", ask.path));
    match searched {
        Ok(()) => {
            let told = look(node, &opened, ask)?;
            info.extent = told.extent;
            match told.layout {
                Some(layout) => {
                    opened.set_layout(layout.clone());
                    remember(node, &opened.series(), &layout);
                }
                None => {
                    let known = layout_in_cache(node, at, ask.pattern.as_deref()).map_err(within)?;
                    known.into_iter().for_each(|layout| opened.set_layout(layout));
                }
            }
        }
        // Frames may be pushed here before a shared file system shows their directory. What exists is then what the
        // caches hold; a scan asks for each frame's source.
        Err(error) if is_outage(&error) || error.kind() == ErrorKind::NotFound => {
            match layout_in_cache(node, at, ask.pattern.as_deref()).map_err(within)? {
                Some(layout) => opened.set_layout(layout),
                None => return Err(within(error)),
            }
            info.backing_ok = false;
        }
        Err(error) => return Err(within(error)),
    }
    Ok(opened)
}

/// What the cache has of a directory, for tools: one series by its pattern, or the only one there is.
fn open_cached(node: &Node, at: &Located, ask: &OpenDataset, info: &mut DatasetInfo) -> Result<Opened> {
    let held = held_series(node, at);
    info.series = held.iter().map(|(_, shown)| shown.clone()).collect();
    let chosen = match ask.pattern.as_deref() {
        Some(pattern) => {
            let unpadded = dataset::layout_of_pattern(pattern).map(|layout| Series::of(&layout).to_string());
            let asked = unpadded.unwrap_or_else(|_| pattern.to_owned());
            let found = held.into_iter().find(|(_, shown)| *shown == asked).map(|(series, _)| series);
            Some(found.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("dataset {}: nothing of pattern {pattern} is in this cache", ask.path),
                )
            })?)
        }
        None if held.len() == 1 => held.into_iter().next().map(|(series, _)| series),
        None => None,
    };
    let series = chosen.unwrap_or_else(|| at.dataset.clone());
    let layout = node.store.layout(&series);
    Ok(Opened::cached(at.clone(), ask.pattern.clone(), series, layout))
}

/// The series of a directory that have frames in the cache: path, and name for people.
fn held_series(node: &Node, at: &Located) -> Vec<(RelPath, String)> {
    let all = node.store.series_of(&at.dataset).into_iter();
    let holds = |series: &RelPath| {
        let (native, alien) = node.store.holdings(series);
        !native.is_empty() || !alien.is_empty()
    };
    let held = all.filter(holds);
    held.filter_map(|series| series.series_parts().map(|(_, shown)| (series, shown))).collect()
}

/// The layout of what the cache has of a directory, where the backing store tells none. An error if it has several.
fn layout_in_cache(node: &Node, at: &Located, pattern: Option<&str>) -> Result<Option<Layout>> {
    let held = held_series(node, at);
    if let Some(pattern) = pattern {
        let layout = dataset::layout_of_pattern(pattern)?;
        let series = at.series(&Series::of(&layout))?;
        return Ok(held.iter().any(|(held, _)| *held == series).then_some(layout));
    }
    match &held[..] {
        [] => Ok(None),
        [(series, _)] => Ok(node.store.layout(series)),
        several => {
            let shown: Vec<&str> = several.iter().map(|(_, shown)| shown.as_str()).collect();
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the backing store tells no layout, and the cache has frames of {}; give pattern= for one of them",
                    shown.join(", ")
                ),
            ))
        }
    }
}

/// Keeps the layout with the cached frames, for when the backing store does not answer.
fn remember(node: &Node, series: &RelPath, layout: &Layout) {
    if let Err(error) = node.store.set_layout(series, layout) {
        tracing::warn!("the layout of {series} is not remembered: {error}");
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
    let layout = node.layouts.of(backing, &opened.at.dataset, beneath, ask.pattern.as_deref())?;
    Ok(Told { layout, extent: None })
}
