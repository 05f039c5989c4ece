//! OPEN: finds a dataset and tells its layout and extent, as far as the caller's own rights show
//! them.

use crate::backing_roots::Located;
use crate::guarded_backing::is_outage;
use crate::node::Node;
use crate::opened::OpenedDataset;
use crate::session::Sessions;
use crate::viewer::Viewer;
use std::sync::Arc;
use zazen_backing::by_name::is_by_name;
use zazen_backing::{Backing, Rights, dataset};
use zazen_call::{Caller, Line};
use zazen_core::{Blocks, Error, ErrorKind, Layout, RelPath, Result, RunSet, Series};
use zazen_frames::messages::{DatasetInfo, OpenDataset};

pub(super) fn open(
    node: &Arc<Node>,
    sessions: &Sessions,
    caller: &Caller,
    ask: OpenDataset,
    line: &Line,
) -> Result<DatasetInfo> {
    node.admit()?;
    let viewer = node.powers.viewer(caller)?;
    let is_pattern_given = ask.pattern.is_some();
    let (at, ask) = place(node, &viewer, ask)?;
    let opened = OpenedDataset::new(at, ask.pattern.clone(), viewer, node.stops(line))?;
    let mut info = DatasetInfo {
        handle: 0,
        dataset: RelPath::default(),
        layout: None,
        extent: None,
        backing_ok: true,
        series: Vec::new(),
    };
    match ask.only_cached {
        true => open_cached(node, caller, &opened, &ask, is_pattern_given, &mut info)?,
        false => open_source(node, caller, &opened, &ask, &mut info)?,
    }
    info.layout = opened.known_layout();
    info.dataset = opened.series();
    // It keeps its layout until it is closed.
    let weight = 1 + opened.layout_bytes() / crate::shares::LAYOUT_BYTES_OF_A_SHARE;
    info.handle = sessions.with(caller.connection, |session| {
        session.keep_opened(&ask.path, Arc::new(opened), || node.shares.opened.take_weighing(caller, weight))
    })?;
    node.counters.opens.add(1);
    Ok(info)
}

/// Where the dataset is. A trajectory file is a dataset of its directory, with the file's name for
/// a pattern.
fn place(node: &Node, viewer: &Viewer, mut ask: OpenDataset) -> Result<(Located, OpenDataset)> {
    let at = node.roots.locate(&ask.path)?;
    if ask.pattern.is_some() || at.beneath.is_root() {
        return Ok((at, ask));
    }
    let view = at.root.seen_by(viewer)?;
    let (directory, pattern) = dataset::place(&*view, &at.beneath)?;
    // The file may be gone while the cache has frames of it.
    let cached = || trajectory_in_cache(node, &at).filter(|(directory, _)| may_list(&*view, &at, directory));
    let Some((directory, pattern)) = pattern.map(|pattern| (directory, pattern)).or_else(cached) else {
        return Ok((at, ask));
    };
    ask.pattern = Some(pattern);
    Ok((node.roots.locate(&at.root.spelled(&directory))?, ask))
}

/// Whether the file at `at` is gone, or its store does not answer, and the user may list
/// `directory` as far as the store tells. The cache tells nobody else that it has the file's name.
fn may_list(view: &dyn Backing, at: &Located, directory: &RelPath) -> bool {
    let is_away = |error: &Error| is_outage(error) || error.kind() == ErrorKind::NotFound;
    let gone = view.stat(&at.beneath).is_err_and(|error| is_away(&error));
    gone && match view.allows(directory, Rights::READ.and(Rights::SEARCH)) {
        Ok(allowed) => allowed,
        Err(error) => is_away(&error),
    }
}

/// The directory and the name of the trajectory file at `at`, if frames of it are cached.
fn trajectory_in_cache(node: &Node, at: &Located) -> Option<(RelPath, String)> {
    let (directory, name) = at.beneath.split()?;
    let series = at.dataset.split()?.0.series(&Series::Trajectory(RelPath::new(name).ok()?)).ok()?;
    let (native, alien) = node.store.holdings(&series);
    (!native.is_empty() || !alien.is_empty()).then(|| (directory, name.to_owned()))
}

