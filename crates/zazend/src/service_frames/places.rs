//! PLACES: where cached frames lie, for a caller that reads them one by one without asking for
//! each. `zazen_frames::ahead` decides which frames.
//!
//! Invariants: only callers who may open the cache's files by their paths get places, for a
//! descriptor shows all frames of its file. Where sources are compared, the caller looks at them
//! itself; so only frames whose sources are on a disk of this machine have places: a file server
//! that hangs must not keep cached frames from their readers.

use super::scan::local_only;
use crate::node::Node;
use crate::opened::OpenedDataset;
use crate::session::Sessions;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use zazen_call::{Caller, Reply};
use zazen_core::limits::{FDS_PER_MESSAGE_MAX, PLACES_MAX};
use zazen_core::{RelPath, Result};
use zazen_frames::ahead::may_go_ahead;
use zazen_frames::messages::{AskPlaces, PlacedFrame, Places};
use zazen_frames::stale::Validate;
use zazen_store::CachedFrame;
use zazen_wire::Message;

pub(super) fn places(node: &Node, sessions: &Sessions, caller: &Caller, ask: &AskPlaces) -> Result<Reply> {
    local_only(caller)?;
    node.admit()?;
    let opened = sessions.with(caller.connection, |session| session.opened(ask.handle))?;
    opened.check(&node.store)?;
    // This call has a share already.
    opened.layout().ok();
    let compares = node.config().validate == Validate::Always;
    let mut answer = Answer { given: empty(&opened, compares), fds: Vec::new(), last: None };
    if node.is_privileged(caller) && opened.viewer.is_own() {
        count(node, ask);
        let frames_max = (ask.frames_max as usize).min(PLACES_MAX);
        let found = match frames_max {
            0 => Vec::new(),
            _ => entries(node, &opened, ask.number, frames_max)?,
        };
        for entry in found {
            if !answer.add(node, &opened, entry)? {
                break;
            }
        }
    }
    Ok(Reply { payload: answer.given.encode(), fds: answer.fds, ..Reply::default() })
}

fn empty(opened: &OpenedDataset, compares: bool) -> Places {
    Places { directory: opened.spelled(), compares, paths: Vec::new(), frames: Vec::new() }
}

/// Adds what the caller has read from places to the counters.
fn count(node: &Node, ask: &AskPlaces) {
    node.counters.native_reads.add(ask.native_frames);
    node.counters.native_bytes.add(ask.native_bytes);
    node.counters.alien_reads.add(ask.alien_frames);
    node.counters.alien_bytes.add(ask.alien_bytes);
}

/// The frames near `number` whose places may be given, at most `frames_max`.
fn entries(node: &Node, opened: &OpenedDataset, number: u64, frames_max: usize) -> Result<Vec<CachedFrame>> {
    let (validate, layout) = (node.config().validate, opened.told_layout());
    let mut entries = node.store.entries_near(&opened.series(), number, frames_max as u64)?;
    entries.retain(|entry| {
        entry.is_packed() && may_go_ahead(validate, layout.as_deref(), &entry.meta, &entry.source)
    });
    entries.truncate(frames_max);
    if validate == Validate::Always {
        keep_near(opened, &mut entries);
    }
    Ok(entries)
}

/// Keeps the frames whose sources are on a disk of this machine; none, if the store does not
/// answer.
fn keep_near(opened: &OpenedDataset, entries: &mut Vec<CachedFrame>) {
    let folder_of =
        |entry: &CachedFrame| entry.source.path.split().map(|(folder, _)| folder).unwrap_or_default();
    let mut folders: BTreeMap<RelPath, bool> =
        entries.iter().map(|entry| (folder_of(entry), false)).collect();
    let asked: Vec<RelPath> = folders.keys().cloned().collect();
    let told = opened.backing().near_folders(&opened.at.beneath, &asked.into()).unwrap_or_default();
    folders.values_mut().zip(told).for_each(|(near, told)| *near = told);
    entries.retain(|entry| folders.get(&folder_of(entry)).is_some_and(|near| *near));
}

/// An answer in the making.
struct Answer {
    given: Places,
    fds: Vec<OwnedFd>,
    /// The frame whose file is the last of `fds`.
    last: Option<CachedFrame>,
}

impl Answer {
    /// Adds the place of `entry`; false if the answer has no room for one more file. A frame that
    /// is not there any more is left out.
    fn add(&mut self, node: &Node, opened: &OpenedDataset, entry: CachedFrame) -> Result<bool> {
        if !self.last.as_ref().is_some_and(|last| last.is_packed_with(&entry)) {
            if self.fds.len() >= FDS_PER_MESSAGE_MAX {
                return Ok(false);
            }
            let Some(frame) = node.store.open_entry(&opened.series(), &entry)? else { return Ok(true) };
            // The slow way may have found the frame in another place.
            if frame.path != entry.path || frame.offset != entry.offset {
                return Ok(true);
            }
            self.fds.push(frame.file.into());
            self.given.paths.push(entry.path.to_string_lossy().into_owned());
            self.last = Some(entry.clone());
        }
        let CachedFrame { meta, origin, source, offset, .. } = entry;
        let file = self.fds.len() as u16 - 1;
        self.given.frames.push(PlacedFrame { meta, origin, source, file, offset });
        Ok(true)
    }
}