/// A dataset as the backing store has it.
fn open_source(
    node: &Arc<Node>,
    caller: &Caller,
    opened: &OpenedDataset,
    ask: &OpenDataset,
    info: &mut DatasetInfo,
) -> Result<()> {
    let at = &opened.at;
    let within = |error: Error| error.within(format!("dataset {}", ask.path));
    let in_cache = || layout_in_cache(node, at, ask.pattern.as_deref()).map_err(within);
    match look(node, opened, ask) {
        Ok(told) => {
            info.extent = told.extent;
            match told.layout {
                Some(layout) => {
                    opened.set_layout(layout.clone(), true);
                    // Blocks are of one version of a file; the next open asks for the file's size
                    // again. Numbers by names are those of one pattern; the cache remembers one
                    // list for a directory, the manifest's.
                    if layout.blocks().is_none() && !ask.pattern.as_deref().is_some_and(is_by_name) {
                        remember(node, &opened.series(), &layout);
                    }
                }
                None => in_cache()?.into_iter().for_each(|layout| opened.set_layout(layout, false)),
            }
            Ok(())
        }
        // Frames may be pushed here before a shared file system shows their directory. What exists
        // is then what the caches hold; a scan asks for each frame's source.
        Err(error) if is_outage(&error) || error.kind() == ErrorKind::NotFound => {
            let held = !held_series(node, at).is_empty();
            if held && !opened.owns_what_is_cached(&node.store) {
                return Err(opened.unknowable(error));
            }
            let Some(layout) = in_cache()? else { return Err(within(error)) };
            opened.set_layout(layout, false);
            info.backing_ok = false;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(denied(caller, ask, error)),
        Err(error) => Err(within(error)),
    }
}

fn denied(caller: &Caller, ask: &OpenDataset, why: Error) -> Error {
    let (path, uid) = (&ask.path, caller.credentials.uid);
    Error::new(
        ErrorKind::PermissionDenied,
        format!("dataset {path}: user {uid} may not open it ({why}); ask the owner for permission"),
    )
}

/// What the cache has of a directory, for tools: one series by its pattern, or the only one there
/// is. A series whose pattern the caller gave must be there; of a trajectory file there may be no
/// frames here, as of a directory.
fn open_cached(
    node: &Node,
    caller: &Caller,
    opened: &OpenedDataset,
    ask: &OpenDataset,
    is_pattern_given: bool,
    info: &mut DatasetInfo,
) -> Result<()> {
    if !node.is_operator(caller) {
        opened
            .check_now(&node.store, Rights::READ.and(Rights::SEARCH))
            .map_err(|error| denied(caller, ask, error))?;
    }
    let held = held_series(node, &opened.at);
    if held.is_empty() {
        // A misspelled directory is not one without cached frames.
        let found = opened.backing().stat(&opened.at.beneath);
        found.map_err(|error| error.within(format!("dataset {}", ask.path)))?;
    }
    info.series = held.iter().map(|(_, shown)| shown.clone()).collect();
    let chosen = match ask.pattern.as_deref() {
        Some(pattern) => {
            let unpadded = dataset::series_of_pattern(pattern).map(|series| series.to_string());
            let asked = unpadded.unwrap_or_else(|_| pattern.to_owned());
            // A series may also be given as it is shown.
            let found = held.into_iter().find(|(_, shown)| *shown == asked || *shown == pattern);
            if is_pattern_given && found.is_none() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("dataset {}: nothing of pattern {pattern} is in this cache", ask.path),
                ));
            }
            if !is_pattern_given {
                // The other series of its directory are not the file's.
                info.series.retain(|shown| *shown == asked);
            }
            match found {
                None => Some((opened.at.series(&dataset::series_of_pattern(pattern)?)?, asked)),
                found => found,
            }
        }
        None if held.len() == 1 => held.into_iter().next(),
        None => None,
    };
    let series = chosen.map_or_else(|| opened.at.dataset.clone(), |(series, _)| series);
    let layout = node.store.layout(&series);
    opened.mean_cached(series, layout);
    Ok(())
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

/// The layout of what the cache has of a directory, where the backing store tells none. An error if
/// it has several.
fn layout_in_cache(node: &Node, at: &Located, pattern: Option<&str>) -> Result<Option<Layout>> {
    let held = held_series(node, at);
    if let Some(pattern) = pattern {
        // Only the file itself tells how many blocks it has, and only the folders which files they
        // have.
        if Blocks::parse_pattern(pattern).is_some() || is_by_name(pattern) {
            return Ok(None);
        }
        let series = at.series(&dataset::series_of_pattern(pattern)?)?;
        if !held.iter().any(|(held, _)| *held == series) {
            return Ok(None);
        }
        return match dataset::is_file_name(pattern) {
            true => Ok(node.store.layout(&series)),
            false => dataset::layout_of_pattern(pattern).map(Some),
        };
    }
    match &held[..] {
        [] => Ok(None),
        [(series, _)] => Ok(node.store.layout(series)),
        several => {
            let shown: Vec<&str> = several.iter().map(|(_, shown)| shown.as_str()).collect();
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the backing store tells no layout, and the cache has frames of {}; give pattern= for \
                     one of them",
                    shown.join(", ")
                ),
            ))
        }
    }
}

/// Keeps the layout with the cached frames, for when the backing store does not answer.
fn remember(node: &Node, series: &RelPath, layout: &Layout) {
    let layout = match layout.trajectory() {
        Some(trajectory) => Layout::Trajectory(Arc::new(trajectory.summary())),
        None => layout.clone(),
    };
    if let Err(error) = node.store.set_layout(series, &layout)
        && let Some(left_out) = zazen_call::may_say("layout", "")
    {
        tracing::warn!("the layout of {series} is not remembered: {error}{left_out}");
    }
}

struct Told {
    layout: Option<Layout>,
    extent: Option<RunSet>,
}

fn look(node: &Node, opened: &OpenedDataset, ask: &OpenDataset) -> Result<Told> {
    let (backing, beneath) = (opened.backing(), &opened.at.beneath);
    if ask.want_extent {
        let described = dataset::describe(opened.finder(), backing, beneath, ask.pattern.as_deref())?;
        return Ok(Told { layout: described.layout, extent: Some(described.extent) });
    }
    let layout = node.layouts.of(
        opened.finder(),
        backing,
        &opened.at.dataset,
        beneath,
        ask.pattern.as_deref(),
        opened.viewer.is_own(),
    )?;
    Ok(Told { layout, extent: None })
}
